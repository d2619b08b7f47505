//! Interrupts blocking calls from another thread.
//!
//! Like a [`Deadline`], every call that blocks takes a [`Cancel`], as an argument or from the handle that it is
//! called on. It is a flag and the wakers of the waiting threads. A waiting thread leaves a waker that suits its
//! wait: an event for a poller, a condition variable, `unpark`. So waiting costs no CPU, and most waits, which end at
//! once, leave no waker.
//!
//! A thread that has work to do while it waits, such as running an interpreter's signal handlers, does it in the
//! [check](Cancel::with_check). Each thread calls the check when its wait begins and after each
//! [`wake`](Cancel::wake).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::Deadline;

/// Interrupts calls from another thread: the current and later calls that were given this value or a clone of it.
///
/// ```
/// use c10d_socket::{Cancel, sleep};
/// use std::time::Duration;
///
/// let cancel = Cancel::new();
/// let sleeper = std::thread::spawn({
///     let cancel = cancel.clone();
///     move || sleep(Duration::MAX, [&cancel])
/// });
/// cancel.cancel();
/// assert!(sleeper.join().expect("no panic").is_err());
/// ```
#[derive(Clone)]
pub struct Cancel(Option<Arc<Shared>>);

struct Shared {
    is_cancelled: AtomicBool,
    /// How often the waiting threads were woken. Changed before they are.
    wakes: AtomicU64,
    wakers: Mutex<Wakers>,
    check: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

#[derive(Default)]
struct Wakers {
    next_id: u64,
    by_id: Vec<(u64, Waker)>,
}

impl Cancel {
    /// A value that never interrupts a call, for calls that need no `Cancel`.
    pub const NEVER: Self = Self(None);

    /// A new value, independent of every other one.
    #[expect(
        clippy::new_without_default,
        reason = "a default could be mistaken for NEVER"
    )]
    #[must_use]
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Creates a value that also interrupts a call when `check` returns true. A thread calls `check` when it begins
    /// to wait, and after each [`wake`](Self::wake). The check runs on that thread, without a lock, and may use the
    /// object that the thread waits on.
    ///
    /// It must return true until the call has ended, because a call may check several times.
    #[must_use]
    pub fn with_check(check: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self::of(Some(Box::new(check)))
    }

    fn of(check: Option<Box<dyn Fn() -> bool + Send + Sync>>) -> Self {
        Self(Some(Arc::new(Shared {
            is_cancelled: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            wakers: Mutex::default(),
            check,
        })))
    }

    /// Interrupts the calls in progress, and all later calls. Does not block. Must not be called in a signal handler,
    /// because it takes a lock. Has no effect on [`NEVER`](Self::NEVER).
    pub fn cancel(&self) {
        if let Some(shared) = &self.0 {
            shared.is_cancelled.store(true, Ordering::SeqCst);
            self.wake();
        }
    }

    /// Makes the waiting threads call their [check](Self::with_check). Does not block. Must not be called in a signal
    /// handler, because it takes a lock.
    pub fn wake(&self) {
        let Some(shared) = &self.0 else { return };
        shared.wakes.fetch_add(1, Ordering::SeqCst);
        let wakers = shared.lock().by_id.clone();
        // Called without the lock, because a waker takes its own lock.
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    /// Returns whether calls have to end. Calls the [check](Self::with_check), so the caller must not hold a lock.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| {
            shared.is_cancelled.load(Ordering::SeqCst)
                || shared.check.as_ref().is_some_and(|check| check())
        })
    }

    /// Returns whether this is [`NEVER`](Self::NEVER), or a clone of it.
    #[must_use]
    pub const fn is_never(&self) -> bool {
        self.0.is_none()
    }

    /// Begins one wait, which is a loop: check the condition, [ask](Watch::ask) if that [is due](Watch::is_due),
    /// wait. This call registers nothing.
    #[must_use]
    pub const fn watch(&self) -> Watch<'_> {
        Watch {
            cancel: self,
            id: None,
            wakes: 0,
        }
    }
}

/// Clones are equal.
impl PartialEq for Cancel {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl Eq for Cancel {}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = self.0.as_ref().map(|it| &it.is_cancelled);
        f.debug_tuple("Cancel").field(&flag).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Wakers> {
        // The code that holds the lock does not panic.
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting thread's registration with a [`Cancel`], until it is dropped.
#[derive(Debug)]
pub struct Watch<'c> {
    cancel: &'c Cancel,
    id: Option<u64>,
    /// The number of wakes at the last check.
    wakes: u64,
}

impl Watch<'_> {
    /// Returns whether to [ask](Self::ask) before waiting: the first time, and after a wake. Cheap, and allowed under
    /// a lock.
    ///
    /// A waker whose thread waits on a condition variable takes the lock of the condition before it notifies. Then a
    /// thread that has found nothing due under this lock misses no wake.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.cancel.0.as_ref().is_some_and(|shared| {
            self.id.is_none() || shared.wakes.load(Ordering::SeqCst) != self.wakes
        })
    }

    /// Returns whether the call has to end. The first call registers a waker. The caller must not hold a lock.
    #[must_use]
    pub fn ask(&mut self, waker: impl FnOnce() -> Waker) -> bool {
        if let Some(shared) = &self.cancel.0 {
            if self.id.is_none() {
                let waker = waker();
                let mut wakers = shared.lock();
                let id = wakers.next_id;
                wakers.next_id += 1;
                wakers.by_id.push((id, waker));
                self.id = Some(id);
            }
            self.wakes = shared.wakes.load(Ordering::SeqCst);
        }
        self.cancel.is_cancelled()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let (Some(shared), Some(id)) = (&self.cancel.0, self.id) {
            let removed = {
                let mut wakers = shared.lock();
                let index = wakers.by_id.iter().position(|(its, _)| *its == id);
                index.map(|index| wakers.by_id.swap_remove(index))
            };
            // Without the lock: the waker may own something.
            drop(removed);
        }
    }
}

/// Sleeps for `duration`, like [`thread::sleep`], or until one of `cancels` interrupts it.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] if one of `cancels` interrupted the sleep.
pub fn sleep<const N: usize>(duration: Duration, cancels: [&Cancel; N]) -> io::Result<()> {
    let deadline = Deadline::after(Instant::now(), duration);
    let mut watches = cancels.map(Cancel::watch);
    loop {
        for watch in &mut watches {
            if watch.is_due() && watch.ask(|| Arc::new(Sleeper(thread::current())).into()) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        match deadline.remaining(Instant::now()) {
            Some(Duration::ZERO) => return Ok(()),
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}

struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn wakers(cancel: &Cancel) -> usize {
        let shared = cancel.0.as_ref().expect("not NEVER");
        shared.lock().by_id.len()
    }

    fn kind(result: io::Result<()>) -> io::ErrorKind {
        result.expect_err("cancelled").kind()
    }

    #[test]
    fn a_cancel_ends_current_and_later_waits() {
        let (began, begins) = channel();
        let cancel = Cancel::with_check(move || {
            began.send(()).expect("the test waits");
            false
        });
        thread::scope(|scope| {
            let sleepers = [(); 2].map(|()| {
                let other = &Cancel::NEVER;
                scope.spawn(|| sleep(Duration::MAX, [other, &cancel]))
            });
            for _ in &sleepers {
                begins.recv().expect("it sleeps");
            }
            cancel.cancel();
            for sleeper in sleepers {
                let slept = sleeper.join().expect("no panic");
                assert_eq!(kind(slept), io::ErrorKind::Interrupted);
            }
        });
        assert_eq!(wakers(&cancel), 0);
        let slept = sleep(Duration::MAX, [&cancel]);
        assert_eq!(kind(slept), io::ErrorKind::Interrupted);
    }

    #[test]
    fn a_sleep_lasts_its_duration() {
        let started = Instant::now();
        let duration = Duration::from_millis(5);
        let cancel = Cancel::new();
        thread::current().unpark();
        sleep(duration, [&cancel, &Cancel::NEVER]).expect("not cancelled");
        assert!(started.elapsed() >= duration);
        assert!(!cancel.is_cancelled());
    }

    #[test]
    fn a_check_is_asked_when_a_wait_begins_and_after_each_wake() {
        let (asked, asks) = channel();
        let answers = Mutex::new([true, false, false].to_vec());
        let cancel = Cancel::with_check(move || {
            asked.send(()).expect("the test waits");
            let mut answers = answers.lock().expect("no panic");
            answers.pop().expect("no further question")
        });
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| sleep(Duration::MAX, [&cancel]));
            asks.recv().expect("the wait begins");
            cancel.wake();
            asks.recv().expect("after the wake");
            cancel.wake();
            let slept = sleeper.join().expect("no panic");
            assert_eq!(kind(slept), io::ErrorKind::Interrupted);
        });
    }

    #[test]
    fn never_is_not_cancelled_and_keeps_no_wakers() {
        let never = Cancel::NEVER;
        never.clone().cancel();
        assert!(!never.is_cancelled() && !never.watch().is_due());
    }
}
