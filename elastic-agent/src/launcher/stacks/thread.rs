//! The thread `stacks`. Other threads wait for it at most 2 s per worker, because reading blocks while the file system
//! of an interpreter does not answer, and a blocked read cannot be cancelled.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use c10d_inspect::stacks::Stacks;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};

use super::readers::Readers;
use super::source::ReadStacks;
use crate::threads::lock;

const THREAD: &str = "stacks";

/// How long the stacks of one process may take. They normally take a few milliseconds.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(2);

/// The shortest time of reading a process that makes this process the reason for a missed deadline.
const SLOW: Duration = Duration::from_millis(500);

/// How long the end of the launcher waits for a process that is being read.
const END_TIMEOUT: Duration = Duration::from_millis(100);

const SILENT: &str = "the file system of its interpreter does not answer";
const LATE: &str = "the launcher still reads the stacks of other workers";
const ENDED: &str = "the launcher's thread for stacks has ended";

/// The thread and its requests. The thread stops when this is dropped, which takes 100 ms at most: a thread that waits
/// for a file system is left behind.
#[derive(Debug)]
pub(in crate::launcher) struct StackThread {
    /// `None` while it is dropped.
    requests: Option<Sender<Request>>,
    /// When the thread started to read its current process; `None` between processes.
    reading: Arc<Mutex<Option<Instant>>>,
    ended: Receiver<()>,
}

/// A request for the stacks of these processes, which are sent one by one.
#[derive(Debug)]
struct Request {
    pids: Vec<u32>,
    answers: Sender<Result<Stacks, String>>,
}

impl StackThread {
    /// Starts the thread. It reads nothing before it is asked.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(in crate::launcher) fn start() -> io::Result<Self> {
        Self::start_with(Readers::default())
    }

    fn start_with(mut readers: impl ReadStacks) -> io::Result<Self> {
        let (requests, inbox) = unbounded::<Request>();
        let (end, ended) = bounded(0);
        let reading = Arc::<Mutex<Option<Instant>>>::default();
        let noted = Arc::clone(&reading);
        let run = move || {
            let _end: Sender<()> = end;
            for request in inbox {
                readers.forget_ended();
                for pid in request.pids {
                    *lock(&noted) = Some(Instant::now());
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

    /// Returns the stacks of each of these processes, or the reason why there are none, in a clause without a full
    /// stop.
    ///
    /// Blocks for `timeout` at most, and for at most 2 s while one process is read. If the thread does not return by
    /// then, this process and the processes after it have no stacks. Later requests get no stacks either until the
    /// thread returns.
    pub(in crate::launcher) fn read(
        &self,
        pids: &[u32],
        timeout: Duration,
    ) -> Vec<Result<Stacks, String>> {
        let until = Instant::now() + timeout;
        let mut results = Vec::with_capacity(pids.len());
        let error = self.collect(pids, until, &mut results).err();
        results.resize(pids.len(), Err(error.unwrap_or(ENDED).to_owned()));
        results
    }

    fn collect(
        &self,
        pids: &[u32],
        until: Instant,
        results: &mut Vec<Result<Stacks, String>>,
    ) -> Result<(), &'static str> {
        if self.ended.try_recv() == Err(TryRecvError::Disconnected) {
            return Err(ENDED);
        }
        if self.has_read_for(PROCESS_TIMEOUT) {
            return Err(SILENT);
        }
        let (answers, inbox) = unbounded();
        let request = Request {
            pids: pids.to_vec(),
            answers,
        };
        let requests = self.requests.as_ref().ok_or(ENDED)?;
        requests.send(request).map_err(|_| ENDED)?;
        while results.len() < pids.len() {
            let since = lock(&self.reading).unwrap_or_else(Instant::now);
            match inbox.recv_deadline(until.min(since + PROCESS_TIMEOUT)) {
                Ok(result) => results.push(result),
                Err(RecvTimeoutError::Disconnected) => return Err(ENDED),
                Err(RecvTimeoutError::Timeout) => {
                    if self.has_read_for(PROCESS_TIMEOUT) {
                        return Err(SILENT);
                    }
                    if Instant::now() >= until {
                        let is_slow = self.has_read_for(SLOW);
                        return Err(if is_slow { SILENT } else { LATE });
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether the thread has been reading the same process for this long.
    fn has_read_for(&self, time: Duration) -> bool {
        lock(&self.reading).is_some_and(|since| since.elapsed() >= time)
    }
}

impl Drop for StackThread {
    fn drop(&mut self) {
        self.requests = None;
        if self.ended.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            log::debug!("thread {THREAD} is left behind: it still reads a worker's stacks");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use c10d_inspect::stacks::{Frame, ThreadStack};

    /// Reads a process when the test allows it, and panics for process 7.
    struct Gate(Receiver<()>);

    impl ReadStacks for Gate {
        fn read(&mut self, pid: u32) -> Result<Stacks, String> {
            if pid == 7 {
                std::panic::resume_unwind(Box::new(7));
            }
            // The test has ended.
            let _ = self.0.recv();
            let frame = Frame::new("train.py", pid, "load");
            let thread = ThreadStack::new(None, vec![frame]);
            Ok(Stacks::of_threads(vec![thread]).unwrap())
        }

        fn forget_ended(&mut self) {}
    }

    fn lines(results: &[Result<Stacks, String>]) -> Vec<Result<u32, &str>> {
        let line = |result: &Result<Stacks, String>| match result {
            Ok(stacks) => Ok(stacks.threads[0].frames[0].line),
            Err(error) if error == SILENT => Err("silent"),
            Err(error) if error == LATE => Err("late"),
            Err(_) => Err("ended"),
        };
        results
            .iter()
            .map(|it| line(it).map_err(|it| it as &str))
            .collect()
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
        assert_eq!(lines(&results), [Ok(1), Err("silent"), Err("silent")]);
        let took = started.elapsed();
        assert!(
            took >= PROCESS_TIMEOUT && took < 2 * PROCESS_TIMEOUT,
            "{took:?}"
        );
        let again = Instant::now();
        assert_eq!(lines(&thread.read(&[4], PATIENCE)), [Err("silent")]);
        assert!(again.elapsed() < PROCESS_TIMEOUT);
        // The file system answers again.
        for _ in 0..3 {
            open.send(()).unwrap();
        }
        while thread.has_read_for(PROCESS_TIMEOUT) {
            std::thread::yield_now();
        }
        assert_eq!(lines(&thread.read(&[5], PATIENCE)), [Ok(5)]);
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
}
