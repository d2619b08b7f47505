//! `/metrics`, as Prometheus reads it.

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};

use c10d_inspect::http::{EventKind, RoundSize};
use c10d_store::{Store, StoreExt, TcpStore};
use serde_json::Value;

use crate::canned::{Canned, job_without};
use crate::front::Front;

/// The variable that names a Python with the package `prometheus_client`.
const PYTHON_VARIABLE: &str = "C10D_PROMETHEUS_PYTHON";

/// Parses standard input as strictly as Prometheus' own client library does, and prints every sample.
const PARSE: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(sys.stdin.read()))
assert all(family.documentation for family in families)
print(json.dumps([[family.name, family.type, sample.name, sample.labels, sample.value]
                  for family in families for sample in family.samples]))
";

#[test]
fn a_scrape_has_the_metrics_of_the_store_and_of_the_job() {
    let front = Front::start(Canned::new(job_without(100, &[7, 8])));
    let timeline = front.status.timeline();
    (0..3).for_each(|_| timeline.push(EventKind::Restart, "the workers restart"));
    timeline.set_round(RoundSize {
        nodes: 4,
        workers: 32,
    });
    let answer = front.get("/metrics");
    let media_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(answer.head.contains(media_type), "{answer:?}");
    assert!(answer.body.ends_with("\n# EOF\n"), "{answer:?}");
    for line in [
        concat!(
            "c10d_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        ),
        "c10d_job_ranks_expected 100",
        "c10d_job_ranks_missing 2",
        "c10d_job_ranks_waiting 98",
        "c10d_job_stuck 1",
        "c10d_store_oldest_wait_seconds 31",
        "c10d_job_conflicts_total{kind=\"two_jobs\"} 0",
        "c10d_run_restarts_total 3",
        "c10d_rendezvous_nodes 4",
        "c10d_run_workers 32",
        "c10d_rendezvous_rounds_total 0",
    ] {
        assert!(
            answer.body.lines().any(|other| other == line),
            "{line}: {}",
            answer.body
        );
    }
}

#[test]
#[ignore = "needs a Python with prometheus_client"]
fn a_prometheus_client_reads_a_scrape() {
    let python = env::var_os(PYTHON_VARIABLE)
        .unwrap_or_else(|| panic!("{PYTHON_VARIABLE} must name a Python with prometheus_client"));
    let front = Front::of_a_store();
    let store = TcpStore::connect("127.0.0.1", front.address.port()).expect("a client");
    store.set("a", b"12345").expect("set");
    store.add("b", 1).expect("add");
    front.status.timeline().push(EventKind::Restart, "again");

    let text = front.get("/metrics").body;
    let mut parser = Command::new(python)
        .args(["-c", PARSE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a Python");
    let mut input = parser.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("written");
    drop(input);
    let output = parser.wait_with_output().expect("its output");
    assert!(output.status.success(), "refused: {text}");

    let samples: Vec<(String, String, String, Value, f64)> =
        serde_json::from_slice(&output.stdout).expect("JSON");
    let value = |name: &str, label: Option<(&str, &str)>| {
        let found = samples.iter().find(|(_, _, sample, labels, _)| {
            sample == name && label.is_none_or(|(label, value)| labels[label] == value)
        });
        found
            .unwrap_or_else(|| panic!("{name} {label:?} in {text}"))
            .4
    };
    assert_eq!(value("c10d_store_requests_total", Some(("op", "set"))), 1.0);
    assert_eq!(
        value("c10d_store_requests_total", Some(("op", "try_add"))),
        1.0
    );
    assert_eq!(value("c10d_store_keys", None), 2.0);
    assert_eq!(value("c10d_store_connections", None), 1.0);
    assert_eq!(value("c10d_store_http_connections_total", None), 1.0);
    assert_eq!(value("c10d_job_stuck", None), 0.0);
    assert_eq!(value("c10d_run_restarts_total", None), 1.0);
    assert!(value("c10d_store_received_bytes_total", None) > 20.0);
    assert!(value("c10d_job_report_age_seconds", None) < 60.0);
    if cfg!(target_os = "linux") {
        assert!(value("process_resident_memory_bytes", None) > 1e6);
        assert!(value("process_start_time_seconds", None) > 1.7e9);
    }
    let names: Vec<&str> = samples.iter().map(|(family, ..)| family.as_str()).collect();
    for name in names {
        let prefixes = [
            "c10d_store_",
            "c10d_job_",
            "c10d_run_",
            "c10d_rendezvous_",
            "c10d_build",
            "process_",
        ];
        assert!(
            prefixes.iter().any(|prefix| name.starts_with(prefix)),
            "{name}"
        );
    }
}
