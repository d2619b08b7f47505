//! Whether a store object has been closed, and pauses that end when it is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

/// Set once, by [`set`](Self::set).
#[derive(Debug, Default)]
pub(super) struct CloseFlag {
    is_set: Mutex<bool>,
    was_set: Condvar,
}

impl CloseFlag {
    /// Closes, and ends every pause.
    pub(super) fn set(&self) {
        *self.lock() = true;
        self.was_set.notify_all();
    }

    /// Whether the store object has been closed.
    pub(super) fn is_set(&self) -> bool {
        *self.lock()
    }

    /// Sleeps for so long, or until closed.
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
        // Nothing panics while it holds the lock.
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn closing_ends_the_pauses_of_other_threads_and_all_later_ones() {
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
    fn a_pause_lasts_its_time() {
        let flag = CloseFlag::default();
        let started = Instant::now();
        flag.pause(Duration::from_millis(5));
        assert!(started.elapsed() >= Duration::from_millis(5));
        assert!(!flag.is_set());
    }
}
