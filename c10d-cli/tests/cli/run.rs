//! `c10d run`: whole jobs of shell scripts, on one and on several nodes.
//!
//! `integration-tests` runs real PyTorch workers.

#[cfg(target_os = "linux")]
mod debug_rank;
#[cfg(target_os = "linux")]
mod early_signal;
mod full_console;
#[cfg(target_os = "linux")]
mod full_logs;
mod grace_period;
mod interpreter;
mod open_files;
mod scheduler;
mod stop_signals;
mod temporary;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use elastic_rendezvous::RendezvousState;
use elastic_rendezvous::codec::{self, CodecLimits};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{
    Ended, PROGRAM, Running, Server, command, command_of, free_port, refusing_address, until,
};

/// The job's folder, in the environment of all its processes, so that a test finds the remaining processes.
const FOLDER: &str = "C10D_TEST_FOLDER";

/// A job: a folder with its scripts and their files. Drop kills processes that still run.
pub(crate) struct Job {
    folder: TempDir,
    /// The store of the rendezvous, if the test serves it.
    server: Option<Server>,
}

impl Job {
    pub(crate) fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            server: None,
        }
    }

    /// A job whose store outlives every node.
    pub(crate) fn with_server() -> Self {
        let mut job = Self::new();
        job.server = Some(Server::start());
        job
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// A line that a worker writes, once it is complete.
    pub(crate) fn line(&self, name: &str) -> String {
        let mut text = String::new();
        until(name, || {
            text = fs::read_to_string(self.path(name)).unwrap_or_default();
            text.ends_with('\n')
        });
        text.trim_end().to_owned()
    }

    /// `c10d run ARGUMENTS --no-python sh FILE`, where the file holds `script`.
    pub(crate) fn command(&self, arguments: &[&str], script: &str) -> Command {
        self.command_of(PROGRAM, arguments, script)
    }

    /// Returns the command of another `c10d`.
    pub(crate) fn command_of(&self, program: &str, arguments: &[&str], script: &str) -> Command {
        let file = self.path("worker.sh");
        fs::write(&file, script).unwrap();
        let mut command = command_of(program, ["run"].iter().chain(arguments));
        command
            .args([
                OsStr::new("--no-python"),
                OsStr::new("sh"),
                file.as_os_str(),
            ])
            .env(FOLDER, self.folder.path())
            // Otherwise there is a warning whenever a node has several workers.
            .env("OMP_NUM_THREADS", "1")
            .env_remove("TORCHELASTIC_ERROR_FILE");
        command
    }

    pub(crate) fn start(&self, arguments: &[&str], script: &str) -> Running {
        Running::start(self.command(arguments, script))
    }

    pub(crate) fn run(&self, arguments: &[&str], script: &str) -> Ended {
        self.start(arguments, script).end()
    }

    /// Like [`start`](Self::start), for one of two nodes that meet at the job's server.
    pub(crate) fn start_node(&self, arguments: &[&str], script: &str) -> Running {
        Running::start(self.node_command(arguments, script))
    }

    pub(crate) fn node_command(&self, arguments: &[&str], script: &str) -> Command {
        let endpoint = format!("--rdzv-endpoint={}", self.server().address);
        let common = [
            "--nnodes=2",
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            "--rdzv-conf=is_host=0",
            &endpoint,
        ];
        self.command(&[&common, arguments].concat(), script)
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// The state of the rendezvous `job` at the job's server, once there is one.
    pub(crate) fn state(&self) -> Option<RendezvousState> {
        let get = ["get", "torch.rendezvous.job", "--timeout=5s"];
        let text = self.server().store(&get).stdout;
        codec::from_text(text.trim_ascii(), &CodecLimits::default()).ok()
    }

    /// The processes with this job's folder in their environment: agents, workers and their children. Empty
    /// without /proc.
    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        let wanted = format!("{FOLDER}={}", self.folder.path().display());
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
                let mut variables = environment.split(|byte| *byte == 0);
                variables.any(|variable| variable == wanted.as_bytes())
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// Asserts that no process of the job is left.
    #[track_caller]
    pub(crate) fn assert_nothing_runs(&self) {
        let processes = self.processes();
        assert!(processes.is_empty(), "{processes:?} still run");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The sorted output lines of nodes.
fn lines<'a>(ended: impl IntoIterator<Item = &'a Ended>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = ended
        .into_iter()
        .flat_map(|ended| ended.stdout_text().lines())
        .collect();
    lines.sort_unstable();
    lines
}

#[track_caller]
fn assert_succeeded(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("ERROR"), "{ended:?}");
}

const RANKS: &str =
    "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE";

const RANKS_OF_2_NODES: [&str; 4] = ["0 4 0 2 0 2", "1 4 1 2 0 2", "2 4 0 2 1 2", "3 4 1 2 1 2"];

#[test]
fn a_standalone_node_starts_every_rank_and_exits_with_0() {
    let job = Job::new();
    let ended = job.run(&["--standalone", "--nproc-per-node=4"], RANKS);
    assert_succeeded(&ended);
    // The log has the address of the workers' store, and the rank of each process.
    let log: Vec<&str> = ended.stderr.lines().collect();
    let [.., ranks, page] = &log[..] else {
        panic!("{ended:?}");
    };
    assert!(ranks.contains("started ranks 0-3 of 4: pid "), "{ranks}");
    assert!(page.contains("status page: http://127.0.0.1:"), "{page}");
    assert_eq!(
        lines([&ended]),
        ["0 4 0 4 0 1", "1 4 1 4 0 1", "2 4 2 4 0 1", "3 4 3 4 0 1"]
    );
    job.assert_nothing_runs();
}

#[test]
fn two_nodes_meet_at_a_served_store_and_agree_on_ranks_and_master() {
    let job = Job::with_server();
    let script = format!("{RANKS}; echo $MASTER_ADDR:$MASTER_PORT > $C10D_TEST_FOLDER/$RANK");
    let options = ["--nproc-per-node=2", "--local-addr=127.0.0.1"];
    let nodes = [(); 2].map(|()| job.start_node(&options, &script));
    let ended = nodes.map(Running::end);
    ended.iter().for_each(assert_succeeded);
    assert_eq!(lines(&ended), RANKS_OF_2_NODES);
    let master = job.line("0");
    assert!(master.starts_with("127.0.0.1:"), "{master}");
    for rank in ["1", "2", "3"] {
        assert_eq!(job.line(rank), master);
    }
    job.assert_nothing_runs();
}

#[test]
fn the_first_of_two_nodes_serves_the_store() {
    let job = Job::new();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let options = [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        &endpoint,
    ];
    let nodes = [(); 2].map(|()| job.start(&options, RANKS));
    let ended = nodes.map(Running::end);
    ended.iter().for_each(assert_succeeded);
    assert_eq!(lines(&ended), RANKS_OF_2_NODES);
}

/// A connection or the server of an ended job can hold the port for a while.
#[test]
fn a_node_serves_the_store_once_its_port_is_free() {
    let job = Job::new();
    let (held, address) = refusing_address();
    let endpoint = format!("--rdzv-endpoint={address}");
    let options = [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        &endpoint,
    ];
    let mut nodes = [(); 2].map(|()| job.start(&options, RANKS));
    let logs = nodes.each_mut().map(|node| {
        let mut log = BufReader::new(node.stderr());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        for text in ["cannot connect to ", ", and its port is taken; "] {
            assert!(line.contains(text), "no {text:?} in {line}");
        }
        log
    });
    drop(held);
    let ended = nodes.map(Running::end);
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    assert_eq!(lines(&ended), RANKS_OF_2_NODES);
    drop(logs);
}

#[test]
fn two_nodes_meet_in_a_file() {
    let job = Job::new();
    let endpoint = format!("--rdzv-endpoint={}", job.path("store").display());
    let options = [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-conf=store_type=file",
        &endpoint,
    ];
    let nodes = [(); 2].map(|()| job.start(&options, RANKS));
    let ended = nodes.map(Running::end);
    ended.iter().for_each(assert_succeeded);
    assert_eq!(lines(&ended), RANKS_OF_2_NODES);
}

#[test]
fn static_nodes_use_their_given_ranks() {
    let job = Job::new();
    let port = free_port().to_string();
    let nodes = ["1", "0"].map(|rank| {
        let options = [
            "--nnodes=2",
            "--nproc-per-node=2",
            "--node-rank",
            rank,
            "--master-addr=127.0.0.1",
            "--master-port",
            &port,
        ];
        let script = format!("{RANKS}; echo $MASTER_PORT > $C10D_TEST_FOLDER/$RANK");
        job.start(&options, &script)
    });
    let ended = nodes.map(Running::end);
    ended.iter().for_each(assert_succeeded);
    assert_eq!(lines(&ended), RANKS_OF_2_NODES);
    // The node with rank 1 started first.
    assert_eq!(lines([&ended[0]]), RANKS_OF_2_NODES[2..]);
    assert_eq!(job.line("3"), port);
}

#[test]
fn the_worker_that_fails_is_the_root_cause_in_the_report() {
    let job = Job::new();
    let script = "
        [ $RANK = 1 ] || exec sleep 1000
        echo the first line of rank $RANK >&2
        echo the last line of rank $RANK >&2
        exit 7";
    let ended = job.run(&["--standalone", "--nproc-per-node=3"], script);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let (_, cause) = ended.stderr.split_once("Root Cause").unwrap();
    for text in [
        "rank      : 1 (local_rank: 1)",
        "exitcode  : 7 (pid: ",
        "    the first line of rank 1\n    the last line of rank 1\n",
    ] {
        assert!(cause.contains(text), "no {text:?} in {cause}");
    }
    assert!(!cause.contains("rank 0"), "{cause}");
    job.assert_nothing_runs();
}

#[test]
fn the_workers_error_file_is_reported_and_copied_for_the_parent_program() {
    let job = Job::new();
    let script = r#"
        echo '{"message": {"message": "ValueError: 42 is too many", "extraInfo":
            {"py_callstack": "a stack", "timestamp": "1700000000"}}}' > $TORCHELASTIC_ERROR_FILE
        exit 3"#;
    let error_file = job.path("error.json");
    let mut command = job.command(&["--standalone"], script);
    command.env("TORCHELASTIC_ERROR_FILE", &error_file);
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("a stack"), "{ended:?}");
    let left: Value = serde_json::from_slice(&fs::read(error_file).unwrap()).unwrap();
    assert_eq!(left["message"]["message"], "ValueError: 42 is too many");
    assert_eq!(left["message"]["errorCode"], 3);
}

#[test]
fn without_an_error_file_the_parent_program_gets_exit_code_and_last_lines() {
    let job = Job::new();
    let error_file = job.path("error.json");
    let mut command = job.command(&["--standalone"], "echo no train.bin >&2; exit 3");
    command.env("TORCHELASTIC_ERROR_FILE", &error_file);
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let left: Value = serde_json::from_slice(&fs::read(error_file).unwrap()).unwrap();
    let message = &left["message"];
    assert_eq!(message["message"], "worker with rank 0 failed: exit code 3");
    assert_eq!(message["errorCode"], 3);
    let stack = message["extraInfo"]["py_callstack"].as_str().unwrap();
    assert!(stack.ends_with("\nno train.bin"), "{stack}");
}

#[test]
fn json_reports_the_outcome() {
    let job = Job::new();
    let report = |options: &[&str], script: &str| -> Value {
        let ended = job.run(&[&["--json"], options].concat(), script);
        let last = ended.stdout_text().lines().last().unwrap();
        let report: Value = serde_json::from_str(last).unwrap();
        assert_eq!(report["exit_code"], ended.code.unwrap());
        report
    };
    let report_of_success = report(&["--standalone"], "echo out");
    assert_eq!(report_of_success["outcome"], "succeeded");
    let script = "[ $RANK = 1 ] || exec sleep 1000; echo why >&2; exit 7";
    let failed = report(&["--standalone", "--nproc-per-node=2"], script);
    assert_eq!(
        (&failed["outcome"], &failed["exit_code"]),
        (&json!("failed"), &json!(1))
    );
    let failures = failed["failures"].as_array().unwrap();
    let root = failures
        .iter()
        .find(|failure| failure["is_root_cause"] == true)
        .unwrap();
    assert_eq!(root["rank"], 1);
    assert_eq!(root["exit_code"], 7);
    assert_eq!(root["stderr"], json!(["why"]));
    let stopped = failures
        .iter()
        .find(|failure| failure["rank"] == 0)
        .unwrap();
    assert_eq!(stopped["signal"], "SIGTERM");
    let options = [
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:1",
        "--rdzv-conf=is_host=0,join_timeout=1",
    ];
    let unmet = report(&options, "");
    assert_eq!(unmet["outcome"], "error");
    assert!(
        unmet["error"].as_str().unwrap().contains("127.0.0.1:1"),
        "{unmet}"
    );
}

#[test]
fn failed_workers_are_restarted_up_to_max_restarts() {
    let job = Job::new();
    let script = "
        echo $RANK: $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS
        [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0
        [ $RANK = 1 ] && exit 1
        exec sleep 1000";
    let options = ["--standalone", "--nproc-per-node=2", "--max-restarts=2"];
    let ended = job.run(&options, script);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let of_rank_1 = ["1: 0 of 2", "1: 1 of 2", "1: 2 of 2"];
    let lines = lines([&ended]);
    assert_eq!(lines[lines.len() - 3..], of_rank_1, "{ended:?}");
    assert!(lines.contains(&"0: 2 of 2"), "{ended:?}");
    assert!(!ended.stderr.contains("FAILED"), "{ended:?}");
}

#[test]
fn a_failure_on_one_of_two_nodes_restarts_the_workers_of_both() {
    let job = Job::with_server();
    let script = "
        echo $TORCHELASTIC_RESTART_COUNT
        [ -e $C10D_TEST_FOLDER/again ] && exit 0
        [ $RANK = 0 ] || { touch $C10D_TEST_FOLDER/other; exec sleep 1000; }
        until [ -e $C10D_TEST_FOLDER/other ]; do sleep 0.01; done
        touch $C10D_TEST_FOLDER/again
        exit 1";
    let nodes = [(); 2].map(|()| job.start_node(&["--max-restarts=1"], script));
    let ended = nodes.map(Running::end);
    for ended in &ended {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    // Only the node whose worker failed counts a restart, as in torchrun.
    assert_eq!(lines(&ended), ["0", "0", "0", "1"]);
    job.assert_nothing_runs();
}

#[test]
fn only_the_killed_node_of_three_is_named() {
    let job = Job::with_server();
    let endpoint = format!("--rdzv-endpoint={}", job.server().address);
    let options = [
        "--nnodes=2:3",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0,keep_alive_interval=1",
        &endpoint,
    ];
    // When one of three nodes is lost all workers fail, as PyTorch's do.
    let script = "
        [ $GROUP_WORLD_SIZE = 3 ] || exit 0
        echo > $C10D_TEST_FOLDER/ready.$RANK
        while ! [ -e $C10D_TEST_FOLDER/fail ]; do sleep 0.01; done
        exit 1";
    let [a, b, killed] = [(); 3].map(|()| job.start(&options, script));
    for name in ["ready.0", "ready.1", "ready.2"] {
        job.line(name);
    }
    let pid = killed.id();
    killed.signal(Signal::KILL);
    assert_eq!(killed.end().code, None);
    fs::write(job.path("fail"), "").unwrap();
    for ended in [a.end(), b.end()] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let lost: Vec<&str> = ended
            .stderr
            .lines()
            .filter(|line| line.contains("no heartbeat"))
            .collect();
        assert!(!lost.is_empty(), "{ended:?}");
        let named = format!("(pid {pid}): no heartbeat for ");
        assert!(lost.iter().all(|line| line.contains(&named)), "{lost:?}");
    }
}

#[test]
fn sigterm_ends_workers_and_their_children() {
    let job = Job::new();
    let script = "
        trap 'echo TERM > $C10D_TEST_FOLDER/signaled.$RANK; exit 0' TERM
        sh -c 'echo $$ > $C10D_TEST_FOLDER/child.$RANK; exec sleep 1000' &
        wait";
    let agent = job.start(&["--standalone", "--nproc-per-node=2"], script);
    let children = ["child.0", "child.1"].map(|name| job.line(name));
    agent.signal(Signal::TERM);
    let ended = agent.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        !ended.stderr.contains("sent SIGKILL to worker"),
        "{ended:?}"
    );
    assert_eq!(
        ["signaled.0", "signaled.1"].map(|name| job.line(name)),
        ["TERM"; 2]
    );
    for child in children {
        assert!(has_ended(&child), "{child}");
    }
    job.assert_nothing_runs();
}

#[test]
fn workers_that_ignore_sigterm_are_killed_after_the_shutdown_timeout() {
    let job = Job::new();
    let script = "
        trap 'echo > $C10D_TEST_FOLDER/signaled' TERM
        echo > $C10D_TEST_FOLDER/ready
        while :; do sleep 0.01; done";
    let agent = job.start(&["--standalone", "--shutdown-timeout=1"], script);
    job.line("ready");
    agent.signal(Signal::TERM);
    let ended = agent.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(job.exists("signaled"), "{ended:?}");
    assert!(ended.stderr.contains("sent SIGKILL to worker"), "{ended:?}");
    job.assert_nothing_runs();
}

#[test]
fn a_waiting_node_leaves_at_sigterm_and_the_others_continue() {
    let job = Job::with_server();
    let waiting = job.start_node(&[], RANKS);
    let state = || {
        let seconds = ["get", "torch.rendezvous.job", "--timeout=5s"];
        job.server().store(&seconds).stdout
    };
    // Longer than the initial value, before any node has joined.
    until("the node has joined", || state().len() > 100);
    waiting.signal(Signal::TERM);
    let ended = waiting.end();
    assert_eq!(
        (ended.code, ended.stdout_text()),
        (Some(143), ""),
        "{ended:?}"
    );

    let nodes = [(); 2].map(|()| job.start_node(&[], RANKS));
    let ended = nodes.map(Running::end);
    ended.iter().for_each(assert_succeeded);
    assert_eq!(lines(&ended), ["0 2 0 1 0 2", "1 2 0 1 1 2"]);
}

#[test]
#[cfg(target_os = "linux")]
fn no_worker_outlives_an_agent_that_is_killed() {
    let job = Job::new();
    let script = "
        trap '' HUP INT TERM
        sleep 1000 &
        echo $! > $C10D_TEST_FOLDER/child.$RANK
        wait";
    let agent = job.start(&["--standalone", "--nproc-per-node=2"], script);
    for name in ["child.0", "child.1"] {
        job.line(name);
    }
    agent.signal(Signal::KILL);
    assert_eq!(agent.end().code, None);
    until("no process is left", || job.processes().is_empty());
}

#[test]
#[cfg(target_os = "linux")]
fn no_temporary_file_outlives_an_agent_that_is_killed() {
    let job = Job::new();
    let temporary = job.path("temporary");
    fs::create_dir(&temporary).unwrap();
    let script = "echo > $C10D_TEST_FOLDER/up; sleep 1000 & wait";
    let options = ["--standalone", "--progress-timeout=1h", "--debug-server"];
    let mut command = job.command(&options, script);
    command
        .env("TMPDIR", &temporary)
        .env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    let agent = Running::start(command);
    job.line("up");
    let left = || fs::read_dir(&temporary).unwrap().count();
    assert_eq!(left(), 4, "progress, debug server, timers, error files");
    agent.signal(Signal::KILL);
    assert_eq!(agent.end().code, None);
    until("no temporary file is left", || left() == 0);
}

#[test]
fn sigusr1_reaches_the_workers_and_does_not_end_the_agent() {
    let job = Job::new();
    let script = "
        trap 'echo > $C10D_TEST_FOLDER/signaled.$RANK; exit 0' USR1
        echo > $C10D_TEST_FOLDER/ready.$RANK
        while :; do sleep 0.01; done";
    let agent = job.start(&["--standalone", "--nproc-per-node=2"], script);
    for name in ["ready.0", "ready.1"] {
        job.line(name);
    }
    agent.signal(Signal::USR1);
    let ended = agent.end();
    // The shells report that the signal ended their `sleep`, which is in their process group.
    assert_succeeded(&ended);
    assert!(job.exists("signaled.0") && job.exists("signaled.1"));
}

#[test]
fn a_spare_node_exits_with_0_when_the_job_ends() {
    let job = Job::with_server();
    let endpoint = format!("--rdzv-endpoint={}", job.server().address);
    let options = ["--rdzv-backend=c10d", "--rdzv-conf=is_host=0", &endpoint];
    let script = "
        echo > $C10D_TEST_FOLDER/ready
        while ! [ -e $C10D_TEST_FOLDER/end ]; do sleep 0.01; done";
    let member = job.start(&options, script);
    job.line("ready");
    let state = || {
        let key = ["get", "torch.rendezvous.none", "--timeout=5s"];
        job.server().store(&key).stdout
    };
    let alone = state().len();
    let spare = job.start(&options, script);
    until("the spare is listed", || state().len() > alone + 50);
    fs::write(job.path("end"), "").unwrap();
    assert_succeeded(&member.end());
    let ended = spare.end();
    assert_succeeded(&ended);
    assert!(ended.stderr.contains("spare"), "{ended:?}");
}

#[test]
fn an_invalid_value_is_reported_in_one_line_before_anything_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("127.0.0.1:{}", taken.local_addr().unwrap().port());
    // Bound until the end of the test.
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = holder.local_addr().unwrap().to_string();
    let job = Job::new();
    for (options, code, text) in [
        (&["--nnodes=3:2"][..], 2, "\"3:2\""),
        (&["--rdzv-backend=zookeeper"], 2, "\"zookeeper\""),
        (
            &["--rdzv-backend=c10d", "--rdzv-endpoint=node:http"],
            2,
            "\"node:http\"",
        ),
        (
            &[
                "--rdzv-backend=c10d",
                "--rdzv-endpoint",
                &held,
                "--rdzv-conf=is_host=maybe",
            ],
            2,
            "maybe",
        ),
        (&["--standalone", "--redirects=7"], 2, "\"7\""),
        (
            &[
                "--rdzv-backend=c10d",
                "--rdzv-endpoint",
                &held,
                "--rdzv-conf=is_host=1",
            ],
            1,
            &held,
        ),
        (
            &[
                "--rdzv-backend=c10d",
                "--rdzv-endpoint",
                &taken,
                "--rdzv-conf=is_host=0,join_timeout=1",
            ],
            1,
            &taken,
        ),
    ] {
        job.run(options, "echo > $C10D_TEST_FOLDER/started")
            .assert_fails(code, text);
        assert!(!job.exists("started"), "{options:?}");
    }
    job.assert_nothing_runs();
}

#[test]
fn a_program_that_cannot_start_is_named() {
    let job = Job::new();
    let program = job.path("nothing");
    let mut command = command(["run", "--standalone", "--nproc-per-node=1", "--no-python"]);
    command.arg(&program).env(FOLDER, job.folder.path());
    let ended = Running::start(command).end();
    assert_eq!((ended.code, ended.stdout_text()), (Some(1), ""));
    let last = ended.stderr.lines().next_back().unwrap_or_default();
    assert!(last.contains(program.to_str().unwrap()), "{ended:?}");
    job.assert_nothing_runs();
}

#[test]
fn a_script_in_this_directory_but_not_in_path_gets_a_hint() {
    let job = Job::new();
    let run = |script, mode| {
        let file = job.path("el.sh");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = command(["run", "--standalone", script]);
        command.current_dir(job.folder.path());
        Running::start(command).end()
    };
    for mode in [0o644, 0o755] {
        run("el.sh", mode).assert_fails(1, "not in PATH: use ./el.sh\n");
    }
    run("./el.sh", 0o644).assert_fails(1, "chmod +x ./el.sh\n");
    assert_succeeded(&run("./el.sh", 0o755));
}

#[test]
fn a_missing_interpreter_is_named() {
    let job = Job::new();
    let script = job.path("train.py");
    fs::write(&script, "").unwrap();
    let mut command = command(["run", "--standalone"]);
    command.arg(&script);
    command.env("PYTHON_EXEC", job.path("no-python"));
    let ended = Running::start(command).end();
    ended.assert_fails(1, "set PYTHON_EXEC to the interpreter");
}

#[test]
fn a_malformed_rendezvous_state_is_an_error_and_is_not_changed() {
    let job = Job::with_server();
    for value in ["garbage!", "AAAA", "gASVBQAAAAAAAACMAWGULg=="] {
        let key = "torch.rendezvous.job";
        job.server().store(&["set", key, value]).assert_prints("");
        let ended = job
            .start_node(&[], "echo > $C10D_TEST_FOLDER/started")
            .end();
        ended.assert_fails(1, key);
        assert!(
            ended.stderr.contains(&job.server().address.to_string()),
            "{ended:?}"
        );
        job.server().store(&["get", key]).assert_prints(value);
    }
    assert!(!job.exists("started"));
    job.assert_nothing_runs();
}

#[test]
fn teed_lines_have_a_prefix_with_role_and_rank() {
    let job = Job::new();
    let logs = format!("--log-dir={}", job.path("logs").display());
    let script = "echo out $RANK; echo err $RANK >&2; printf 'no end %s' $RANK";
    let options = [
        "--standalone",
        "--nproc-per-node=2",
        "--role=trainer",
        "--tee=3",
        &logs,
    ];
    let ended = job.run(&options, script);
    assert_succeeded(&ended);
    let out = ended.stdout_text();
    for text in ["out 0", "no end 0"] {
        assert!(out.contains(&format!("[trainer0]:{text}")), "{ended:?}");
    }
    assert!(out.contains("[trainer1]:out 1\n"), "{ended:?}");
    for text in ["[trainer0]:err 0\n", "[trainer1]:err 1\n"] {
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
}

#[test]
fn logs_have_a_directory_per_run_attempt_and_rank() {
    let job = Job::new();
    let log_dir = job.path("logs");
    let logs = format!("--log-dir={}", log_dir.display());
    let options = [
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--redirects=0:1,1:3",
        &logs,
    ];
    let script = "
        echo out $RANK $TORCHELASTIC_RESTART_COUNT
        echo err $RANK >&2
        echo $TORCHELASTIC_ERROR_FILE > $C10D_TEST_FOLDER/error.$RANK
        echo > $C10D_TEST_FOLDER/written.$RANK.$TORCHELASTIC_RESTART_COUNT
        # No worker fails before all have written.
        until [ -e $C10D_TEST_FOLDER/written.$((1 - RANK)).$TORCHELASTIC_RESTART_COUNT ]; do
            sleep 0.01
        done
        exit $((1 - TORCHELASTIC_RESTART_COUNT))";
    let ended = job.run(&options, script);
    assert_eq!(
        (ended.code, ended.stdout_text()),
        (Some(0), ""),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.matches("err 0\n").count(), 2, "{ended:?}");
    // "err 1" is in its file.
    assert!(
        !ended.stderr.lines().any(|line| line == "err 1"),
        "{ended:?}"
    );

    let runs: Vec<PathBuf> = children(&log_dir);
    let [run] = &runs[..] else { panic!("{runs:?}") };
    for attempt in [0, 1] {
        let attempt_dir = run.join(format!("attempt_{attempt}"));
        let read = |name: &str| fs::read_to_string(attempt_dir.join(name)).unwrap();
        assert_eq!(read("0/stdout.log"), format!("out 0 {attempt}\n"));
        assert_eq!(read("1/stdout.log"), format!("out 1 {attempt}\n"));
        assert_eq!(read("1/stderr.log"), "err 1\n");
    }
    assert_eq!(
        job.line("error.1"),
        run.join("attempt_1/1/error.json").display().to_string()
    );
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Whether a process has ended. A zombie counts as ended.
fn has_ended(pid: &str) -> bool {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    match fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        // The state follows the name, which is in parentheses.
        Ok(stat) => stat.rsplit(')').next().unwrap().starts_with(" Z"),
        Err(_) => rustix::process::test_kill_process(pid).is_err() || cfg!(target_os = "linux"),
    }
}
