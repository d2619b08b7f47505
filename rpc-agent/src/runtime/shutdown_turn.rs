//! One thread at a time runs the coordinated shutdown; an attempt that failed is kept for the next one.
//!
//! How workers end together is decided by [`crate::termination`].

use c10d_socket::Deadline;

use crate::sync::Monitor;
use crate::termination::Termination;

/// The right to run the coordinated shutdown, and where the last attempt stopped.
#[derive(Debug, Default)]
pub(super) struct ShutdownTurn(Monitor<State>);

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    stopped: Option<Termination>,
}

impl ShutdownTurn {
    /// Takes the turn, and what an attempt that failed left; `None` when another thread has it until the deadline.
    pub(super) fn begin(&self, deadline: Deadline) -> Option<Option<Termination>> {
        let mut state = self.0.lock();
        while state.is_taken {
            let has_passed;
            (state, has_passed) = self.0.wait_until(state, deadline);
            if has_passed && state.is_taken {
                return None;
            }
        }
        state.is_taken = true;
        Some(state.stopped.take())
    }

    /// Gives the turn back, with an attempt for the next one to continue.
    pub(super) fn end(&self, stopped: Option<Termination>) {
        let mut state = self.0.lock();
        state.is_taken = false;
        state.stopped = stopped;
        drop(state);
        self.0.notify_all();
    }
}
