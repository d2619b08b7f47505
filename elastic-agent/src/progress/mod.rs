//! The progress of the workers of this node: the files in which they report steps, the threads that read the files, and the
//! thread that decides whether the workers are stuck.

mod watch;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

pub(crate) use self::watch::ProgressSeen;
use self::watch::{Mark, ProgressWatch, Verdict};
use crate::files;
use crate::threads::{JoinedThread, lock};

/// Options for how the workers of a node report their progress, and when they count as stuck.
///
/// Each worker has a separate file. `C10D_PROGRESS_FILE` contains its path, in a temporary directory that only this user can
/// enter, and that is removed with the agent. The worker writes its step there as decimal text. In a file that
/// holds no number, each change of its time counts as progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgressOptions {
    /// A file that any worker of this node writes to. None by default.
    pub file: Option<PathBuf>,
    /// The workers count as stuck when none of them has reported progress for this long since the last report. `None`,
    /// the default, for never.
    pub timeout: Option<Duration>,
    /// The time from the start of the workers after which they count as stuck without a first report. `None`, the
    /// default, for never, because the workers of a node may leave all reports to the workers of another node.
    pub first_timeout: Option<Duration>,
}

impl ProgressOptions {
    /// The path of one worker's file in the agent's directory. `starts` is how often the agent has started workers before: no two workers share
    /// a file, because a process that an earlier worker left behind may still write.
    pub(crate) fn worker_file(directory: &Path, starts: usize, local_rank: usize) -> PathBuf {
        directory.join(format!("{starts}-{local_rank}"))
    }
}

/// The thread that decides.
const THREAD: &str = "progress";

/// The threads that read.
const READER: &str = "progress-read";

/// How often the files are read: steps take longer on most jobs, and a read of some files costs microseconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often the files are read within a short timeout, but not more often than every 10 ms.
const READS_PER_TIMEOUT: u32 = 4;
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// How long the first and the last reading are waited for: a read from a file system that does not answer cannot be
/// cancelled.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads the files of one round until it is finished or dropped.
#[derive(Debug)]
pub(crate) struct Poller {
    watch: Arc<Mutex<ProgressWatch>>,
    /// Dropping it stops the threads, so it precedes the handle that waits for them.
    _stop: Sender<Infallible>,
    _thread: JoinedThread,
}

/// The progress of one round.
#[derive(Debug, Clone)]
pub(crate) struct ProgressView(Arc<Mutex<ProgressWatch>>);

impl ProgressView {
    /// Returns when the last progress was detected, counted from the start of the workers; `None` if there was none.
    pub(crate) fn last(&self) -> Option<Duration> {
        lock(&self.0).seen().last
    }
}

/// The values of files at one moment.
struct Reading {
    /// The number of the first file.
    first: usize,
    marks: Vec<Option<Mark>>,
    /// Whether the reading is from before the start of the workers.
    is_earlier: bool,
}

/// Reads one file.
type Read = fn(&Path) -> Option<Mark>;

impl Poller {
    /// Starts the threads. Call this before the workers start, because the present contents of the files do not count as
    /// progress. `on_stuck` is called once, with the time since the last progress. Blocks until the files are read, for 2 s
    /// at most.
    ///
    /// Each directory of files has a separate thread. Therefore a file system that does not answer delays neither the
    /// steps in other directories nor the verdict.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(crate) fn start(
        directories: Vec<Vec<PathBuf>>,
        timeout: Option<Duration>,
        first_timeout: Option<Duration>,
        on_stuck: impl FnOnce(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(read, directories, timeout, first_timeout, on_stuck)
    }

    fn start_with(
        read: Read,
        directories: Vec<Vec<PathBuf>>,
        timeout: Option<Duration>,
        first_timeout: Option<Duration>,
        on_stuck: impl FnOnce(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        let nothing = vec![None; directories.iter().map(Vec::len).sum()];
        let watch = ProgressWatch::new(timeout, first_timeout, nothing);
        let watch = Arc::new(Mutex::new(watch));
        let (stop, stopped) = bounded(0);
        let shortest = timeout.into_iter().chain(first_timeout).min();
        let share = shortest.map_or(INTERVAL, |it| it / READS_PER_TIMEOUT);
        let interval = share.clamp(INTERVAL_MIN, INTERVAL);

        let (reading, readings) = bounded(directories.len());
        let mut readers = Vec::new();
        let mut first = 0;
        for files in directories {
            let (reading, stopped) = (reading.clone(), stopped.clone());
            let end = first + files.len();
            let reader = thread::Builder::new()
                .name(READER.to_owned())
                .spawn(move || read_files(read, first, &files, interval, &stopped, &reading))?;
            readers.push(reader);
            first = end;
        }
        drop(reading);

        let (ready, is_ready) = bounded(1);
        let shared = Arc::clone(&watch);
        let thread = JoinedThread::start(THREAD, move || {
            decide(
                &shared, interval, readers, &readings, &stopped, &ready, on_stuck,
            );
        })?;
        // Otherwise the files of an earlier round may count as progress. The thread says so after 2 s at most.
        let _ = is_ready.recv();
        Ok(Self {
            watch,
            _stop: stop,
            _thread: thread,
        })
    }

    /// Returns a view of the progress for other threads, which stays valid after the round.
    pub(crate) fn view(&self) -> ProgressView {
        ProgressView(Arc::clone(&self.watch))
    }

    /// The progress so far.
    pub(crate) fn seen(&self) -> ProgressSeen {
        lock(&self.watch).seen().clone()
    }

    /// Reads the files a last time, and stops the threads. Blocks for 2 s at most.
    pub(crate) fn finish(self) -> ProgressSeen {
        let watch = Arc::clone(&self.watch);
        drop(self);
        lock(&watch).seen().clone()
    }
}

/// Reads files of one directory until the end, and then a last time.
fn read_files(
    read: Read,
    first: usize,
    files: &[PathBuf],
    interval: Duration,
    stopped: &Receiver<Infallible>,
    readings: &Sender<Reading>,
) {
    let mut is_earlier = true;
    loop {
        let is_last =
            !is_earlier && stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
        let marks = files.iter().map(|path| read(path)).collect();
        let reading = Reading {
            first,
            marks,
            is_earlier,
        };
        // Without a receiver no thread waits for this directory any more.
        if readings.send(reading).is_err() || is_last {
            return;
        }
        is_earlier = false;
    }
}

/// Takes the readings and decides. Touches no file.
fn decide(
    watch: &Mutex<ProgressWatch>,
    interval: Duration,
    readers: Vec<JoinHandle<()>>,
    readings: &Receiver<Reading>,
    stopped: &Receiver<Infallible>,
    ready: &Sender<()>,
    on_stuck: impl FnOnce(Duration),
) {
    let deadline = Instant::now() + PATIENCE;
    for _ in &readers {
        match readings.recv_deadline(deadline) {
            Ok(reading) => observe(watch, Duration::ZERO, reading),
            Err(_) => break,
        }
    }
    let started = Instant::now();
    // This is the only message.
    let _ = ready.send(());
    let mut on_stuck = Some(on_stuck);
    loop {
        crossbeam_channel::select! {
            recv(readings) -> reading => match reading {
                Ok(reading) => observe(watch, started.elapsed(), reading),
                // The readers have ended, which they do only when stopped.
                Err(_) => break,
            },
            recv(stopped) -> _ => break,
            default(interval) => {}
        }
        let verdict = lock(watch).check(started.elapsed());
        if let Verdict::Stuck(silent) = verdict
            && let Some(on_stuck) = on_stuck.take()
        {
            on_stuck(silent);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        match readings.recv_deadline(deadline) {
            Ok(reading) => observe(watch, started.elapsed(), reading),
            Err(RecvTimeoutError::Timeout) => {
                log::warn!("a file system with progress files does not answer");
                return;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    for reader in readers {
        if reader.join().is_err() {
            log::error!("thread {READER} panicked");
        }
    }
}

fn observe(watch: &Mutex<ProgressWatch>, now: Duration, reading: Reading) {
    let mut watch = lock(watch);
    if reading.is_earlier {
        watch.start_from(reading.first, reading.marks);
    } else {
        watch.observe(now, reading.first, reading.marks);
    }
}

/// The longest file that is read for a number: 64 bits have 20 digits.
const BYTES_MAX: u64 = 64;

/// Returns the step or the time of change of the file; `None` if it is missing or cannot be read.
fn read(path: &Path) -> Option<Mark> {
    let modified = fs::metadata(path).and_then(|it| it.modified()).ok()?;
    match files::read(path, BYTES_MAX) {
        Ok(bytes) => Some(mark(&bytes, modified)),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Some(Mark::Modified(modified)),
        Err(_) => None,
    }
}

/// Returns the decimal number, with blanks around it, or otherwise the time of the last change.
fn mark(bytes: &[u8], modified: SystemTime) -> Mark {
    let text = std::str::from_utf8(bytes).ok();
    let step = text.and_then(|text| text.trim().parse().ok());
    step.map_or(Mark::Modified(modified), Mark::Step)
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
        let poller = Poller::start(vec![files.clone()], Some(timeout), None, move |silent| {
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

    #[test]
    fn a_file_system_that_does_not_answer_delays_neither_other_steps_nor_the_verdict() {
        fn read_or_hang(path: &Path) -> Option<Mark> {
            if path.ends_with("hanging") {
                // Like a thread that reads from such a file system, this thread lasts until the process exits.
                loop {
                    thread::park();
                }
            }
            read(path)
        }
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        let directories = vec![vec![own.clone()], vec![PathBuf::from("hanging")]];
        let timeout = Duration::from_millis(40);
        let (stuck, is_stuck) = bounded(1);
        let poller = Poller::start_with(
            read_or_hang,
            directories,
            Some(timeout),
            None,
            move |silent| {
                stuck.send(silent).unwrap();
            },
        )
        .unwrap();
        assert!(is_stuck.try_recv().is_err(), "no step, no verdict");
        fs::write(&own, "7").unwrap();
        let silent = is_stuck.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(silent >= timeout, "{silent:?}");
        fs::write(&own, "8").unwrap();
        assert_eq!(poller.finish().steps, [Some(8), None]);
    }

    #[test]
    fn only_a_number_is_a_step() {
        let time = SystemTime::UNIX_EPOCH;
        for (text, step) in [
            ("17", 17),
            (" 17\n", 17),
            ("0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(mark(text.as_bytes(), time), Mark::Step(step));
        }
        for text in ["", "-1", "1.5", "step 17", "17 18", "18446744073709551616"] {
            assert_eq!(mark(text.as_bytes(), time), Mark::Modified(time), "{text}");
        }
        assert_eq!(mark(b"\xff", time), Mark::Modified(time));
    }

    #[test]
    fn a_long_file_has_only_a_time_and_a_directory_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress");
        assert_eq!(read(&path), None);
        fs::write(&path, "1".repeat(65)).unwrap();
        assert!(matches!(read(&path), Some(Mark::Modified(_))));
        fs::write(&path, "12\n").unwrap();
        assert_eq!(read(&path), Some(Mark::Step(12)));
        assert_eq!(read(folder.path()), None);
    }
}
