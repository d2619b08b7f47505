//! The receivers of the signals that stop a job: signals that were ignored at the start, workers with children,
//! shells.

use super::*;
use crate::process::after;

/// `c10d run ARGUMENTS worker.py`, for which a shell is the interpreter: so it is started as Python is.
fn as_python(job: &Job, arguments: &[&str], script: &str) -> Command {
    fs::write(job.path("worker.py"), script).unwrap();
    let mut command = command(["run", "--standalone"].iter().chain(arguments));
    command
        .arg(job.path("worker.py"))
        .env("PYTHON_EXEC", "sh")
        .env("DIR", job.path(""))
        .env(FOLDER, job.path("").to_str().unwrap().trim_end_matches('/'));
    command
}

/// `c10d run ARGUMENTS --no-python sh -c SCRIPT`.
fn as_program(job: &Job, arguments: &[&str], script: &str) -> Command {
    let mut command = command(["run", "--standalone"].iter().chain(arguments));
    command
        .args(["--no-python", "sh", "-c", script])
        .env("DIR", job.path(""))
        .env(FOLDER, job.path("").to_str().unwrap().trim_end_matches('/'));
    command
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    // A stop signal, and a signal for the workers only.
    for (name, signal) in [("HUP", Signal::HUP), ("USR1", Signal::USR1)] {
        let job = Job::new();
        let script = format!(
            "kill -s {name} $$
            echo survived > $DIR/survived
            until [ -e $DIR/go ]; do sleep 0.02; done"
        );
        let command = as_python(&job, &["--nproc-per-node=2"], &script);
        let launcher = Running::start(after(&format!("trap '' {name}"), &command));
        job.line("survived");
        launcher.signal(signal);
        fs::write(job.path("go"), "").unwrap();
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
        assert!(!ended.stderr.contains("received"), "{name}: {ended:?}");
        job.assert_nothing_runs();
    }
}

#[test]
fn the_other_signals_of_a_command_under_nohup_stop_it() {
    let job = Job::new();
    let script = "trap 'echo TERM > $DIR/signaled; exit 3' TERM
        echo > $DIR/ready
        while :; do sleep 0.02; done";
    let launcher = Running::start(after("trap '' HUP", &as_python(&job, &[], script)));
    job.line("ready");
    launcher.signal(Signal::HUP);
    launcher.signal(Signal::TERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(job.line("signaled"), "TERM");
    assert!(!ended.stderr.contains("SIGHUP"), "{ended:?}");
}

#[test]
fn a_server_ignores_what_was_ignored_at_its_start() {
    let serve = command(["store", "serve", "--port=0"]);
    let server = Server::start_command(after("trap '' INT", &serve));
    server.running.signal(Signal::INT);
    let answer = server.store(&["add", "k", "1"]);
    assert_eq!(answer.stdout_text(), "1\n", "{answer:?}");
    server.running.signal(Signal::TERM);
    let ended = server.end();
    assert!(ended.stderr.contains("received SIGTERM"), "{ended:?}");
}

/// A worker that finishes its step after a signal, and needs its child for that. Each writes what it received.
const WITH_CHILD: &str = "
(trap 'echo > $DIR/child; exit 0' TERM INT HUP
    echo > $DIR/ready-child
    while :; do sleep 0.02; done) &
trap 'echo > $DIR/worker
    until [ -e $DIR/go ]; do sleep 0.02; done
    if [ -e $DIR/child ]; then echo child died > $DIR/saved; else echo complete > $DIR/saved; fi
    exit 0' TERM INT HUP
echo > $DIR/ready
while :; do sleep 0.02; done";

#[test]
fn a_python_worker_gets_stop_signals_alone_and_a_program_gets_them_with_its_group() {
    let python: fn(&Job, &[&str], &str) -> Command = as_python;
    let program: fn(&Job, &[&str], &str) -> Command = as_program;
    for (command, options, is_alone) in [
        (python, &[][..], true),
        (python, &["--stop-signal-to=group"], false),
        (program, &[], false),
    ] {
        let job = Job::new();
        let launcher = Running::start(command(&job, options, WITH_CHILD));
        job.line("ready");
        job.line("ready-child");
        launcher.signal(Signal::TERM);
        job.line("worker");
        if !is_alone {
            job.line("child");
        }
        fs::write(job.path("go"), "").unwrap();
        let ended = launcher.end();
        assert_eq!(ended.code, Some(1), "{options:?} {ended:?}");
        let expected = if is_alone { "complete" } else { "child died" };
        assert_eq!(job.line("saved"), expected, "{options:?} {ended:?}");
        // In both cases it received the signal.
        job.line("child");
        assert!(!ended.stderr.contains("SIGKILL to"), "{ended:?}");
        job.assert_nothing_runs();
    }
}

#[test]
fn signals_that_are_passed_on_reach_the_same_processes_as_stop_signals() {
    let script = "
        (trap 'echo > $DIR/child' USR1; echo > $DIR/ready-child; while :; do sleep 0.02; done) &
        trap 'echo > $DIR/worker' USR1
        echo > $DIR/ready
        until [ -e $DIR/go ]; do sleep 0.02; done
        # After the signal that the child would have received as well.
        kill -s USR2 $!";
    for (options, is_alone) in [(&[][..], true), (&["--stop-signal-to=group"], false)] {
        let job = Job::new();
        let launcher = Running::start(as_python(&job, options, script));
        job.line("ready");
        job.line("ready-child");
        launcher.signal(Signal::USR1);
        job.line("worker");
        if !is_alone {
            job.line("child");
        }
        fs::write(job.path("go"), "").unwrap();
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(job.exists("child"), !is_alone, "{ended:?}");
    }
}
