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

/// The variable that names the program promtool.
const PROMTOOL_VARIABLE: &str = "C10D_PROMTOOL";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Parses standard input as strictly as Prometheus' own client library does, and prints every sample. The argument is a
/// module of the library.
const PARSE: &str = "
import importlib, json, sys
parser = importlib.import_module(sys.argv[1])
families = list(parser.text_string_to_metric_families(sys.stdin.read()))
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
fn the_request_chooses_the_format() {
    let front = Front::start(Canned::new(job_without(100, &[7, 8])));
    let answers = [
        (front.get("/metrics"), PLAIN),
        (front.get_as("*/*", "/metrics"), PLAIN),
        (front.get_as(PLAIN, "/metrics"), PLAIN),
        (front.get_as(OPEN_METRICS, "/metrics"), OPEN_METRICS),
    ];
    let family = "c10d_job_conflicts";
    for (answer, media_type) in &answers {
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(
            answer
                .head
                .contains(&format!("\r\ncontent-type: {media_type}\r\n")),
            "{answer:?}"
        );
        let is_open = *media_type == OPEN_METRICS;
        assert_eq!(answer.body.ends_with("\n# EOF\n"), is_open, "{answer:?}");
        let family = if is_open {
            family.to_owned()
        } else {
            format!("{family}_total")
        };
        let kind = format!("\n# TYPE {family} counter\n{family}");
        assert!(answer.body.contains(&kind), "{kind}: {answer:?}");
    }
    // The samples have the same names in both.
    let [plain, .., open] = answers.map(|(answer, _)| {
        let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
        let names = lines.filter_map(|line| line.split(' ').next().map(str::to_owned));
        names.collect::<Vec<_>>()
    });
    assert_eq!(plain, open);
}

/// A store with some requests and its launcher's events, and its client.
fn used_store() -> (Front, TcpStore) {
    let front = Front::of_a_store();
    let store = TcpStore::connect("127.0.0.1", front.address.port()).expect("a client");
    store.set("a", b"12345").expect("set");
    store.add("b", 1).expect("add");
    front.status.timeline().push(EventKind::Restart, "again");
    (front, store)
}

/// Runs a program with the text as its input, and returns its output if it succeeds.
fn pass_to(command: &mut Command, text: &str) -> Vec<u8> {
    let mut program = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut input = program.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("written");
    drop(input);
    let output = program.wait_with_output().expect("its output");
    assert!(output.status.success(), "{command:?} refused: {text}");
    output.stdout
}

#[test]
#[ignore = "needs promtool"]
fn promtool_finds_no_fault() {
    let promtool = env::var_os(PROMTOOL_VARIABLE)
        .unwrap_or_else(|| panic!("{PROMTOOL_VARIABLE} must name Prometheus' program promtool"));
    let (used, _client) = used_store();
    let job = Front::start(Canned::new(job_without(100, &[7, 8])));
    for front in [used, job] {
        let text = front.get("/metrics").body;
        pass_to(Command::new(&promtool).args(["check", "metrics"]), &text);
    }
}

#[test]
#[ignore = "needs a Python with prometheus_client"]
fn a_prometheus_client_reads_a_scrape() {
    let python = env::var_os(PYTHON_VARIABLE)
        .unwrap_or_else(|| panic!("{PYTHON_VARIABLE} must name a Python with prometheus_client"));
    for (media_type, module) in [
        (PLAIN, "prometheus_client.parser"),
        (OPEN_METRICS, "prometheus_client.openmetrics.parser"),
    ] {
        let (front, _client) = used_store();
        let text = front.get_as(media_type, "/metrics").body;
        let output = pass_to(Command::new(&python).args(["-c", PARSE, module]), &text);
        check_samples(&text, &output);
    }
}

/// Checks the samples that a parser of the text has printed.
fn check_samples(text: &str, output: &[u8]) {
    let samples: Vec<(String, String, String, Value, f64)> =
        serde_json::from_slice(output).expect("JSON");
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
