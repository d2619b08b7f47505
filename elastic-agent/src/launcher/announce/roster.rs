//! Decides on the contents and the times of announcements about the workers of this node. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::agent::{AgentOptions, StartedWorker, StartedWorkers};
use crate::worker::{ExitKind, WorkerExit};
use c10d_inspect::{
    AnnouncedCause, AnnouncedNode, AnnouncedProcess, AnnouncedSample, AnnouncedWorker, WorkerEnd,
};

use crate::launcher::observer::Observations;

/// How often the host's processes are read while workers start, and later.
const LOOK_INTERVAL_STARTING: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// How often only the states of the known processes are read, so that a stopped or continued process is announced
/// within this time.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// A look at the host takes at most this part of the time of a CPU, so that a host with many processes is not
/// looked at as often.
const LOOK_SHARE: u32 = 50;

/// How often an announcement is renewed though nothing has changed, while workers start or are stopped, and later: a
/// launcher that is silent for longer is lost.
const RENEWAL_SOON: Duration = Duration::from_secs(2);
const RENEWAL: Duration = Duration::from_secs(10);

/// The highest age of an announced observation, which is longer than the pause between two observations.
const OBSERVATION_AGE_MAX: Duration = Duration::from_secs(15);

/// A worker without a connection is no longer starting after this time: it may never use the store.
const STARTING_MAX: Duration = Duration::from_secs(600);

/// The constant facts about a node.
#[derive(Debug, Clone)]
pub(in crate::launcher) struct NodeIdentity {
    pub(in crate::launcher) host: String,
    pub(in crate::launcher) pid: u32,
    pub(in crate::launcher) run_id: String,
    /// The machine's addresses.
    pub(in crate::launcher) addresses: Vec<IpAddr>,
    /// The directory of the workers' debug sockets.
    pub(in crate::launcher) debug_sockets: Option<PathBuf>,
    /// When a job that makes no progress is explained; `None` for never.
    pub(in crate::launcher) explain_after: Option<Duration>,
}

/// The next thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Look at the host's processes.
    Look,
    /// Read the states of the known processes.
    Glance,
    /// Send an announcement.
    Announce,
    /// Wait for a message, at most until this time.
    Wait(Instant),
}

/// The workers of one start, with the known facts about them.
#[derive(Debug)]
pub(super) struct Roster {
    identity: NodeIdentity,
    started: StartedWorkers,
    workers: Vec<Worker>,
    is_stopping: bool,
    /// The root cause of the failure of these workers, when it has been found.
    cause: Option<AnnouncedCause>,
    observed: Option<(Observations, Instant)>,
    has_news: bool,
    next_look: Instant,
    next_glance: Instant,
    next_renewal: Instant,
    /// When the states of the processes were read last.
    looked: Instant,
}

#[derive(Debug)]
struct Worker {
    rank: usize,
    local_rank: usize,
    pid: u32,
    started: Instant,
    processes: Vec<AnnouncedProcess>,
    is_replacement: bool,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    exit: ExitKind,
    at: Instant,
    by_launcher: bool,
}

/// Exits that arrive before the start of the same workers is known.
#[derive(Debug, Default)]
pub(super) struct EarlyExits(HashMap<u32, (WorkerExit, Instant)>);

impl EarlyExits {
    pub(super) fn note(&mut self, exit: WorkerExit, now: Instant) {
        self.0.insert(exit.pid, (exit, now));
    }
}

impl Roster {
    pub(super) fn new(
        identity: NodeIdentity,
        started: StartedWorkers,
        early: EarlyExits,
        now: Instant,
    ) -> Self {
        let workers = started.workers.iter();
        let workers = workers.map(|worker| Worker::new(worker, now));
        let mut roster = Self {
            identity,
            workers: workers.collect(),
            started,
            is_stopping: false,
            cause: None,
            observed: None,
            has_news: false,
            next_look: now,
            next_glance: now + GLANCE_INTERVAL,
            next_renewal: now,
            looked: now,
        };
        roster.note_early(&early);
        roster
    }

    fn note_early(&mut self, early: &EarlyExits) {
        for (exit, at) in early.0.values() {
            self.note_exit(exit, *at);
        }
    }

    /// Notes that this worker has replaced a dead worker.
    pub(super) fn note_replaced(
        &mut self,
        worker: StartedWorker,
        early: &EarlyExits,
        now: Instant,
    ) {
        let mut workers = self.workers.iter_mut();
        if let Some(place) = workers.find(|it| it.local_rank == worker.local_rank) {
            *place = Worker::new(&worker, now);
            place.is_replacement = true;
            self.has_news = true;
            self.next_look = now;
        }
        self.note_early(early);
    }

    /// Notes that there is something to announce besides the workers.
    pub(super) fn note_news(&mut self) {
        self.has_news = true;
    }

    /// Notes why the workers failed.
    pub(super) fn note_cause(&mut self, cause: AnnouncedCause) {
        self.cause = Some(cause);
        self.has_news = true;
    }

    /// Replaces the observations of the workers.
    pub(super) fn note_observations(&mut self, found: Observations, now: Instant) {
        self.observed = (!found.samples.is_empty()).then_some((found, now));
        self.has_news = true;
    }

    /// Notes that the agent stops the workers from now on.
    pub(super) fn note_stopping(&mut self) {
        self.is_stopping = true;
    }

    /// Returns whether the worker is one of these.
    pub(super) fn note_exit(&mut self, exit: &WorkerExit, now: Instant) -> bool {
        let by_launcher = self.is_stopping;
        let mut workers = self.workers.iter_mut();
        let Some(worker) = workers.find(|it| it.pid == exit.pid && it.end.is_none()) else {
            return false;
        };
        worker.end = Some(End {
            exit: exit.exit,
            at: now,
            by_launcher,
        });
        worker.processes.clear();
        self.has_news = true;
        true
    }

    /// The workers that run.
    pub(super) fn running(&self) -> Vec<u32> {
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        running.map(|worker| worker.pid).collect()
    }

    /// Takes over the processes of the workers of `pids`, which a look has found in `cost`.
    pub(super) fn note_look(
        &mut self,
        pids: &[u32],
        found: Vec<Vec<AnnouncedProcess>>,
        cost: Duration,
        now: Instant,
    ) {
        for (pid, processes) in pids.iter().zip(found) {
            let running = |it: &&mut Worker| it.pid == *pid && it.end.is_none();
            let Some(worker) = self.workers.iter_mut().find(running) else {
                continue;
            };
            self.has_news |= !is_alike(&worker.processes, &processes);
            worker.processes = processes;
        }
        let interval = if self.is_starting(now) {
            LOOK_INTERVAL_STARTING
        } else {
            LOOK_INTERVAL
        };
        self.next_look = now + interval.max(cost * LOOK_SHARE);
        self.next_glance = now + GLANCE_INTERVAL;
        self.looked = now;
    }

    /// The processes of the running workers, at the time of the last look.
    pub(super) fn known(&self) -> Vec<u32> {
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        let processes = running.flat_map(|worker| &worker.processes);
        processes.map(|process| process.pid).collect()
    }

    /// Takes over the states of processes. The next look detects processes that have exited, which are not in
    /// `states`.
    pub(super) fn note_glance(&mut self, states: &HashMap<u32, char>, now: Instant) {
        let processes = self.workers.iter_mut().flat_map(|it| &mut it.processes);
        for process in processes {
            let Some(state) = states.get(&process.pid) else {
                continue;
            };
            let was_halted = is_halted(process);
            process.state = Some(*state);
            self.has_news |= was_halted != is_halted(process);
        }
        self.next_glance = now + GLANCE_INTERVAL;
        self.looked = now;
    }

    /// Announces the last glance though nothing has changed, if a process is stopped: its age is told.
    pub(super) fn renew_halted(&mut self) {
        let mut processes = self.workers.iter().flat_map(|worker| &worker.processes);
        self.has_news |= processes.any(is_halted);
    }

    /// Notes that an announcement has been sent, or could not be.
    pub(super) fn note_announced(&mut self, now: Instant) {
        self.has_news = false;
        let mut processes = self.workers.iter().flat_map(|worker| &worker.processes);
        let renewal = if self.is_starting(now) || processes.any(is_halted) {
            RENEWAL_SOON
        } else {
            RENEWAL
        };
        self.next_renewal = now + renewal;
    }

    pub(super) fn step(&self, now: Instant) -> Step {
        let any_runs = self.workers.iter().any(|worker| worker.end.is_none());
        if self.has_news {
            Step::Announce
        } else if any_runs && self.next_look <= now {
            Step::Look
        } else if any_runs && self.next_glance <= now {
            Step::Glance
        } else if self.next_renewal <= now {
            Step::Announce
        } else if any_runs {
            let next = self.next_look.min(self.next_glance);
            Step::Wait(next.min(self.next_renewal))
        } else {
            Step::Wait(self.next_renewal)
        }
    }

    pub(super) fn announcement(&self, now: Instant) -> AnnouncedNode {
        let mut node = AnnouncedNode::default();
        node.host.clone_from(&self.identity.host);
        node.addresses.clone_from(&self.identity.addresses);
        node.pid = self.identity.pid;
        node.run_id.clone_from(&self.identity.run_id);
        node.node_rank = Some(self.started.node_rank);
        node.interface.clone_from(&self.started.interface);
        node.nodes = Some(self.started.nodes);
        node.world_size = Some(self.started.world_size);
        node.restarts = self.started.restarts;
        node.membership.clone_from(&self.started.membership);
        node.cause.clone_from(&self.cause);
        node.looked_ago_ms = millis(now, self.looked);
        let workers = self.workers.iter().map(|worker| {
            let mut announced = worker.announced(now);
            let sockets = self.identity.debug_sockets.as_deref();
            announced.debug_socket = sockets.map(|directory| {
                AgentOptions::debug_socket(directory, node.restarts, worker.local_rank)
            });
            announced.sample = self.sample(worker, now);
            announced
        });
        node.workers = workers.collect();
        if node.workers.iter().any(|worker| worker.sample.is_some())
            && let Some((found, _)) = &self.observed
        {
            node.stacks.clone_from(&found.stacks);
        }
        let after = self.identity.explain_after.map(|after| after.as_millis());
        node.explain_after_ms = after.and_then(|after| u64::try_from(after).ok());
        node
    }

    /// The last observation of a worker that runs, unless it should have been replaced by now.
    fn sample(&self, worker: &Worker, now: Instant) -> Option<AnnouncedSample> {
        let (found, at) = self.observed.as_ref()?;
        let age = now.saturating_duration_since(*at);
        if worker.end.is_some() || age > OBSERVATION_AGE_MAX {
            return None;
        }
        let mut sample = found.samples.get(&worker.pid)?.clone();
        sample.taken_ago_ms = sample.taken_ago_ms.saturating_add(millis(now, *at));
        Some(sample)
    }

    /// Whether a worker that runs has not connected to the store yet.
    fn is_starting(&self, now: Instant) -> bool {
        self.workers.iter().any(|worker| {
            worker.end.is_none()
                && !worker.is_connected()
                && now.saturating_duration_since(worker.started) < STARTING_MAX
        })
    }
}

impl Worker {
    const fn new(worker: &StartedWorker, now: Instant) -> Self {
        Self {
            rank: worker.rank,
            local_rank: worker.local_rank,
            pid: worker.pid,
            started: now,
            processes: Vec::new(),
            is_replacement: false,
            end: None,
        }
    }

    fn is_connected(&self) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| !process.store_connections.is_empty())
    }

    fn announced(&self, now: Instant) -> AnnouncedWorker {
        let mut worker = AnnouncedWorker::default();
        worker.rank = self.rank;
        worker.local_rank = self.local_rank;
        worker.pid = self.pid;
        worker.started_ago_ms = millis(now, self.started);
        worker.is_replacement = self.is_replacement;
        worker.end = self.end.map(|end| end.announced(now));
        worker.processes.clone_from(&self.processes);
        worker
    }
}

impl End {
    fn announced(&self, now: Instant) -> WorkerEnd {
        let mut end = WorkerEnd::default();
        match self.exit {
            ExitKind::Code(code) => end.exit_code = Some(code),
            ExitKind::Signal { number, .. } => end.signal = Some(number),
            ExitKind::Unknown => {}
        }
        end.ago_ms = millis(now, self.at);
        end.by_launcher = self.by_launcher;
        end
    }
}

fn millis(now: Instant, then: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX)
}

/// Whether no change needs an announcement. CPU time, or whether a process runs or sleeps, does not.
fn is_alike(before: &[AnnouncedProcess], after: &[AnnouncedProcess]) -> bool {
    before.len() == after.len()
        && before.iter().zip(after).all(|(before, after)| {
            before.pid == after.pid
                && before.store_connections == after.store_connections
                && before.connecting_to == after.connecting_to
                && is_halted(before) == is_halted(after)
        })
}

/// Whether a process does not run and does not wait for an event that it can be woken by.
const fn is_halted(process: &AnnouncedProcess) -> bool {
    matches!(process.state, Some('T' | 't' | 'Z' | 'D'))
}

#[cfg(test)]
mod tests;
