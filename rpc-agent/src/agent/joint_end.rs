//! One thread at a time ends the group together with the other workers; a try that failed is kept.
//!
//! How workers end together is [`crate::termination`]'s.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use c10d_socket::Deadline;

use crate::termination::Termination;

/// The turn to end the group, and where the last try stopped.
#[derive(Debug, Default)]
pub(crate) struct JointEndTurn {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    stopped: Option<Termination>,
}

impl JointEndTurn {
    /// Takes the turn, and what a try that failed left; `None` when another thread has it until the
    /// deadline.
    pub(crate) fn begin(&self, deadline: Deadline) -> Option<Option<Termination>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.is_taken {
            state = match deadline.remaining(Instant::now()) {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return None,
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.is_taken = true;
        Some(state.stopped.take())
    }

    /// Gives the turn back, with a try to be gone on with.
    pub(crate) fn end(&self, stopped: Option<Termination>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_taken = false;
        state.stopped = stopped;
        drop(state);
        self.changed.notify_one();
    }
}
