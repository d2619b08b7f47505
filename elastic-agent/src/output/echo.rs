//! The thread that shows the output of workers on one stream of the console.
//!
//! It owns the stream. A slow console never delays workers that write to files; it delays those that write
//! to a pipe, as it would without the thread.

use std::convert::Infallible;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::console::{Progress, Sink};
use super::source::{CapturedPipe, FollowedFile, LineCopy, PipeState};

/// How often files are read: often enough to look live, and 20 reads a second cost nothing.
const FOLLOW_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// How often a thread that shows files checks whether they can grow.
const SPACE_INTERVAL: Duration = Duration::from_secs(5);

/// How much is read from one worker before the next one.
const READ_BYTES_MAX: usize = 64 << 10;

/// How long the end of a group waits for a console that accepts no output.
const STALL_MAX: Duration = Duration::from_secs(10);

/// The same once the kill switch is triggered.
const STALL_KILLED_MAX: Duration = Duration::from_secs(1);

/// How often the owner checks the console's progress.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What one stream shows.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// When the first output was read.
    pub(crate) first_read: Arc<OnceLock<Instant>>,
    /// Whether it was told that the files have no space to grow.
    pub(crate) is_full: Arc<AtomicBool>,
    pub(crate) files: Vec<FollowedFile>,
    pub(crate) pipes: Vec<CapturedPipe>,
    pub(crate) copy: Option<LineCopy>,
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.pipes.is_empty()
    }

    /// Tells once if a file cannot grow: its worker then gets errors or writes nothing, and what is not in the file is not
    /// shown either.
    fn warn_if_full(&self, has_no_space: impl Fn(&FollowedFile) -> bool) {
        if self.is_full.load(Ordering::Relaxed) {
            return;
        }
        if let Some(file) = self.files.iter().find(|file| has_no_space(file))
            && !self.is_full.swap(true, Ordering::Relaxed)
        {
            log::warn!(
                "no space left on the file system of {}: output of workers is lost, and not shown on the console either",
                file.path().display()
            );
        }
    }
}

/// A running echo thread. Dropping it waits for at most 1 s of a stalled console.
#[derive(Debug)]
pub(crate) struct Echo {
    name: &'static str,
    /// Closing it makes the thread finish.
    finish: Option<PipeWriter>,
    /// Disconnected when the thread has ended.
    ended: Receiver<Infallible>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts a thread of this name that shows `sources` on `writer`.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub(crate) fn start(
        name: &'static str,
        writer: Box<dyn Write + Send>,
        sources: Sources,
    ) -> io::Result<Self> {
        let (finish_seen, finish) = io::pipe()?;
        let (ending, ended) = bounded(0);
        let progress = Arc::new(Progress::default());
        let sink = Sink::new(name, writer, Arc::clone(&progress));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                run(sources, sink, &finish_seen);
                drop(ending);
            })?;
        Ok(Self {
            name,
            finish: Some(finish),
            ended,
            progress,
            thread: Some(thread),
        })
    }

    /// Makes the thread finish. Several threads that are to end do so at the same time.
    pub(crate) fn close(&mut self) {
        self.finish = None;
    }

    /// Shows all output so far, and ends the thread. Blocks while the console accepts bytes, and for up to
    /// 10 s while it does not, which count from before this call; for 1 s in all once `is_killed` returns true.
    pub(crate) fn finish(mut self, is_killed: impl Fn() -> bool) {
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
                // A blocked write cannot be cancelled. The thread ends when the console accepts bytes.
                self.progress.is_abandoned.store(true, Ordering::Relaxed);
                log::error!(
                    "the console has not accepted all output: not waiting for the rest of {}",
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

impl Drop for Echo {
    fn drop(&mut self) {
        self.end(|| true);
    }
}

fn run(mut sources: Sources, mut sink: Sink, finish_seen: &PipeReader) {
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut is_finishing = false;
    let mut space_checked_at = Instant::now();
    loop {
        if space_checked_at.elapsed() >= SPACE_INTERVAL {
            space_checked_at = Instant::now();
            sources.warn_if_full(FollowedFile::has_no_space);
        }
        let mut may_have_more = false;
        for file in &mut sources.files {
            may_have_more |= file.read_once(&mut buffer, &mut sink, &mut sources.copy);
        }
        sources
            .pipes
            .retain_mut(|pipe| match pipe.read_once(&mut buffer, &mut sink) {
                PipeState::MayHaveMore => {
                    may_have_more = true;
                    true
                }
                PipeState::Empty => true,
                PipeState::Ended => false,
            });
        if may_have_more {
            sources.first_read.get_or_init(Instant::now);
        }
        if is_finishing {
            if may_have_more {
                continue;
            }
            break;
        }
        // Checked each time, as a worker's output may never pause.
        if wait(&sources, finish_seen, may_have_more) {
            is_finishing = true;
            sources.warn_if_full(FollowedFile::has_no_space);
            sources.files.iter_mut().for_each(FollowedFile::finish);
            sources.pipes.iter_mut().for_each(CapturedPipe::finish);
        }
    }
    for file in &mut sources.files {
        file.end(&mut sink, &mut sources.copy);
    }
}

/// Waits until there is something to read, or the next read of the files is due; not at all if `is_more`.
/// Returns whether to finish.
fn wait(sources: &Sources, finish_seen: &PipeReader, is_more: bool) -> bool {
    let mut entries = vec![PollFd::from_borrowed_fd(finish_seen.as_fd(), PollFlags::IN)];
    let pipes = sources.pipes.iter();
    entries.extend(pipes.map(|pipe| PollFd::from_borrowed_fd(pipe.descriptor(), PollFlags::IN)));
    let timeout = if is_more {
        Some(&NO_WAIT)
    } else {
        (!sources.files.is_empty()).then_some(&FOLLOW_INTERVAL)
    };
    match poll(&mut entries, timeout) {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn files_without_space_are_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "").unwrap();
        let file = || FollowedFile::open(path.clone(), String::new()).unwrap();
        let [stdout, mut stderr] = [(); 2].map(|()| Sources {
            files: vec![file(), file()],
            ..Sources::default()
        });
        stderr.is_full = Arc::clone(&stdout.is_full);
        let asked = Cell::new(0);
        // Of each file, until one has none.
        for (has_no_space, expected) in [(false, 4), (true, 5), (true, 5)] {
            for sources in [&stdout, &stderr] {
                sources.warn_if_full(|_| {
                    asked.set(asked.get() + 1);
                    has_no_space
                });
            }
            assert_eq!(asked.get(), expected);
        }
        assert!(!file().has_no_space());
    }
}
