//! The status pages of the stores that this process hosts: rounds, failures, restarts and lost nodes, for the status page and the metrics.

use std::sync::Arc;

use crate::agent::{AgentEvent, AgentListener, StartedWorkers};
use c10d_inspect::http::{EventKind, RoundSize};
use elastic_rendezvous::{Listener, RendezvousEvent};

use super::feature::{Feature, JobEnd};

mod hosted;

pub(super) use self::hosted::{Hosted, HostedServer};

/// Notes on the pages what happens.
#[derive(Debug)]
pub(super) struct StatusPage(pub(super) Arc<Hosted>);

impl Feature for StatusPage {
    /// Adds lost nodes.
    fn rendezvous_listener(&self) -> Option<Listener> {
        let hosted = Arc::clone(&self.0);
        Some(Arc::new(move |event| {
            if let RendezvousEvent::NodeLost(lost) = event {
                let text = format!("lost {lost}");
                hosted.note(EventKind::NodeLost, &text);
            }
        }))
    }

    /// Adds rounds, failures and restarts.
    fn agent_listener(&self) -> Option<AgentListener> {
        let hosted = Arc::clone(&self.0);
        Some(Arc::new(move |event| {
            let fails = |text: &str| hosted.note(EventKind::Failure, text);
            let restarts = |text: &str| hosted.note(EventKind::Restart, text);
            match event {
                AgentEvent::WorkersStarted(started) => note_round(&hosted, started),
                AgentEvent::WorkerFailed(exit) | AgentEvent::WorkerLost(exit) => {
                    let (rank, exit) = (exit.rank, exit.exit);
                    fails(&format!("worker with rank {rank} failed: {exit}"));
                }
                AgentEvent::WorkersStuck(stuck) => fails(&stuck.to_string()),
                AgentEvent::WorkerReplaced(_, worker) => {
                    let (rank, pid) = (worker.rank, worker.pid);
                    restarts(&format!("rank {rank} starts again alone (pid {pid})"));
                }
                AgentEvent::Restarting { why } => restarts(&format!("the workers restart: {why}")),
                _ => {}
            }
        }))
    }

    fn job_ended(&mut self, _: &JobEnd) {
        self.0.end();
    }
}

/// A round is complete, and its workers have started.
fn note_round(hosted: &Hosted, started: &StartedWorkers) {
    let (nodes, workers) = (started.nodes, started.world_size);
    let s = |count| if count == 1 { "" } else { "s" };
    let text = format!(
        "round {}: {nodes} node{}, {workers} worker{}",
        started.round,
        s(nodes),
        s(workers)
    );
    hosted.note_round(RoundSize { nodes, workers });
    hosted.note(EventKind::Round, &text);
}
