//! `c10d-bench store`: figures, options, and a server with wrong answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use crate::process::{Server, note_with_few_files, report_of, run};
use c10d_store::Store as _;

const SMALL: [&str; 7] = [
    "store",
    "--no-pin",
    "--rounds=2",
    "--seconds=0.02",
    "--ranks=40",
    "--reopened-keys=2500",
    "--json",
];

#[test]
fn a_small_run_of_everything() {
    let report = report_of(SMALL);
    let mut expected = vec![
        "ping p50",
        "ping p99",
        "add",
        "set-get",
        "ranks connect",
        "ranks barrier add+wait",
        "ranks barrier command",
        "ranks one key wakes all",
        "ranks wait apart",
        "ranks cancel",
        "ranks wait apart + cancel",
    ];
    if cfg!(target_os = "linux") {
        expected.push("memory per connection");
    }
    expected.extend([
        "large set 4 MiB",
        "large get 4 MiB",
        "add 256 durable",
        "set-get durable",
        "add p50 durable",
        "reopen 2500 keys",
    ]);
    report.assert_rows(&expected);
    for row in report.rows() {
        let rounds = row["rounds"].as_array().unwrap();
        let memory = row["unit"] == "bytes";
        assert_eq!(rounds.len(), if memory { 1 } else { 2 }, "{row}");
        assert!(row["min"].as_f64().unwrap() > 0.0 || memory, "{row}");
    }
    for (name, goal) in [
        ("set-get durable", "ratio_at_least"),
        ("add p50 durable", "above_floor_at_most"),
    ] {
        let mut rows = report.rows().iter();
        let row = rows.find(|row| row["name"] == name).unwrap();
        assert!(row["ratio_to_floor"].as_f64().unwrap() > 0.0, "{row}");
        assert!(
            row["goal"][goal].is_f64() && row["goal"]["met"].is_boolean(),
            "{row}"
        );
    }
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_small_run_with_etcd() {
    let options = ["--only=etcd", "--rounds=1"];
    let small = SMALL
        .iter()
        .filter(|option| !option.starts_with("--rounds"));
    let report = report_of(small.chain(&options));
    report.assert_rows(&[
        "add p50 etcd",
        "add 256 etcd",
        "pause: kill -9 of the server",
        "pause: SIGSTOP of the server",
    ]);
    // The lease of a silent server expires after 2 s.
    let stopped = &report.rows()[3]["median"];
    assert!(stopped.as_f64().unwrap() > 1000.0, "{stopped}");
}

#[test]
fn a_table_and_a_running_server() {
    let server = Server::start_with(["store-server"]);
    let address = server.address.to_string();
    let pid = server.id().to_string();
    let arguments = ["--connect", &address, "--server-pid", &pid];
    let chosen = ["--only=add", "--only=ranks"];
    let words = SMALL[..SMALL.len() - 1]
        .iter()
        .chain(&arguments)
        .chain(&chosen);
    // Twice: keys left by one run must not disturb the next.
    for _ in 0..2 {
        let ended = run(words.clone());
        assert_eq!(
            (ended.code, ended.stderr.as_str()),
            (Some(0), ""),
            "{ended:?}"
        );
        let table = ended.stdout_text();
        let mut lines = table.lines();
        assert_eq!(
            lines.next(),
            Some(format!("the server at {address}").as_str())
        );
        assert!(lines.next().unwrap().contains("median"), "{table}");
        assert!(lines.next().unwrap().starts_with("add "), "{table}");
        assert!(
            lines.next().unwrap().starts_with("ranks connect "),
            "{table}"
        );
    }
    let keys = server.store().list_keys().unwrap();
    assert!(!keys.iter().any(|key| key.contains("barrier")), "{keys:?}");
}

#[test]
fn more_ranks_than_files_are_reduced_with_a_note() {
    let note = note_with_few_files("store --only=ranks --ranks=1000000000");
    assert!(note.contains("ranks instead of 1000000000"), "{note}");
}

/// Answers whatever it reads with 16 zeros.
fn wrong_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                    if stream.write_all(&[0; 16]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_server_that_answers_wrongly_is_not_measured() {
    let address = wrong_server().to_string();
    for workload in ["add", "set-get", "ranks"] {
        let words = ["--connect", &address, "--only", workload];
        run(SMALL.iter().chain(&words)).assert_fails("incorrectly");
    }
}

#[test]
fn a_missing_server_has_exit_code_3() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let address = closed.to_string();
    for workload in ["ping", "add", "ranks"] {
        let words = ["--connect", &address, "--only", workload];
        let ended = run(SMALL.iter().chain(&words));
        ended.assert_fails(&address);
        assert!(ended.stderr.contains("refused"), "{ended:?}");
    }
}
