//! `c10d-bench relay`: figures and options.

use crate::process::{note_with_few_files, report_of};

#[test]
fn jobs_with_relays_are_measured_beside_jobs_without() {
    let small = ["relay", "--no-pin", "--rounds=2", "--seconds=0.02"];
    let jobs = [
        "--nodes=5",
        "--ranks-per-node=3",
        "--init-nodes=7",
        "--json",
    ];
    let words: Vec<&str> = small.into_iter().chain(jobs).collect();
    for secret in [&[][..], &["--secret"]] {
        let report = report_of(words.iter().chain(secret));
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
        report.assert_rows(&expected);
        for row in report.rows() {
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
    let note = note_with_few_files("relay --only=ranks --nodes=1000000000");
    assert!(note.contains("nodes instead of 1000000000"), "{note}");
}
