//! `c10d bench`: figures, options, and a server with wrong answers.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::Value;

use crate::process::{Server, run};

const SMALL: [&str; 10] = [
    "bench",
    "store",
    "--no-pin",
    "--rounds=2",
    "--seconds=0.02",
    "--ranks=40",
    "--connect-window=8",
    "--connections=1,3",
    "--depth=2",
    "--json",
];

fn names(report: &Value) -> Vec<&str> {
    let rows = report["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect()
}

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
        "ranks wait apart",
        "ranks cancel",
        "ranks wait apart + cancel",
        "ranks get 128 bytes",
    ];
    if cfg!(target_os = "linux") {
        expected.push("memory per connection");
    }
    expected.extend([
        "large set 4 MiB",
        "large get 4 MiB",
        "set-get secret",
        "ping p50 secret",
        "ping p99 secret",
        "open p50 secret",
        "ping p50 flooded",
        "ping p99 flooded",
        "refused",
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
fn a_table_and_a_running_server() {
    let server = Server::start();
    let address = server.address.to_string();
    let pid = server.running.id().to_string();
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
    let keys = server.store(&["keys"]);
    assert!(!keys.stdout_text().contains("barrier"), "{keys:?}");
}

#[test]
fn more_ranks_than_files_are_reduced_with_a_note() {
    let words = ["bench", "store", "--json", "--no-pin", "--rounds=1"];
    let ranks = ["--only=ranks", "--ranks=1000000000"];
    // The shell sets a limit of 200 files for itself and its child.
    let limited = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -n 200 && exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_c10d"),
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
    let words = ["bench", "floor", "--request-bytes=5", "--reply-bytes=2"];
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
    let echo = Server::start_with(["bench", "floor", "--mode=echo"]);
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
    let echo = Server::start_with(["bench", "floor", "--mode=fixed", "--reply-bytes=4"]);
    let address = echo.address.to_string();
    for workload in ["ping", "add", "set-get", "large", "ranks"] {
        let words = ["--connect", &address, "--only", workload];
        run(SMALL.iter().chain(&words)).assert_fails(3, "incorrectly");
    }
}

#[test]
fn jobs_with_relays_are_measured_beside_jobs_without() {
    let small = ["bench", "relay", "--no-pin", "--rounds=2", "--seconds=0.02"];
    let jobs = [
        "--nodes=5",
        "--ranks-per-node=3",
        "--init-nodes=7",
        "--json",
    ];
    let words: Vec<&str> = small.into_iter().chain(jobs).collect();
    for secret in [&[][..], &["--secret"]] {
        let ended = run(words.iter().chain(secret));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
        let on_linux = cfg!(target_os = "linux");
        let expected = [
            ("get p50", true),
            ("add p50", true),
            ("connections", on_linux),
            ("memory per node", on_linux),
            ("init", true),
            ("barrier add+wait", true),
            ("barrier requests per node", true),
            ("barrier add+wait apart", true),
            ("one key wakes all", true),
            ("init of 21 ranks", true),
        ];
        let expected: Vec<&str> = expected
            .into_iter()
            .filter_map(|(name, is_there)| is_there.then_some(name))
            .collect();
        assert_eq!(names(&report), expected);
        for row in report["rows"].as_array().unwrap() {
            assert_eq!(row["rounds"].as_array().unwrap().len(), 2, "{row}");
            match row["name"].as_str().unwrap() {
                "connections" => {
                    assert_eq!([&row["median"], &row["floor_median"]], [5.0, 15.0], "{row}");
                }
                // ADD and WAIT, a frame each; on one node also SET, and a WAIT behind it.
                "barrier requests per node" => {
                    let frames = row["median"].as_f64().unwrap();
                    assert!((2.0..=3.0).contains(&frames), "{row}");
                    assert_eq!(row["floor_median"], 31.0 / 5.0, "{row}");
                }
                "init of 21 ranks" => assert!(row["goal"]["at_most"].is_f64(), "{row}"),
                "get p50" => assert!(row["goal"]["above_floor_at_most"].is_f64(), "{row}"),
                _ => {}
            }
        }
    }
}

#[test]
fn nodes_without_files_for_their_ranks_are_left_out_with_a_note() {
    let words = ["bench", "relay", "--json", "--no-pin", "--rounds=1"];
    let ranks = ["--only=ranks", "--nodes=1000000000"];
    // The shell sets a limit of 200 files for itself and its child.
    let limited = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -n 200 && exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_c10d"),
        ])
        .args(words.iter().chain(&ranks))
        .output()
        .unwrap();
    assert!(limited.status.success(), "{limited:?}");
    let report: Value = serde_json::from_slice(&limited.stdout).unwrap();
    let note = report["notes"][1].as_str().unwrap();
    assert!(note.contains("nodes instead of 1000000000"), "{note}");
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
        ended.assert_fails(3, &address);
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
        let ended = run(["bench", "store"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}");
    }
}

#[test]
fn invalid_options_of_relay_have_exit_code_2() {
    for words in [
        &["--nodes=0"][..],
        &["--ranks-per-node=0"],
        &["--ranks-per-node=1025"],
        &["--init-nodes=x"],
        &["--only=nothing"],
    ] {
        let ended = run(["bench", "relay"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}");
    }
}

/// Runs `c10d bench rendezvous` with these words, and returns its rows.
fn rendezvous_rows(words: &[&str]) -> Vec<Value> {
    let ended = run(["bench", "rendezvous", "--json"].iter().chain(words));
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    report["rows"].as_array().unwrap().clone()
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name}: {row}"))
}

#[test]
fn a_rendezvous_of_few_and_of_many_nodes_is_measured() {
    // The larger rendezvous writes with leases, the smaller without; the larger has three processes of nodes.
    let words = ["--nodes=2,12", "--nodes-per-process=4", "--rounds=2"];
    let rows = rendezvous_rows(&words);
    let nodes: Vec<_> = rows.iter().map(|row| row["nodes"].as_u64()).collect();
    assert_eq!(nodes, [Some(2), Some(12)]);
    for row in &rows {
        let figure = |name: &str| figure(row, name);
        assert!(figure("agree_ms_min") > 0.0, "{row}");
        assert!(figure("agree_ms_min") <= figure("agree_ms"), "{row}");
        assert!(figure("agree_ms") <= figure("agree_ms_max"), "{row}");
        let rounds = row["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2, "{row}");
        assert!(rounds.iter().all(|round| round["agree_ms"].is_f64()));
        assert!(figure("connect_ms") > 0.0, "{row}");
        // A node has to be written into the state.
        assert!(figure("writes_done") >= 1.0, "{row}");
        assert!(figure("writes_tried") >= figure("writes_done"), "{row}");
        assert!(figure("state_bytes") > 100.0 * figure("nodes"), "{row}");
        assert!(row["rest_lost"].is_null() && row["last_told_ms"].is_null());
        if cfg!(target_os = "linux") {
            assert!(figure("connections_per_node") >= 1.0, "{row}");
            // Other programs may have moved more before than during the rendezvous.
            assert!(figure("loopback_bytes") >= 0.0, "{row}");
            assert!(figure("store_peak_bytes") > 100_000.0, "{row}");
        }
    }
}

#[test]
fn a_table_of_rendezvous_has_a_line_for_each_number_of_nodes() {
    let ended = run(["bench", "rendezvous", "--nodes=1,2", "--rounds=1"]);
    let table = ended.stdout_text();
    let first_cells: Vec<_> = table
        .lines()
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(first_cells, ["nodes", "1", "2"], "{ended:?}");
}

const EIGHT_NODES: [&str; 3] = ["--nodes=8", "--nodes-per-process=4", "--rounds=1"];

#[test]
fn nodes_at_rest_stay_in_their_round() {
    let rows = rendezvous_rows(&[&EIGHT_NODES[..], &["--rest=1"]].concat());
    assert_eq!(figure(&rows[0], "rest_lost"), 0.0);
    if cfg!(target_os = "linux") {
        assert!(figure(&rows[0], "rest_bytes_per_node_second") >= 0.0);
    }
}

#[test]
fn all_nodes_are_told_that_another_was_killed() {
    let rows = rendezvous_rows(&[&EIGHT_NODES[..], &["--keep-alive=500", "--kill-one"]].concat());
    let [first, last, since_kill] = ["first_told_ms", "last_told_ms", "kill_to_last_told_ms"]
        .map(|name| figure(&rows[0], name));
    assert!(first <= last, "{rows:?}");
    // Three intervals after its last heartbeat, and the node was killed within the first.
    assert!(last > -1000.0 && since_kill > 500.0, "{rows:?}");
}

#[test]
fn nodes_join_although_the_first_was_killed() {
    let rows = rendezvous_rows(&[&EIGHT_NODES[..], &["--kill-first-after=0"]].concat());
    let [agree, killed, more] =
        ["agree_ms", "killed_agree_ms", "killed_more_ms"].map(|name| figure(&rows[0], name));
    assert!(agree > 0.0 && killed > 0.0, "{rows:?}");
    assert!((killed - agree - more).abs() < 0.01, "{rows:?}");
}

#[test]
fn killing_the_first_node_after_the_round_is_complete_is_refused() {
    let late = ["--nodes=2", "--rounds=1", "--kill-first-after=2000"];
    let ended = run(["bench", "rendezvous"].iter().chain(&late));
    ended.assert_fails(3, "complete before its first node was killed after 2s");
}

#[test]
fn a_rendezvous_that_needs_more_files_than_the_limit_is_refused() {
    let limited = |nodes: &str| {
        std::process::Command::new("sh")
            .args([
                "-c",
                "ulimit -n 200 && exec \"$0\" bench rendezvous --rounds=1 --nodes=\"$1\"",
                env!("CARGO_BIN_EXE_c10d"),
                nodes,
            ])
            .output()
            .unwrap()
    };
    let refused = limited("4,150");
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(
        text.contains("150 nodes need ") && text.contains(" open files in the store's process"),
        "{text}"
    );
    // The figures of fewer nodes are not lost.
    let table = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(table.lines().count(), 2, "{table}");
}

#[test]
fn invalid_options_of_rendezvous_have_exit_code_2() {
    for words in [
        &["--nodes=0"][..],
        &["--nodes=1", "--kill-one"],
        &["--nodes=2,1", "--kill-first-after=5"],
        &["--kill-one", "--kill-first-after=5"],
        &["--rest=1", "--kill-first-after=5"],
        &["--keep-alive=0"],
        &["--nodes-per-process=0"],
        &["--rest=3601"],
        &["--rounds=0"],
    ] {
        let ended = run(["bench", "rendezvous"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    }
}

const SMALL_RPC: [&str; 6] = [
    "bench",
    "rpc",
    "--no-pin",
    "--rounds=2",
    "--seconds=0.01",
    "--in-flight=7",
];

#[test]
fn calls_of_each_length_are_measured_in_one_process_and_in_two() {
    let ended = run(SMALL_RPC.iter().chain(&["--json"]));
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let mut expected = Vec::new();
    for place in ["in process", "two processes"] {
        for payload in ["64 B", "1KiB", "1MiB"] {
            expected
                .extend(["p50", "p99", "x 7"].map(|figure| format!("{place} {payload} {figure}")));
        }
    }
    let late = ["p50", "p99", "max"];
    expected.extend(late.map(|figure| format!("two processes 10000 timeouts late {figure}")));
    assert_eq!(names(&report), expected);
    for row in report["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let unit = if name.ends_with("x 7") { "ops/s" } else { "us" };
        assert_eq!(row["unit"], unit, "{row}");
        assert_eq!(row["rounds"].as_array().unwrap().len(), 2, "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(figure("min") > 0.0, "{row}");
        assert!(figure("min") <= figure("median") && figure("median") <= figure("max"));
        if name.contains("timeouts") {
            assert!(row["floor_median"].is_null(), "{row}");
            continue;
        }
        assert!(figure("floor_median") > 0.0, "{row}");
        assert!(figure("ratio_to_floor") > 0.0, "{row}");
    }
    // The goal of throughput applies to 64 calls in flight only.
    let goals: Vec<_> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| !row["goal"].is_null())
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(goals, ["two processes 64 B p50"]);
}

#[test]
fn a_table_of_calls_has_the_chosen_lengths_and_names_the_floor() {
    let ended = run(SMALL_RPC.iter().chain(&["--payload=0,70KiB"]));
    let table = ended.stdout_text();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("calls between two workers, 7 in flight"));
    let heading = lines.next().unwrap();
    assert!(
        heading.contains("floor") && heading.contains("ratio"),
        "{table}"
    );
    let rows: Vec<_> = lines.by_ref().take(15).collect();
    for (row, length) in rows
        .iter()
        .zip(["0 B", "0 B", "0 B", "70KiB", "70KiB", "70KiB"].repeat(2))
    {
        assert!(row.contains(&format!(" {length} ")), "{table}");
    }
    let note = lines.next();
    assert_eq!(
        note,
        Some("note: the floor is a bare TCP echo, one thread on each side")
    );
}

#[test]
fn the_second_process_of_calls_announces_its_address() {
    let agent = Server::start_with(["bench", "rpc-peer", "agent"]);
    // The announced address is that of a store, which any client can use.
    assert_eq!(agent.store(&["add", "counter", "1"]).stdout_text(), "1\n");

    let echo = Server::start_with(["bench", "rpc-peer", "echo"]);
    let mut peer = echo.connect();
    // A length, then the bytes: the echo answers only a complete payload.
    let mut reply = [0; 7];
    peer.write_all(b"\x03\0\0\0ab").unwrap();
    peer.write_all(b"c").unwrap();
    peer.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"\x03\0\0\0abc");
    drop(peer);
    let ended = echo.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn invalid_options_of_rpc_have_exit_code_2() {
    for words in [
        &["--payload=65MiB"][..],
        &["--payload=many"],
        &["--payload="],
        &["--in-flight=0"],
        &["--in-flight=65537"],
        &["--rounds=0"],
        &["--seconds=0"],
        &["--seconds=-1"],
        &["--floor"],
    ] {
        let ended = run(["bench", "rpc"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    }
}

const SMALL_RREF: [&str; 7] = [
    "bench",
    "rref",
    "--no-pin",
    "--rounds=2",
    "--seconds=0.01",
    "--in-flight=7",
    "--live=500",
];

#[test]
fn references_are_measured_in_one_process_and_in_two() {
    let ended = run(SMALL_RREF.iter().chain(&["--json"]));
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let mut expected = Vec::new();
    for place in ["in process", "two processes"] {
        let figures = [
            "create fetch drop x 7",
            "create drop x 7",
            "create fetch p50",
            "create fetch p99",
        ];
        expected.extend(figures.map(|figure| format!("{place} {figure}")));
    }
    if cfg!(target_os = "linux") {
        expected.push("owner memory per reference".to_owned());
    }
    assert_eq!(names(&report), expected);
    for row in report["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let (unit, rounds) = match name {
            "owner memory per reference" => ("bytes", 1),
            name if name.ends_with("x 7") => ("ops/s", 2),
            _ => ("us", 2),
        };
        assert_eq!(row["unit"], unit, "{row}");
        assert_eq!(row["rounds"].as_array().unwrap().len(), rounds, "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(figure("min") <= figure("median") && figure("median") <= figure("max"));
        // So few references may fit in memory that the owner has already allocated.
        assert!(figure("min") > 0.0 || unit == "bytes", "{row}");
        // The floor of a latency is the latency of a plain call.
        assert_eq!(row["ratio_to_floor"].is_f64(), unit == "us", "{row}");
    }
    // The goal of throughput applies to 64 references at a time only.
    let goals: Vec<_> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| !row["goal"].is_null())
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(goals, ["two processes create fetch p50"]);
}

#[test]
fn a_table_of_references_names_the_floor() {
    let ended = run(SMALL_RREF);
    let table = ended.stdout_text();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        table.lines().next(),
        Some("references to values of another worker, 7 alive at a time")
    );
    assert!(
        table.ends_with("note: the floor is a plain call with 8 bytes each way\n"),
        "{table}"
    );
}

#[test]
fn the_second_process_of_references_announces_its_store() {
    let owner = Server::start_with(["bench", "rref-peer"]);
    assert_eq!(owner.store(&["add", "counter", "1"]).stdout_text(), "1\n");
}

#[test]
fn invalid_options_of_rref_have_exit_code_2() {
    for words in [
        &["--in-flight=0"][..],
        &["--in-flight=65537"],
        &["--live=0"],
        &["--live=10000001"],
        &["--rounds=0"],
        &["--seconds=0"],
        &["--payload=8"],
    ] {
        let ended = run(["bench", "rref"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    }
}
