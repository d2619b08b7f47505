//! Locks, threads and atomics: those of the standard library, or a model checker's.
//!
//! The one switch between the two is here: what has model tests takes its primitives from this file.
//! Built with `--cfg shuttle`, every step of them is a point where another thread can come between.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

use std::sync::PoisonError;
use std::time::Duration;

use c10d_socket::Deadline;

/// A value behind a lock, and those who wait for it to change.
///
/// Knows no poison: what it guards is changed in steps that cannot panic halfway.
#[derive(Debug, Default)]
pub(crate) struct Monitor<T> {
    value: Mutex<T>,
    has_changed: Condvar,
}

impl<T> Monitor<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            has_changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everybody who waits. A system call even if nobody does.
    pub(crate) fn notify_all(&self) {
        self.has_changed.notify_all();
    }

    /// Gives the lock up until notified, or the deadline passes. The flag says that it has passed; like
    /// any wait, it may also end for no reason.
    #[cfg(not(shuttle))]
    pub(crate) fn wait_until<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        deadline: Deadline,
    ) -> (MutexGuard<'a, T>, bool) {
        let Some(left) = deadline.remaining(std::time::Instant::now()) else {
            let guard = self.has_changed.wait(guard);
            return (guard.unwrap_or_else(PoisonError::into_inner), false);
        };
        if left.is_zero() {
            return (guard, true);
        }
        wait_timeout(&self.has_changed, guard, &self.value, left)
    }

    /// The model has no time: a deadline passes sooner or later, or never.
    #[cfg(shuttle)]
    pub(crate) fn wait_until<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        deadline: Deadline,
    ) -> (MutexGuard<'a, T>, bool) {
        if deadline == Deadline::NEVER {
            let guard = self.has_changed.wait(guard);
            return (guard.unwrap_or_else(PoisonError::into_inner), false);
        }
        wait_timeout(&self.has_changed, guard, &self.value, Duration::ZERO)
    }
}

/// Gives the lock, which is `mutex`'s, up until notified, or for so long. The flag says that the time has
/// passed; like any wait, it may also end for no reason. Knows no poison.
#[cfg(not(shuttle))]
pub(crate) fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    _mutex: &'a Mutex<T>,
    timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) = condvar
        .wait_timeout(guard, timeout)
        .unwrap_or_else(PoisonError::into_inner);
    (guard, result.timed_out())
}

/// The model has no time: whether it passes first is a toss of a coin, and others can come between its
/// passing and the lock. What must happen may not depend on it.
#[cfg(shuttle)]
pub(crate) fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    if shuttle::rand::RngCore::next_u32(&mut shuttle::rand::thread_rng()) & 1 == 0 {
        return (wait_tick(condvar, guard, mutex, timeout), true);
    }
    let guard = condvar.wait(guard);
    (guard.unwrap_or_else(PoisonError::into_inner), false)
}

/// [`wait_timeout`] for a short while, whose passing something depends on.
#[cfg(not(shuttle))]
pub(crate) fn wait_tick<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    tick: Duration,
) -> MutexGuard<'a, T> {
    wait_timeout(condvar, guard, mutex, tick).0
}

/// In the model it always passes.
#[cfg(shuttle)]
pub(crate) fn wait_tick<'a, T>(
    _condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    _tick: Duration,
) -> MutexGuard<'a, T> {
    drop(guard);
    thread::yield_now();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
