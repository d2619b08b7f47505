//! `c10d-bench relay`: figures and options.

use serde_json::Value;

use crate::process::{names, run};

#[test]
fn jobs_with_relays_are_measured_beside_jobs_without() {
    let small = ["relay", "--no-pin", "--rounds=2", "--seconds=0.02"];
    let jobs = [
        "--nodes=5",
        "--ranks-per-node=3",
        "--init-nodes=7",
        "--connect-window=2",
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
    let words = ["relay", "--json", "--no-pin", "--rounds=1"];
    let ranks = ["--only=ranks", "--nodes=1000000000"];
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
    let note = report["notes"][1].as_str().unwrap();
    assert!(note.contains("nodes instead of 1000000000"), "{note}");
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
        let ended = run(["relay"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}");
    }
}
