//! `c10d run`: command lines that are rejected before anything starts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::process::{command, run};

#[test]
fn an_invalid_value_is_reported_in_one_line_with_exit_code_2() {
    for (arguments, text) in [
        (&["--nnodes=2:1", "s.py"][..], "--nnodes is \"2:1\""),
        (
            &["--nproc-per-node=many", "s.py"],
            "--nproc-per-node is \"many\"",
        ),
        (
            &["--monitor_interval=0", "s.py"],
            "--monitor-interval is \"0\"",
        ),
        (
            &["--rdzv-backend=etcd", "s.py"],
            "--rdzv-backend is \"etcd\"",
        ),
        (
            &["--rdzv-endpoint=node0", "s.py"],
            "--rdzv-endpoint is \"node0\"",
        ),
        (
            &["--numa-binding=node", "s.py"],
            "--numa-binding node is not supported",
        ),
        (&["-m", "--no-python", "mod"], "--module and --no-python"),
        (
            &["--preload=torch", "./train.sh"],
            "--preload is for Python: SCRIPT ./train.sh is run as a program",
        ),
        (
            &["--standalone"],
            "no SCRIPT given: name a script or program to run",
        ),
    ] {
        let ended = run(["run"].iter().chain(arguments));
        ended.assert_fails(2, text);
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
}

#[test]
fn an_invalid_variable_is_reported_by_its_name() {
    for (name, value) in [
        ("PET_NNODES", "x"),
        ("PET_STANDALONE", "yes"),
        ("PET_MASTER_PORT", "65536"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1"),
    ] {
        let output = command(["run", "s.py"]).env(name, value).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.starts_with(&format!("c10d: {name} is \"{value}\"")),
            "{stderr}"
        );
    }
}

#[test]
fn an_unknown_option_has_exit_code_2() {
    for arguments in [
        &["run", "--unknown", "s.py"][..],
        &["run", "--nnodes"],
        &["run", "--standalone=1", "s.py"],
        &["run", "--rdzv-id", "-j", "s.py"],
    ] {
        let ended = run(arguments);
        assert_eq!(ended.code, Some(2), "{ended:?}");
    }
}

#[test]
fn the_help_names_every_option_and_the_source_of_defaults() {
    let ended = run(["run", "--help"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let help = ended.stdout_text();
    for text in [
        "SCRIPT",
        "--nproc-per-node",
        "--rdzv-endpoint",
        "--virtual-local-rank",
        "PET_",
    ] {
        assert!(help.contains(text), "{text}");
    }
    assert!(!help.contains("--logs-specs"), "{help}");
}

#[test]
fn the_short_help_fits_a_screen_and_has_what_most_people_need() {
    let short = run(["run", "-h"]);
    assert_eq!(short.code, Some(0), "{short:?}");
    let text = short.stdout_text();
    assert!(text.lines().count() <= 60, "{text}");
    for option in [
        "--nnodes",
        "--nproc-per-node",
        "--standalone",
        "--rdzv-endpoint",
        "--max-restarts",
        "--log-dir",
        "--dry-run",
    ] {
        assert!(text.contains(option), "{option}");
    }
    assert!(text.contains("c10d run --help"), "{text}");
    let long = run(["run", "--help"]);
    let (of_short, of_long) = (names(text), names(long.stdout_text()));
    assert!(of_short.is_subset(&of_long), "{of_short:?}");
    assert!(of_short.len() < of_long.len() / 2, "{of_short:?}");
}

#[test]
fn the_manual_has_every_option_of_the_help_and_no_other() {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/run.md");
    let manual = fs::read_to_string(manual).unwrap();
    let (_, options) = manual.split_once("\n## Options\n").unwrap();
    let (options, _) = options.split_once("\n## ").unwrap();
    let help = run(["run", "--help"]);
    let (help, _) = help.stdout_text().split_once("\nEach worker runs").unwrap();
    let of_help = names(help);
    let mut of_manual = names(options);
    // The help hides options that it rejects, and has --help.
    for rejected in ["--logs-specs", "--print-completion"] {
        assert!(of_manual.remove(rejected), "{rejected}");
    }
    of_manual.insert("--help".to_owned());
    assert_eq!(of_help, of_manual);
}

/// The long options in a text, without those written with underscores.
fn names(text: &str) -> BTreeSet<String> {
    let is_name = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    let words = text.split(|char| !is_name(char));
    words
        .filter(|word| word.len() > 2 && word.starts_with("--") && word.as_bytes()[2] != b'-')
        .filter(|word| !word.contains('_'))
        .map(str::to_owned)
        .collect()
}
