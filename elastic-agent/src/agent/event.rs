//! The events that wake the loop of an agent, and the events that it reports to its listeners: started workers, exits and
//! the records of rounds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use c10d_socket::{Credentials, HostPort};
use c10d_store::StoreAddress;
use crossbeam_channel::Sender;

use crate::round::{RoundCause, RoundEnding, RoundPhases, StuckWorkers};
use crate::worker::{WorkerExit, WorkerOutcome};

/// A callback for the events of an agent.
pub type AgentListener = Arc<dyn Fn(&AgentEvent<'_>) + Send + Sync>;

/// An event that an agent reports to its [listeners](AgentListener) while it runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentEvent<'e> {
    /// All workers of this node have started.
    WorkersStarted(&'e StartedWorkers),
    /// A worker has exited. Reported by a separate thread for each worker; for a worker that exits very early, before
    /// [`WorkersStarted`](Self::WorkersStarted). Must not block.
    WorkerExited(&'e WorkerExit),
    /// A worker has failed, and the other workers are still running. The agent stops them when the listeners return, so
    /// a listener can still observe the running job. A listener should return within a second.
    WorkerFailed(&'e WorkerExit),
    /// A worker has failed, and the other workers keep running. Must not block.
    WorkerLost(&'e WorkerExit),
    /// A dead worker was replaced while the other workers kept running. These are the running workers, and the new worker.
    WorkerReplaced(&'e StartedWorkers, &'e StartedWorker),
    /// The workers report no progress, and are still running. As with [`WorkerFailed`](Self::WorkerFailed), the agent
    /// stops them when the listeners return.
    WorkersStuck(&'e StuckWorkers),
    /// The agent is stopping the workers, so later exits are not failures.
    Stopping,
    /// The agent joins another round, to start the workers again.
    Restarting {
        /// The reason, as text for a log.
        why: &'e str,
    },
    /// Workers that were started again have written their first output or reported their first step, or neither in the
    /// first minute.
    Restarted(&'e RestartTimes),
    /// A round is over: its workers have ended, or could not be started.
    RoundEnded(&'e RoundRecord),
}

/// An event that wakes the loop of an agent.
#[derive(Debug)]
pub(super) enum Event {
    /// A worker of this start exited. The agent counts the starts of all workers of the node.
    Exit(usize, WorkerExit),
    MembersChanged,
    /// The workers of this start have reported no progress for this long.
    Stuck(usize, Duration),
    /// A stop signal arrived: `Shared::stop_signal` has its number.
    Stop,
    /// A signal for the workers.
    Forward(i32),
    /// Asks whether the agent answers.
    Probe(Sender<()>),
}

/// The durations of the parts of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RestartTimes {
    /// The time until all processes of the previous round had exited.
    pub stopping: Duration,
    /// The time from the last exit until the nodes had met and the ranks were known.
    pub joining: Duration,
    /// The time from the start of the processes until their first output or step: mostly imports. `None` if this
    /// process has seen neither.
    pub first_sign: Option<Duration>,
    /// Whether the workers were forked with [preloaded](crate::PreloadOptions) modules.
    pub are_preloaded: bool,
}

/// The listeners of an agent.
#[derive(Clone, Default)]
pub(super) struct Listeners(Vec<AgentListener>);

impl Listeners {
    pub(super) fn add(&mut self, listener: AgentListener) {
        self.0.push(listener);
    }

    pub(super) fn notify(&self, event: &AgentEvent<'_>) {
        for listener in &self.0 {
            listener(event);
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}

/// A record of one round of an agent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RoundRecord {
    /// The round's number and members, and the workers of this node; `None` if they did not start.
    pub started: Option<StartedWorkers>,
    /// When the agent began to join.
    pub began_at: SystemTime,
    /// The reason why the round began.
    pub cause: RoundCause,
    /// The way in which the round ended.
    pub ending: RoundEnding,
    /// The reason why the job ended with the round, if a rule for restarts ended it.
    pub reason: Option<String>,
    /// The durations of the parts of the round.
    pub phases: RoundPhases,
    /// The time from the start of the workers to their first output; `None` if none passed through this process.
    pub first_output: Option<Duration>,
    /// The time from the start of the workers to the first progress; `None` if none was reported. Read once a second.
    pub first_progress: Option<Duration>,
    /// The time from the start of the workers to the last progress; `None` if none was reported.
    pub last_progress: Option<Duration>,
    /// The highest step that a worker of this node reported.
    pub last_step: Option<u64>,
    /// The workers that exited, in the order in which the agent noticed.
    pub outcomes: Vec<WorkerOutcome>,
    /// The number of restarts after failures that this node had used when the round began.
    pub restarts: usize,
    /// The number of restarts that remain after the restart that follows this round.
    pub restarts_left: usize,
}

/// The workers that an agent has started in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartedWorkers {
    /// The number of the round.
    pub round: i64,
    /// The node's rank in the round.
    pub node_rank: usize,
    /// The number of nodes of the round.
    pub nodes: usize,
    /// The number of workers of the round.
    pub world_size: usize,
    /// The role rank of the worker with local rank 0; the role ranks of the other workers follow.
    pub first_role_rank: usize,
    /// The number of workers of this role in the round.
    pub role_world_size: usize,
    /// The address of the workers' store at the beginning of the round, because a store can move.
    pub master: HostPort,
    /// The address for clients of the workers' store:
    /// [`BootstrapInfo::address`](elastic_rendezvous::BootstrapInfo::address).
    pub address: StoreAddress,
    /// The relay on this node through which the workers reach the store; `None` if they connect to it.
    pub relay: Option<HostPort>,
    /// The network interface with this node's address between the nodes; `None` if there is one node, or the nodes meet
    /// at loopback.
    pub interface: Option<String>,
    /// The credentials that clients of the store must have: see [`BootstrapInfo`](elastic_rendezvous::BootstrapInfo).
    pub credentials: Option<Credentials>,
    /// Whether an agent serves the workers' store; otherwise the worker with rank 0 will.
    pub is_agent_store: bool,
    /// Whether the workers were forked with [preloaded](crate::PreloadOptions) modules.
    pub are_preloaded: bool,
    /// The number of earlier starts of workers by this agent.
    pub restarts: usize,
    /// The number of restarts after failures that this node had used at the start of these workers.
    pub restarts_used: usize,
    /// The membership group of the workers (`--keep-workers`); `None` if the death of a worker restarts all workers.
    pub membership: Option<String>,
    /// The duration of the rendezvous.
    pub rendezvous: Duration,
    /// The time from the end of the rendezvous until the ranks were known, including the start of the relay.
    pub ranks: Duration,
    /// The workers, in the order of their local ranks.
    pub workers: Vec<StartedWorker>,
}

/// A worker that an agent has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartedWorker {
    /// The worker's global rank.
    pub rank: usize,
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's process id.
    pub pid: u32,
}

impl StartedWorkers {
    /// Creates the workers of a job with a single node, for tests of listeners.
    #[must_use]
    pub fn alone(master: HostPort, workers: Vec<StartedWorker>) -> Self {
        Self {
            round: 0,
            node_rank: 0,
            nodes: 1,
            world_size: workers.len(),
            first_role_rank: 0,
            role_world_size: workers.len(),
            address: master.clone().into(),
            master,
            relay: None,
            interface: None,
            credentials: None,
            is_agent_store: true,
            are_preloaded: false,
            restarts: 0,
            restarts_used: 0,
            membership: None,
            rendezvous: Duration::ZERO,
            ranks: Duration::ZERO,
            workers,
        }
    }
}

impl StartedWorker {
    /// Creates the description of a worker that has started, for example for tests of listeners.
    #[must_use]
    pub const fn new(rank: usize, local_rank: usize, pid: u32) -> Self {
        Self {
            rank,
            local_rank,
            pid,
        }
    }
}
