//! `c10d run`: the log of a job that cannot start or restart.

use std::fs::{self, File};
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Ended, Running, Server, command, until};

/// A node that runs `script`, with a store served by the test.
fn node(endpoint: &str, arguments: &[&str], script: &str) -> Command {
    let common = [
        "run",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        "--rdzv-id=job",
        "--local-addr=127.0.0.1",
        "--rdzv-endpoint",
        endpoint,
    ];
    let program = ["--no-python", "sh", "-c", script];
    let mut command = command([&common, arguments, &program].concat());
    command
        .env("C10D", env!("CARGO_BIN_EXE_c10d"))
        .env("ENDPOINT", endpoint)
        .env_remove("TORCHELASTIC_ERROR_FILE");
    command
}

/// Asserts the report on a worker with `rank` and exit code 7, and the last line.
#[track_caller]
fn assert_reports(ended: &Ended, rank: usize, reasons: &[&str]) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let (_, report) = ended.stderr.split_once("Root Cause").unwrap();
    for text in [
        &format!("rank      : {rank} (local_rank: 0)"),
        "exitcode  : 7 (pid: ",
        "    the last line of the worker\n",
    ] {
        assert!(report.contains(text), "no {text:?} in {report}");
    }
    let (_, last) = report.rsplit_once("\nc10d: ").unwrap();
    let failed = format!("worker with rank {rank} failed (exit code 7)");
    assert!(last.starts_with(&failed), "{last}");
    for text in reasons {
        assert!(last.contains(text), "no {text:?} in {last}");
    }
    assert_eq!(last.matches('\n').count(), 1, "{last}");
}

#[test]
fn an_unreachable_store_is_logged_long_before_the_join_times_out() {
    // No server listens there.
    let endpoint = "127.0.0.1:1";
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    let mut command = node(endpoint, &[], "");
    command.stderr(File::create(&log).unwrap());
    // The join times out after 600 s. Killed at the end of the test.
    let _node = Running::start(command);
    let mut line = String::new();
    until("the log names the store", || {
        line = fs::read_to_string(&log).unwrap_or_default();
        line.ends_with('\n')
    });
    for text in ["WARN", endpoint, "refused", "retrying for up to 59"] {
        assert!(line.contains(text), "no {text:?} in {line}");
    }
    assert_eq!(line.matches('\n').count(), 1, "{line}");
}

#[test]
fn a_failed_restart_reports_the_workers_failure_and_the_reason() {
    let server = Server::start();
    let endpoint = server.address.to_string();
    let folder = TempDir::new().unwrap();
    let error_file = folder.path().join("error.json");
    let script = "
        $C10D store set torch.rendezvous.job garbage --connect $ENDPOINT
        echo the last line of the worker >&2
        exit 7";
    let mut command = node(&endpoint, &["--max-restarts=3"], script);
    command.env("TORCHELASTIC_ERROR_FILE", &error_file);
    let ended = Running::start(command).end();
    assert_reports(&ended, 0, &["torch.rendezvous.job", &endpoint]);
    let left: serde_json::Value = serde_json::from_slice(&fs::read(error_file).unwrap()).unwrap();
    let message = left["message"].to_string();
    assert!(message.contains("cannot be restarted"), "{message}");
}

#[test]
fn a_failed_restart_copies_the_workers_error_file_for_the_parent_program() {
    let server = Server::start();
    let endpoint = server.address.to_string();
    let folder = TempDir::new().unwrap();
    let error_file = folder.path().join("error.json");
    let script = r#"
        $C10D store set torch.rendezvous.job garbage --connect $ENDPOINT
        echo '{"message": {"message": "ValueError: 42 is too many", "extraInfo":
            {"py_callstack": "a stack", "timestamp": "1700000000"}}}' > $TORCHELASTIC_ERROR_FILE
        exit 3"#;
    let mut command = node(&endpoint, &["--max-restarts=3"], script);
    command.env("TORCHELASTIC_ERROR_FILE", &error_file);
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let left: serde_json::Value = serde_json::from_slice(&fs::read(error_file).unwrap()).unwrap();
    assert_eq!(left["message"]["message"], "ValueError: 42 is too many");
}

#[test]
fn a_worker_that_fails_after_other_nodes_finished_is_not_restarted() {
    let server = Server::start();
    let endpoint = server.address.to_string();
    let options = ["--nnodes=2", "--max-restarts=3"];
    // Waits for the other node. Killed at the end of the test.
    let _finished = Running::start(node(&endpoint, &options, "exit 0"));
    let script = "
        echo $RANK
        $C10D store wait --connect $ENDPOINT \\
            torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members
        echo the last line of the worker >&2
        exit 7";
    let ended = Running::start(node(&endpoint, &options, script)).end();
    let rank = ended.stdout_text().trim().parse().unwrap();
    assert_reports(&ended, rank, &["1 of 2 nodes have already finished"]);
}
