//! The status pages of the stores that this process hosts: rounds, failures, restarts and lost nodes, for the status page and the metrics.

use std::sync::Arc;

use crate::agent::{AgentEvent, AgentListener};
use elastic_rendezvous::{Listener, RendezvousEvent};

mod hosted;

use self::hosted::Happening;
pub(super) use self::hosted::{Hosted, HostedServer};

/// Notes on the pages what happens.
#[derive(Debug)]
pub(super) struct StatusPage(pub(super) Arc<Hosted>);

impl StatusPage {
    /// Adds rounds, failures and restarts.
    pub(super) fn of_agent(&self) -> AgentListener {
        let hosted = Arc::clone(&self.0);
        Arc::new(move |event| {
            let happening = match event {
                AgentEvent::WorkersStarted(started) => Happening::Round {
                    number: started.round,
                    nodes: started.nodes,
                    workers: started.world_size,
                },
                AgentEvent::WorkerFailed(exit) | AgentEvent::WorkerLost(exit) => {
                    let (rank, exit) = (exit.rank, exit.exit);
                    Happening::WorkerFailed(format!("worker with rank {rank} failed: {exit}"))
                }
                AgentEvent::WorkersStuck(stuck) => Happening::WorkerFailed(stuck.to_string()),
                AgentEvent::WorkerReplaced(_, worker) => {
                    let (rank, pid) = (worker.rank, worker.pid);
                    Happening::Replaced(format!("rank {rank} starts again alone (pid {pid})"))
                }
                AgentEvent::Restarting { why } => Happening::Restart((*why).to_owned()),
                _ => return,
            };
            hosted.note(&happening);
        })
    }

    /// Adds lost nodes.
    pub(super) fn of_rendezvous(&self) -> Listener {
        let hosted = Arc::clone(&self.0);
        Arc::new(move |event| {
            if let RendezvousEvent::NodeLost(lost) = event {
                hosted.note(&Happening::NodeLost(lost.to_string()));
            }
        })
    }
}
