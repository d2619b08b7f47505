//! Waiting for a descriptor to become ready, for a bounded time.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::{Deadline, sys};

/// Waits until a read from `fd` would not block: there is data, the stream has ended, or an error is
/// pending. Says whether that came to be within `timeout`; consumes nothing.
///
/// Zero looks once. `None`, or a time beyond what the clock can express, waits without limit. The
/// resolution is a millisecond, rounded up. A signal does not lengthen the wait. Another thread can
/// end it by shutting the socket down.
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
/// Only when poll(2) itself fails (the system is out of memory); a socket's error counts as input.
pub fn wait_for_input(fd: &impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    wait(fd, libc::POLLIN, Deadline::after(Instant::now(), timeout))
}

/// Waits until a write to `fd` would not block: there is room, or it fails at once because the
/// connection is gone. Otherwise like [`wait_for_input`].
///
/// # Errors
/// As [`wait_for_input`].
pub fn wait_for_output(fd: &impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    wait_for_output_by(fd, Deadline::after(Instant::now(), timeout))
}

/// Waits until a read from `fd` or a write to it would not block, whichever comes first; which of the two
/// it is, the caller finds out by trying. Otherwise like [`wait_for_input`].
///
/// # Errors
/// As [`wait_for_input`].
pub fn wait_for_either(fd: &impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    wait(
        fd,
        libc::POLLIN | libc::POLLOUT,
        Deadline::after(Instant::now(), timeout),
    )
}

/// [`wait_for_output`] up to a deadline; one that has passed looks once.
pub(crate) fn wait_for_output_by(fd: &impl AsFd, deadline: Deadline) -> io::Result<bool> {
    wait(fd, libc::POLLOUT, deadline)
}

fn wait(fd: &impl AsFd, events: libc::c_short, deadline: Deadline) -> io::Result<bool> {
    loop {
        let remaining = deadline.remaining(Instant::now());
        match sys::poll_once(fd.as_fd(), events, poll_timeout(remaining)) {
            Ok(true) => return Ok(true),
            Ok(false) if deadline.has_passed(Instant::now()) => return Ok(false),
            // The wait was longer than one poll can be told.
            Ok(false) => {}
            // A signal: only what remains of the time is waited again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A wait as poll(2) takes it: milliseconds, rounded up so that it does not spin through the last
/// one, cut to what a C int holds; -1 for no limit.
fn poll_timeout(remaining: Option<Duration>) -> libc::c_int {
    let Some(remaining) = remaining else {
        return -1;
    };
    let ms = remaining.as_nanos().div_ceil(1_000_000);
    libc::c_int::try_from(ms).unwrap_or(libc::c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_in_milliseconds_is_rounded_up_and_cut() {
        let table = [
            (Some(Duration::ZERO), 0),
            (Some(Duration::from_nanos(1)), 1),
            (Some(Duration::from_millis(1)), 1),
            (Some(Duration::from_micros(1_001)), 2),
            (Some(Duration::from_secs(1 << 40)), libc::c_int::MAX),
            (Some(Duration::MAX), libc::c_int::MAX),
            (None, -1),
        ];
        for (remaining, ms) in table {
            assert_eq!(poll_timeout(remaining), ms, "{remaining:?}");
        }
    }
}
