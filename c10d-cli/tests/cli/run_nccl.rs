//! `c10d why` with NCCL's reports: a worker answers like NCCL's RAS service. The test needs no GPU, and was written
//! without one.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::process::{Running, command, free_port, run, until};

/// The folder in which the workers of this test write and find each other's process ids.
const FOLDER: &str = "C10D_TEST_NCCL_FOLDER";

/// A transcript of two nodes with four processes each. Members 3 and 7 have an error.
const FAILED: &str = include_str!("../../../c10d-inspect/testdata/ras/2.28-failed");

/// The worker of the test below, which starts this program with it.
#[test]
#[ignore = "a worker of another test"]
fn a_worker_that_answers_for_nccl() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let variable = |name: &str| std::env::var(name).unwrap();
    let rank = variable("RANK");
    write(&folder, &rank, &std::process::id().to_string());
    write(&folder, "port", &variable("MASTER_PORT"));
    let other = folder.join("1");
    until("rank 1 has started", || other.exists());
    let pid = fs::read_to_string(other).unwrap();
    // Member 3 is rank 1 of this machine, and member 7 is a process of another machine.
    let answer = FAILED
        .replace("4003", &pid)
        .replace("10.0.0.10", "127.0.0.1");
    if rank == "1" {
        std::thread::park();
    }
    let listener = TcpListener::bind(variable("NCCL_RAS_ADDR")).unwrap();
    for connection in listener.incoming() {
        let mut connection = connection.unwrap();
        let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
        while lines
            .next()
            .is_some_and(|line| line.unwrap() != "VERBOSE STATUS")
        {}
        let _ = connection.write_all(answer.as_bytes());
    }
}

fn write(folder: &Path, name: &str, text: &str) {
    let unfinished = folder.join(format!("{name}.{}", std::process::id()));
    fs::write(&unfinished, text).unwrap();
    fs::rename(unfinished, folder.join(name)).unwrap();
}

#[test]
fn why_names_the_ranks_in_which_nccl_has_failed() {
    let folder = TempDir::new().unwrap();
    let program = std::env::current_exe().unwrap();
    let worker = "run_nccl::a_worker_that_answers_for_nccl";
    let mut launcher = command(["run", "--standalone", "--nproc-per-node=2", "--no-python"]);
    launcher
        .arg(program)
        .args([worker, "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .env("NCCL_RAS_ADDR", format!("127.0.0.1:{}", free_port()));
    let launcher = Running::start(launcher);
    let port = folder.path().join("port");
    until("the workers know their store", || port.exists());
    let store = format!("127.0.0.1:{}", fs::read_to_string(port).unwrap());
    let mut text = String::new();
    until("NCCL's error is reported", || {
        let ended = run(["why", "--connect", &store]);
        text = ended.stdout_text().replace('\n', " ");
        ended.code == Some(4)
    });
    let pid = fs::read_to_string(folder.path().join("1")).unwrap();
    let expected = format!("NCCL has failed in rank 1 (pid {pid} on ");
    assert!(text.starts_with(&expected), "{text}");
    for part in [
        ") and pid 4103 on 10.0.0.11: Remote process error, in communicator 27a079b828ff1a75 of 8 ranks.",
        "because of: rank 1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    launcher.signal(rustix::process::Signal::TERM);
    assert_eq!(launcher.end().code, Some(1));
}
