//! Decides whether an id in the state belongs to this node, or to another process with the same host name and process
//! id.

use std::collections::VecDeque;

use crate::values::node::NodeId;
use crate::values::state::RendezvousState;
use crate::values::timestamp::Timestamp;

/// How many writes with a possibly unknown outcome are remembered. A node reads the state between two of these writes.
const WRITES_MAX: usize = 64;

/// The heartbeats that this node has tried to write. Only the node itself writes its heartbeats, so any other heartbeat
/// under its id belongs to another process: containers can have the same host name and the same process id.
#[derive(Debug, Default)]
pub(crate) struct OwnHeartbeats {
    tried: VecDeque<Timestamp>,
    /// The heartbeat that was found in the state last.
    found: Option<Timestamp>,
}

impl OwnHeartbeats {
    /// Records that this node tries to write a heartbeat.
    pub(crate) fn tries(&mut self, heartbeat: Timestamp) {
        if self.tried.len() == WRITES_MAX {
            self.tried.pop_front();
        }
        self.tried.push_back(heartbeat);
    }

    /// Returns the next free id for this node if another process has its id in `state` (docs/spec/rendezvous.md,
    /// IDENTITY 1).
    pub(crate) fn other_id(&mut self, me: &NodeId, state: &RendezvousState) -> Option<NodeId> {
        let heartbeat = *state.last_heartbeats.get(me)?;
        if self.found == Some(heartbeat) {
            return None;
        }
        if self.tried.contains(&heartbeat) {
            self.found = Some(heartbeat);
            return None;
        }
        self.found = None;
        self.tried.clear();
        let later = (1..).map_while(|step| me.local_id.checked_add(step));
        let mut ids = later.map(|local_id| NodeId::new(me.addr.clone(), me.pid, local_id));
        ids.find(|id| !state.last_heartbeats.contains_key(id))
    }
}
