//! A timeout for a whole test: if a call hangs, the test process aborts.

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::process;

/// Aborts the test process with a message unless dropped in time.
///
/// It covers calls without a timeout, and calls whose timeout is under test.
#[derive(Debug)]
pub struct Watchdog {
    dropped: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the timeout of `test`.
    ///
    /// # Panics
    /// When the thread cannot be created.
    #[must_use]
    pub fn start(test: &'static str, limit: Duration) -> Self {
        let (dropped, on_drop) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || {
                if on_drop.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    abort(test, limit);
                }
            })
            .expect("a thread for the watchdog");
        Self {
            dropped: Some(dropped),
            thread: Some(thread),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.dropped.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn abort(test: &str, limit: Duration) {
    // Not `eprintln!`: libtest would capture it, and the abort would discard it.
    let _ = writeln!(
        io::stderr(),
        "\n{test}: still running after {limit:?}; ending the test process"
    );
    process::kill_all(io::stderr());
    std::process::abort();
}
