//! The complete logs of typical runs, so that a reviewer sees each change to a line.
//!
//! `golden/NAME.log` has the output of a launcher, without the parts that differ between runs: times, process ids,
//! ports and paths.
//! Each launcher has its own file, because the order of lines of different processes is not determined. The workers wait
//! with their output until their launcher has reported the start. After a change of a log, run the tests with
//! `C10D_UPDATE_GOLDEN=1`, and review the difference.

mod normal;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{PATIENCE, Running, Server, free_port, until};
use crate::run::Job;
use crate::secret::new_secret;

/// Longer lines are cut or broken by the terminals and the log viewers of operators. Includes the time and the level.
const LINE_CHARS_MAX: usize = 160;

/// The lines of a launcher before the output of the job.
const START_LINES_MAX: usize = 4;

/// The end of the line about the page and the command.
const START: &str = "if the job hangs";

/// Lines of a launcher that has waited for a moment, because another launcher of its job has started late.
const OF_WAITS: [&str; 4] = [
    "waiting up to",
    "the job starts in",
    "waiting for a place",
    "retrying for up to",
];

/// The beginning of each line that workers write to standard error.
const WORKER_ERROR: &str = "error: ";

/// A worker that waits for the test, and then prints its rank.
const WORKER: &str = "
    cd $C10D_TEST_FOLDER
    until [ -e go ]; do sleep 0.02; done
    echo rank $RANK of $WORLD_SIZE";

/// A worker that waits for the test. Then rank 0 fails, and rank 1 would run for a minute.
const FAILS: &str = "
    cd $C10D_TEST_FOLDER
    test $RANK = 1 && exec sleep 60
    until [ -e go ]; do sleep 0.02; done
    echo 'error: no more data' >&2
    exit 7";

/// A launcher whose output is in two files of the job's folder.
struct Launcher<'j> {
    job: &'j Job,
    name: &'static str,
    running: Running,
    has_workers: bool,
    /// Whether the log shall show that the launcher waits.
    waits: bool,
}

impl<'j> Launcher<'j> {
    fn start(job: &'j Job, name: &'static str, mut command: Command) -> Self {
        let file = |kind: &str| File::create(job.path(&format!("{name}.{kind}"))).unwrap();
        command.stdout(file("stdout")).stderr(file("stderr"));
        command.env("TMPDIR", job.path(""));
        Self {
            job,
            name,
            running: Running::start(command),
            has_workers: true,
            waits: false,
        }
    }

    fn output(&self, kind: &str) -> String {
        fs::read_to_string(self.job.path(&format!("{}.{kind}", self.name))).unwrap()
    }

    /// The log, without lines that only a late start of another launcher causes.
    fn log(&self) -> String {
        let log = self.output("stderr");
        let is_kept = |line: &&str| self.waits || !OF_WAITS.iter().any(|it| line.contains(it));
        log.lines()
            .filter(is_kept)
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Waits until the log has this text.
    fn await_log(&self, text: &str) {
        let start = Instant::now();
        loop {
            let log = self.output("stderr");
            if log.contains(text) {
                return;
            }
            let name = self.name;
            assert!(start.elapsed() < PATIENCE, "{name} has no {text:?}:\n{log}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end, and compares all output with the golden file of this name.
    fn end(mut self) {
        let start = Instant::now();
        while self.running.is_running() {
            let (name, log) = (self.name, || self.output("stderr"));
            assert!(
                start.elapsed() < PATIENCE,
                "{name} does not end:\n{}",
                log()
            );
            thread::sleep(Duration::from_millis(2));
        }
        let code = self.running.exit_code();
        let log = self.log();
        for line in log.lines().filter(|line| line.starts_with('[')) {
            let is_whole = line.chars().count() <= LINE_CHARS_MAX && !line.ends_with('…');
            assert!(is_whole, "more than {LINE_CHARS_MAX} characters: {line}");
        }
        // The order between lines of a worker and lines of its launcher or of other workers is not determined.
        let (of_workers, log): (Vec<&str>, Vec<&str>) =
            log.lines().partition(|line| line.starts_with(WORKER_ERROR));
        let stdout = self.output("stdout");
        let mut output: Vec<&str> = stdout.lines().chain(of_workers).collect();
        if self.has_workers {
            output.sort_unstable();
        }
        let text = [
            &["---- log"],
            &log[..],
            &["---- output"],
            &output,
            &[&format!("---- exit code {code}")],
        ];
        let text = text.concat().join("\n");
        let folder = self.job.path("");
        compare(self.name, &normal::normal(&text, &folder));
    }
}

/// Compares with a golden file, or writes it.
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cli/golden/{name}.log"));
    if std::env::var_os("C10D_UPDATE_GOLDEN").is_some() {
        fs::write(path, text).unwrap();
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    if golden != text {
        let same = golden.lines().zip(text.lines()).take_while(|(a, b)| a == b);
        let line = same.count();
        panic!(
            "line {} is not that of {}:\n  {:?}, but\n  {:?}\nC10D_UPDATE_GOLDEN=1 writes the file again. All:\n{text}",
            line + 1,
            path.display(),
            golden.lines().nth(line),
            text.lines().nth(line),
        );
    }
}

/// A node of a job of two, whose first node serves the store on this port.
fn node(job: &Job, port: u16, options: &[&str], script: &str) -> Command {
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{port}");
    let mut all = vec!["--rdzv-backend=c10d", "--rdzv-id=job", &endpoint];
    all.extend(options);
    if !options.iter().any(|option| option.starts_with("--nnodes")) {
        all.push("--nnodes=2");
    }
    job.command(&all, script)
}

const FIRST: &str = "--rdzv-conf=is_host=1";
const SECOND: &str = "--rdzv-conf=is_host=0";

/// Two launchers of one job, whose workers have started.
fn two_nodes<'j>(
    job: &'j Job,
    names: [&'static str; 2],
    options: &[&str],
    script: &str,
) -> [Launcher<'j>; 2] {
    let port = free_port();
    // Ranks are in the order of addresses and process ids, and a later process can have a smaller process id.
    let roles = [(FIRST, "127.0.0.1"), (SECOND, "localhost")];
    let mut started = roles.into_iter().zip(names).map(|((role, address), name)| {
        let address = format!("--local-addr={address}");
        let all = [&[role, &address][..], options].concat();
        let mut command = node(job, port, &all, script);
        command.env("NODE", name);
        Launcher::start(job, name, command)
    });
    let both = [started.next().unwrap(), started.next().unwrap()];
    for launcher in &both {
        launcher.await_log(START);
    }
    both
}

fn go(job: &Job) {
    fs::write(job.path("go"), "").unwrap();
}

#[test]
fn one_node_succeeds() {
    let job = Job::new();
    let command = job.command(&["--nproc-per-node=2"], WORKER);
    let launcher = Launcher::start(&job, "one_node", command);
    launcher.await_log(START);
    go(&job);
    launcher.end();
}

#[test]
fn two_nodes_succeed() {
    let job = Job::new();
    let both = two_nodes(&job, ["two_nodes_0", "two_nodes_1"], &[], WORKER);
    go(&job);
    both.into_iter().for_each(Launcher::end);
}

#[test]
fn a_worker_fails() {
    let job = Job::new();
    let command = job.command(&["--nproc-per-node=2"], FAILS);
    let launcher = Launcher::start(&job, "failure", command);
    launcher.await_log(START);
    go(&job);
    launcher.end();
}

#[test]
fn the_workers_are_restarted() {
    let job = Job::new();
    let script = "
        cd $C10D_TEST_FOLDER
        until [ -e go ]; do sleep 0.02; done
        test $TORCHELASTIC_RESTART_COUNT = 1 || exit 7
        echo 'error: again' >&2
        until [ -e end ]; do sleep 0.02; done";
    let launcher = Launcher::start(&job, "restart", job.command(&["--max-restarts=1"], script));
    launcher.await_log(START);
    go(&job);
    launcher.await_log("restarted the workers");
    fs::write(job.path("end"), "").unwrap();
    launcher.end();
}

#[test]
fn a_signal_stops_the_job() {
    let job = Job::new();
    let ready = job.path("ready");
    let script = format!(
        "exec 2>/dev/null; trap 'echo saved; exit 0' TERM; : >{}; while sleep 0.05; do :; done",
        ready.display()
    );
    let launcher = Launcher::start(
        &job,
        "signal",
        job.command(&["--nproc-per-node=1"], &script),
    );
    launcher.await_log(START);
    until("the trap is set", || ready.exists());
    launcher.running.signal(Signal::TERM);
    launcher.end();
}

/// The store of the rendezvous is lost, and the workers, which do not use it, succeed.
#[test]
fn the_store_is_lost() {
    let job = Job::new();
    let store = Server::start();
    let endpoint = format!("--rdzv-endpoint={}", store.address);
    let options = [
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0,last_call_timeout=1",
        &endpoint,
    ];
    let launcher = Launcher::start(&job, "lost_store", job.command(&options, WORKER));
    launcher.await_log(START);
    drop(store);
    launcher.await_log("reconnecting for up to");
    go(&job);
    launcher.end();
}

/// Compares the log of a node whose job has failed on the other node.
#[test]
fn another_node_fails() {
    let job = Job::new();
    let names = ["remote_failure_0", "remote_failure_1"];
    let both = two_nodes(&job, names, &[], FAILS);
    go(&job);
    both.into_iter().for_each(Launcher::end);
}

/// The job has a secret, which does not protect the workers' store, and options that have no effect.
#[test]
fn a_secret_protects_only_the_rendezvous() {
    let job = Job::new();
    let secret = new_secret(&job.path(""), "secret");
    let option = format!("--secret-file={}", secret.display());
    let names = ["secret_0", "secret_1"];
    let both = two_nodes(&job, names, &[&option, "--preload-standby"], WORKER);
    go(&job);
    both.into_iter().for_each(Launcher::end);
}

#[test]
fn a_dry_run_has_all_warnings_and_timeouts() {
    let job = Job::new();
    let options = [
        "--dry-run",
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=join_timeout=10",
        "--preload-standby",
    ];
    let mut launcher = Launcher::start(&job, "dry_run", job.command(&options, WORKER));
    launcher.has_workers = false;
    launcher.end();
}

/// A second node joins an elastic job, which starts its workers again.
#[test]
fn a_node_joins_an_elastic_job() {
    let job = Job::new();
    let port = free_port();
    let script = format!("{WORKER}\n echo 'error: the first output' >&2");
    let options = [
        "--nnodes=1:2",
        "--rdzv-conf=is_host=1,last_call_timeout=1",
        "--local-addr=127.0.0.1",
    ];
    let first = Launcher::start(&job, "elastic_0", node(&job, port, &options, &script));
    first.await_log(START);
    let options = ["--nnodes=1:2", SECOND, "--local-addr=localhost"];
    let second = Launcher::start(&job, "elastic_1", node(&job, port, &options, &script));
    for launcher in [&first, &second] {
        launcher.await_log("of 2");
    }
    go(&job);
    [first, second].into_iter().for_each(Launcher::end);
}

/// A node of a job with long names, whose store has no address. The whole output has short lines.
#[test]
fn the_host_of_the_store_is_not_known() {
    let job = Job::new();
    let options = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=a-long-name-of-a-training-job-17",
        "--rdzv-endpoint=node-17.pool-with-a-long-name.invalid:29400",
        "--rdzv-conf=is_host=0,join_timeout=2",
    ];
    let mut launcher = Launcher::start(&job, "no_host", job.command(&options, WORKER));
    launcher.waits = true;
    launcher.end();
}

#[test]
fn a_node_does_not_arrive() {
    let job = Job::new();
    let port = free_port();
    let options = ["--rdzv-conf=is_host=1,join_timeout=3,keep_alive_interval=1"];
    let mut launcher = Launcher::start(&job, "missing", node(&job, port, &options, WORKER));
    launcher.waits = true;
    launcher.end();
}

/// Starts a job with all features that could have a separate line.
#[test]
fn at_most_four_lines_come_before_the_output() {
    let job = Job::new();
    let options = [
        "--redirects=3",
        "--debug-server",
        "--relay",
        "--preload-standby",
        "--role=trainer",
        "--debug-rank=0",
    ];
    let both = two_nodes(&job, ["start_0", "start_1"], &options, WORKER);
    for launcher in &both {
        let log = launcher.log();
        assert!(log.lines().count() <= START_LINES_MAX, "{log}");
    }
    go(&job);
    both.into_iter().for_each(Launcher::end);
}
