//! What an agent has under way: calls without an answer, callbacks that have not run, retries that wait.
//!
//! The end of a group waits until there is nothing of it on any worker.

#[cfg(all(test, shuttle))]
mod model_tests;

use c10d_socket::Deadline;

use crate::sync::Monitor;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts what is under way.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    under_way: AtomicU64,
    calls_started: AtomicU64,
    /// Somebody waits for zero.
    is_awaited: AtomicBool,
    /// Nobody is to wait any more.
    is_over: AtomicBool,
    idle: Monitor<()>,
}

impl Activity {
    /// Something begins. What follows from it must begin before it ends.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// A call begins.
    pub(crate) fn begin_call(&self) {
        self.calls_started.fetch_add(1, Ordering::SeqCst);
        self.begin();
    }

    /// Something ends.
    pub(crate) fn end(&self) {
        let before = self.under_way.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "what ends has begun");
        if before == 1 && self.is_awaited.load(Ordering::SeqCst) {
            // Locked, so that who is about to sleep has either seen zero or sleeps already.
            drop(self.idle.lock());
            self.idle.notify_all();
        }
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::SeqCst)
    }

    /// All calls ever begun.
    pub(crate) fn calls_started(&self) -> u64 {
        self.calls_started.load(Ordering::SeqCst)
    }

    /// Ends all waits, now and later: what is under way may stay so for ever, as an answer that a function
    /// has promised for later.
    pub(crate) fn end_waits(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        drop(self.idle.lock());
        self.idle.notify_all();
    }

    /// Waits until nothing is under way, the deadline, or [`Activity::end_waits`]; whether nothing is.
    pub(crate) fn wait_idle(&self, deadline: Deadline) -> bool {
        self.is_awaited.store(true, Ordering::SeqCst);
        let mut guard = self.idle.lock();
        loop {
            if self.under_way() == 0 {
                return true;
            }
            if self.is_over.load(Ordering::SeqCst) {
                return false;
            }
            let has_passed;
            (guard, has_passed) = self.idle.wait_until(guard, deadline);
            if has_passed {
                return self.under_way() == 0;
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn a_wait_ends_when_the_last_thing_ends() {
        let activity = Arc::new(Activity::default());
        assert!(activity.wait_idle(Deadline::NEVER));
        activity.begin_call();
        activity.begin();
        assert!(!activity.wait_idle(Deadline::after(Instant::now(), Duration::ZERO)));
        let other = Arc::clone(&activity);
        let ending = std::thread::spawn(move || {
            other.end();
            other.end();
        });
        assert!(activity.wait_idle(Deadline::NEVER));
        ending.join().unwrap();
        assert_eq!((activity.under_way(), activity.calls_started()), (0, 1));
    }
}
