//! Ends the blocking calls of one thread for a reason that only the caller knows: a signal handler raised an
//! exception, or another thread cancelled the work.
//!
//! It wakes no thread: a waiting thread asks by itself, after each signal and every 50 ms.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Deadline;

/// How often a waiting thread asks. People take this for at once, and it is 20 wake-ups a second.
const INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// The innermost [`interruptible`] call of a thread.
struct Scope {
    check: Rc<dyn Fn() -> bool>,
    is_interrupted: bool,
    next_check: Instant,
}

/// Runs `call`. While it waits in a function of this crate, or of a crate that is built on it, `check` is asked after
/// each signal that the thread receives, and every 50 ms. Once `check` returns true, that wait and all later ones of
/// `call` fail with [`io::ErrorKind::Interrupted`].
///
/// `check` runs on this thread, without a lock, and may itself make blocking calls, which it does not interrupt.
/// A wait that is over at once may never ask. Calls nest: only the innermost `check` counts.
///
/// ```
/// use std::io::ErrorKind;
/// use std::net::UdpSocket;
///
/// let silent = UdpSocket::bind("127.0.0.1:0")?;
/// let waited = c10d_socket::interruptible(|| true, || c10d_socket::wait_for_input(&silent, None));
/// assert_eq!(waited.unwrap_err().kind(), ErrorKind::Interrupted);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn interruptible<T>(check: impl Fn() -> bool + 'static, call: impl FnOnce() -> T) -> T {
    let _restored = enter(Some(Scope {
        check: Rc::new(check),
        is_interrupted: false,
        next_check: Instant::now() + INTERVAL,
    }));
    call()
}

/// Runs `call`, whose waits the [`interruptible`] call around it does not end: for a last exchange with a short
/// deadline.
pub fn uninterruptible<T>(call: impl FnOnce() -> T) -> T {
    let _restored = enter(None);
    call()
}

/// Whether the [`interruptible`] call that this thread is in has to end. Asks its `check`, unless that has returned
/// true before. False outside of such a call.
///
/// For a wait that is not in this crate: it asks after each signal, and [`check_interrupt`] otherwise. No lock may be
/// held.
#[must_use]
pub fn is_interrupted() -> bool {
    let Some(mut scope) = SCOPE.take() else {
        return false;
    };
    if !scope.is_interrupted {
        scope.is_interrupted = (scope.check)();
        scope.next_check = Instant::now() + INTERVAL;
    }
    let is_interrupted = scope.is_interrupted;
    SCOPE.set(Some(scope));
    is_interrupted
}

/// [`is_interrupted`], asked only if the last time was 50 ms ago.
#[must_use]
pub fn check_interrupt(now: Instant) -> bool {
    is_interrupt_check_due(now) && is_interrupted()
}

/// Whether [`check_interrupt`] has something to report or to ask. For a wait with a lock, to release it before.
#[must_use]
pub fn is_interrupt_check_due(now: Instant) -> bool {
    SCOPE.with_borrow(|scope| {
        scope
            .as_ref()
            .is_some_and(|scope| scope.is_interrupted || scope.next_check <= now)
    })
}

/// `deadline`, or the next time when [`check_interrupt`] asks, if that is earlier.
#[must_use]
pub fn until_interrupt_check(deadline: Deadline) -> Deadline {
    SCOPE.with_borrow(|scope| match scope {
        Some(scope) => deadline.min(Deadline::at(scope.next_check)),
        None => deadline,
    })
}

/// Sleeps for `duration`, as [`thread::sleep`] does.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] if the [`interruptible`] call around it has to end.
pub fn sleep(duration: Duration) -> io::Result<()> {
    let deadline = Deadline::after(Instant::now(), duration);
    loop {
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Ok(());
        }
        if check_interrupt(now) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let left = until_interrupt_check(deadline).remaining(now);
        thread::sleep(left.unwrap_or(INTERVAL));
    }
}

/// Makes `scope` that of the thread until the guard is dropped.
fn enter(scope: Option<Scope>) -> Restored {
    Restored(SCOPE.replace(scope))
}

struct Restored(Option<Scope>);

impl Drop for Restored {
    fn drop(&mut self) {
        SCOPE.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn kind(result: io::Result<()>) -> io::ErrorKind {
        result.expect_err("interrupted").kind()
    }

    #[test]
    fn an_interrupted_call_stays_interrupted_and_asks_no_more() {
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        let check = move || {
            count.set(count.get() + 1);
            count.get() == 3
        };
        interruptible(check, || {
            assert_eq!(kind(sleep(LONG)), io::ErrorKind::Interrupted);
            assert_eq!(kind(sleep(LONG)), io::ErrorKind::Interrupted);
            assert!(is_interrupted());
        });
        assert_eq!(asked.get(), 3);
        assert!(!is_interrupted());
        sleep(Duration::from_millis(1)).expect("outside of the call");
    }

    #[test]
    fn a_check_is_not_asked_by_its_own_waits() {
        let check = || {
            sleep(3 * INTERVAL).expect("not interruptible");
            true
        };
        let slept = interruptible(check, || sleep(LONG));
        assert_eq!(kind(slept), io::ErrorKind::Interrupted);
    }

    #[test]
    fn only_the_innermost_check_counts() {
        interruptible(
            || true,
            || {
                interruptible(|| false, || sleep(2 * INTERVAL)).expect("the inner check");
                uninterruptible(|| sleep(2 * INTERVAL)).expect("no check");
                assert_eq!(kind(sleep(LONG)), io::ErrorKind::Interrupted);
            },
        );
    }

    #[test]
    fn a_panic_ends_the_call() {
        let panicked = panic::catch_unwind(|| interruptible(|| true, || panic!("broken")));
        assert!(panicked.is_err());
        assert!(!is_interrupted());
    }
}
