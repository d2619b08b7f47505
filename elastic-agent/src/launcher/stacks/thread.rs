//! The thread `stacks`. Other threads wait for it at most 2 s per worker, because reading blocks while the file system
//! of an interpreter does not answer, and a blocked read cannot be cancelled.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};
use std::{fmt, io};

use c10d_inspect::stacks::{Frame, Stacks, ThreadStack};
use c10d_socket::ProcessStat;
use c10d_stacks::{PythonStacks, PythonThread, StackError, StackReader, command_line};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};

use crate::threads::lock;

const THREAD: &str = "stacks";

/// How long the stacks of one process may take. They normally take a few milliseconds.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(2);

/// The shortest time of reading a process that makes this process the reason for a missed deadline.
const SLOW: Duration = Duration::from_millis(500);

/// How long the end of the launcher waits for a process that is being read.
const END_TIMEOUT: Duration = Duration::from_millis(100);

const SILENT: &str = "the file system of its interpreter does not answer";
const BUSY: &str =
    "reading it takes longer than usual, because this host is busy or its interpreter is damaged";
const LATE: &str = "the launcher still reads the stacks of other workers";
const ENDED: &str = "the launcher's thread for stacks has ended";

/// The thread and its requests. The thread stops when this is dropped, which takes 100 ms at most: a thread that waits
/// for a file system is left behind.
#[derive(Debug)]
pub(in crate::launcher) struct StackThread {
    /// `None` while it is dropped.
    requests: Option<Sender<Request>>,
    /// `None` between processes.
    reading: Arc<Mutex<Option<Reading>>>,
    ended: Receiver<()>,
}

/// A process that the thread reads now.
#[derive(Debug, Clone, Copy)]
struct Reading {
    pid: u32,
    since: Instant,
    /// The id of the thread in the system.
    thread: u32,
}

/// A request for the stacks of these processes, which are sent one by one.
#[derive(Debug)]
struct Request {
    pids: Vec<u32>,
    answers: Sender<Result<Stacks, NoStacks>>,
}

/// The reason why some of the requested processes were not read.
#[derive(Debug)]
enum Stop {
    Ended,
    /// The thread does not return from reading a process.
    Reading(Reading),
    /// The time is over.
    Late,
}

impl StackThread {
    /// Starts the thread. It reads nothing before it is asked.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(in crate::launcher) fn start() -> io::Result<Self> {
        Self::start_with(Readers::default())
    }

    fn start_with(mut readers: impl ReadStacks) -> io::Result<Self> {
        let (requests, inbox) = unbounded::<Request>();
        let (end, ended) = bounded(0);
        let reading = Arc::<Mutex<Option<Reading>>>::default();
        let noted = Arc::clone(&reading);
        let run = move || {
            let _end: Sender<()> = end;
            let thread = own_id();
            for request in inbox {
                readers.forget_ended();
                for pid in request.pids {
                    *lock(&noted) = Some(Reading {
                        pid,
                        since: Instant::now(),
                        thread,
                    });
                    let result = readers.read(pid);
                    *lock(&noted) = None;
                    // The request was dropped, so its other processes need not be read.
                    if request.answers.send(result).is_err() {
                        break;
                    }
                }
            }
        };
        Builder::new().name(THREAD.to_owned()).spawn(run)?;
        Ok(Self {
            requests: Some(requests),
            reading,
            ended,
        })
    }

    /// Returns the stacks of each of these processes, or the reason why there are none.
    ///
    /// Blocks for `timeout` at most, and for at most 2 s while one process is read. If the thread does not return by
    /// then, this process and the processes after it have no stacks. Later requests get no stacks either until the
    /// thread returns.
    pub(in crate::launcher) fn read(
        &self,
        pids: &[u32],
        timeout: Duration,
    ) -> Vec<Result<Stacks, NoStacks>> {
        let until = Instant::now() + timeout;
        let mut results = Vec::with_capacity(pids.len());
        let stop = self.collect(pids, until, &mut results).err();
        let unread = pids.iter().skip(results.len());
        let unread: Vec<_> = unread
            .map(|pid| {
                let reason = match &stop {
                    Some(Stop::Reading(reading)) if reading.pid == *pid => reading.reason(),
                    Some(Stop::Reading(_) | Stop::Late) => LATE,
                    Some(Stop::Ended) | None => ENDED,
                };
                Err(NoStacks::Unread(reason.to_owned()))
            })
            .collect();
        results.extend(unread);
        results
    }

    fn collect(
        &self,
        pids: &[u32],
        until: Instant,
        results: &mut Vec<Result<Stacks, NoStacks>>,
    ) -> Result<(), Stop> {
        if self.ended.try_recv() == Err(TryRecvError::Disconnected) {
            return Err(Stop::Ended);
        }
        if let Some(reading) = self.reading_for(PROCESS_TIMEOUT) {
            return Err(Stop::Reading(reading));
        }
        let (answers, inbox) = unbounded();
        let request = Request {
            pids: pids.to_vec(),
            answers,
        };
        let requests = self.requests.as_ref().ok_or(Stop::Ended)?;
        requests.send(request).map_err(|_| Stop::Ended)?;
        while results.len() < pids.len() {
            let reading = *lock(&self.reading);
            let since = reading.map_or_else(Instant::now, |it| it.since);
            match inbox.recv_deadline(until.min(since + PROCESS_TIMEOUT)) {
                Ok(result) => results.push(result),
                Err(RecvTimeoutError::Disconnected) => return Err(Stop::Ended),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(reading) = self.reading_for(PROCESS_TIMEOUT) {
                        return Err(Stop::Reading(reading));
                    }
                    if Instant::now() >= until {
                        let slow = self.reading_for(SLOW);
                        return Err(slow.map_or(Stop::Late, Stop::Reading));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the process that the thread has been reading for at least this long.
    fn reading_for(&self, time: Duration) -> Option<Reading> {
        let reading = *lock(&self.reading);
        reading.filter(|it| it.since.elapsed() >= time)
    }
}

impl Reading {
    /// Returns why this takes long: a thread that waits for a file system does not run.
    fn reason(&self) -> &'static str {
        let stat = std::fs::read(format!("/proc/self/task/{}/stat", self.thread));
        let stat = stat.ok().and_then(|bytes| ProcessStat::parse(&bytes));
        match stat.is_some_and(|stat| stat.state == 'R') {
            true => BUSY,
            false => SILENT,
        }
    }
}

/// The id of the current thread in the system; 0 on other systems than Linux.
fn own_id() -> u32 {
    #[cfg(target_os = "linux")]
    return rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    #[cfg(not(target_os = "linux"))]
    0
}

impl Drop for StackThread {
    fn drop(&mut self) {
        self.requests = None;
        if self.ended.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            log::debug!("thread {THREAD} is left behind: it still reads a worker's stacks");
        }
    }
}

/// Reads the stacks of processes.
pub(super) trait ReadStacks: Send + 'static {
    /// Returns the stacks, or the reason why there are none. May block for any time.
    fn read(&mut self, pid: u32) -> Result<Stacks, NoStacks>;

    /// Drops the state of processes that have exited.
    fn forget_ended(&mut self);
}

/// The reason why a process has no stacks. `Display` is a clause without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::launcher) enum NoStacks {
    /// The process does not run Python.
    NotPython {
        /// The command line of the process, if it has one.
        command_line: Option<String>,
    },
    /// The stacks cannot be read, for this reason.
    Unread(String),
}

impl fmt::Display for NoStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPython { .. } => StackError::NotPython.fmt(f),
            Self::Unread(reason) => f.write_str(reason),
        }
    }
}

/// The name that Python gives to each main thread.
const MAIN_NAME: &str = "MainThread";

/// The readers by process id.
#[derive(Debug, Default)]
pub(super) struct Readers(HashMap<u32, StackReader>);

impl ReadStacks for Readers {
    fn read(&mut self, pid: u32) -> Result<Stacks, NoStacks> {
        let python = self.sample(pid).map_err(|error| match error {
            StackError::NotPython => NoStacks::NotPython {
                command_line: command_line(pid),
            },
            error => NoStacks::Unread(error.to_string()),
        })?;
        let none = || NoStacks::Unread("none of its threads runs Python".to_owned());
        converted(python).ok_or_else(none)
    }

    fn forget_ended(&mut self) {
        self.0.retain(|_, reader| reader.is_alive());
    }
}

impl Readers {
    fn sample(&mut self, pid: u32) -> Result<PythonStacks, StackError> {
        match self.0.entry(pid) {
            Entry::Occupied(mut entry) => match entry.get_mut().sample() {
                Ok(python) => Ok(python),
                // The process may run another program now.
                Err(_) => {
                    entry.remove();
                    self.sample(pid)
                }
            },
            Entry::Vacant(entry) => {
                let mut reader = StackReader::attach(pid)?;
                let python = reader.sample()?;
                entry.insert(reader);
                Ok(python)
            }
        }
    }
}

/// `None` if no thread has frames.
fn converted(python: PythonStacks) -> Option<Stacks> {
    let is_cut = python.is_cut;
    let mut stacks = Stacks::of_threads(python.threads.into_iter().map(thread).collect())?;
    stacks.is_cut |= is_cut;
    Some(stacks)
}

/// Converts a thread. The main thread has no name and is the first thread, like in the answer of a debug server.
fn thread(python: PythonThread) -> ThreadStack {
    let frames = python.frames.iter();
    let frames = frames.map(|frame| Frame::new(&frame.file, frame.line, &frame.function));
    let name = python.name.as_deref().filter(|name| *name != MAIN_NAME);
    ThreadStack::new(name, frames.collect())
}

#[cfg(test)]
mod tests {
    use c10d_inspect::stacks::{Frame, ThreadStack};

    use super::*;

    /// Reads a process when the test allows it, and panics for process 7. Computes while it waits for process 8.
    struct Gate(Receiver<()>);

    impl ReadStacks for Gate {
        fn read(&mut self, pid: u32) -> Result<Stacks, NoStacks> {
            if pid == 7 {
                std::panic::resume_unwind(Box::new(7));
            }
            while pid == 8 && self.0.is_empty() {
                std::hint::spin_loop();
            }
            // The test has ended.
            let _ = self.0.recv();
            let frame = Frame::new("train.py", pid, "load");
            let thread = ThreadStack::new(None, vec![frame]);
            Ok(Stacks::of_threads(vec![thread]).unwrap())
        }

        fn forget_ended(&mut self) {}
    }

    fn lines(results: &[Result<Stacks, NoStacks>]) -> Vec<Result<u32, &'static str>> {
        let line = |result: &Result<Stacks, NoStacks>| match result {
            Ok(stacks) => Ok(stacks.threads[0].frames[0].line),
            Err(error) => Err(match error.to_string().as_str() {
                SILENT => "silent",
                BUSY => "busy",
                LATE => "late",
                _ => "ended",
            }),
        };
        results.iter().map(line).collect()
    }

    fn gated() -> (Sender<()>, StackThread) {
        let (open, gate) = unbounded();
        (open, StackThread::start_with(Gate(gate)).unwrap())
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn processes_are_read_in_their_order() {
        let (open, thread) = gated();
        for _ in 0..3 {
            open.send(()).unwrap();
        }
        assert_eq!(
            lines(&thread.read(&[3, 4, 5], PATIENCE)),
            [Ok(3), Ok(4), Ok(5)]
        );
        assert_eq!(lines(&thread.read(&[], PATIENCE)), []);
        drop(thread);
    }

    #[test]
    fn a_thread_that_does_not_return_is_left_behind_and_delays_nothing() {
        let (open, thread) = gated();
        open.send(()).unwrap();
        let started = Instant::now();
        let results = thread.read(&[1, 2, 3], PATIENCE);
        assert_eq!(lines(&results), [Ok(1), Err("silent"), Err("late")]);
        let took = started.elapsed();
        assert!(
            took >= PROCESS_TIMEOUT && took < 2 * PROCESS_TIMEOUT,
            "{took:?}"
        );
        let again = Instant::now();
        // Only this process has a file system that does not answer.
        let results = thread.read(&[4, 2], PATIENCE);
        assert_eq!(lines(&results), [Err("late"), Err("silent")]);
        assert!(again.elapsed() < PROCESS_TIMEOUT);
        // The file system answers again.
        for _ in 0..3 {
            open.send(()).unwrap();
        }
        while thread.reading_for(PROCESS_TIMEOUT).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(lines(&thread.read(&[5], PATIENCE)), [Ok(5)]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_that_computes_waits_for_no_file_system() {
        let (open, thread) = gated();
        let results = thread.read(&[8, 2], PATIENCE);
        assert_eq!(lines(&results), [Err("busy"), Err("late")]);
        open.send(()).unwrap();
    }

    #[test]
    fn the_end_waits_for_no_file_system() {
        let (open, thread) = gated();
        let results = thread.read(&[1], Duration::from_millis(700));
        assert_eq!(lines(&results), [Err("silent")]);
        let started = Instant::now();
        drop(thread);
        assert!(started.elapsed() < PROCESS_TIMEOUT);
        drop(open);
    }

    #[test]
    fn a_deadline_that_passes_is_no_failure_of_a_file_system() {
        let (open, thread) = gated();
        let results = thread.read(&[1], Duration::ZERO);
        assert_eq!(lines(&results), [Err("late")]);
        drop(open);
    }

    #[test]
    fn a_panic_is_an_error_for_the_others() {
        let (open, thread) = gated();
        open.send(()).unwrap();
        assert_eq!(
            lines(&thread.read(&[1, 7, 2], PATIENCE)),
            [Ok(1), Err("ended"), Err("ended")]
        );
        assert_eq!(lines(&thread.read(&[3], PATIENCE)), [Err("ended")]);
    }

    #[test]
    fn this_process_is_an_error() {
        let mut readers = Readers::default();
        let error = readers.read(std::process::id()).unwrap_err();
        let text = error.to_string();
        assert!(!text.is_empty() && !text.ends_with('.'), "{text}");
        readers.forget_ended();
        assert!(readers.0.is_empty());
        assert_eq!(converted(PythonStacks::default()), None);
    }
}
