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
    // The rank gave its own reason, so no other rank is accused.
    assert_eq!(root["cause"], Value::Null);
    assert_eq!(failed["root_cause"], Value::Null);
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
fn an_endpoint_that_cannot_be_used_is_reported_in_one_line_before_anything_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("127.0.0.1:{}", taken.local_addr().unwrap().port());
    // Bound until the end of the test.
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = holder.local_addr().unwrap().to_string();
    let job = Job::new();
    for (endpoint, conf) in [
        (&held, "--rdzv-conf=is_host=1"),
        (&taken, "--rdzv-conf=is_host=0,join_timeout=1"),
    ] {
        let options = ["--rdzv-backend=c10d", "--rdzv-endpoint", endpoint, conf];
        job.run(&options, "echo > $C10D_TEST_FOLDER/started")
            .assert_fails(1, endpoint);
        assert!(!job.exists("started"), "{options:?}");
    }
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
