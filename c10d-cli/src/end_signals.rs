//! The signals that end a command in the foreground, and the end of the process that started it.

use std::io::{self, Read as _};
use std::num::NonZeroI32;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use c10d_socket::{Cancel, is_signal_ignored, wait_for_input};
use elastic_agent::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Failure;

/// SIGINT and SIGTERM, as a descriptor that becomes readable.
#[derive(Debug)]
pub(crate) struct EndSignals {
    woken: UnixStream,
    waker: UnixStream,
    /// The number of the last signal that was not taken, or 0.
    signal: Arc<AtomicUsize>,
}

impl EndSignals {
    /// From now on, these signals do not kill the process. An ignored signal stays ignored. `with_parent` makes the
    /// system send SIGTERM when the parent of this process exits (Linux).
    pub(crate) fn catch(with_parent: bool) -> Result<Self, Failure> {
        if with_parent {
            end_with_parent().map_err(Failure::system("cannot watch the parent process"))?;
        }
        Self::register().map_err(Failure::system("cannot catch SIGINT and SIGTERM"))
    }

    fn register() -> io::Result<Self> {
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let signal = Arc::new(AtomicUsize::new(0));
        // As for a command that nohup(1) has started, or a shell in the background.
        let handled = [SIGINT, SIGTERM].into_iter();
        for number in handled.filter(|number| !is_signal_ignored(*number)) {
            let value = usize::try_from(number).expect("signals have positive numbers");
            // Actions run in the order of their registration: the number is set before the pipe is readable.
            signal_hook::flag::register_usize(number, Arc::clone(&signal), value)?;
            signal_hook::low_level::pipe::register(number, waker.try_clone()?)?;
        }
        Ok(Self {
            woken,
            waker,
            signal,
        })
    }

    /// The signal that arrived since the last call.
    pub(crate) fn take(&self) -> Option<Signal> {
        let number = self.signal.swap(0, Ordering::SeqCst);
        let number = i32::try_from(number).ok().and_then(NonZeroI32::new)?;
        Signal::from_named_raw(number.get())
    }

    /// The name of the signal that arrived.
    pub(crate) fn name(&self) -> &'static str {
        match i32::try_from(self.signal.load(Ordering::SeqCst)) {
            Ok(SIGINT) => "SIGINT",
            _ => "SIGTERM",
        }
    }

    /// A byte written to this ends a [`wait`](Self::wait).
    pub(crate) fn waker(&self) -> io::Result<UnixStream> {
        self.waker.try_clone()
    }

    /// Waits for a signal or the waker, for at most `timeout`; returns whether there is a signal.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<bool, Failure> {
        let wait = || {
            if wait_for_input(&self.woken, timeout, &Cancel::NEVER)?
                && let Err(error) = (&self.woken).read(&mut [0; 64])
                && error.kind() != io::ErrorKind::WouldBlock
            {
                return Err(error);
            }
            Ok(self.signal.load(Ordering::SeqCst) != 0)
        };
        wait().map_err(Failure::system("cannot wait for signals"))
    }
}

#[cfg(target_os = "linux")]
fn end_with_parent() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};

    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
