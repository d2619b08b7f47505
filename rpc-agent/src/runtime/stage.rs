//! The life of an agent: running, stopping, stopped.

use std::sync::atomic::{AtomicU8, Ordering};

const RUNNING: u8 = 0;
const STOPPING: u8 = 1;
const STOPPED: u8 = 2;

/// Only ever advances.
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

impl Stage {
    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Ordering::SeqCst) == RUNNING
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STOPPED
    }

    /// True for the first caller, which is to stop the agent.
    pub(crate) fn begin_stop(&self) -> bool {
        self.0
            .compare_exchange(RUNNING, STOPPING, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(crate) fn end_stop(&self) {
        self.0.store(STOPPED, Ordering::SeqCst);
    }
}
