//! Observes the workers of this node: always their CPU time and I/O, and also their stacks while the job may make no
//! progress or after a request. The announcer sends the observations to the workers' store.

mod activity;
mod observations;
mod readings;
mod sampling;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};
use std::{fmt, io};

use c10d_inspect::{AnnouncedNode, AnnouncedWorker};

use super::feature::Feature;
pub(super) use super::observer::observations::Observations;
pub(super) use super::observer::readings::Processes;
use super::observer::readings::{Counters, ReadProcesses, dead_children};
use super::observer::sampling::{Sample, Sampling, Seen};
use super::processes::Scanner;
use super::stacks::{NoStacks, observed};
use crate::agent::AgentHandle;

const THREAD: &str = "observe";

/// How long a request waits for the answer, so that `c10d why` can answer within 2 s.
const ASKED_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long the end of the launcher waits until the workers have been read.
const END_TIMEOUT: Duration = Duration::from_millis(100);

/// Observes until it is dropped, which takes 100 ms at most: the thread is left behind if the system does not answer it.
#[derive(Debug)]
pub(super) struct Observer {
    messages: Sender<Message>,
    ended: Receiver<()>,
}

#[derive(Debug)]
enum Message {
    /// The agent that has started the workers.
    Agent(AgentHandle),
    /// Asks for an answer when new samples are announced.
    Ask(Sender<()>),
    End,
}

/// The function that takes an observer's results.
type Note = Box<dyn Fn(Observations) + Send>;

impl Observer {
    /// Starts the thread. It reads stacks on request, and when a worker has been quiet for half of `after`, unless this
    /// is `None`. `node` returns the workers as the announcer has them. `note` takes the observations to announce, and
    /// may block for a moment.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(super) fn start(
        after: Option<Duration>,
        node: impl Fn() -> AnnouncedNode + Send + 'static,
        processes: impl ReadProcesses + 'static,
        note: impl Fn(Observations) + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, inbox) = channel();
        let thread = Thread {
            inbox,
            epoch: Instant::now(),
            counters: Counters::new("/proc"),
            scanner: Scanner::new("/proc"),
            sampling: Sampling::new(after),
            agent: None,
            node: Box::new(node),
            processes: Box::new(processes),
            note: Box::new(note),
        };
        let ended = thread.start()?;
        Ok(Self { messages, ended })
    }

    /// Asks for samples, from another thread.
    pub(super) fn asker(&self) -> Asker {
        Asker(self.messages.clone())
    }
}

impl Feature for Observer {
    fn watch(&mut self, agent: &AgentHandle) {
        // Fails when the thread has panicked.
        let _ = self.messages.send(Message::Agent(agent.clone()));
    }

    fn ends_with_workers(&self) -> bool {
        true
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // The thread may have panicked.
        let _ = self.messages.send(Message::End);
        if self.ended.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            log::debug!("thread {THREAD} is left behind: it still looks at a worker");
        }
    }
}

/// Asks an observer for samples.
#[derive(Debug, Clone)]
pub(super) struct Asker(Sender<Message>);

impl Asker {
    /// Requests samples now, unless there are samples of the last second, and for the next 15 s. Blocks until they are
    /// announced, for 1.5 s at most. Returns whether they were announced.
    pub(super) fn ask(&self) -> bool {
        let (done, answer) = channel();
        self.0.send(Message::Ask(done)).is_ok() && answer.recv_timeout(ASKED_TIMEOUT).is_ok()
    }
}

struct Thread {
    inbox: Receiver<Message>,
    epoch: Instant,
    counters: Counters,
    scanner: Scanner,
    sampling: Sampling,
    agent: Option<AgentHandle>,
    node: Box<dyn Fn() -> AnnouncedNode + Send>,
    processes: Box<dyn ReadProcesses>,
    note: Note,
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").finish_non_exhaustive()
    }
}

impl Thread {
    /// Starts the thread. The receiver is disconnected when the thread exits.
    fn start(self) -> io::Result<Receiver<()>> {
        let (end, ended) = channel();
        let run = move || {
            let _end: Sender<()> = end;
            self.run();
        };
        Builder::new().name(THREAD.to_owned()).spawn(run)?;
        Ok(ended)
    }

    fn run(mut self) {
        let mut next = Instant::now();
        loop {
            let patience = next.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(patience) {
                Ok(Message::Ask(done)) => {
                    if self.sampling.note_asked(self.epoch.elapsed()) {
                        self.look(true);
                    }
                    // The asking thread may no longer wait.
                    let _ = done.send(());
                }
                Ok(Message::Agent(agent)) => self.agent = Some(agent),
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    self.look(false);
                    next = Instant::now() + self.sampling.interval();
                }
            }
        }
    }

    fn look(&mut self, is_asked: bool) {
        let node = (self.node)();
        let running = node.workers.iter().filter(|worker| worker.end.is_none());
        let running: Vec<&AnnouncedWorker> = running.collect();
        // The other ranks may wait for a child process that has just started. This search is the slowest step.
        let members = self.sampling.is_wanted(self.epoch.elapsed()).then(|| {
            let pids: Vec<u32> = running.iter().map(|worker| worker.pid).collect();
            self.scanner.members(&pids)
        });
        let seen: Vec<Seen> = running
            .iter()
            .enumerate()
            .map(|(place, worker)| {
                let known = || worker.processes.iter().map(|process| process.pid).collect();
                let fresh = members.as_ref().and_then(|it| it.get(place).cloned());
                let processes: Vec<u32> = fresh.unwrap_or_else(known);
                let observed = observed(worker.pid, &worker.processes);
                Seen {
                    pid: worker.pid,
                    observed,
                    reading: self.counters.read(observed, processes),
                }
            })
            .collect();
        let progress = self.agent.as_ref().and_then(AgentHandle::last_progress);
        self.sampling.note(self.epoch.elapsed(), seen, progress);
        if self.sampling.is_due(self.epoch.elapsed(), is_asked) {
            let samples = self.sample(&node);
            self.sampling.note_samples(self.epoch.elapsed(), samples);
        }
        if let Some(found) = self.sampling.announced(self.epoch.elapsed()) {
            (self.note)(found);
        }
    }

    fn sample(&self, node: &AnnouncedNode) -> Vec<(u32, Sample)> {
        let targets = self.sampling.targets();
        let pids: Vec<u32> = targets.iter().map(|(_, observed)| *observed).collect();
        let read = self.processes.stacks(&pids);
        let unacknowledged = self.scanner.unacknowledged(&pids);
        let at = self.epoch.elapsed();
        targets
            .into_iter()
            .zip(read.into_iter().zip(unacknowledged))
            .map(|((worker, observed), (read, unacknowledged))| {
                let (stacks, error, command_line) = match read {
                    Ok(stacks) => (Some(stacks), None, None),
                    Err(NoStacks::NotPython { command_line }) => (None, None, command_line),
                    Err(NoStacks::Unread(reason)) => (None, Some(reason), None),
                };
                let activity = self.processes.activity(observed);
                let processes = node.workers.iter().find(|it| it.pid == worker);
                let sample = Sample {
                    at,
                    stacks,
                    error,
                    waits_in: activity.waits_in,
                    system_call: activity.system_call,
                    command_line,
                    unacknowledged,
                    dead_children: processes
                        .map(|it| dead_children(observed, &it.processes))
                        .unwrap_or_default(),
                };
                (worker, sample)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
