//! `c10d-bench rendezvous`: figures, options, and killed nodes.

use serde_json::Value;

use crate::process::run;

/// Runs `c10d-bench rendezvous` with these words, and returns its rows.
fn rendezvous_rows(words: &[&str]) -> Vec<Value> {
    let ended = run(["rendezvous", "--json"].iter().chain(words));
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
    let ended = run(["rendezvous", "--nodes=1,2", "--rounds=1"]);
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

/// docs/rendezvous.md, GROUP 10 and 11.
#[test]
fn nodes_end_together() {
    for end in ["--end", "--end=leave"] {
        let words = ["--nodes=8,40", "--nodes-per-process=20", "--rounds=1", end];
        for row in rendezvous_rows(&words) {
            assert!(figure(&row, "end_ms") > 0.0, "{row:?}");
        }
    }
}

#[test]
fn killing_the_first_node_after_the_round_is_complete_is_refused() {
    let late = ["--nodes=2", "--rounds=1", "--kill-first-after=2000"];
    let ended = run(["rendezvous"].iter().chain(&late));
    ended.assert_fails("complete before its first node was killed after 2s");
}

#[test]
fn a_rendezvous_that_needs_more_files_than_the_limit_is_refused() {
    let limited = |nodes: &str| {
        std::process::Command::new("sh")
            .args([
                "-c",
                "ulimit -n 200 && exec \"$0\" rendezvous --rounds=1 --nodes=\"$1\"",
                env!("CARGO_BIN_EXE_c10d-bench"),
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
        &["--end=x"],
    ] {
        let ended = run(["rendezvous"].iter().chain(words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    }
}

#[test]
fn nodes_that_share_connections_agree_and_rest() {
    let words = ["--nodes=40", "--nodes-per-process=16", "--rounds=1"];
    let shared = ["--nodes-per-connection=4", "--rest=1"];
    let rows = rendezvous_rows(&[&words[..], &shared].concat());
    assert_eq!(figure(&rows[0], "rest_lost"), 0.0);
    assert!(figure(&rows[0], "writes_done") >= 1.0);
    if cfg!(target_os = "linux") {
        // And one of each process, besides that of the measurement.
        assert!(figure(&rows[0], "connections_per_node") < 0.5);
    }
}
