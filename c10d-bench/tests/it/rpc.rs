//! `c10d-bench rpc`: figures, and the second process.

use c10d_store::Store as _;

use crate::process::{Server, report_of};

#[test]
fn calls_of_each_length_are_measured() {
    let report = report_of(["rpc", "--no-pin", "--rounds=2", "--seconds=0.01", "--json"]);
    let mut expected = Vec::new();
    for payload in ["64 B", "1KiB", "1MiB"] {
        let figures = ["p50", "p99", "x 64"];
        expected.extend(figures.map(|it| format!("two processes {payload} {it}")));
    }
    report.assert_rows(&expected);
    for row in report.rows() {
        let name = row["name"].as_str().unwrap();
        let unit = if name.ends_with("x 64") {
            "ops/s"
        } else {
            "us"
        };
        assert_eq!(row["unit"], unit, "{row}");
        assert!(row["min"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["rounds"].as_array().unwrap().len(), 2, "{row}");
    }
}

#[test]
fn the_second_process_announces_its_store() {
    for peer in ["rpc-peer", "rref-peer"] {
        let peer = Server::start_with([peer]);
        assert_eq!(peer.store().add("counter", 1).unwrap(), 1);
    }
}
