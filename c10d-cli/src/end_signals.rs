//! The signals that end a server in the foreground.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use c10d_socket::{Cancel, wait_for_input};
use signal_hook::consts::{SIGINT, SIGTERM};

/// SIGINT and SIGTERM, as a descriptor that becomes readable.
#[derive(Debug)]
pub(crate) struct EndSignals {
    caught: UnixStream,
    is_interrupt: Arc<AtomicBool>,
}

impl EndSignals {
    /// From now on these signals do not end the process.
    pub(crate) fn catch() -> io::Result<Self> {
        let (caught, sender) = UnixStream::pair()?;
        let is_interrupt = Arc::new(AtomicBool::new(false));
        // Actions run in the order of their registration: the flag is set before the pipe is readable.
        signal_hook::flag::register(SIGINT, Arc::clone(&is_interrupt))?;
        signal_hook::low_level::pipe::register(SIGINT, sender.try_clone()?)?;
        signal_hook::low_level::pipe::register(SIGTERM, sender)?;
        Ok(Self {
            caught,
            is_interrupt,
        })
    }

    /// The name of the signal that arrived.
    pub(crate) fn name(&self) -> &'static str {
        if self.is_interrupt.load(Ordering::SeqCst) {
            "SIGINT"
        } else {
            "SIGTERM"
        }
    }

    /// Waits for a signal for at most `timeout`; returns whether one arrived.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        wait_for_input(&self.caught, timeout, &Cancel::NEVER)
    }
}
