//! Workers that have been forked and wait at their gate.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, thread};

use c10d_socket::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::options::WorkerStart;
use super::packet::parse_started;
use super::packet::{self, Received};

/// How long workers may take from their gate to their own session: a few milliseconds on a quiet machine.
const START_MAX: Duration = Duration::from_secs(10);

/// How often the start checks that the workers still live.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long killed workers may take to exit. They have little private memory.
const KILL_WAIT_MAX: Duration = Duration::from_secs(10);

/// Workers that wait at their gate. They are children of this process. Dropping them kills them.
#[derive(Debug)]
pub(crate) struct ForkedWorkers {
    gate: OwnedFd,
    workers: Vec<Pid>,
}

impl ForkedWorkers {
    /// The workers with these process ids, behind this gate.
    pub(super) const fn new(gate: OwnedFd, workers: Vec<Pid>) -> Self {
        Self { gate, workers }
    }

    /// Whether all of them are living children of this process.
    pub(super) fn are_alive(&self) -> bool {
        self.workers.iter().all(|worker| is_living_child(*worker))
    }

    /// Leaves the workers alone: they are not this process's, and end when their gate closes.
    pub(super) fn disown(mut self) {
        self.workers.clear();
    }

    /// Starts one worker for each of `starts`, and returns their process ids in this order. Blocks until each has a
    /// session and its streams: milliseconds, or 10 s on a machine that is stuck.
    ///
    /// # Errors
    /// The reason why the workers could not be started. All of them are then killed, although some may have begun to run
    /// their scripts.
    pub(crate) fn start(mut self, starts: &[WorkerStart<'_>]) -> io::Result<Vec<Pid>> {
        if starts.len() != self.workers.len() {
            return Err(io::Error::other("another number of workers was forked"));
        }
        let deadline = Deadline::after(Instant::now(), START_MAX);
        let mut started = HashMap::new();
        for (index, start) in starts.iter().enumerate() {
            let contents = start.contents()?;
            let [stdin, stdout, stderr] = start.streams;
            let descriptors = [contents.as_fd(), stdin, stdout, stderr, start.names];
            let packet = index.to_string();
            // The socket has room for some dozens.
            while !packet::send(self.gate.as_fd(), packet.as_bytes(), &descriptors)? {
                self.wait_for_answer(&mut started, starts.len(), deadline)?;
            }
        }
        while started.len() < starts.len() {
            self.wait_for_answer(&mut started, starts.len(), deadline)?;
        }
        self.workers.clear();
        let indices = 0..starts.len();
        Ok(indices.filter_map(|index| started.remove(&index)).collect())
    }

    /// Takes the answer of one of `count` starts. Sometimes returns without an answer.
    fn wait_for_answer(
        &self,
        started: &mut HashMap<usize, Pid>,
        count: usize,
        deadline: Deadline,
    ) -> io::Result<()> {
        let has_ended = self
            .workers
            .iter()
            .filter(|worker| !started.values().any(|pid| pid == *worker))
            .any(|worker| !is_living_child(*worker));
        let mut buffer = [0; 64];
        match packet::receive(self.gate.as_fd(), &mut buffer) {
            Received::Packet(packet) => {
                let (index, pid) = parse_started(packet)
                    .and_then(|(index, pid)| Some((index, Pid::from_raw(pid)?)))
                    .filter(|(index, pid)| *index < count && self.workers.contains(pid))
                    .ok_or_else(|| io::Error::other("a worker answers nonsense"))?;
                started.insert(index, pid);
                Ok(())
            }
            Received::End => Err(io::Error::other("the workers ended")),
            // Its end was checked before the read, so an answer that it sent before its end would have been received.
            Received::Nothing if has_ended => {
                Err(io::Error::other("a worker ended before its start"))
            }
            Received::Nothing if deadline.has_passed(Instant::now()) => {
                Err(io::ErrorKind::TimedOut.into())
            }
            Received::Nothing => wait_readable(&self.gate, CHECK_INTERVAL),
        }
    }
}

impl Drop for ForkedWorkers {
    fn drop(&mut self) {
        for &worker in &self.workers {
            // It leads a group if it has been started. Both fail for a process that is not there.
            let _ = kill_process_group(worker, Signal::KILL);
            let _ = kill_process(worker, Signal::KILL);
        }
        let deadline = Deadline::after(Instant::now(), KILL_WAIT_MAX);
        for worker in self.workers.drain(..) {
            reap(WaitId::Pid(worker), deadline, |_| ());
        }
    }
}

/// Reaps children that are about to end, until there are none or the deadline.
pub(super) fn reap(
    which: WaitId<'_>,
    deadline: Deadline,
    mut on_exit: impl FnMut(&rustix::process::WaitIdStatus),
) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    loop {
        match waitid(which.clone(), options) {
            Ok(Some(status)) => on_exit(&status),
            Err(Errno::INTR) => {}
            Ok(None) if !deadline.has_passed(Instant::now()) => {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(None) | Err(_) => return,
        }
    }
}

pub(super) fn is_living_child(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), options) {
            Err(Errno::INTR) => {}
            result => return matches!(result, Ok(None)),
        }
    }
}

fn wait_readable(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
