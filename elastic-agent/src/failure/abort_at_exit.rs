//! Recognizes a worker that had finished its work, and was aborted by its libraries while they were unloaded. Pure.
//!
//! gloo has threads that run until the process group is destroyed. If the interpreter exits before that, the C++ runtime
//! aborts the process in some of the runs.

use super::exit_record::ExitRecord;
use crate::worker::ExitKind;

/// The cure for the abort, for a report.
#[cfg_attr(
    not(feature = "launcher"),
    allow(dead_code, reason = "only a launcher needs it")
)]
pub(crate) const CURE: &str =
    "call torch.distributed.destroy_process_group() at the end of the program";

/// The last line that libstdc++ writes before it aborts because a thread still runs.
const MESSAGE: &str = "terminate called without an active exception";

/// Whether a worker had reached the end of its program when a signal killed it, as far as a launcher can judge.
///
/// The signal must be SIGABRT or SIGSEGV, without a place in a Python program. In addition, either another worker has
/// exited with 0, or the last line is the message of a library at exit. `others` are exits of the same round, on any
/// node.
pub(crate) fn is_abort_at_exit(record: &ExitRecord, others: &[ExitRecord]) -> bool {
    let ExitKind::Signal { number, .. } = record.exit else {
        return false;
    };
    // A stopped worker can exit with 0 long before the end of its program.
    let has_finished = |other: &ExitRecord| {
        other.rank != record.rank && other.exit.is_success() && !other.was_stopped
    };
    [libc::SIGABRT, libc::SIGSEGV].contains(&number)
        && !record.has_traceback
        && (is_message(record) || others.iter().any(has_finished))
}

fn is_message(record: &ExitRecord) -> bool {
    record.last_line.as_deref() == Some(MESSAGE)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::worker::WorkerOutcome;

    fn record(rank: usize, exit: ExitKind, stderr: &str) -> ExitRecord {
        let outcome = WorkerOutcome {
            local_rank: rank,
            rank,
            pid: 17,
            exit,
            ended_at: UNIX_EPOCH,
            was_stopped: false,
            error_file: None,
            stderr_tail: stderr.as_bytes().to_vec(),
        };
        ExitRecord::of(&outcome, "node0")
    }

    const fn signal(number: i32) -> ExitKind {
        ExitKind::Signal {
            number,
            has_dumped_core: true,
        }
    }

    #[test]
    fn only_an_abort_after_the_program_is_one_at_exit() {
        let traceback = "Traceback (most recent call last):\n  File \"/t/x.py\", line 1, in <module>\nValueError\n";
        let finished = record(1, ExitKind::Code(0), "");
        let mut stopped = finished.clone();
        stopped.was_stopped = true;
        let failed = record(1, ExitKind::Code(1), "");
        let itself = record(0, ExitKind::Code(0), "");
        let all = [&finished, &stopped, &failed, &itself];
        for (exit, stderr, expected) in [
            // With a finished worker beside it, and with each of the other workers.
            (signal(libc::SIGABRT), MESSAGE, [true; 4]),
            (signal(libc::SIGABRT), "", [true, false, false, false]),
            (
                signal(libc::SIGSEGV),
                "epoch 3\n",
                [true, false, false, false],
            ),
            (
                signal(libc::SIGABRT),
                &*format!("{traceback}{MESSAGE}"),
                [false; 4],
            ),
            (signal(libc::SIGKILL), MESSAGE, [false; 4]),
            (ExitKind::Code(134), MESSAGE, [false; 4]),
            (ExitKind::Unknown, MESSAGE, [false; 4]),
        ] {
            let aborted = record(0, exit, stderr);
            let is_at_exit =
                all.map(|other| is_abort_at_exit(&aborted, std::slice::from_ref(other)));
            assert_eq!(is_at_exit, expected, "{exit}: {stderr}");
        }
    }
}
