//! Rounds, failures, restarts and lost nodes, for the status page and the metrics.

use std::sync::Arc;

use elastic_agent::{AgentEvent, AgentListener};
use elastic_rendezvous::{Listener, RendezvousEvent};

use super::hosted::{Happening, Hosted};

/// Adds rounds, failures and restarts.
pub(super) fn agent_listener(hosted: Arc<Hosted>) -> AgentListener {
    Arc::new(move |event| {
        let happening = match event {
            AgentEvent::WorkersStarted(started) => Happening::Round {
                number: started.round,
                nodes: started.nodes,
                workers: started.world_size,
            },
            AgentEvent::WorkerFailed(exit) => {
                let (rank, exit) = (exit.rank, exit.exit);
                Happening::WorkerFailed(format!("worker with rank {rank} failed: {exit}"))
            }
            AgentEvent::WorkersStuck(stuck) => Happening::WorkerFailed(stuck.to_string()),
            AgentEvent::Restarting { why } => Happening::Restart((*why).to_owned()),
            _ => return,
        };
        hosted.note(&happening);
    })
}

/// Adds lost nodes.
pub(super) fn rendezvous_listener(hosted: Arc<Hosted>) -> Listener {
    Arc::new(move |event| {
        if let RendezvousEvent::NodeLost(lost) = event {
            hosted.note(&Happening::NodeLost(lost.to_string()));
        }
    })
}
