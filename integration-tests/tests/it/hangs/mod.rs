//! Jobs of two nodes with two PyTorch ranks each that hang, each in another way: without options, the launchers and
//! `c10d why` name the rank at fault and the line of its script. Healthy jobs that look like a hang cause no alarm.
//!
//! `C10D_HANGS_MODE` chooses the options of the launchers, and the time after which they report. Each test prints the
//! reports and the times; see them with `--nocapture`.

mod beside_torchrun;
mod expected;
mod healthy;
mod job;
mod lost_link;
mod mode;
mod shell;

use std::time::Duration;

use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;

use expected::Expected;
use expected::Verdict::{self, Busy, NoProgress};
use job::HangingJob;
use mode::Mode;

const LIMIT: Duration = Duration::from_secs(300);

fn run(kind: &'static str, verdict: Verdict, culprits: &'static [usize]) {
    let _watchdog = Watchdog::start(kind, LIMIT);
    let Some(mode) = mode() else {
        return;
    };
    let mut job = HangingJob::start(kind, mode);
    job.expect(&Expected::of(kind, verdict, culprits));
}

/// The mode, if jobs that hang are to be tested. Older releases are skipped: their frames are tested without jobs.
fn mode() -> Option<Mode> {
    let mode = Mode::of_hangs()?;
    Release::tested()
        .allows(Feature::ErrorTexts)
        .then_some(mode)
}

/// Makes a test of each row: the kind in `python/hanging_rank.py`, the verdict, and the ranks that are its cause.
macro_rules! hangs {
    ($($kind:ident: $verdict:expr, $culprits:expr;)+) => {
        $(
            #[test]
            #[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
            fn $kind() {
                run(stringify!($kind), $verdict, &$culprits);
            }
        )+
    };
}

hangs! {
    before_init: NoProgress, [2];
    exit_before_init: NoProgress, [2];
    skipped_collective: NoProgress, [2];
    // Ranks wait in different calls: only the author of the script can say which one is wrong.
    skipped_one_of_many: NoProgress, [];
    different_orders: NoProgress, [];
    crossed_groups: NoProgress, [];
    cycle_of_groups: NoProgress, [];
    group_not_made: NoProgress, [2];
    subgroup_skipped: NoProgress, [];
    blocked_read: NoProgress, [2];
    frozen_file_system: NoProgress, [2];
    endless_loop: Busy, [2];
    endless_loop_in_c: Busy, [2];
    deadlocked_threads: NoProgress, [2];
    blocked_loader: NoProgress, [2];
    killed_pool: NoProgress, [2];
    stopped: NoProgress, [2];
    // Nothing shows which rank should set the key.
    missing_key: NoProgress, [];
    forked_lock: NoProgress, [2];
    debugger: NoProgress, [2];
    checkpoint: Busy, [0];
    compilation: Busy, [3];
    computing: Busy, [0];
}

/// The process of the loader is dead, which PyTorch notices itself: the job fails, and the reports name the rank.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn killed_loader() {
    let _watchdog = Watchdog::start("killed_loader", LIMIT);
    let Some(mode) = mode() else {
        return;
    };
    let mut job = HangingJob::start("killed_loader", mode);
    let logs = job.expect_failure();
    let cause = "RuntimeError: DataLoader worker (pid(s) ";
    let [first, second] = &logs;
    if mode == Mode::Torchrun {
        // The ranks fail at nearly the same time, so they may not wait for rank 2 when its launcher has noticed its end.
        assert!(second.contains("  rank      : 2 ("), "{second}");
        return;
    }
    let line = first
        .lines()
        .find(|line| line.contains("root cause: rank 2 on "));
    assert!(line.is_some_and(|line| line.contains(cause)), "{first}");
    assert!(
        second.contains("  rank      : 2 (") && second.contains(cause),
        "{second}"
    );
}

/// The report does not blame the network alone, because the job has several groups.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn cycle_at_one_line() {
    let _watchdog = Watchdog::start("cycle_at_one_line", LIMIT);
    let Some(mode) = mode() else {
        return;
    };
    let mut job = HangingJob::start("cycle_at_one_line", mode);
    let mut expected = Expected::of("cycle_at_one_line", NoProgress, &[]);
    expected.places.push("The job has 4 groups".to_owned());
    job.expect(&expected);
}

/// Before the time of an alarm, `c10d why` already answers with the line.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn early_answer() {
    let _watchdog = Watchdog::start("early_answer", LIMIT);
    if mode() != Some(Mode::Plain) {
        return;
    }
    let mut job = HangingJob::start("blocked_read", Mode::Defaults);
    job.expect_early_answer(&Expected::of("blocked_read", NoProgress, &[2]));
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn late_rank() {
    let _watchdog = Watchdog::start("late_rank", LIMIT);
    let Some(mode) = mode().filter(|mode| *mode != Mode::Defaults) else {
        return;
    };
    let mut job = HangingJob::start("late_rank", mode);
    job.expect_to_continue(&Expected::of("late_rank", NoProgress, &[2]));
}
