//! `c10d-bench rpc`: figures, options, and the second process.

use std::io::{Read, Write};

use c10d_store::Store as _;
use serde_json::Value;

use crate::process::{Server, names, run};

const SMALL_RPC: [&str; 5] = [
    "rpc",
    "--no-pin",
    "--rounds=2",
    "--seconds=0.01",
    "--in-flight=7",
];

#[test]
fn calls_of_each_length_are_measured() {
    let ended = run(SMALL_RPC.iter().chain(&["--secret", "--json"]));
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let mut expected = Vec::new();
    for payload in ["64 B", "1KiB", "1MiB"] {
        for kind in ["", "secret "] {
            let figures = ["p50", "p99", "x 7"];
            expected.extend(figures.map(|it| format!("two processes {payload} {kind}{it}")));
        }
    }
    assert_eq!(names(&report), expected);
    for row in report["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let unit = if name.ends_with("x 7") { "ops/s" } else { "us" };
        assert_eq!(row["unit"], unit, "{row}");
        assert_eq!(row["rounds"].as_array().unwrap().len(), 2, "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(figure("min") > 0.0, "{row}");
        assert!(figure("min") <= figure("median") && figure("median") <= figure("max"));
        // Only round trips have a floor.
        assert_eq!(row["ratio_to_floor"].is_f64(), unit == "us", "{row}");
    }
    // The goal of throughput applies to 64 calls in flight only.
    let goals: Vec<_> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| !row["goal"].is_null())
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        goals,
        ["two processes 64 B p50", "two processes 64 B secret p50"]
    );
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
    let rows: Vec<_> = lines.by_ref().take(6).collect();
    for (row, length) in rows
        .iter()
        .zip(["0 B", "0 B", "0 B", "70KiB", "70KiB", "70KiB"])
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
    let agent = Server::start_with(["rpc-peer", "agent"]);
    // The announced address belongs to a store, which any client can use.
    assert_eq!(agent.store().add("counter", 1).unwrap(), 1);

    let echo = Server::start_with(["rpc-peer", "echo"]);
    let mut peer = echo.connect();
    // A length, then the bytes: the echo answers only a complete payload.
    let mut reply = [0; 7];
    peer.write_all(b"\x03\0\0\0ab").unwrap();
    peer.write_all(b"c").unwrap();
    peer.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"\x03\0\0\0abc");
    drop(peer);
    assert_eq!(echo.end().code(), Some(0));
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
        let ended = run(["rpc"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    }
}
