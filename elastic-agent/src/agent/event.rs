//! What an agent tells its listeners about its workers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::record::RoundRecord;
use super::started::{StartedWorker, StartedWorkers};
use crate::round::StuckWorkers;
use crate::worker::WorkerExit;

/// A callback for the events of an agent.
pub type AgentListener = Arc<dyn Fn(&AgentEvent<'_>) + Send + Sync>;

/// What an agent reports to its [listeners](AgentListener) while it runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentEvent<'e> {
    /// All workers of this node have started.
    WorkersStarted(&'e StartedWorkers),
    /// A worker has exited. Called by a thread of the worker's own, for a worker that exits very early
    /// before [`WorkersStarted`](Self::WorkersStarted). Must not block.
    WorkerExited(&'e WorkerExit),
    /// A worker has failed, and the others are still running. The agent stops them when the listeners
    /// return, so a listener can still observe the job as it is; it should take a second at most.
    WorkerFailed(&'e WorkerExit),
    /// A worker has failed, and the others run on. Must not block.
    WorkerLost(&'e WorkerExit),
    /// A worker that died was replaced while the others ran on. These are the workers that run now, and the new one.
    WorkerReplaced(&'e StartedWorkers, &'e StartedWorker),
    /// The workers report no progress, and are still running. As with [`WorkerFailed`](Self::WorkerFailed), the agent
    /// stops them when the listeners return.
    WorkersStuck(&'e StuckWorkers),
    /// From now on workers are exiting because the agent stops them.
    Stopping,
    /// The agent joins another round, to start the workers again.
    Restarting {
        /// Why, as text for a log.
        why: &'e str,
    },
    /// Workers that were started again have written their first output or reported their first step, or neither in the
    /// first minute.
    Restarted(&'e RestartTimes),
    /// A round is over: its workers have ended, or could not be started.
    RoundEnded(&'e RoundRecord),
}

/// How long the parts of a restart took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RestartTimes {
    /// Until all processes of the round before had ended.
    pub stopping: Duration,
    /// Then, until the nodes had met and the ranks were known.
    pub joining: Duration,
    /// Then, from the start of the processes until the first output or step: mostly imports. `None` if this process has
    /// seen neither.
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
