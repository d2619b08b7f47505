//! A job that has failed ends on every node: docs/reference/job-failure.md. The workers are shells.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration_tests::eventually::eventually;
use integration_tests::launcher::{c10d, free_address};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{Feature, Release, python};
use rustix::process::Signal;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(100);

/// Far longer than any of these jobs.
const FOREVER: &str = "exec sleep 1000";

/// Rank 1 fails when all workers run.
const RANK_1_FAILS: &str = "\
touch up.$RANK
if [ $RANK = 1 ]; then
    while [ $(ls up.* | wc -l) -lt $WORLD_SIZE ]; do sleep 0.01; done
    echo bad shard 17 >&2
    exit 7
fi
exec sleep 1000";

/// The launchers of a job, whose workers run in one folder.
struct Job {
    folder: TempDir,
    options: Vec<String>,
}

impl Job {
    fn new(nodes: &str, options: &[&str]) -> Self {
        let endpoint = free_address().to_string();
        let mut all = vec![
            "run",
            "--no-scheduler",
            "--nnodes",
            nodes,
            "--rdzv-endpoint",
            &endpoint,
            "--rdzv-id",
            "5",
        ];
        all.extend(options);
        Self {
            folder: tempfile::tempdir().unwrap(),
            options: all.into_iter().map(str::to_owned).collect(),
        }
    }

    /// A node of the dynamic rendezvous. The first one hosts the store.
    fn node(&self, index: usize, script: &str) -> ChildProcess {
        let is_host = if index == 0 { "is_host=1" } else { "is_host=0" };
        let conf = format!("{is_host},join_timeout=60,last_call_timeout=1");
        self.launch(
            index,
            &["--rdzv-backend", "c10d", "--rdzv-conf", &conf],
            script,
        )
    }

    fn static_node(&self, index: usize, script: &str) -> ChildProcess {
        let rank = index.to_string();
        self.launch(
            index,
            &["--rdzv-backend", "static", "--node-rank", &rank],
            script,
        )
    }

    fn launch(&self, index: usize, options: &[&str], script: &str) -> ChildProcess {
        let mut command = Command::new(c10d());
        command
            .args(&self.options)
            .args(options)
            .args(["--no-python", "sh", "-c", script])
            .current_dir(&self.folder)
            .env("OMP_NUM_THREADS", "1");
        ChildProcess::start(format!("node {index}"), &mut command)
    }

    fn torchrun(&self, index: usize, options: &[&str], script: &str) -> ChildProcess {
        let mut command = python();
        command
            .args(["-m", "torch.distributed.run", "--rdzv-backend", "c10d"])
            .args(&self.options[2..])
            .args(options)
            .args(["--no-python", "sh", "-c", script])
            .current_dir(&self.folder)
            .env("OMP_NUM_THREADS", "1");
        ChildProcess::start(format!("torchrun {index}"), &mut command)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn await_file(&self, name: &str) {
        eventually(name, || self.path().join(name).exists());
    }
}

fn code(node: &mut ChildProcess) -> i32 {
    let status = node.wait(LIMIT);
    status
        .code()
        .unwrap_or_else(|| panic!("{}: {status}", node.what()))
}

/// The log lines of a launcher. Its workers write nothing.
fn lines(node: &ChildProcess) -> Vec<String> {
    node.stderr().lines().map(str::to_owned).collect()
}

fn count(node: &ChildProcess, text: &str) -> usize {
    lines(node)
        .iter()
        .filter(|line| line.contains(text))
        .count()
}

/// The other nodes stop their workers, and name the worker that failed.
fn assert_stopped(node: &mut ChildProcess, cause: &str) {
    assert_eq!(code(node), 1, "{}", node.stderr());
    assert_eq!(
        count(node, &format!("root cause: {cause}")),
        1,
        "{}",
        node.stderr()
    );
    let stopping = format!(" ended the job: worker with {}", cause.replace(" on ", " "));
    assert_eq!(count(node, &stopping), 1, "{}", node.stderr());
    assert!(lines(node).len() <= 6, "{}", node.stderr());
    for line in lines(node) {
        assert!(line.chars().count() <= 160, "{line}");
    }
}

#[test]
fn a_failure_stops_the_workers_of_all_nodes() {
    // The order of the nodes decides whether the node that hosts the store has rank 0.
    for (nodes, failing) in [(2, 0), (2, 1), (3, 0), (3, 2)] {
        let job = Job::new(&nodes.to_string(), &[]);
        let fails = "touch up.$RANK; while [ $(ls up.* | wc -l) -lt $WORLD_SIZE ]; do sleep 0.01; done\n\
             echo bad shard 17 >&2; echo $RANK >failed; exit 7";
        let runs = format!("touch up.$RANK; {FOREVER}");
        let mut all: Vec<_> = (0..nodes)
            .map(|index| job.node(index, if index == failing { fails } else { &runs }))
            .collect();
        let mut failed = all.remove(failing);
        assert_eq!(code(&mut failed), 1, "{}", failed.stderr());
        let rank = fs::read_to_string(job.path().join("failed")).unwrap();
        let cause = format!("rank {} on ", rank.trim());
        for node in &mut all {
            assert_stopped(node, &cause);
            let text = "ended with exit code 7: bad shard 17";
            assert_eq!(count(node, text), 1, "{}", node.stderr());
        }
    }
}

/// docs/spec/rendezvous.md, END 7.
#[test]
fn static_nodes_end_together() {
    for failing in [0, 1] {
        let job = Job::new("2", &[]);
        let script = RANK_1_FAILS.replace("$RANK = 1", &format!("$RANK = {failing}"));
        let mut all: Vec<_> = (0..2)
            .map(|index| job.static_node(index, &script))
            .collect();
        let mut failed = all.remove(failing);
        assert_eq!(code(&mut failed), 1, "{}", failed.stderr());
        assert_stopped(&mut all[0], &format!("rank {failing} on "));
    }
}

/// docs/spec/rendezvous.md, END 8. A failure after a restart is often a consequence, and on another node.
#[test]
fn the_first_failure_stays_in_the_reports_of_all_nodes() {
    let job = Job::new("2", &["--max-restarts", "1", "--json"]);
    let script = "\
touch up.$RANK.$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE
if mkdir first 2>/dev/null; then
    until [ $(ls up.* | wc -l) = 2 ]; do sleep 0.01; done
    echo bad shard 17 >&2; echo $RANK >first/rank; exit 3
fi
until [ $(ls again.* 2>/dev/null | wc -l) = 2 ]; do
    [ -e first/rank ] && [ $(ls up.* | wc -l) -ge 3 ] && touch again.$RANK; sleep 0.01
done
[ $RANK = 0 ] && exit 4
exec sleep 1000";
    let mut all = [job.node(0, script), job.node(1, script)];
    assert_eq!(
        all.each_mut().map(code),
        [1, 1],
        "{}{}",
        all[0].stderr(),
        all[1].stderr()
    );
    let rank = fs::read_to_string(job.path().join("first/rank")).unwrap();
    let rank: u64 = rank.trim().parse().unwrap();
    for node in &mut all {
        let text = format!(": rank {rank} on ");
        let first = lines(node)
            .into_iter()
            .find(|line| line.contains("the first failure of the job"));
        let first = first.unwrap_or_else(|| panic!("{}", node.stderr()));
        assert!(first.contains(&text), "{first}");
        assert!(
            first.ends_with("ended with exit code 3: bad shard 17"),
            "{first}"
        );
        let json = node.read_json();
        let failure = &json["first_failure"];
        assert_eq!(failure["rank"], rank, "{json}");
        assert_eq!(failure["exit_code"], 3, "{json}");
        assert_eq!(failure["last_line"], "bad shard 17", "{json}");
        assert!(failure["time"].as_f64().unwrap() > 1e9, "{json}");
        assert!(failure["host"].is_string(), "{json}");
    }
}

#[test]
fn nodes_that_have_succeeded_and_spares_exit_with_0_and_tell_the_failure() {
    let job = Job::new("2", &[]);
    let script =
        "case $RANK in 0) exit 0;; esac; until [ -e spare ]; do sleep 0.01; done; sleep 1; exit 7";
    let mut all = [job.node(0, script), job.node(1, script)];
    eventually("both run", || {
        all.iter().all(|it| count(it, "started rank") == 1)
    });
    let mut spare = job.node(2, script);
    eventually("the spare waits", || {
        count(&spare, "waiting for a place") == 1
    });
    fs::write(job.path().join("spare"), "").unwrap();
    let mut codes = all.each_mut().map(code);
    codes.sort_unstable();
    assert_eq!(codes, [0, 1], "{}{}", all[0].stderr(), all[1].stderr());
    assert_eq!(code(&mut spare), 0, "{}", spare.stderr());
    let told = "ended with exit code 7";
    let succeeded = all.iter().find(|it| count(it, "succeeded") > 0).unwrap();
    assert_eq!(count(succeeded, told), 1, "{}", succeeded.stderr());
    assert_eq!(count(&spare, told), 1, "{}", spare.stderr());
}

#[test]
fn loosely_coupled_workers_run_on() {
    let job = Job::new("2", &["--on-job-failure", "continue"]);
    let script = "if [ $RANK = 1 ]; then touch failed; exit 7; fi\n\
                  until [ -e end ]; do sleep 0.01; done; echo done >done";
    let mut all = [job.node(0, script), job.node(1, script)];
    job.await_file("failed");
    let failed = all.iter_mut().position(|it| {
        let mut is_over = false;
        eventually("a launcher knows", || {
            is_over = it.try_wait().is_some();
            is_over || count(it, "the workers keep running") == 1
        });
        is_over
    });
    fs::write(job.path().join("end"), "").unwrap();
    let codes = all.each_mut().map(code);
    assert_eq!(
        codes.map(|it| it == 1),
        [failed == Some(0), failed == Some(1)]
    );
    assert!(job.path().join("done").exists());
}

/// docs/spec/rendezvous.md, END 5. gloo aborts when the interpreter has exited, while rank 0 still writes its results.
#[test]
fn a_failure_at_exit_stops_no_worker() {
    let message = "terminate called without an active exception";
    let script = format!(
        "mktemp up.$RANK.XXXXXX >/dev/null
if [ $RANK = 1 ]; then
    until [ -e result ]; do sleep 0.01; done
    touch aborted; echo {message} >&2; ulimit -c 0; sh -c 'kill -ABRT $PPID'
fi
trap 'echo stopped >>result' TERM
for i in 1 2 3 4 5 6 7 8 9 10; do echo $i >>result; sleep 0.3; done"
    );
    for (restarts, workers) in [("0", "1"), ("2", "1"), ("2", "2")] {
        let nodes = if workers == "1" { "2" } else { "1" };
        let job = Job::new(
            nodes,
            &["--max-restarts", restarts, "--nproc-per-node", workers],
        );
        let count = nodes.parse().unwrap();
        let mut all: Vec<_> = (0..count).map(|index| job.node(index, &script)).collect();
        let codes: Vec<i32> = all.iter_mut().map(code).collect();
        let texts: String = all.iter().map(ChildProcess::stderr).collect();
        let result = fs::read_to_string(job.path().join("result")).unwrap();
        assert_eq!(result, "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n", "{texts}");
        let starts = fs::read_dir(job.path()).unwrap().flatten();
        let starts = starts.filter(|it| it.file_name().to_string_lossy().starts_with("up."));
        assert_eq!(starts.count(), 2, "{restarts}: {texts}");
        match restarts {
            "0" => assert_eq!(codes, vec![1; codes.len()], "{texts}"),
            // The other node had succeeded when this node gave up.
            _ => assert!(codes.contains(&1), "{codes:?}: {texts}"),
        }
    }
}

/// docs/spec/rendezvous.md, EXITS 2. The node of the rank that left waits in the exit barrier.
#[test]
fn a_node_that_has_succeeded_tells_when_its_ranks_left() {
    let job = Job::new("2", &[]);
    let lost = "RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:4711";
    let script = format!(
        "if [ $RANK = 0 ]; then until [ -e up ]; do sleep 0.01; done; touch left; exit 0; fi
touch up; until [ -e left ]; do sleep 0.01; done; sleep 1; echo '{lost}' >&2; exit 1"
    );
    let mut all = [job.node(0, &script), job.node(1, &script)];
    let mut codes = all.each_mut().map(code);
    codes.sort_unstable();
    let texts: String = all.iter().map(ChildProcess::stderr).collect();
    assert_eq!(codes, [0, 1], "{texts}");
    for part in [
        "because of: rank 0;",
        " exited with code 0, ",
        "succeeded, but the job failed: rank 0 on ",
    ] {
        assert!(texts.contains(part), "{texts}");
    }
}

/// docs/spec/rendezvous.md, EXITS 6. The other node prints the same root cause as the node whose workers failed: not the first failure, but the rank that left.
#[test]
fn a_node_without_a_failure_names_the_rank_that_left_on_another_node() {
    let lost = "RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:4711";
    let fails = format!(
        "if [ $LOCAL_RANK = 0 ]; then until [ -e up ]; do sleep 0.01; done; echo $RANK >rank; echo $$$$ >pid; exit 0; fi
until [ -s pid ]; do sleep 0.01; done
while grep -q . /proc/$(cat pid)/cmdline; do sleep 0.01; done
sleep 2; echo '{lost}' >&2; exit 1"
    );
    let runs = format!("touch up; {FOREVER}");
    for failing in [0, 1] {
        let job = Job::new("2", &["--json"]);
        let mut all = [0, 1].map(|index| {
            let is_host = if index == 0 { "1" } else { "0" };
            let conf = format!("is_host={is_host},join_timeout=60,last_call_timeout=1");
            let (workers, script) = match index == failing {
                true => ("--nproc-per-node=2", &fails),
                false => ("--nproc-per-node=1", &runs),
            };
            job.launch(
                index,
                &["--rdzv-backend", "c10d", "--rdzv-conf", &conf, workers],
                script,
            )
        });
        let codes = all.each_mut().map(code);
        let texts: String = all.iter().map(ChildProcess::stderr).collect();
        assert_eq!(codes, [1, 1], "{texts}");
        let rank = fs::read_to_string(job.path().join("rank")).unwrap();
        let rank: u64 = rank.trim().parse().unwrap();
        let text = format!("root cause: rank {rank} on ");
        let other = &all[1 - failing];
        assert_eq!(count(other, &text), 1, "{texts}");
        let causes = all
            .each_mut()
            .map(|node| node.read_json()["root_cause"].clone());
        for cause in &causes {
            assert_eq!(cause["rank"], rank, "{causes:?}{texts}");
            assert_eq!(cause["exit_code"], 0, "{causes:?}");
            let text = cause["cause"].as_str().unwrap();
            assert!(text.contains(" before rank "), "{text}");
        }
    }
}

/// docs/spec/rendezvous.md, END 6. The node with the store waits for a slow launcher, but not for a torchrun node or a lost node.
#[test]
fn the_store_stays_open_until_all_nodes_have_read_the_reason() {
    let job = Job::new("2", &[]);
    let script = "touch up.$GROUP_RANK.$RANK; until [ -e go ]; do sleep 0.01; done; exit 7";
    let mut host = job.node(0, script);
    let mut slow = job.node(1, &format!("touch up.other; {FOREVER}"));
    eventually("both run", || {
        count(&host, "started") + count(&slow, "started") == 2
    });
    slow.pause();
    fs::write(job.path().join("go"), "").unwrap();
    eventually("the report", || host.stderr().contains("FAILED"));
    std::thread::sleep(Duration::from_secs(2));
    assert!(host.try_wait().is_none(), "{}", host.stderr());
    slow.resume();
    assert_stopped(&mut slow, "rank ");
    assert_eq!(code(&mut host), 1);

    // The first signal shortens the wait to half of the grace period, and a second signal stops it.
    let conf = "is_host=1,join_timeout=60,keep_alive_interval=30,keep_alive_max_attempt=10";
    for signals in [&[Signal::TERM, Signal::INT][..], &[Signal::TERM]] {
        let job = Job::new("2", &["--grace-period", "20s"]);
        let mut host = job.launch(0, &["--rdzv-backend", "c10d", "--rdzv-conf", conf], script);
        let slow = job.node(1, &format!("touch up.other; {FOREVER}"));
        eventually("both run", || {
            count(&host, "started") + count(&slow, "started") == 2
        });
        slow.pause();
        fs::write(job.path().join("go"), "").unwrap();
        eventually("the report", || host.stderr().contains("FAILED"));
        signals.iter().for_each(|signal| host.signal(*signal));
        // Without a signal the host would wait for 300 s.
        assert_eq!(code(&mut host), 1, "{}", host.stderr());
    }
}

/// docs/reference/lost-nodes.md.
#[test]
fn while_all_nodes_are_connected_no_loss_is_waited_for() {
    let job = Job::new("1:2", &["--max-restarts", "0"]);
    let node = |index, script: &str| {
        // A node is lost after 300 s without a heartbeat.
        let conf = format!(
            "is_host={},last_call_timeout=30,keep_alive_interval=100",
            1 - index
        );
        let options = ["--rdzv-backend", "c10d", "--rdzv-conf", &conf];
        job.launch(index, &options, script)
    };
    let mut failing = node(0, "until [ -e go ]; do sleep 0.01; done; exit 7");
    let mut other = node(1, FOREVER);
    eventually("both run", || {
        count(&failing, "started") + count(&other, "started") == 2
    });
    fs::write(job.path().join("go"), "").unwrap();
    assert_eq!(code(&mut failing), 1, "{}", failing.stderr());
    assert_eq!(
        count(&failing, "no restart is left: waiting"),
        1,
        "{}",
        failing.stderr()
    );
    assert_stopped(&mut other, "rank ");
}

/// docs/spec/rendezvous.md, END 4.
#[test]
#[ignore = "needs PyTorch, see CONTRIBUTING.md"]
fn a_torchrun_node_that_fails_stops_the_other_nodes_and_is_not_waited_for() {
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    let fails = "until [ -e up ]; do sleep 0.01; done; exit 7";
    let runs = format!("touch up; {FOREVER}");
    let job = Job::new("2", &[]);
    let conf = ["--rdzv-conf", "is_host=0,join_timeout=60"];
    let mut ours = job.node(0, &runs);
    let mut torchrun = job.torchrun(1, &conf, fails);
    assert_eq!(code(&mut torchrun), 1);
    assert_eq!(code(&mut ours), 1, "{}", ours.stderr());
    assert_eq!(
        count(&ours, "closed the rendezvous without a reason"),
        2,
        "{}",
        ours.stderr()
    );

    let job = Job::new("2", &[]);
    let mut ours = job.node(0, fails);
    let mut torchrun = job.torchrun(1, &conf, "touch up; until [ -e end ]; do sleep 0.01; done");
    let started = std::time::Instant::now();
    assert_eq!(code(&mut ours), 1, "{}", ours.stderr());
    assert!(torchrun.try_wait().is_none());
    assert!(started.elapsed() < Duration::from_secs(60));
    fs::write(job.path().join("end"), "").unwrap();
    code(&mut torchrun);
}
