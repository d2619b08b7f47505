//! Ends blocking calls from another thread.
//!
//! A [`Cancel`] stands beside a [`Deadline`]: every call that blocks takes both, as arguments or from the handle that it
//! is called on. It is a flag and the wakers of the threads that wait. A waiting thread leaves one that suits its wait:
//! an event for a poller, a condition variable, `unpark`. So waiting costs no CPU, and most waits, which end at once,
//! leave none.
//!
//! A thread that has work to do while it waits, such as running an interpreter's signal handlers, does it in the
//! [check](Cancel::with_check), which each thread is asked when its wait begins and after each [`wake`](Cancel::wake).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::Deadline;

/// Ends the calls that were given it or a clone of it, now and later.
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
    /// Ends no call: for calls without one.
    pub const NEVER: Self = Self(None);

    /// A new one, independent of all others.
    #[expect(
        clippy::new_without_default,
        reason = "a default would be taken for NEVER"
    )]
    #[must_use]
    pub fn new() -> Self {
        Self::of(None)
    }

    /// One that also ends a call when `check` returns true. A thread asks it when it begins to wait, and after each
    /// [`wake`](Self::wake). It runs on that thread, without a lock, and may use what the thread waits on.
    ///
    /// It must return true until the call has ended: a call may ask several times.
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

    /// Ends the calls in progress, and all later ones. Does not block. Not for use inside a signal handler, as it takes
    /// a lock. Has no effect on [`NEVER`](Self::NEVER).
    pub fn cancel(&self) {
        if let Some(shared) = &self.0 {
            shared.is_cancelled.store(true, Ordering::SeqCst);
            self.wake();
        }
    }

    /// Makes the waiting threads ask their [check](Self::with_check). Otherwise as [`cancel`](Self::cancel).
    pub fn wake(&self) {
        let Some(shared) = &self.0 else { return };
        shared.wakes.fetch_add(1, Ordering::SeqCst);
        let wakers = shared.lock().by_id.clone();
        // Without the lock: a waker takes one of its own.
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    /// Whether calls have to end. Asks the [check](Self::with_check), so no lock may be held.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| {
            shared.is_cancelled.load(Ordering::SeqCst)
                || shared.check.as_ref().is_some_and(|check| check())
        })
    }

    /// Whether it is [`NEVER`](Self::NEVER), or a clone of that.
    #[must_use]
    pub const fn is_never(&self) -> bool {
        self.0.is_none()
    }

    /// For one wait, in a loop: check the condition, [ask](Watch::ask) if that [is due](Watch::is_due), wait. Nothing is
    /// registered yet.
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
        // Nothing panics while it is held.
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a waiting thread at a [`Cancel`], until it is dropped.
#[derive(Debug)]
pub struct Watch<'c> {
    cancel: &'c Cancel,
    id: Option<u64>,
    /// The number of wakes when it asked last.
    wakes: u64,
}

impl Watch<'_> {
    /// Whether to [ask](Self::ask) before waiting: the first time, and after a wake. Cheap, and allowed under a lock.
    ///
    /// A waker whose thread waits on a condition variable takes the lock of the condition before it notifies. Then a
    /// thread that has found nothing due under this lock misses no wake.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.cancel.0.as_ref().is_some_and(|shared| {
            self.id.is_none() || shared.wakes.load(Ordering::SeqCst) != self.wakes
        })
    }

    /// Whether the call has to end. The first time, leaves a waker. No lock may be held.
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

/// Sleeps for `duration`, as [`thread::sleep`] does, or until one of `cancels` ends it.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] if one has.
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
