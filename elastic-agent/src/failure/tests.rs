use std::fs;

use super::error_file::{self, ERROR_FILE_BYTES_MAX};
use super::process_failure::{HINT, STDERR_LINES_MAX};
use super::*;
use crate::worker::{ExitKind, WorkerOutcome};

fn outcome(local_rank: usize, exit: ExitKind, ended_at_s: u64) -> WorkerOutcome {
    WorkerOutcome {
        local_rank,
        pid: 1000,
        ..WorkerOutcome::for_test(10 + local_rank, exit, ended_at_s * 1000, "")
    }
}

const TERM: ExitKind = ExitKind::signal(15);

fn failures(outcomes: &[WorkerOutcome]) -> Failures {
    Failures::new(outcomes.iter().map(ProcessFailure::of).collect()).unwrap()
}

fn time(epoch_s: i64) -> String {
    format!("2026-11-21_04:42:{epoch_s}")
}

/// Recorded from torchrun 2.15.0, except the error file's path.
#[test]
fn the_report_has_pytorchs_layout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("error.json");
    let traceback = "Traceback (most recent call last):\\n  File \\\"/opt/venv/lib/python3.11/site-\
                     packages/torch/distributed/elastic/errors.py\\\", line 384, in wrapper\\n    \
                     result = f()\\nRuntimeError: boom\\n";
    let json = format!(
        r#"{{"message": {{"message": "RuntimeError: boom",
            "extraInfo": {{"py_callstack": "{traceback}", "timestamp": "50"}}}}}}"#
    );
    fs::write(&path, json).unwrap();
    let failed = WorkerOutcome {
        rank: 1,
        pid: 17322,
        error_file: Some(path.clone()),
        ..outcome(1, ExitKind::Code(1), 51)
    };
    let stopped = WorkerOutcome {
        rank: 0,
        pid: 17321,
        ..outcome(0, TERM, 51)
    };
    let summary = failures(&[failed, stopped]).summary("f.py", "localhost", time);
    let expected = "\
============================================================
f.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_04:42:51
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 17321)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 17321
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_04:42:50
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 17322) 
  error_file: {path}
  traceback : Traceback (most recent call last):
    File \"/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/errors.py\", line 384, in wrapper
      result = f()
  RuntimeError: boom
  
============================================================";
    assert_eq!(summary, expected.replace("{path}", path.to_str().unwrap()));
}

/// A single failure without error file, with its last output.
#[test]
fn the_report_ends_with_the_last_lines_of_the_root_cause() {
    let mut tail = String::from("cut line");
    for line in 0..30 {
        tail.push_str(&format!("\nline {line}"));
    }
    tail.push_str("\r\n 10%\r 20%\n\n");
    let failed = WorkerOutcome {
        stderr_tail: tail.into(),
        ..outcome(0, ExitKind::Code(3), 53)
    };
    let summary = failures(&[failed]).summary("sh", "h", time);
    let (head, last) = summary.split_once("\n  stderr    : ").unwrap();
    let rule = "=".repeat(60);
    let thin = "-".repeat(60);
    let expected = format!(
        "{rule}\nsh FAILED\n{thin}\nFailures:\n  <NO_OTHER_FAILURES>\n{thin}\n\
         Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_04:42:53\n  \
         host      : h\n  rank      : 10 (local_rank: 0)\n  exitcode  : 3 (pid: 1000) \n  \
         error_file: <N/A>\n  traceback : {HINT}"
    );
    assert_eq!(head, expected);
    let lines: Vec<&str> = last.lines().collect();
    assert_eq!(lines.len(), 1 + STDERR_LINES_MAX + 1);
    assert_eq!(lines[1], "    line 12");
    assert_eq!(lines[19..], ["     10%", "     20%", &rule]);
}

#[test]
fn a_traceback_of_several_workers_is_shown_once() {
    let folder = tempfile::tempdir().unwrap();
    let stack =
        "Traceback (most recent call last):\n  File \"t.py\", line 4, in main\nValueError: 42\n";
    let failed = |local_rank: usize, stack: &str, tail: &str| {
        let path = folder.path().join(local_rank.to_string());
        let json = error_file::json(
            "ValueError: 42",
            stack,
            50 + i64::try_from(local_rank).unwrap(),
        );
        fs::write(&path, json.to_string()).unwrap();
        WorkerOutcome {
            error_file: Some(path),
            stderr_tail: tail.into(),
            ..outcome(local_rank, ExitKind::Code(1), 60)
        }
    };
    let other = stack.replace("42", "7");
    let outcomes = [
        failed(3, &other, ""),
        failed(2, stack, ""),
        failed(1, stack, ""),
        // Output before the traceback is kept.
        failed(0, stack, &format!("loading\n{stack}")),
        failed(4, &other, ""),
    ];
    let summary = failures(&outcomes).summary("t.py", "h", time);
    let (others, root) = summary.split_once("Root Cause").unwrap();
    assert_eq!(summary.matches("ValueError: 42").count(), 1, "{summary}");
    assert!(
        root.contains("  ValueError: 42\n  same in   : rank 12, 11\n"),
        "{summary}"
    );
    assert!(
        root.contains("the last lines\n    loading\n==="),
        "{summary}"
    );
    let same = "traceback : the same as of rank 10\n";
    assert_eq!(others.matches(same).count(), 2, "{summary}");
    assert_eq!(summary.matches("ValueError: 7").count(), 1, "{summary}");
    assert!(
        others.contains("  ValueError: 7\n  same in   : rank 14\n"),
        "{summary}"
    );
    assert!(others.contains("the same as of rank 13\n"), "{summary}");

    // Terminal codes of a worker do not reach the terminal of the reader.
    let loud = failures(&[failed(0, "", "\x1b]0;title\x07ding\n")]).summary("t.py", "h", time);
    assert!(loud.contains("\\u{1b}]0;title\\u{7}ding"), "{loud}");
    assert!(!loud.contains(['\x1b', '\x07']), "{loud}");

    let alone = failures(&[failed(0, stack, stack)]).summary("t.py", "h", time);
    assert!(!alone.contains("stderr"), "{alone}");
    let unlike = failures(&[failed(0, stack, &other)]).summary("t.py", "h", time);
    assert!(unlike.contains("    ValueError: 7\n"), "{unlike}");
}

#[test]
fn the_root_cause_is_the_oldest_failure_then_the_first_noticed() {
    let by_times = |times: &[u64]| {
        let outcomes: Vec<_> = times
            .iter()
            .enumerate()
            .map(|(rank, &at)| outcome(rank, ExitKind::Code(1), at))
            .collect();
        failures(&outcomes).first().local_rank
    };
    assert_eq!(by_times(&[5]), 0);
    assert_eq!(by_times(&[5, 4, 4, 9]), 1);
    assert_eq!(Failures::new(Vec::new()), None);
}

#[test]
fn an_unusable_error_file_becomes_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("error.json");
    let with_file = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        ProcessFailure::of(&WorkerOutcome {
            error_file: Some(path.clone()),
            ..outcome(0, TERM, 7)
        })
    };
    let long = vec![b' '; usize::try_from(ERROR_FILE_BYTES_MAX).unwrap() + 1];
    for (content, reason) in [
        (b"no json".as_slice(), "expected"),
        (b"", "EOF"),
        (&long, "longer than 1048576 bytes"),
    ] {
        let failure = with_file(content);
        assert_eq!(failure.error_file.as_ref(), Some(&path));
        assert_eq!(failure.timestamp, 7);
        assert!(failure.message.starts_with("Signal 15 (SIGTERM)"));
        assert!(
            failure.note.as_ref().unwrap().contains(reason),
            "{failure:?}"
        );
        assert_eq!(failure.error_json(), None);
        let summary = failures(&[outcome(1, TERM, 8)]);
        assert!(!summary.summary("n", "h", time).contains("note"));
        let failed = Failures::new(vec![failure]).unwrap();
        assert!(failed.summary("n", "h", time).contains("\n  note      : "));
    }
    let empty = with_file(br#"{"message": "", "timestamp": 3}"#);
    assert_eq!((empty.timestamp, empty.note), (3, None));
    assert!(empty.message.starts_with("Signal 15"));
}

#[test]
fn an_error_file_is_copied_with_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("error.json");
    let copy = folder.path().join("copy.json");
    let failure = |content: &str, exit| {
        fs::write(&path, content).unwrap();
        ProcessFailure::of(&WorkerOutcome {
            error_file: Some(path.clone()),
            ..outcome(0, exit, 7)
        })
    };
    let object = r#"{"message":{"message":"E: x"}}"#;
    failure(object, TERM).write_error_file(&copy).unwrap();
    let copied = fs::read_to_string(&copy).unwrap();
    assert_eq!(copied, r#"{"message":{"errorCode":-15,"message":"E: x"}}"#);

    let text = r#"{"message":"plain"}"#;
    let plain = failure(text, ExitKind::Code(1));
    plain.write_error_file(&copy).unwrap();
    assert_eq!(fs::read_to_string(&copy).unwrap(), text);
    assert_eq!(plain.error_json().as_deref(), Some(text));

    let without = ProcessFailure::of(&WorkerOutcome {
        stderr_tail: b"cannot open train.bin\n".to_vec(),
        ..outcome(0, TERM, 7)
    });
    without.write_error_file(&copy).unwrap();
    let made: serde_json::Value = serde_json::from_slice(&fs::read(&copy).unwrap()).unwrap();
    let expected = serde_json::json!({ "message": {
        "message": "worker with rank 10 failed: SIGTERM",
        "errorCode": -15,
        "extraInfo": {
            "py_callstack": "Signal 15 (SIGTERM) received by PID 1000\ncannot open train.bin",
            "timestamp": "7",
        },
    } });
    assert_eq!(made, expected);
    let error = plain.write_error_file(folder.path()).unwrap_err();
    assert_eq!(error.path, folder.path());
}

#[test]
fn a_failure_without_error_file_has_a_message() {
    let message = |exit| ProcessFailure::of(&outcome(0, exit, 0)).message;
    assert_eq!(message(TERM), "Signal 15 (SIGTERM) received by PID 1000");
    let unnamed = message(ExitKind::signal(40));
    assert_eq!(unnamed, "Signal 40 (<N/A>) received by PID 1000");
    let kill = ExitKind::signal(9);
    let text = message(kill);
    let (received, hint) = text.split_once("; ").unwrap();
    assert_eq!(received, "Signal 9 (SIGKILL) received by PID 1000");
    assert!(hint.contains("memory runs out"), "{hint}");
    let stopped = WorkerOutcome {
        was_stopped: true,
        ..outcome(0, kill, 0)
    };
    assert_eq!(ProcessFailure::of(&stopped).message, received);
    assert_eq!(message(ExitKind::Code(1)), HINT);
    assert!(message(ExitKind::Unknown).contains("lost"));
}

#[test]
fn debug_output_contains_no_output_of_the_worker() {
    let failed = WorkerOutcome {
        stderr_tail: b"QZQZ".to_vec(),
        ..outcome(0, TERM, 51)
    };
    for shown in [format!("{failed:?}"), format!("{:?}", failures(&[failed]))] {
        assert!(shown.contains("stderr_tail_bytes: 4"), "{shown}");
        assert!(!shown.contains("81, 90"), "{shown}");
    }
}

/// Two ranks time out while they wait for a third, which the launcher then stops.
#[test]
fn a_blamed_worker_is_the_root_cause_and_the_first_error_is_still_shown() {
    let folder = tempfile::tempdir().unwrap();
    let timed_out = WorkerOutcome {
        pid: 1001,
        stderr_tail: b"wait timeout after 10000ms".to_vec(),
        ..outcome(1, ExitKind::Code(1), 50)
    };
    let asleep = WorkerOutcome {
        pid: 1002,
        was_stopped: true,
        ..outcome(2, TERM, 51)
    };
    let mut failures = failures(&[timed_out, asleep]);
    assert!(!failures.blame(11, "it ended on its own"));
    assert!(!failures.blame(99, "it is on another node"));
    assert_eq!(failures.first().rank, 11);
    let path = folder.path().join("error.json");
    let written = |failures: &Failures| -> serde_json::Value {
        failures.write_error_file(&path).unwrap();
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
    };
    assert_eq!(
        written(&failures)["message"]["message"],
        "worker with rank 11 failed: exit code 1"
    );

    assert!(failures.blame(12, "alive, but never reached init_process_group"));
    let (rule, thin) = ("=".repeat(60), "-".repeat(60));
    let expected = format!(
        "{rule}\nf.py FAILED\n{thin}\nFailures:\n[0]:\n  time      : 2026-11-21_04:42:50\n  host      : h\n  \
         rank      : 11 (local_rank: 1)\n  exitcode  : 1 (pid: 1001) \n  error_file: <N/A>\n  traceback : \
         {HINT}\n  stderr    : the last lines\n    wait timeout after 10000ms\n{thin}\n\
         Root Cause (the first observed failure is of rank 11):\n[1]:\n  \
         time      : 2026-11-21_04:42:51\n  host      : h\n  rank      : 12 (local_rank: 2)\n  \
         exitcode  : -15 (pid: 1002)  (SIGTERM)\n  error_file: <N/A>\n  \
         traceback : Signal 15 (SIGTERM) received by PID 1002\n  \
         cause     : alive, but never reached init_process_group\n{rule}"
    );
    assert_eq!(failures.summary("f.py", "h", time), expected);
    let json = written(&failures);
    let message = &json["message"];
    assert_eq!(
        message["message"],
        "worker with rank 12 is the root cause: alive, but never reached init_process_group"
    );
    assert_eq!(message["errorCode"], 1);
    let details = message["extraInfo"]["py_callstack"].as_str().unwrap();
    assert!(
        details.contains("worker with rank 11 failed first: exit code 1"),
        "{details}"
    );
    assert!(details.ends_with("wait timeout after 10000ms"), "{details}");
}

#[test]
fn the_meaning_of_standard_error_follows_it() {
    let failed = WorkerOutcome {
        stderr_tail: b"remote=[127.0.0.1]:42420\n".to_vec(),
        ..outcome(0, ExitKind::Code(1), 50)
    };
    let mut failures = failures(&[failed, outcome(1, ExitKind::Code(1), 51)]);
    failures.explain_stderr(|text| Some(format!("{} is rank 2", text.trim_end())));
    let summary = failures.summary("f.py", "h", time);
    let last =
        "\n    remote=[127.0.0.1]:42420\n  meaning   : remote=[127.0.0.1]:42420 is rank 2\n====";
    assert!(summary.contains(last), "{summary}");
    assert_eq!(failures.all()[1].meaning, None);
}
