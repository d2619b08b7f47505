//! What workers write: on the console, in files, in the final report.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crossbeam_channel::{Receiver, bounded};
use elastic_agent::{
    Console, Destination, FilteredLog, GroupPlan, Hurry, Signal, StopReport, StreamMap, Streams,
};
use rustix::process::{Pid, kill_process};

use crate::util::{Capture, FOR_EVER, eventually, line_of, next, shells, start, start_on};

/// Workers whose output goes to files, and is shown as well.
fn teed(directory: &Path, scripts: &[&str]) -> GroupPlan {
    let mut plan = shells(directory, scripts);
    for worker in &mut plan.workers {
        let stream = |name: &str| Destination::File {
            path: directory.join(format!("{}-{name}", worker.local_rank)),
            is_shown: true,
        };
        worker.logs.stdout = stream("out");
        worker.logs.stderr = stream("err");
    }
    plan
}

/// Runs workers until all have ended by themselves; gives standard output, error and the report.
fn run(plan: GroupPlan) -> (Capture, Capture, StopReport) {
    let (stdout, stderr) = (Capture::default(), Capture::default());
    let console = Console::new(Box::new(stdout.clone()), Box::new(stderr.clone()));
    let count = plan.workers.len();
    let (group, exits) = start_on(plan, console);
    for _ in 0..count {
        next(&exits);
    }
    let report = group.stop(Signal::TERM, FOR_EVER, &Hurry::new());
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
fn a_line_is_shown_while_its_worker_runs() {
    let folder = tempfile::tempdir().unwrap();
    let stdout = Capture::default();
    let console = Console::new(Box::new(stdout.clone()), Box::new(io::sink()));
    let plan = teed(folder.path(), &["echo early; sleep 1000"]);
    let (_group, _exits) = start_on(plan, console);
    eventually("the line is there", || {
        stdout.text() == "[default0]:early\n"
    });
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
fn a_line_without_end_comes_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let (stdout, _, _) = run(teed(
        folder.path(),
        &["head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end"],
    ));
    let text = stdout.text();
    let lines = text
        .lines()
        .map(|line| line.strip_prefix("[default0]:").unwrap());
    let lines: Vec<&str> = lines.collect();
    assert!(lines.iter().all(|line| line.len() <= 64 << 10));
    let (end, pieces) = lines.split_last().unwrap();
    assert_eq!(*end, "end");
    assert_eq!(pieces.concat(), "x".repeat(1_000_000));
}

#[test]
fn chosen_lines_are_in_a_file_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = teed(
        folder.path(),
        &["printf 'loss=1\\nother\\nmy acc\\nloss=2'"],
    );
    let path = folder.path().join("filtered_stdout.log");
    plan.filtered_stdout = Some(FilteredLog {
        path: path.clone(),
        filters: vec!["loss".to_owned(), "acc".to_owned()],
    });
    run(plan);
    let chosen = fs::read_to_string(path).unwrap();
    let expected = "[default0]:loss=1\n[default0]:my acc\n[default0]:loss=2\n";
    assert_eq!(chosen, expected);
}

#[test]
fn standard_error_is_passed_on_as_it_is_and_its_end_is_kept() {
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

    let mut redirected = shells(folder.path(), &[&script]);
    redirected.workers[0].logs.stderr = Destination::File {
        path: folder.path().join("stderr.log"),
        is_shown: false,
    };
    let (_, stderr, report) = run(redirected);
    assert_eq!(stderr.bytes(), b"");
    assert_eq!(report.outcomes[0].stderr_tail, *kept);
    let failures = report.failures().unwrap();
    let summary = failures.summary("sh", "host", |_| String::new());
    assert!(summary.contains("\n    line 2000\n"), "{summary}");
}

#[test]
fn output_that_is_not_to_be_seen_still_tells_why_a_worker_failed() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = shells(folder.path(), &["echo out; echo reason >&2; exit 1"]);
    plan.workers[0].logs.stdout = Destination::Discard;
    plan.workers[0].logs.stderr = Destination::Discard;
    let (_, stderr, report) = run(plan);
    assert_eq!(stderr.bytes(), b"");
    assert_eq!(report.outcomes[0].stderr_tail, b"reason\n");
}

/// A process in a session of its own is in no group of the worker's, and is not ended.
#[test]
fn who_keeps_the_streams_open_keeps_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let script = |noise| {
        format!(
            "setsid sh -c 'echo $$ > $DIR/pid; {noise}' &
            until [ -e $DIR/seen ]; do sleep 0.01; done"
        )
    };
    // A file, unlike a pipe, takes as much as comes.
    let endless = script("exec yes noise >&2");
    let long = script("for i in $(seq 1000000); do echo noise >&2; done; sleep 1000");
    let run = |plan| {
        let stderr = Capture::default();
        let console = Console::new(Box::new(io::sink()), Box::new(stderr.clone()));
        let (group, exits) = start_on(plan, console);
        let path = folder.path().join("pid");
        let pid = line_of(&path).parse().unwrap();
        eventually("some noise is shown", || stderr.bytes().contains(&b'\n'));
        let seen = folder.path().join("seen");
        fs::write(&seen, "").unwrap();
        next(&exits);
        let report = group.stop(Signal::TERM, FOR_EVER, &Hurry::new());
        fs::remove_file(seen).unwrap();
        // It may have ended for want of a reader.
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
fn a_console_that_is_closed_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); echo 0123456789 >&2; done; exit 0";
    let closing = || Box::new(Closing(Capture::default()));
    for plan in [
        shells(folder.path(), &[script]),
        teed(folder.path(), &[script]),
    ] {
        let (group, exits) = start_on(plan, Console::new(closing(), closing()));
        next(&exits);
        let report = group.stop(Signal::TERM, FOR_EVER, &Hurry::new());
        assert!(report.failures().is_none());
        assert_eq!(report.outcomes[0].stderr_tail.len(), 4096);
    }
    let whole = fs::read(folder.path().join("0-err")).unwrap();
    assert_eq!(whole.len(), 20_000 * 11);
}

/// Takes nothing until the other end is dropped.
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
fn a_console_that_takes_nothing_does_not_hold_who_is_in_a_hurry() {
    let folder = tempfile::tempdir().unwrap();
    let (release, blocked) = bounded(0);
    let console = Console::new(Box::new(Blocked(blocked)), Box::new(io::sink()));
    let (group, exits) = start_on(teed(folder.path(), &["echo line"]), console);
    next(&exits);
    let hurry = Hurry::new();
    hurry.hurry();
    let report = group.stop(Signal::TERM, FOR_EVER, &hurry);
    assert_eq!(report.outcomes.len(), 1);
    drop(release);
}

#[test]
fn an_error_file_tells_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("error.json");
    let script = r#"echo '{"message": {"message": "E: x", "extraInfo":
        {"py_callstack": "the traceback", "timestamp": "12"}}}' > $DIR/error.json; exit 1"#;
    let mut plan = shells(folder.path(), &["exit 2", script]);
    plan.workers[1].logs.error_file = Some(path.clone());
    let (_, _, report) = run(plan);
    let failures = report.failures().unwrap();
    let first = failures.first();
    assert_eq!((first.local_rank, first.timestamp), (1, 12));
    assert_eq!(first.message, "the traceback");
    assert_eq!(first.error_file.as_ref(), Some(&path));
}

#[test]
fn a_round_of_logs_fits_a_group() {
    let folder = tempfile::tempdir().unwrap();
    let options = elastic_agent::LogOptions {
        log_dir: Some(folder.path().to_owned()),
        redirects: StreamMap::All(Streams::BOTH),
        ..elastic_agent::LogOptions::default()
    };
    let mut logs = elastic_agent::LogDirectory::new(options, "job");
    for round in 0..2 {
        let files = logs.begin_round(0, 1).unwrap();
        let mut plan = shells(folder.path(), &[&format!("echo {round}; exit 0")]);
        plan.workers[0].logs = files.workers[0].clone();
        let (group, exits) = start(plan);
        next(&exits);
        drop(group);
    }
    let read = |name| fs::read_to_string(logs.path().unwrap().join(name)).unwrap();
    assert_eq!(read("attempt_0/0/stdout.log"), "0\n");
    assert_eq!(read("attempt_0.1/0/stdout.log"), "1\n");
}
