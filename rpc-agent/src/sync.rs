//! Locks, threads and atomics of the standard library or, with `--cfg shuttle`, of the model checker.
//!
//! Code with model tests imports its primitives from this file. Under the model checker the scheduler can
//! switch threads at every operation on them.

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
use std::task::{Wake, Waker};
use std::time::Duration;

use c10d_socket::{Cancel, Deadline, Process};

/// A mutex that ignores poisoning: a panic under a lock is a defect of this crate, and the value is still better than
/// none.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`Lock`] with a condition variable.
#[derive(Debug, Default)]
pub(crate) struct Monitor<T> {
    value: Lock<T>,
    has_changed: Condvar,
}

impl<T> Monitor<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Lock::new(value),
            has_changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    /// Wakes all waiting threads. Makes a system call even if no thread waits.
    pub(crate) fn notify_all(&self) {
        self.has_changed.notify_all();
    }

    /// [`Monitor::wait_with`] of a monitor that is shared.
    pub(crate) fn wait_for(
        self: &Arc<Self>,
        until: (Deadline, &Cancel),
        is_over: impl FnMut(&mut T) -> bool,
    ) -> Result<MutexGuard<'_, T>, WaitEnd>
    where
        T: Send + 'static,
    {
        let waker = || {
            let monitor = Arc::clone(self);
            waker(move || monitor.ring())
        };
        self.wait_with(until, waker, is_over)
    }

    /// Waits until `is_over`. `waker` makes a waker that [rings](Self::ring) this monitor.
    ///
    /// # Errors
    /// The deadline has passed, or `cancel` has interrupted the wait. Its check may fork: the wait of the child ends
    /// at once, because nothing wakes it, and because threads that it does not have may hold the lock.
    pub(crate) fn wait_with(
        &self,
        (deadline, cancel): (Deadline, &Cancel),
        waker: impl Fn() -> Waker,
        mut is_over: impl FnMut(&mut T) -> bool,
    ) -> Result<MutexGuard<'_, T>, WaitEnd> {
        let process = Process::this();
        let mut watch = cancel.watch();
        let mut guard = self.lock();
        let mut has_passed = false;
        loop {
            if is_over(&mut guard) {
                return Ok(guard);
            }
            if has_passed {
                return Err(WaitEnd::Late);
            }
            if watch.is_due() {
                drop(guard);
                if watch.ask(&waker) || !process.is_this() {
                    return Err(WaitEnd::Cancelled);
                }
                guard = self.lock();
                continue;
            }
            (guard, has_passed) = self.wait_until(guard, deadline);
        }
    }

    /// Makes waiting threads look again, those as well that are about to wait.
    pub(crate) fn ring(&self) {
        drop(self.lock());
        self.notify_all();
    }

    /// Releases the lock until notified or the deadline passes. The flag is true if the deadline has
    /// passed. Spurious wakeups are possible. The model has no clock: a deadline passes at a random point,
    /// [`Deadline::NEVER`] never.
    pub(crate) fn wait_until<'a>(
        &'a self,
        guard: MutexGuard<'a, T>,
        deadline: Deadline,
    ) -> (MutexGuard<'a, T>, bool) {
        let left = if cfg!(shuttle) {
            (deadline != Deadline::NEVER).then_some(Duration::MAX)
        } else {
            deadline.remaining(std::time::Instant::now())
        };
        match left {
            None => {
                let guard = self.has_changed.wait(guard);
                (guard.unwrap_or_else(PoisonError::into_inner), false)
            }
            Some(Duration::ZERO) => (guard, true),
            Some(left) => wait_timeout(&self.has_changed, guard, &self.value.0, left),
        }
    }
}

/// Why a wait has ended before its condition held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Late,
    Cancelled,
}

/// A waker that calls `ring`.
pub(crate) fn waker(ring: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Ring<F>(F);
    impl<F: Fn() + Send + Sync> Wake for Ring<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Arc::new(Ring(ring)).into()
}

/// Releases the lock of `mutex` until notified or `timeout` passes. The flag is true after a timeout.
/// Spurious wakeups are possible. Ignores poisoning.
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

/// The model has no clock: the timeout passes at random, and other threads can run before the lock is
/// taken again. Code must make progress even if the timeout never passes.
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

/// [`wait_timeout`] for callers whose progress depends on the timeout.
#[cfg(not(shuttle))]
pub(crate) fn wait_tick<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    tick: Duration,
) -> MutexGuard<'a, T> {
    wait_timeout(condvar, guard, mutex, tick).0
}

/// Waits for one tick. In the model the timeout always passes.
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
