//! `c10d run` gets SIGTERM before it has workers: as a normal process, and as process 1, which gets only signals that
//! it handles.

use std::io::{self, Write};
use std::process::Stdio;

use super::*;
use crate::process::within;

/// The way in which the launcher runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Here,
    /// The launcher is process 1 of a PID namespace.
    First,
}

/// The events that a node of two waits for.
const WAITS: [(&str, Wait); 3] = [
    ("a store that is not there", Wait::Store),
    ("a name that is not known", Wait::Name),
    ("another node", Wait::Node),
];

#[derive(Debug, Clone, Copy)]
enum Wait {
    Store,
    Name,
    Node,
}

/// The words that make the following command process 1; `None` if this user may not.
fn words_of_unshare() -> Option<Vec<&'static str>> {
    let candidates = [
        vec!["unshare", "-p", "-f", "--kill-child"],
        vec!["unshare", "-U", "-r", "-p", "-f", "--kill-child"],
    ];
    candidates.into_iter().find(|words| {
        let status = Command::new(words[0])
            .args(&words[1..])
            .arg("true")
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    })
}

/// The only child of a process.
fn child_of(pid: u32) -> u32 {
    let mut child = None;
    until("the process has a child", || {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        child = text.unwrap_or_default().trim().parse().ok();
        child.is_some()
    });
    child.unwrap()
}

/// Whether the process is the launcher and handles SIGTERM.
fn handles_sigterm(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let caught = lines.find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    caught.is_some_and(|caught| caught & (1 << (Signal::TERM.as_raw() - 1)) != 0)
}

fn stop_early(place: Place, prefix: &[&str], wait: Wait) -> Ended {
    let mut job = Job::new();
    let (_held, refusing) = refusing_address();
    let endpoint = match wait {
        Wait::Store => refusing,
        Wait::Name => "no-such-host.invalid".to_owned(),
        Wait::Node => {
            job.server = Some(Server::start());
            job.server().address.to_string()
        }
    };
    let arguments = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0",
        "--local-addr=127.0.0.1",
        "--json",
        &format!("--rdzv-endpoint={endpoint}"),
    ];
    let launcher = job.command(&arguments, "echo started > $C10D_TEST_FOLDER/started");
    let running = match place {
        Place::Here => Running::start(launcher),
        Place::First => {
            let mut command = Command::new(prefix[0]);
            command.args(&prefix[1..]);
            Running::start(within(command, &launcher))
        }
    };
    let launcher = match place {
        Place::Here => running.id(),
        Place::First => child_of(running.id()),
    };
    until("the launcher handles SIGTERM", || handles_sigterm(launcher));
    if matches!(wait, Wait::Node) {
        until("the launcher has joined", || {
            job.state()
                .is_some_and(|state| !state.participants.is_empty())
        });
    }
    let pid = Pid::from_raw(launcher.cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = running.end();
    assert!(!job.exists("started"));
    job.assert_nothing_runs();
    ended
}

fn assert_reports_the_signal(ended: &Ended, what: &str) {
    assert_eq!(ended.code, Some(143), "{what}: {ended:?}");
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["outcome"], "signalled", "{what}: {report}");
    assert_eq!(report["signal"], "SIGTERM", "{what}: {report}");
    assert_eq!(report["exit_code"], 143, "{what}: {report}");
}

#[test]
fn a_signal_ends_a_launcher_that_has_no_workers_yet() {
    for (what, wait) in WAITS {
        let ended = stop_early(Place::Here, &[], wait);
        assert_reports_the_signal(&ended, what);
    }
}

#[test]
fn a_signal_ends_a_launcher_that_is_process_1() {
    let Some(prefix) = words_of_unshare() else {
        // libtest discards what a test that passes prints.
        let _ = writeln!(
            io::stderr(),
            "skipped: this user cannot make a PID namespace (unshare -p)"
        );
        return;
    };
    let ended = stop_early(Place::First, &prefix, Wait::Node);
    assert_reports_the_signal(&ended, "process 1");
}
