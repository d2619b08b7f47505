//! The thread that reads the files in which workers report progress.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::file;
use super::watch::{Mark, ProgressSeen, ProgressWatch, Verdict};

const THREAD: &str = "progress";

/// How often the files are read: steps take longer on most jobs, and a read of some files costs microseconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// With a shorter timeout the files are read this often in its time, but not more often than each 10 ms.
const READS_PER_TIMEOUT: u32 = 4;
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// How long the owner waits for the thread: a read from a file system that does not answer cannot be cancelled.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads the files of one round until it is finished or dropped.
#[derive(Debug)]
pub(crate) struct Poller {
    watch: Arc<Mutex<ProgressWatch>>,
    /// Dropping it ends the thread.
    stop: Option<Sender<Infallible>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<Infallible>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts the thread, before the workers start: what the files say now is no progress. `on_stuck` is called once,
    /// with the time since the last progress. Blocks until the files are read, for 2 s at most.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        files: Vec<PathBuf>,
        timeout: Option<Duration>,
        first_timeout: Option<Duration>,
        on_stuck: impl FnOnce(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        let nothing = vec![None; files.len()];
        let watch = ProgressWatch::new(timeout, first_timeout, nothing);
        let watch = Arc::new(Mutex::new(watch));
        let (stop, stopped) = bounded(0);
        let (ending, ended) = bounded(0);
        let (ready, is_ready) = bounded(1);
        let shared = Arc::clone(&watch);
        let shortest = timeout.into_iter().chain(first_timeout).min();
        let share = shortest.map_or(INTERVAL, |it| it / READS_PER_TIMEOUT);
        let interval = share.clamp(INTERVAL_MIN, INTERVAL);
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                *lock(&shared) = ProgressWatch::new(timeout, first_timeout, read_all(&files));
                // Nothing else is sent.
                let _ = ready.send(());
                run(&files, &shared, interval, &stopped, on_stuck);
                drop(ending);
            })?;
        // Otherwise the files of an earlier round may count as progress.
        let _ = is_ready.recv_timeout(PATIENCE);
        Ok(Self {
            watch,
            stop: Some(stop),
            ended,
            thread: Some(thread),
        })
    }

    /// The progress so far.
    pub(crate) fn seen(&self) -> ProgressSeen {
        lock(&self.watch).seen().clone()
    }

    /// Reads the files a last time, and ends the thread. Blocks for 2 s at most.
    pub(crate) fn finish(mut self) -> ProgressSeen {
        self.end();
        self.seen()
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.stop = None;
        if self.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            log::warn!("the file system with the progress files does not answer");
        } else if thread.join().is_err() {
            log::error!("thread {THREAD} panicked");
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(
    files: &[PathBuf],
    watch: &Mutex<ProgressWatch>,
    interval: Duration,
    stopped: &Receiver<Infallible>,
    on_stuck: impl FnOnce(Duration),
) {
    let started = Instant::now();
    let mut on_stuck = Some(on_stuck);
    loop {
        let is_last = stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
        // Outside the lock: a file system may take its time.
        let marks = read_all(files);
        let now = started.elapsed();
        let mut watch = lock(watch);
        watch.observe(now, marks);
        if is_last {
            return;
        }
        let verdict = watch.check(now);
        drop(watch);
        if let Verdict::Stuck(silent) = verdict
            && let Some(on_stuck) = on_stuck.take()
        {
            on_stuck(silent);
        }
    }
}

fn read_all(files: &[PathBuf]) -> Vec<Option<Mark>> {
    files.iter().map(|path| file::read(path)).collect()
}

fn lock(watch: &Mutex<ProgressWatch>) -> MutexGuard<'_, ProgressWatch> {
    // A panic of the other side leaves a watch that is still valid.
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_files_are_read_until_the_end_and_silence_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = ["0", "1"].map(|name| folder.path().join(name)).to_vec();
        fs::write(&files[0], "100").unwrap();
        let timeout = Duration::from_millis(40);
        let (stuck, is_stuck) = bounded(2);
        let poller = Poller::start(files.clone(), Some(timeout), None, move |silent| {
            stuck.send(silent).unwrap();
        })
        .unwrap();
        assert_eq!(poller.seen().first, None);
        fs::write(&files[1], "7\n").unwrap();
        let silent = is_stuck.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(silent >= timeout, "{silent:?}");
        assert_eq!(poller.seen().round.step, Some(7));
        fs::write(&files[0], "101").unwrap();
        let seen = poller.finish();
        assert_eq!(seen.steps, [Some(101), Some(7)]);
        assert!(is_stuck.recv().is_err(), "a second report");
    }
}
