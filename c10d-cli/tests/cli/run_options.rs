//! `c10d run`: command lines that are rejected before anything starts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::process::{Running, command, run};

/// The parser of the options, and the parts that get their values.
#[test]
fn what_is_refused_is_one_line_with_exit_code_2() {
    let own_store = "--rdzv-conf=share_store=0";
    for (arguments, text) in [
        (&["--nnodes=2:1"][..], "--nnodes is \"2:1\""),
        (
            &["--rdzv-backend=c10d", "--rdzv-endpoint=node:http"],
            "\"node:http\"",
        ),
        (
            &["--nproc-per-node=2", "--debug-rank=2"],
            "--debug-rank is 2, but the job has 2 ranks, from 0",
        ),
        (
            &["--relay", own_store],
            "--relay needs a workers' store that a launcher serves",
        ),
        (
            &["--keep-workers", own_store],
            "--keep-workers needs a workers' store that a launcher serves",
        ),
        (
            &["--rdzv-backend=c10d", "--rdzv-conf=join_timeout=x"],
            "join_timeout",
        ),
    ] {
        // A dry run also refuses these, except for those that need the rendezvous and its store.
        let start_all = [&["run"][..], &["run", "--dry-run"]];
        let count = if arguments.contains(&own_store) { 1 } else { 2 };
        for start in &start_all[..count] {
            let ended = run(start.iter().chain(arguments).chain(&["true"]));
            ended.assert_fails(2, text);
            assert!(ended.stdout.is_empty(), "{ended:?}");
        }
    }
    let mut unknown = command(["run", "true"]);
    unknown.env("PET_NNODES", "x");
    Running::start(unknown)
        .end()
        .assert_fails(2, "c10d: PET_NNODES is \"x\"");
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
