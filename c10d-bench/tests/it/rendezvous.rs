//! `c10d-bench rendezvous`: figures and options.

use serde_json::Value;

use crate::process::{report_of, run};

fn figure(row: &Value, name: &str) -> f64 {
    row[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name}: {row}"))
}

#[test]
fn a_rendezvous_of_few_and_of_many_nodes_is_measured() {
    // The larger rendezvous writes with leases, the smaller without; the larger has three processes of nodes.
    let words = ["--nodes=2,12", "--nodes-per-process=4", "--rounds=2"];
    let report = report_of(["rendezvous", "--json"].iter().chain(&words));
    let rows = report.rows();
    let nodes: Vec<_> = rows.iter().map(|row| row["nodes"].as_u64()).collect();
    assert_eq!(nodes, [Some(2), Some(12)]);
    for row in rows {
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
        if cfg!(target_os = "linux") {
            assert!(figure("connections_per_node") >= 1.0, "{row}");
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
