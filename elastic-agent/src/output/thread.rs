//! A thread that moves output, and how it ends.

use std::convert::Infallible;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::console::Progress;

/// How much is read from one worker before the next one.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;

/// How long the end of a group waits for a console, or a file system, that accepts no output.
const STALL_MAX: Duration = Duration::from_secs(10);

/// The longest stall once the kill switch is triggered.
const STALL_KILLED_MAX: Duration = Duration::from_secs(1);

/// How often the owner checks the thread's progress.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A running thread. Dropping it waits for at most 1 s of a stall.
#[derive(Debug)]
pub(super) struct OutputThread {
    name: &'static str,
    /// The name of the output, such as `the console`, for messages about a blocked writer.
    target: &'static str,
    /// Closing it makes the thread finish.
    finish: Option<PipeWriter>,
    /// Disconnected when the thread has ended.
    ended: Receiver<Infallible>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl OutputThread {
    /// Runs `run`, which ends soon after the other end of its pipe is closed.
    pub(super) fn start(
        name: &'static str,
        target: &'static str,
        progress: Arc<Progress>,
        run: impl FnOnce(&PipeReader) + Send + 'static,
    ) -> io::Result<Self> {
        let (finish_seen, finish) = io::pipe()?;
        let (ending, ended) = bounded(0);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                run(&finish_seen);
                drop(ending);
            })?;
        Ok(Self {
            name,
            target,
            finish: Some(finish),
            ended,
            progress,
            thread: Some(thread),
        })
    }

    /// Makes the thread finish. Several threads that are to end do so at the same time.
    pub(super) fn close(&mut self) {
        self.finish = None;
    }

    pub(super) fn finish(mut self, is_killed: impl Fn() -> bool) {
        self.end(is_killed);
    }

    fn end(&mut self, is_killed: impl Fn() -> bool) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.close();
        let mut killed_at = None;
        while self.ended.recv_timeout(STALL_CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let is_stuck = self.progress.stuck_for() >= STALL_MAX;
            if is_killed() {
                killed_at.get_or_insert_with(Instant::now);
            }
            if killed_at.is_some_and(|at| at.elapsed() >= STALL_KILLED_MAX) || is_stuck {
                // A blocked write cannot be cancelled. The thread ends when the bytes are accepted.
                self.progress.is_abandoned.store(true, Ordering::Relaxed);
                log::error!(
                    "{} has not accepted all output; dropping the rest of {}",
                    self.target,
                    self.name
                );
                return;
            }
        }
        if thread.join().is_err() {
            log::error!("thread {} panicked", self.name);
        }
    }
}

impl Drop for OutputThread {
    fn drop(&mut self) {
        self.end(|| true);
    }
}

/// Waits until one of `pipes` has something to read, or `timeout` has passed. Returns whether the thread is to finish.
pub(super) fn wait<'a>(
    pipes: impl Iterator<Item = BorrowedFd<'a>>,
    finish_seen: &'a PipeReader,
    timeout: Option<Duration>,
) -> bool {
    let mut entries = vec![PollFd::from_borrowed_fd(finish_seen.as_fd(), PollFlags::IN)];
    entries.extend(pipes.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut entries, timeout.as_ref()) {
        Ok(_) => !entries[0].revents().is_empty(),
        Err(rustix::io::Errno::INTR) => false,
        Err(error) => {
            // The system is out of memory. It may recover; the pause prevents a busy loop.
            log::warn!("cannot wait for output of workers: {error}");
            thread::sleep(Duration::from_millis(50));
            false
        }
    }
}
