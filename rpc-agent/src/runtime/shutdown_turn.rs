//! One thread at a time runs the coordinated shutdown; an attempt that failed is kept for the next one.
//!
//! How workers end together is decided by [`crate::termination`].

use c10d_socket::{Cancel, Deadline};

use crate::sync::{Arc, Monitor, WaitEnd};
use crate::termination::Termination;

/// The right to run the coordinated shutdown, and where the last attempt stopped.
#[derive(Debug, Default)]
pub(super) struct ShutdownTurn(Arc<Monitor<State>>);

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    stopped: Option<Termination>,
}

impl ShutdownTurn {
    /// Takes the turn, and what an attempt that failed left. Waits while another thread has it.
    pub(super) fn begin(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Termination>, WaitEnd> {
        let is_free = |state: &mut State| !state.is_taken;
        let mut state = self.0.wait_for((deadline, cancel), is_free)?;
        state.is_taken = true;
        Ok(state.stopped.take())
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
