//! `c10d-bench soak`: a few jobs of each kind, what is measured, and what is left.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::launcher::c10d;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::{Ended, run, run_until};

fn soak(options: &[&str]) -> Ended {
    let c10d = format!("--c10d={}", c10d().display());
    run(["soak", &c10d].iter().chain(options))
}

fn measure<'r>(report: &'r Value, name: &str) -> &'r Value {
    let measures = report["measures"].as_array().unwrap();
    let found = measures.iter().find(|measure| measure["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn a_small_run_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("soak");
    let csv = folder.path().join("samples.csv");
    let options = [
        "--minutes=0.2",
        "--jobs=24",
        // None: memory and descriptors settle more slowly than this.
        "--restart-every=10",
        "--json",
        &format!("--seed={}", fastrand::u64(..)),
        &format!("--dir={}", directory.display()),
        &format!("--csv={}", csv.display()),
    ];
    let ended = soak(&options);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    // A busy machine does not start all of them in the time.
    let jobs = report["jobs"].as_u64().unwrap();
    assert!((1..=24).contains(&jobs), "{ended:?}");
    assert_eq!(report["ended_otherwise"], Value::Array(Vec::new()));
    for name in [
        "processes of ended jobs",
        "processes at the end",
        "temporary files at the end",
    ] {
        assert_eq!(measure(&report, name)["judged"], 0.0, "{ended:?}");
    }
    for process in ["store in memory", "launcher", "launcher by relay"] {
        for what in ["RSS", "PSS", "anonymous memory", "descriptors", "threads"] {
            let last = &measure(&report, &format!("{process}: {what}"))["last"];
            assert!(last.as_f64().unwrap() > 0.0, "{process}: {what}");
        }
    }
    assert_eq!(fs::read_dir(directory.join("tmp")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(directory.join("jobs")).unwrap().count(), 0);
    let samples = fs::read_to_string(csv).unwrap();
    let mut lines = samples.lines();
    assert_eq!(lines.next(), Some("seconds,jobs,incarnation,measure,value"));
    assert!(lines.all(|line| line.split(',').count() == 5), "{samples}");
    assert!(directory.join("store/journal.db").exists());
}

#[test]
fn a_run_that_is_ended_by_a_signal_reports_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("samples.csv");
    let c10d = format!("--c10d={}", c10d().display());
    let to = format!("--csv={}", csv.display());
    let directory = format!("--dir={}", folder.path().join("soak").display());
    let words = ["soak", "--minutes=2", "--jobs=60", &c10d, &to, &directory];
    let ended = run_until(words, |process| {
        let since = Instant::now();
        // The heading, and a sample.
        while fs::read_to_string(&csv).map_or(0, |it| it.lines().count()) < 2 {
            assert!(since.elapsed() < Duration::from_secs(60), "no sample");
            thread::sleep(Duration::from_millis(5));
        }
        let process = Pid::from_raw(process as i32).unwrap();
        kill_process(process, Signal::TERM).unwrap();
    });
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("ended by a signal"), "{ended:?}");
    let table = ended.stdout_text();
    assert!(table.contains("jobs in 0."), "{ended:?}");
    // A store that has served jobs is not taken for a new one.
    let again = run(["soak", &c10d, &directory]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.stderr.contains("is not empty"), "{again:?}");
}

#[test]
fn a_command_that_fails_is_a_failed_check_and_is_named() {
    // It starts, and is no store.
    let ended = run(["soak", "--minutes=0.1", "--c10d=/bin/true"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("store with a directory"), "{ended:?}");
}

#[test]
fn invalid_options_of_soak_have_exit_code_2() {
    let missing = Path::new("/nonexistent/c10d");
    let c10d = format!("--c10d={}", missing.display());
    for words in [
        &["--minutes=0"][..],
        &["--hours=nan"],
        &["--hours=1", "--minutes=1"],
        &["--jobs=x"],
        &[&c10d],
    ] {
        let ended = run(["soak"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    }
}
