//! `c10d-bench goodput check`: histories of a few lines. Its findings in other histories are tested where they
//! are decided.

use std::fs;

use crate::process::run;

/// Two ranks that do ten steps in a second without faults, and ten steps in a second with a fault that has no
/// effect.
const HISTORY: &str = r#"{"setting":{"seed":7,"minutes":0,"notes":[]}}
{"side":{"side":"a job","keeps_ranks":true,"calm_ms":[0,1000],"measured_ms":[1000,2000],"has_finished":true,"left_out":["cut"]}}
{"fault":{"kind":"fill-disk","at_ms":1100,"end_ms":1200,"hit":[],"what":"","is_void":false}}
{"launcher":{"node":0,"begin_ms":0,"end_ms":2100,"how":"exit code 0"}}
{"process":{"node":0,"local":0,"pid":1,"start_ms":0,"joined":[{"generation":1,"rank":0,"size":2,"at_ms":0}],"runs":[{"generation":1,"first":0,"last":0,"begin_ms":0,"end_ms":0,"chain":1,"loss":0.3264106564226499,"saved":null},{"generation":1,"first":1,"last":816,"begin_ms":100,"end_ms":2100,"chain":1590591766,"loss":0.08348624709834664,"saved":null}],"wrong":[],"unsaved":0,"error":null,"is_done":true}}
"#;

fn check(history: &str) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    fs::write(&path, history).unwrap();
    let ended = run(["goodput", "check", path.to_str().unwrap()]);
    let table = String::from_utf8(ended.stdout).unwrap();
    (ended.code, table, ended.stderr)
}

#[test]
fn a_history_is_counted_and_checked_again() {
    let (code, table, _) = check(HISTORY);
    assert_eq!(code, Some(0), "{table}");
    for line in [
        "seed 7, 0 minutes a side",
        "| violations | 0 (<= 0.0 met) |",
        "| the disk is full | 0.0 ms |",
        "- a job: left out: a node's link is down",
    ] {
        assert!(table.contains(line), "{line}: {table}");
    }
}

#[test]
fn steps_that_the_processors_make_slower_are_named() {
    let (_, table, _) = check(HISTORY);
    assert!(!table.contains("undisturbed step takes"), "{table}");
    let busy = HISTORY.replace(r#""minutes":0"#, r#""minutes":0,"step_ms":2"#);
    let (code, table, _) = check(&busy);
    assert_eq!(code, Some(0), "{table}");
    let note = "- a job: an undisturbed step takes 2.7 ms, not 2: goodput depends";
    assert!(table.contains(note), "{table}");
}

#[test]
fn a_history_in_which_a_law_is_broken_fails_the_check() {
    let broken = HISTORY.replace("1590591766", "1590591767");
    let (code, table, error) = check(&broken);
    assert_eq!(code, Some(1), "{table}");
    assert!(
        table.contains("VIOLATION: rank 0 of node 0 (pid 1): step 816"),
        "{table}"
    );
    assert!(error.contains("1 violations, with the seed 7"), "{error}");
}

#[test]
fn a_history_that_cannot_be_written_is_known_before_anything_is_measured() {
    let words = [
        "goodput",
        "--history=/nonexistent/history",
        "--python=/bin/true",
    ];
    run(words).assert_fails("cannot write /nonexistent/history");
}

#[test]
fn a_file_that_is_no_history_is_refused() {
    let (code, _, error) = check("{}\n");
    assert_eq!(code, Some(3));
    assert!(error.contains("line 1 of the history"), "{error}");
}
