//! Jobs of one node of `c10d run`, which has ranks 0 and 1, and one node of torchrun, whose stacks no launcher reads.

use std::ffi::OsString;

use integration_tests::launcher::Kind;
use integration_tests::torch::script;
use integration_tests::watchdog::Watchdog;

use super::expected::{Expected, SCRIPT, Verdict};
use super::job::HangingJob;
use super::mode::Mode;
use super::{LIMIT, mode};

/// Starts a job in which this rank blocks in a read; `None` if the mode is about options that torchrun does not have.
fn start(broken: &str) -> Option<HangingJob> {
    let mode = mode().filter(|mode| matches!(mode, Mode::Plain | Mode::Defaults))?;
    let words: [OsString; 2] = [script(SCRIPT).into(), "blocked_read".into()];
    let kinds = [Kind::C10d, Kind::Torchrun];
    let variables = [("C10D_TEST_BROKEN", broken)];
    Some(HangingJob::start_nodes(kinds, mode, &words, &variables))
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_blocked_rank_of_our_node_is_named_with_its_line() {
    let _watchdog = Watchdog::start("a_blocked_rank_of_our_node", LIMIT);
    let Some(mut job) = start("1") else {
        return;
    };
    job.expect(&Expected::of("blocked_read", Verdict::PartlyObserved, &[1]));
}

/// No report names a rank of our node, because both wait.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn ranks_of_torchrun_have_no_stack() {
    let _watchdog = Watchdog::start("ranks_of_torchrun_have_no_stack", LIMIT);
    let Some(mut job) = start("2") else {
        return;
    };
    let place = " under torchrun on ".to_owned();
    job.expect(&Expected {
        verdict: Verdict::PartlyObserved,
        culprits: &[],
        places: vec![place, ": no stack".to_owned()],
    });
}
