//! Waits until a descriptor is ready, with a timeout.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::Deadline;
use crate::interrupt::{check_interrupt, is_interrupted, until_interrupt_check};

/// Waits until a read from `fd` would not block: it has data, the end of the stream, or a pending
/// error. Returns whether this happened within `timeout`. Consumes nothing.
///
/// Zero checks once without waiting. `None`, or a time beyond what the clock can express, waits
/// indefinitely. The wait is never shorter than `timeout`, and a signal does not lengthen it. Another
/// thread can end it by shutting the socket down.
///
/// ```
/// use std::io::Write;
/// use std::net::{TcpListener, TcpStream};
/// use std::time::Duration;
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut near = TcpStream::connect(listener.local_addr()?)?;
/// let (far, _) = listener.accept()?;
/// assert!(!c10d_socket::wait_for_input(&far, Some(Duration::ZERO))?);
/// near.write_all(b"x")?;
/// assert!(c10d_socket::wait_for_input(&far, None)?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] in an [`interruptible`](crate::interruptible) call that has to end. Otherwise only if
/// poll(2) itself fails (out of memory). A socket error counts as input.
pub fn wait_for_input(fd: &impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    wait(fd, PollFlags::IN, Deadline::after(Instant::now(), timeout))
}

/// Waits until a write to `fd` would not block: the send buffer has space, or the connection is closed
/// and a write fails at once. Otherwise as [`wait_for_input`], also for `timeout`.
///
/// # Errors
/// As [`wait_for_input`].
pub fn wait_for_output(fd: &impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    wait_for_output_by(fd, Deadline::after(Instant::now(), timeout))
}

/// Waits until a read from `fd` or a write to it would not block; the caller tries both. Otherwise as
/// [`wait_for_input`], also for `timeout`.
///
/// # Errors
/// As [`wait_for_input`].
pub fn wait_for_either(fd: &impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    wait(
        fd,
        PollFlags::IN | PollFlags::OUT,
        Deadline::after(Instant::now(), timeout),
    )
}

/// [`wait_for_output`] until a deadline; one that has passed checks once without waiting.
pub(crate) fn wait_for_output_by(fd: &impl AsFd, deadline: Deadline) -> io::Result<bool> {
    wait(fd, PollFlags::OUT, deadline)
}

fn wait(fd: &impl AsFd, events: PollFlags, deadline: Deadline) -> io::Result<bool> {
    loop {
        let until = until_interrupt_check(deadline);
        let timeout = poll_timeout(until.remaining(Instant::now()));
        let must_end = match poll(&mut [PollFd::new(fd, events)], timeout.as_ref()) {
            // Longer waits than one poll(2) takes are continued.
            Ok(0) => {
                let now = Instant::now();
                if deadline.has_passed(now) {
                    return Ok(false);
                }
                check_interrupt(now)
            }
            Ok(_) => return Ok(true),
            // After a signal only the remaining time is waited.
            Err(Errno::INTR) => is_interrupted(),
            Err(error) => return Err(error.into()),
        };
        if must_end {
            return Err(io::ErrorKind::Interrupted.into());
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
