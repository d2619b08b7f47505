//! An upper bound for a whole test: a call that hangs must end the run, not stall it.

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::process;

/// Ends the test process with a message unless dropped in time.
///
/// Bounds calls that have no deadline of their own, or whose deadline is what the test is about.
#[derive(Debug)]
pub struct Watchdog {
    dropped: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the clock of `test`.
    ///
    /// # Panics
    /// When the system has no thread left.
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
    // Written directly: what `eprintln!` prints in a test is kept until the test ends.
    let _ = writeln!(
        io::stderr(),
        "\n{test}: still running after {limit:?}; ending the test process"
    );
    process::kill_all();
    std::process::abort();
}
