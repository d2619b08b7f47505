//! PyTorch's watchdog for workers, which kills workers that stay in a block of code for too long.
//!
//! Workers write the timers of `torch.distributed.elastic.timer` into a named pipe. In PyTorch: `FileTimerServer`
//! (`torch/distributed/elastic/timer/file_based_local_timer.py`), which also stops the agent when a timer expires; here
//! the agent restarts the workers.

mod timers;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use self::timers::{Expired, Lines, Timers};
use crate::files;
use crate::sys::{self, session_of};
use crate::threads::JoinedThread;
use crate::wording::name_of;

const THREAD: &str = "watchdog";

/// The longest wait: wall clocks can be set, and the time of the last progress must not look old.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How often the pipe is read before timers are checked again.
const READS_MAX: usize = 64;

/// The watchdog of the workers of one round. Dropping it stops its thread and removes the pipe.
#[derive(Debug)]
pub(crate) struct Watchdog {
    path: PathBuf,
    progress: Arc<AtomicU64>,
    sessions: Sender<Vec<Pid>>,
    /// Closing it stops the thread.
    stop: Option<io::PipeWriter>,
    thread: JoinedThread,
}

impl Watchdog {
    /// Makes the pipe at `path`, or under a new name where temporary files can be made, and starts the thread. It
    /// notes each round of its loop in `progress`, as seconds since the epoch; 0 while there is none.
    ///
    /// # Errors
    /// [`WatchdogError`]: the pipe cannot be made, or the system has no thread left.
    pub(crate) fn start(
        path: Option<&Path>,
        progress: Arc<AtomicU64>,
    ) -> Result<Self, WatchdogError> {
        let at = |path: PathBuf| TimerPipe::create(&path).map(|pipe| (path, pipe));
        let (path, pipe) = match path {
            Some(path) => at(path.to_owned()).map_err(|source| WatchdogError::Pipe {
                path: path.to_owned(),
                source,
            })?,
            None => files::create_temporary(|place| at(new_path(place)))
                .map_err(WatchdogError::NoPlace)?,
        };
        let (sessions, assigned) = unbounded();
        let of_loop = Arc::clone(&progress);
        let started = io::pipe().and_then(|(stop_seen, stop)| {
            let thread = JoinedThread::start(THREAD, move || {
                Loop {
                    pipe,
                    stop_seen,
                    lines: Lines::default(),
                    timers: Timers::default(),
                    sessions: Vec::new(),
                    has_warned: false,
                    progress: of_loop,
                }
                .run(&assigned);
            })?;
            Ok((stop, thread))
        });
        match started {
            Ok((stop, thread)) => Ok(Self {
                path,
                progress,
                sessions,
                stop: Some(stop),
                thread,
            }),
            Err(source) => {
                remove(&path);
                Err(WatchdogError::Thread(source))
            }
        }
    }

    /// The path of the pipe, for `TORCHELASTIC_TIMER_FILE`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the watchdog which processes it may signal from now on: those in the sessions that these workers lead. Until
    /// the first call it signals none.
    pub(crate) fn watch(&self, workers: &[u32]) {
        let pids = workers.iter().filter_map(|pid| i32::try_from(*pid).ok());
        // The thread lives until this ends it.
        let _ = self.sessions.send(pids.filter_map(Pid::from_raw).collect());
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // A thread that waits for its sessions also notices this.
        let (closed, _) = bounded(0);
        self.sessions = closed;
        self.stop = None;
        self.thread.join();
        self.progress.store(0, Ordering::Relaxed);
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!(
                "cannot remove the watchdog's pipe {}: {error}",
                path.display()
            );
        }
        _ => {}
    }
}

struct Loop {
    pipe: TimerPipe,
    stop_seen: io::PipeReader,
    lines: Lines,
    timers: Timers,
    sessions: Vec<Pid>,
    /// Whether too many timers were reported.
    has_warned: bool,
    progress: Arc<AtomicU64>,
}

impl Loop {
    fn run(mut self, assigned: &Receiver<Vec<Pid>>) {
        let Ok(sessions) = assigned.recv() else {
            return;
        };
        self.sessions = sessions;
        loop {
            if let Some(sessions) = assigned.try_iter().last() {
                self.sessions = sessions;
            }
            self.read();
            let now = seconds_since_epoch();
            for expired in self.timers.take_expired(now) {
                self.end(&expired);
            }
            self.progress.store(now as u64, Ordering::Relaxed);
            if self.wait(now) {
                return;
            }
        }
    }

    /// Adopts the requests that have been written.
    fn read(&mut self) {
        let mut buffer = [0; 4096];
        let (timers, has_warned) = (&mut self.timers, &mut self.has_warned);
        // Timers expire also while workers write without a pause.
        for _ in 0..READS_MAX {
            let bytes = match self.pipe.read(&mut buffer) {
                Ok([]) => break,
                Ok(bytes) => bytes,
                Err(error) => {
                    log::error!("the watchdog cannot read timers, so none expires: {error}");
                    break;
                }
            };
            self.lines.push(bytes, |request| {
                if timers.apply(request.clone()) {
                    return;
                }
                timers.retain(is_running);
                if !timers.apply(request) && !std::mem::replace(has_warned, true) {
                    log::warn!("the workers have too many timers: the watchdog ignores new timers");
                }
            });
        }
        let refused = self.lines.take_refused();
        if refused > 0 {
            log::warn!("the watchdog ignores {refused} lines that are not timers of PyTorch");
        }
    }

    /// Waits for requests, or until the next timer expires. Returns whether to stop.
    fn wait(&self, now: f64) -> bool {
        let left = self.timers.next_expiry().map_or(WAIT_MAX, |at| {
            // One millisecond is added because the clock is read again. NaN is not a time.
            Duration::try_from_secs_f64((at - now).max(0.0) + 0.001).unwrap_or(WAIT_MAX)
        });
        let timeout = Timespec::try_from(left.min(WAIT_MAX)).ok();
        let mut entries = [
            PollFd::from_borrowed_fd(self.stop_seen.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.pipe.as_fd(), PollFlags::IN),
        ];
        match poll(&mut entries, timeout.as_ref()) {
            Ok(_) => !entries[0].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => {
                // The system is out of memory. It may recover; the pause prevents a busy loop.
                log::warn!("the watchdog cannot wait for timers: {error}");
                std::thread::sleep(Duration::from_millis(50));
                false
            }
        }
    }

    /// Sends the signal of an expired timer, if the process belongs to a worker.
    fn end(&self, expired: &Expired) {
        let Expired { pid, scopes, .. } = expired;
        let scopes = scopes.iter().map(|scope| format!("{scope:?}"));
        let scopes = scopes.take(8).collect::<Vec<_>>().join(", ");
        let Some(number) = expired.signal else {
            log::warn!(
                "timers of process {pid} have expired, and have no signal to send: {scopes}"
            );
            return;
        };
        let Some((process, signal)) = Pid::from_raw(*pid).zip(Signal::from_named_raw(number))
        else {
            log::warn!(
                "timers of process {pid} have expired: {scopes}; there is no signal {number}"
            );
            return;
        };
        match session_of(process) {
            Ok(Some(session)) if self.sessions.contains(&session) => {}
            // The process has exited.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return,
            _ => {
                log::warn!(
                    "timers of process {pid} have expired: {scopes}; not sending a signal: the process is not in a session of these workers"
                );
                return;
            }
        }
        match kill_process(process, signal) {
            Ok(()) => log::error!(
                "timers of process {pid} have expired: {scopes}; the watchdog has sent {}",
                name_of(number)
            ),
            Err(rustix::io::Errno::SRCH) => {}
            Err(error) => log::error!(
                "timers of process {pid} have expired: {scopes}; the watchdog cannot send {}: {error}",
                name_of(number)
            ),
        }
    }
}

fn is_running(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Returns the time of the wall clock, which PyTorch's timers use.
pub(crate) fn seconds_since_epoch() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// The reason why a watchdog could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchdogError {
    /// The named pipe could not be made.
    #[error(
        "cannot make the watchdog's pipe {}: {source}; TORCHELASTIC_TIMER_FILE must name a new file or a pipe \
         of this user",
        path.display()
    )]
    Pipe {
        /// The path of the pipe.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A pipe could not be created in any directory for temporary files.
    #[error("cannot make the watchdog's pipe: {0}; set TMPDIR")]
    NoPlace(io::Error),
    /// The system has no thread or descriptor left.
    #[error("cannot start the watchdog: {0}")]
    Thread(io::Error),
}

/// A named pipe that only this user can open.
#[derive(Debug)]
struct TimerPipe {
    reader: File,
    /// Never written to: with a writer, the pipe does not end whenever a worker closes it.
    _writer: File,
}

/// A new name like PyTorch's in this directory.
fn new_path(place: &Path) -> PathBuf {
    place.join(format!("watchdog_timer_{:032x}", fastrand::u128(..)))
}

impl TimerPipe {
    /// Makes the pipe, and replaces a pipe that an earlier launcher has left. Another kind of file stays, and is an error.
    ///
    /// # Errors
    /// The error of the operating system.
    fn create(path: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|known| known.file_type().is_fifo()) {
            fs::remove_file(path)?;
        }
        sys::make_fifo(path)?;
        // Opening it without waiting for the other end.
        let options = |is_reader: bool| {
            let mut options = OpenOptions::new();
            options.read(is_reader).write(!is_reader);
            options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
            options
        };
        let opened = options(true).open(path).and_then(|reader| {
            if !reader.metadata()?.file_type().is_fifo() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let _writer = options(false).open(path)?;
            Ok(Self { reader, _writer })
        });
        if opened.is_err() {
            // The pipe is no longer of use; the first error has the reason.
            let _ = fs::remove_file(path);
        }
        opened
    }

    /// Reads without waiting; empty if there is nothing at the moment.
    ///
    /// # Errors
    /// The error of the operating system.
    fn read<'b>(&mut self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        loop {
            match self.reader.read(buffer) {
                Ok(count) => return Ok(&buffer[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(&[]),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

impl AsFd for TimerPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

#[cfg(test)]
mod pipe_tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn any_number_of_writers_can_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mut pipe = TimerPipe::create(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let mut buffer = [0; 16];
        for text in [b"a\n", b"b\n"] {
            assert_eq!(pipe.read(&mut buffer).unwrap(), b"");
            let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
            writer.write_all(text).unwrap();
            drop(writer);
            assert_eq!(pipe.read(&mut buffer).unwrap(), text);
        }
        assert_eq!(pipe.read(&mut buffer).unwrap(), b"");
    }

    #[test]
    fn only_a_pipe_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        drop(TimerPipe::create(&path).unwrap());
        drop(TimerPipe::create(&path).unwrap());
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for other in [&file, &link] {
            let error = TimerPipe::create(other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{other:?}");
        }
        assert_eq!(fs::read(file).unwrap(), b"kept");
    }

    #[test]
    fn names_differ() {
        let place = Path::new("/tmp");
        assert_ne!(new_path(place), new_path(place));
    }
}

#[cfg(test)]
mod tests;
