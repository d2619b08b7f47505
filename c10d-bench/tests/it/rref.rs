//! `c10d-bench rref`: figures, options, and the second process.

use c10d_store::Store as _;
use serde_json::Value;

use crate::process::{Server, names, run};

const SMALL_RREF: [&str; 6] = [
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
    let owner = Server::start_with(["rref-peer"]);
    assert_eq!(owner.store().add("counter", 1).unwrap(), 1);
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
        let ended = run(["rref"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    }
}
