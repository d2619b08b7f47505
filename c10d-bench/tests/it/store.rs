//! `c10d-bench store`: figures, options, and a server with wrong answers.

use std::io::{Read, Write};
use std::net::TcpListener;

use c10d_store::Store as _;
use serde_json::Value;

use crate::process::{Server, names, run};

const SMALL: [&str; 11] = [
    "store",
    "--no-pin",
    "--rounds=2",
    "--seconds=0.02",
    "--ranks=40",
    "--connect-window=8",
    "--connections=1,3",
    "--depth=2",
    "--reopened-keys=2500",
    "--deleted-keys=5000",
    "--json",
];

#[test]
fn a_small_run_of_everything() {
    let ended = run(SMALL);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let mut expected = vec![
        "ping p50",
        "ping p99",
        "client ping p50",
        "client ping p99",
        "client get p50",
        "client set p50",
        "add",
        "set-get",
        "add 1 x 2",
        "add 3 x 2",
        "ranks connect",
        "ranks barrier add+wait",
        "ranks barrier command",
        "ranks one key wakes all",
        "ranks get ids of NCCL",
        "ranks wait apart",
        "ranks cancel",
        "ranks wait apart + cancel",
        "ranks get 128 bytes",
        "ranks learn of a death",
    ];
    if cfg!(target_os = "linux") {
        expected.push("memory per connection");
    }
    expected.extend([
        "large set 4 MiB",
        "large get 4 MiB",
        "delete 5000 keys by prefix",
        "longest ping meanwhile",
        "set-get secret",
        "ping p50 secret",
        "ping p99 secret",
        "open p50 secret",
        "ping p50 flooded",
        "ping p99 flooded",
        "refused",
        "add 256 durable",
        "set-get durable",
        "add p50 durable",
        "get p50 beside writes durable",
        "reopen 2500 keys",
    ]);
    assert_eq!(names(&report), expected);
    for row in report["rows"].as_array().unwrap() {
        let rounds = row["rounds"].as_array().unwrap();
        let memory = row["unit"] == "bytes";
        assert_eq!(rounds.len(), if memory { 1 } else { 2 }, "{row}");
        let [min, median, max] = ["min", "median", "max"].map(|name| row[name].as_f64().unwrap());
        assert!(min <= median && median <= max, "{row}");
        assert!(min > 0.0 || memory, "{row}");
    }
    for (index, goal) in [(0, "ratio_at_most"), (6, "ratio_at_least"), (7, "at_least")] {
        let row = &report["rows"][index];
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
    let options = [
        "--only=etcd",
        "--etcd-nodes=3",
        "--etcd-rest=2",
        "--rounds=1",
    ];
    let small = SMALL
        .iter()
        .filter(|option| !option.starts_with("--rounds"));
    let ended = run(small.chain(&options));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let expected = [
        "add p50 etcd",
        "add 256 etcd",
        "get p50 beside writes etcd",
        "commits a second meanwhile",
        "pause: kill -9 of the server",
        "pause: SIGSTOP of the server",
        "pause: kill -9 of etcd's leader",
        "calls of etcd a second at rest",
        "the same with heartbeats",
        "3 nodes join etcd",
    ];
    assert_eq!(names(&report), expected);
    for row in report["rows"].as_array().unwrap() {
        assert!(row["min"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(row["goal"]["met"].is_boolean(), "{row}");
    }
    // The lease of a server that says nothing ends after 2 s.
    let stopped = &report["rows"][5]["median"];
    assert!(stopped.as_f64().unwrap() > 1000.0, "{stopped}");
}

#[test]
fn a_table_and_a_running_server() {
    let server = Server::start_with(["store-server"]);
    let address = server.address.to_string();
    let pid = server.id().to_string();
    let arguments = ["--connect", &address, "--server-pid", &pid, "--no-floor"];
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
        assert!(table.ends_with("note: no floor was measured\n"), "{table}");
    }
    let keys = server.store().list_keys().unwrap();
    assert!(!keys.iter().any(|key| key.contains("barrier")), "{keys:?}");
}

#[test]
fn more_ranks_than_files_are_reduced_with_a_note() {
    let words = ["store", "--json", "--no-pin", "--rounds=1"];
    let ranks = ["--only=ranks", "--ranks=1000000000"];
    // The shell sets a limit of 200 files for itself and its child.
    let limited = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -n 200 && exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_c10d-bench"),
        ])
        .args(words.iter().chain(&ranks))
        .output()
        .unwrap();
    assert!(limited.status.success(), "{limited:?}");
    let report: Value = serde_json::from_slice(&limited.stdout).unwrap();
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.contains("ranks instead of 1000000000"), "{note}");
}

#[test]
fn the_fixed_floor_answers_by_the_number_of_bytes() {
    let words = ["floor", "--request-bytes=5", "--reply-bytes=2"];
    let floor = Server::start_with(words);
    let mut peer = floor.connect();
    let mut reply = [9; 2];
    peer.write_all(b"123").unwrap();
    peer.write_all(b"45").unwrap();
    peer.read_exact(&mut reply).unwrap();
    assert_eq!(reply, [0; 2]);
    let mut replies = vec![9; 2 * 30_000];
    peer.write_all(&vec![0; 5 * 30_000]).unwrap();
    peer.read_exact(&mut replies).unwrap();
    peer.write_all(b"12345").unwrap();
    peer.read_exact(&mut reply).unwrap();
    assert_eq!((reply, replies), ([0; 2], vec![0; 2 * 30_000]));
}

#[test]
fn the_echo_floor_echoes() {
    let echo = Server::start_with(["floor", "--mode=echo"]);
    let mut peer = echo.connect();
    for text in [&b"a"[..], b"bcd", &[7; 4000]] {
        let mut reply = vec![0; text.len()];
        peer.write_all(text).unwrap();
        peer.read_exact(&mut reply).unwrap();
        assert_eq!(reply, text);
    }
}

#[test]
fn a_server_that_answers_wrongly_is_not_measured() {
    let echo = Server::start_with(["floor", "--mode=fixed", "--reply-bytes=4"]);
    let address = echo.address.to_string();
    for workload in ["ping", "add", "set-get", "large", "ranks"] {
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
    for workload in ["ping", "client", "add", "ranks"] {
        let words = ["--connect", &address, "--only", workload];
        let ended = run(SMALL.iter().chain(&words));
        ended.assert_fails(&address);
        assert!(ended.stderr.contains("refused"), "{ended:?}");
    }
}

#[test]
fn invalid_options_of_store_have_exit_code_2() {
    for words in [
        &["--ranks=0"][..],
        &["--seconds=0"],
        &["--seconds=nan"],
        &["--only=nothing"],
        &["--server-pid=1"],
        &["--depth=1,x"],
    ] {
        let ended = run(["store"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}");
    }
}
