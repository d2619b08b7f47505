//! Waits until a descriptor is ready, with a timeout.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{Cancel, Deadline};

/// Waits until a read from `fd` would not block: it has data, the end of the stream, or a pending
/// error. Returns whether this happened within `timeout`. Consumes nothing.
///
/// Zero checks once without waiting. `None`, or a time beyond what the clock can express, waits
/// indefinitely. The wait is never shorter than `timeout`, and a signal does not lengthen it.
///
/// ```
/// use std::io::Write;
/// use std::net::{TcpListener, TcpStream};
/// use std::time::Duration;
///
/// use c10d_socket::{Cancel, wait_for_input};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut near = TcpStream::connect(listener.local_addr()?)?;
/// let (far, _) = listener.accept()?;
/// assert!(!wait_for_input(&far, Duration::ZERO, &Cancel::NEVER)?);
/// near.write_all(b"x")?;
/// assert!(wait_for_input(&far, None, &Cancel::NEVER)?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] when `cancel` has ended the wait; otherwise only if poll(2) itself fails (out of memory).
/// A socket error counts as input.
pub fn wait_for_input(
    fd: &impl AsFd,
    timeout: impl Into<Option<Duration>>,
    cancel: &Cancel,
) -> io::Result<bool> {
    wait([fd.as_fd()], PollFlags::IN, timeout, cancel)
}

/// Waits until a read from any of these would not block. `timeout` and the result have the meaning of
/// [`wait_for_input`].
///
/// # Errors
/// The errors of [`wait_for_input`].
pub fn wait_for_input_of<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: impl Into<Option<Duration>>,
    cancel: &Cancel,
) -> io::Result<bool> {
    wait(fds, PollFlags::IN, timeout, cancel)
}

/// Waits until a write to `fd` would not block: the send buffer has space, or the connection is closed and a write
/// fails at once. `timeout` and the result have the meaning of [`wait_for_input`].
///
/// # Errors
/// The errors of [`wait_for_input`].
pub fn wait_for_output(
    fd: &impl AsFd,
    timeout: impl Into<Option<Duration>>,
    cancel: &Cancel,
) -> io::Result<bool> {
    wait([fd.as_fd()], PollFlags::OUT, timeout, cancel)
}

/// Waits until a read from `fd` or a write to it would not block; the caller tries both. `timeout` and the result
/// have the meaning of [`wait_for_input`].
///
/// # Errors
/// The errors of [`wait_for_input`].
pub fn wait_for_either(
    fd: &impl AsFd,
    timeout: impl Into<Option<Duration>>,
    cancel: &Cancel,
) -> io::Result<bool> {
    wait(
        [fd.as_fd()],
        PollFlags::IN | PollFlags::OUT,
        timeout,
        cancel,
    )
}

/// How long a wait does without a waker, which costs half a dozen system calls: most connects, and writes to a database
/// beyond them, end sooner.
const PATIENCE: Duration = Duration::from_millis(10);

fn wait<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    events: PollFlags,
    timeout: impl Into<Option<Duration>>,
    cancel: &Cancel,
) -> io::Result<bool> {
    let deadline = Deadline::after(Instant::now(), timeout);
    let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, events));
    if cancel.is_never() {
        return poll_by(&mut polled, deadline);
    }
    let patience = Deadline::after(Instant::now(), PATIENCE).min(deadline);
    if poll_by(&mut polled, patience)? {
        return Ok(true);
    }
    if patience == deadline && !cancel.is_cancelled() {
        return Ok(false);
    }
    let (bell, mut rung) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    rung.set_nonblocking(true)?;
    let bell = Waker::from(Arc::new(Bell(bell)));
    let mut watch = cancel.watch();
    loop {
        if watch.is_due() && watch.ask(|| bell.clone()) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let of_callers = fds.iter().map(|fd| PollFd::new(fd, events));
        let of_cancel = PollFd::new(&rung, PollFlags::IN);
        let mut polled: Vec<_> = of_callers.chain([of_cancel]).collect();
        if !poll_by(&mut polled, deadline)? {
            return Ok(false);
        }
        if polled[..N].iter().any(|fd| !fd.revents().is_empty()) {
            return Ok(true);
        }
        // It is empty afterwards: wakes ring less often than this has bytes.
        let _ = rung.read(&mut [0; 64]);
    }
}

/// The writing end of a pair, to end a poll(2).
struct Bell(UnixStream);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // A full buffer wakes as well.
        let _ = (&self.0).write(&[0]);
    }
}

/// Polls until a descriptor is ready or the deadline has passed.
fn poll_by(fds: &mut [PollFd<'_>], deadline: Deadline) -> io::Result<bool> {
    loop {
        let timeout = poll_timeout(deadline.remaining(Instant::now()));
        match poll(fds, timeout.as_ref()) {
            // Longer waits than one poll(2) takes are continued.
            Ok(0) if deadline.has_passed(Instant::now()) => return Ok(false),
            // After a signal only the remaining time is waited.
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The longest wait that every system's poll(2) takes.
const POLL_TIME_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// A time limit for poll(2). Systems that count in milliseconds round it up.
fn poll_timeout(remaining: Option<Duration>) -> Option<Timespec> {
    let remaining = remaining?.min(POLL_TIME_MAX);
    Some(remaining.try_into().expect("24 days fit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_exact_up_to_the_maximum_of_poll() {
        let table = [
            (Some(Duration::ZERO), Some((0, 0))),
            (Some(Duration::from_nanos(1)), Some((0, 1))),
            (Some(Duration::from_micros(1_001)), Some((0, 1_001_000))),
            (
                Some(Duration::from_secs(1 << 40)),
                Some((2_147_483, 647_000_000)),
            ),
            (Some(Duration::MAX), Some((2_147_483, 647_000_000))),
            (None, None),
        ];
        for (remaining, expected) in table {
            let shown = poll_timeout(remaining).map(|limit| (limit.tv_sec, limit.tv_nsec));
            assert_eq!(shown, expected, "{remaining:?}");
        }
    }
}
