//! Whether a store object has been closed, and sleeps that end when it is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

/// A flag that is set once, by [`set`](Self::set).
#[derive(Debug, Default)]
pub(super) struct CloseFlag {
    is_set: Mutex<bool>,
    was_set: Condvar,
}

impl CloseFlag {
    /// Sets the flag and ends all sleeps.
    pub(super) fn set(&self) {
        *self.lock() = true;
        self.was_set.notify_all();
    }

    pub(super) fn is_set(&self) -> bool {
        *self.lock()
    }

    /// Sleeps for `duration`, or until the flag is set.
    pub(super) fn pause(&self, duration: Duration) {
        let deadline = Deadline::after(Instant::now(), duration);
        let mut is_set = self.lock();
        while !*is_set
            && let Some(left) = deadline.remaining(Instant::now())
            && !left.is_zero()
        {
            let result = self.was_set.wait_timeout(is_set, left);
            is_set = result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // No code panics while it holds the lock.
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn closing_ends_current_and_later_sleeps() {
        let flag = CloseFlag::default();
        let started = Instant::now();
        let long = Duration::from_secs(60);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| flag.pause(long));
            }
            flag.set();
        });
        flag.pause(long);
        assert!(flag.is_set());
        assert!(started.elapsed() < long / 2);
    }

    #[test]
    fn a_sleep_lasts_its_duration() {
        let flag = CloseFlag::default();
        let started = Instant::now();
        flag.pause(Duration::from_millis(5));
        assert!(started.elapsed() >= Duration::from_millis(5));
        assert!(!flag.is_set());
    }
}
