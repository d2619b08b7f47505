//! Output of workers: on the console, in files, in the report on failures.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crossbeam_channel::{Receiver, bounded};
use elastic_agent::{
    Console, Destination, FilteredLog, GroupPlan, KillSwitch, Signal, StopReport, WorkerLogs,
    WorkerPlan,
};
use rustix::process::{Pid, kill_process};

use crate::util::{Capture, NEVER_REACHED, eventually, line_of, next, shells, start_on};

/// Workers whose output goes to files, and is shown as well.
fn teed(directory: &Path, scripts: &[&str]) -> Vec<WorkerPlan> {
    let mut workers = shells(directory, scripts);
    for worker in &mut workers {
        let stream = |name: &str| Destination::File {
            path: directory.join(format!("{}-{name}", worker.local_rank)),
            is_shown: true,
        };
        worker.logs = WorkerLogs {
            stdout: stream("out"),
            stderr: stream("err"),
            error_file: None,
        };
    }
    workers
}

/// Runs workers until all have exited; returns standard output, standard error and the report.
fn run(workers: Vec<WorkerPlan>) -> (Capture, Capture, StopReport) {
    run_plan(GroupPlan::new(workers))
}

fn run_plan(plan: GroupPlan) -> (Capture, Capture, StopReport) {
    let (stdout, stderr) = (Capture::default(), Capture::default());
    let console = Console::new(Box::new(stdout.clone()), Box::new(stderr.clone()));
    let count = plan.workers.len();
    let (group, exits) = start_on(plan, console);
    for _ in 0..count {
        next(&exits);
    }
    let report = group.stop(Signal::TERM, NEVER_REACHED, &KillSwitch::new());
    (stdout, stderr, report)
}

#[test]
fn teed_lines_are_shown_with_a_prefix_and_are_in_files_without() {
    let folder = tempfile::tempdir().unwrap();
    let script = r"printf 'one\ntwo\377\nlast'; printf 'bad\r\n' >&2";
    let (stdout, stderr, report) = run(teed(folder.path(), &[script]));
    let expected = "[default0]:one\n[default0]:two\u{fffd}\n[default0]:last";
    assert_eq!(stdout.text(), expected);
    assert_eq!(stderr.text(), "[default0]:bad\n");
    let out = fs::read(folder.path().join("0-out")).unwrap();
    assert_eq!(out, b"one\ntwo\xff\nlast");
    assert_eq!(report.outcomes[0].stderr_tail, b"bad\r\n");
}

#[test]
fn lines_of_different_workers_never_mix() {
    const LINES: usize = 3000;
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do i=$((i + 1)); printf 'begin of'; \
         printf \" line $i end\\n\"; done; printf tail"
    );
    let (stdout, _, _) = run(teed(folder.path(), &[script.as_str(); 4]));
    let text = stdout.text();
    let mut counts = [0; 4];
    for line in text.lines() {
        let (rank, line) = line
            .strip_prefix("[default")
            .unwrap()
            .split_once("]:")
            .unwrap();
        let count = &mut counts[rank.parse::<usize>().unwrap()];
        *count += 1;
        if *count <= LINES {
            assert_eq!(line, format!("begin of line {count} end"));
        } else {
            assert_eq!(line, "tail");
        }
    }
    assert_eq!(counts, [LINES + 1; 4]);
}

#[test]
fn filtered_lines_are_in_a_file_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let workers = teed(
        folder.path(),
        &["printf 'loss=1\\nother\\nmy acc\\nloss=2'"],
    );
    let path = folder.path().join("filtered_stdout.log");
    let mut plan = GroupPlan::new(workers);
    plan.filtered_stdout = Some(FilteredLog {
        path: path.clone(),
        filters: vec!["loss".to_owned(), "acc".to_owned()],
    });
    run_plan(plan);
    let filtered = fs::read_to_string(path).unwrap();
    let expected = "[default0]:loss=1\n[default0]:my acc\n[default0]:loss=2\n";
    assert_eq!(filtered, expected);
}

#[test]
fn standard_error_is_shown_unchanged_and_its_last_bytes_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let long = "i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); echo \"line $i\" >&2; done";
    let script = format!("{long}; printf '\\377\\r no end' >&2; exit 1");
    let (_, stderr, report) = run(shells(folder.path(), &[&script]));
    let mut expected = Vec::new();
    for line in 1..=2000 {
        writeln!(expected, "line {line}").unwrap();
    }
    expected.extend_from_slice(b"\xff\r no end");
    assert_eq!(stderr.bytes(), expected);
    let kept = &report.outcomes[0].stderr_tail;
    assert_eq!(*kept, expected[expected.len() - 4096..]);

    let file = Destination::File {
        path: folder.path().join("stderr.log"),
        is_shown: false,
    };
    for stderr in [file, Destination::Discard] {
        let mut workers = shells(folder.path(), &[&script]);
        workers[0].logs = WorkerLogs {
            stderr,
            ..WorkerLogs::CONSOLE
        };
        let (_, stderr, report) = run(workers);
        assert_eq!(stderr.bytes(), b"");
        assert_eq!(report.outcomes[0].stderr_tail, *kept);
        let failures = report.failures().unwrap();
        let summary = failures.summary("sh", "host", |_| String::new());
        assert!(summary.contains("\n    line 2000\n"), "{summary}");
    }
}

/// A process that leaves the worker's process group is not ended, and may keep the streams open.
#[test]
fn a_daemon_that_keeps_the_streams_open_does_not_block_the_stop() {
    let folder = tempfile::tempdir().unwrap();
    let script = |noise| {
        format!(
            "setsid sh -c 'echo $$ > $DIR/pid; {noise}' &
            until [ -e $DIR/seen ]; do sleep 0.01; done"
        )
    };
    // A file, unlike a pipe, accepts any amount.
    let endless = script("exec yes noise >&2");
    let long = script("for i in $(seq 1000000); do echo noise >&2; done; sleep 1000");
    let run = |workers| {
        let stderr = Capture::default();
        let console = Console::new(Box::new(io::sink()), Box::new(stderr.clone()));
        let (group, exits) = start_on(GroupPlan::new(workers), console);
        let path = folder.path().join("pid");
        let pid = line_of(&path).parse().unwrap();
        eventually("some noise is shown", || stderr.bytes().contains(&b'\n'));
        let seen = folder.path().join("seen");
        fs::write(&seen, "").unwrap();
        next(&exits);
        let report = group.stop(Signal::TERM, NEVER_REACHED, &KillSwitch::new());
        fs::remove_file(seen).unwrap();
        // SIGPIPE may have ended it.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        fs::remove_file(path).unwrap();
        assert!(report.failures().is_none());
        stderr.text()
    };
    let piped = run(shells(folder.path(), &[&endless]));
    let teed = run(teed(folder.path(), &[&long]));
    for (text, line) in [(piped, "noise"), (teed, "[default0]:noise")] {
        assert!(text.lines().all(|shown| line.starts_with(shown)), "{line}");
    }
}

/// Fails as a closed pipe does, after some bytes.
struct Closing(Capture);

impl Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.bytes().len() > 10 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_console_ends_no_worker() {
    let folder = tempfile::tempdir().unwrap();
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); echo 0123456789 >&2; done; exit 0";
    let closing = || Box::new(Closing(Capture::default()));
    for workers in [
        shells(folder.path(), &[script]),
        teed(folder.path(), &[script]),
    ] {
        let (group, exits) = start_on(GroupPlan::new(workers), Console::new(closing(), closing()));
        next(&exits);
        let report = group.stop(Signal::TERM, NEVER_REACHED, &KillSwitch::new());
        assert!(report.failures().is_none());
        assert_eq!(report.outcomes[0].stderr_tail.len(), 4096);
    }
    let whole = fs::read(folder.path().join("0-err")).unwrap();
    assert_eq!(whole.len(), 20_000 * 11);
}

/// Blocks until the other end is dropped.
struct Blocked(Receiver<()>);

impl Write for Blocked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_blocked_console_does_not_delay_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (release, blocked) = bounded(0);
    let console = Console::new(Box::new(Blocked(blocked)), Box::new(io::sink()));
    let (group, exits) = start_on(GroupPlan::new(teed(folder.path(), &["echo line"])), console);
    next(&exits);
    let kill_switch = KillSwitch::new();
    kill_switch.trigger();
    let report = group.stop(Signal::TERM, NEVER_REACHED, &kill_switch);
    assert_eq!(report.outcomes.len(), 1);
    drop(release);
}
