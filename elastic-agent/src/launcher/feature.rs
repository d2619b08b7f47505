//! A part of the launcher that accompanies the agent.

use std::time::Duration;

use c10d_inspect::Report;
use elastic_rendezvous::{Listener, RendezvousError};

use crate::agent::{AgentHandle, AgentListener};
use crate::failure::{ExitRecord, Failures};
use crate::round::{AgentError, AgentOutcome};

/// Receives the events of the rendezvous and of the agent, and stops in two steps. Every method has a default that
/// does nothing.
pub(super) trait Feature: Send {
    /// Called in the order of the features.
    fn rendezvous_listener(&self) -> Option<Listener> {
        None
    }

    /// Called in the order of the features. See [`AgentEvent`](crate::AgentEvent) for how long it may block.
    fn agent_listener(&self) -> Option<AgentListener> {
        None
    }

    /// The rendezvous cannot be opened; nothing else follows.
    fn could_not_open(&mut self, error: &RendezvousError, stuck_max: Duration) {
        let _ = (error, stuck_max);
    }

    /// Called when the agent is created, before it runs.
    fn watch(&mut self, agent: &AgentHandle) {
        let _ = agent;
    }

    /// Called in the reverse order of the features when the workers have exited, before the other nodes are
    /// notified.
    fn workers_ended(&mut self, end: &mut JobEnd) {
        let _ = end;
    }

    /// Whether this feature stops with the workers: it is dropped after [`workers_ended`](Self::workers_ended).
    fn ends_with_workers(&self) -> bool {
        false
    }

    /// Called in the reverse order of the features when this node has left the job.
    fn job_ended(&mut self, end: &JobEnd) {
        let _ = end;
    }
}

/// The end of the job on this node.
#[derive(Debug)]
pub(super) struct JobEnd {
    pub(super) result: Result<AgentOutcome, AgentError>,
    /// The report of the waiting workers from when the first of them failed, if it contains the cause.
    pub(super) why: Option<Report>,
    /// The first failure of the job, on any node, if workers were restarted after it.
    pub(super) first_failure: Option<ExitRecord>,
    /// How long the end waits for an output that accepts nothing.
    pub(super) stuck_max: Duration,
}

impl JobEnd {
    /// The failures of this node's workers, to say more about them.
    pub(super) const fn failures_mut(&mut self) -> Option<&mut Failures> {
        match &mut self.result {
            Ok(
                AgentOutcome::Failed(failures)
                | AgentOutcome::Ended {
                    failures: Some(failures),
                    ..
                },
            )
            | Err(AgentError::NotRestarted { failures, .. }) => Some(failures),
            _ => None,
        }
    }
}
