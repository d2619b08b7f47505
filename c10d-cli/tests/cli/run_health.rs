//! `c10d run --health-check`: nodes that are not healthy stay away.

use std::fs;
use std::io::{BufRead, BufReader};

use rustix::process::Signal;

use crate::process::until;
use crate::run::Job;

/// Fails with a message.
const NO_GPU: &str = "--health-check=echo $C10D_NODE has no GPU >&2; exit 3";

/// Appends a line to a file, and fails while the file `broken` exists.
const LOGGED: &str = "--health-check=echo $$ >> $C10D_TEST_FOLDER/checks
    test ! -e $C10D_TEST_FOLDER/broken";

/// Reads standard error up to a line with this text, and returns it.
fn line_with(text: &str, stderr: &mut impl BufRead) -> String {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(
            stderr.read_line(&mut line).unwrap(),
            0,
            "no line has {text:?}"
        );
    }
    line
}

/// docs/spec/rendezvous.md, NOTICE 2.
#[test]
fn a_node_that_fails_its_check_is_named_by_the_others_and_leaves_at_sigterm() {
    let job = Job::with_server();
    let sick = job.start_node(&[NO_GPU, "--local-addr=sick"], "exit 0");
    let pid = sick.id();
    let conf = "--rdzv-conf=is_host=0,join_timeout=5";
    let mut well = job.start_node(&[conf, "--local-addr=well"], "exit 0");
    let mut stderr = BufReader::new(well.stderr());
    let line = line_with("is not joining", &mut stderr);
    let why = "is not joining: its health check failed (exit code 3: ";
    assert!(
        line.contains(&format!("node sick (pid {pid}) {why}")),
        "{line}"
    );
    let error = line_with("c10d: ", &mut stderr);
    assert!(
        error.contains(&format!("; sick (pid {pid}) {why}")),
        "{error}"
    );
    assert_eq!(well.end().code, Some(1));

    sick.signal(Signal::TERM);
    let ended = sick.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(
        ended.stderr.contains(" has no GPU); next check in "),
        "{ended:?}"
    );
    job.assert_nothing_runs();
}

#[test]
fn every_round_begins_with_a_check() {
    let job = Job::new();
    let script = "
        test $TORCHELASTIC_RESTART_COUNT = 2";
    let ended = job.run(&["--standalone", "--max-restarts=2", LOGGED], script);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let checks = fs::read_to_string(job.path("checks")).unwrap();
    assert_eq!(checks.lines().count(), 3, "{checks}");
}

#[test]
fn a_check_in_progress_ends_with_the_launcher() {
    let job = Job::new();
    let check = "--health-check=sleep 1000 & echo $! > $C10D_TEST_FOLDER/check; wait";
    for (signal, code) in [(Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let node = job.start(&["--standalone", check], "exit 0");
        job.line("check");
        node.signal(signal);
        assert_eq!(node.end().code, code);
        // After SIGKILL, another process kills it.
        until("nothing runs", || job.processes().is_empty());
        fs::remove_file(job.path("check")).unwrap();
    }
}

/// docs/spec/rendezvous.md, SPARE 2, NOTICE 4 and 6.
#[test]
fn a_spare_takes_the_place_of_a_node_that_is_no_longer_healthy() {
    let job = Job::with_server();
    let script = "
        test -e $C10D_TEST_FOLDER/broken && exit 0
        echo > $C10D_TEST_FOLDER/started.$GROUP_RANK
        while test ! -e $C10D_TEST_FOLDER/broken; do sleep 0.01; done
        test $GROUP_RANK = 1 && exit 1
        sleep 1000";
    let well = job.start_node(&["--max-restarts=1", "--local-addr=a"], script);
    let sick = job.start_node(&["--max-restarts=1", "--local-addr=b", LOGGED], script);
    job.line("started.0");
    job.line("started.1");
    let spare = job.start_node(&["--local-addr=c"], script);
    until("the spare is listed", || {
        job.state().is_some_and(|it| it.redundancy_list.len() == 1)
    });
    fs::write(job.path("broken"), "").unwrap();
    for node in [well, spare] {
        let ended = node.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    sick.signal(Signal::TERM);
    assert_eq!(sick.end().code, Some(1));
}
