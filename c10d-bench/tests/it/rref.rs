//! `c10d-bench rref`: figures, and the table.

use crate::process::{report_of, run};

const SMALL: [&str; 5] = [
    "rref",
    "--no-pin",
    "--rounds=2",
    "--seconds=0.01",
    "--live=500",
];

#[test]
fn references_are_measured_beside_plain_calls() {
    let report = report_of(SMALL.iter().chain(&["--json"]));
    let mut expected = vec![
        "two processes create fetch drop x 64",
        "two processes create fetch p50",
        "two processes create fetch p99",
    ];
    if cfg!(target_os = "linux") {
        expected.push("owner memory per reference");
    }
    report.assert_rows(&expected);
    for row in report.rows() {
        let (unit, rounds) = match row["name"].as_str().unwrap() {
            "owner memory per reference" => ("bytes", 1),
            name if name.ends_with("x 64") => ("ops/s", 2),
            _ => ("us", 2),
        };
        assert_eq!(row["unit"], unit, "{row}");
        assert_eq!(row["rounds"].as_array().unwrap().len(), rounds, "{row}");
        // So few references may fit in memory that the owner has already allocated.
        assert!(
            row["min"].as_f64().unwrap() > 0.0 || unit == "bytes",
            "{row}"
        );
        // The floor of a latency is the latency of a plain call.
        assert_eq!(row["ratio_to_floor"].is_f64(), unit == "us", "{row}");
    }
}

#[test]
fn a_table_names_the_subject_and_the_floor() {
    let ended = run(SMALL);
    let table = ended.stdout_text();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        table.starts_with("references to values of another worker, 64 alive at a time\n"),
        "{table}"
    );
    assert!(
        table.ends_with("note: the floor is a plain call with 8 bytes each way\n"),
        "{table}"
    );
}
