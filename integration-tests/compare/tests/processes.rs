//! Runs the program as a user does.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

const COMPARE: &str = env!("CARGO_BIN_EXE_compare");

#[test]
fn a_quick_run_measures_every_figure_of_every_rival() {
    let output = Command::new(COMPARE)
        .args(["--quick", "--json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 9, "{report}");
    let [first, rest @ ..] = figures.as_slice() else {
        unreachable!("there are nine");
    };
    let names = |figure: &Value| -> Vec<String> {
        let rivals = figure["rivals"].as_array().unwrap();
        let name = |rival: &Value| format!("{} {}", rival["rival"], rival["runtime"]);
        rivals.iter().map(name).collect()
    };
    assert!(names(first).len() == 6, "{report}");
    for figure in rest {
        assert_eq!(names(figure), names(first));
    }
    for figure in figures {
        for rival in figure["rivals"].as_array().unwrap() {
            assert!(rival["median"].as_f64().unwrap() > 0.0, "{figure}");
            assert!(rival["ratio_to_bare"].as_f64().unwrap() > 0.0, "{figure}");
        }
    }
}

#[test]
fn a_server_announces_its_address_and_exits_when_stdin_closes() {
    let mut server = Command::new(COMPARE)
        .args(["--serve", "bare"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("listening on 127.0.0.1:"), "{line:?}");
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}

#[test]
fn an_unknown_rival_is_named_in_the_error() {
    let output = Command::new(COMPARE)
        .args(["--only", "carrier-pigeon"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("carrier-pigeon"), "{errors}");
}
