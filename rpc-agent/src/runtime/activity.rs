//! The activity of an agent: the stage of its life, and its pending work, which are calls without a response, callbacks
//! that have not run, and waiting retries.
//!
//! A coordinated shutdown waits until no worker has pending work.

#[cfg(all(test, shuttle))]
mod model_tests;

use std::sync::atomic::AtomicU8;

use c10d_socket::{Cancel, Deadline};

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Monitor, WaitEnd};

/// Counter of pending operations.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    under_way: AtomicU64,
    calls_started: AtomicU64,
    /// A thread waits for zero, or has done so.
    has_waiter: AtomicBool,
    waits_ended: AtomicBool,
    idle: Arc<Monitor<()>>,
}

impl Activity {
    /// Counts the start of an operation. Operations that it causes must begin before it ends.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the start of a call.
    pub(crate) fn begin_call(&self) {
        self.calls_started.fetch_add(1, Ordering::SeqCst);
        self.begin();
    }

    /// Counts the end of an operation.
    pub(crate) fn end(&self) {
        let before = self.under_way.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "each end has a begin");
        if before == 1 && self.has_waiter.load(Ordering::SeqCst) {
            // Taking the lock ensures that a waiter has either seen zero or already sleeps.
            self.idle.ring();
        }
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::SeqCst)
    }

    /// Total number of calls begun.
    pub(crate) fn calls_started(&self) -> u64 {
        self.calls_started.load(Ordering::SeqCst)
    }

    /// Ends all current and later waits. Pending operations may never end, such as a handler's deferred
    /// response.
    pub(crate) fn end_waits(&self) {
        self.waits_ended.store(true, Ordering::SeqCst);
        self.idle.ring();
    }

    /// Waits for zero.
    ///
    /// # Errors
    /// The deadline has passed, or `cancel` or [`Activity::end_waits`] has ended the wait.
    pub(crate) fn wait_idle(&self, deadline: Deadline, cancel: &Cancel) -> Result<(), WaitEnd> {
        self.has_waiter.store(true, Ordering::SeqCst);
        let mut is_idle = false;
        let waited = self.idle.wait_for((deadline, cancel), |()| {
            is_idle = self.under_way() == 0;
            is_idle || self.waits_ended.load(Ordering::SeqCst)
        });
        drop(waited?);
        if is_idle {
            Ok(())
        } else {
            Err(WaitEnd::Cancelled)
        }
    }
}

const RUNNING: u8 = 0;
const STOPPING: u8 = 1;
const STOPPED: u8 = 2;

/// The stage of an agent's life, which only ever advances.
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_operation() {
        let activity = Arc::new(Activity::default());
        assert_eq!(activity.wait_idle(Deadline::NEVER, &Cancel::NEVER), Ok(()));
        activity.begin_call();
        activity.begin();
        let late = activity.wait_idle(Deadline::at(Instant::now()), &Cancel::NEVER);
        assert_eq!(late, Err(WaitEnd::Late));
        let other = Arc::clone(&activity);
        let ending = std::thread::spawn(move || {
            other.end();
            other.end();
        });
        assert_eq!(activity.wait_idle(Deadline::NEVER, &Cancel::NEVER), Ok(()));
        ending.join().unwrap();
        assert_eq!((activity.under_way(), activity.calls_started()), (0, 1));
    }
}
