//! Which engine decides for a node: by how many nodes may take part, and by what the store can do.

use std::sync::Arc;

use crate::backend::{RendezvousBackend, StateWatch};
use crate::clock::Now;
use crate::engine::Engine;
use crate::error::RendezvousError;
use crate::group::GroupEngine;
use crate::group_store::GroupStore;
use crate::node::NodeId;
use crate::settings::RendezvousSettings;
use crate::solo::Solo;
use crate::write_lease::WriteLease;

/// From this `max_nodes` on, a write lease pays off: of two nodes, one succeeds at its second write. 32 nodes take 0.1 s
/// with it and 2.7 s without, and move a tenth.
const WRITE_LEASE_NODES_MIN: usize = 3;

/// From this `max_nodes` on, one node writes for all, so that the cost of a round grows with the number of nodes and not
/// with its square.
const GROUP_NODES_MIN: usize = 33;

/// An engine, and what its requests need besides the state.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) engine: Box<dyn Engine>,
    /// The keys of the group, and the node's index in it.
    pub(crate) group: Option<(GroupStore, u32)>,
    pub(crate) lease: Option<WriteLease>,
    pub(crate) watch: Option<Arc<dyn StateWatch>>,
}

/// Chooses the engine of the node `me`; `seed` is of its random pauses. Blocks for at most the store's timeout, a few
/// times.
pub(crate) fn choose(
    me: NodeId,
    settings: RendezvousSettings,
    backend: &dyn RendezvousBackend,
    seed: u64,
    now: Now,
) -> Result<Choice, RendezvousError> {
    let nodes = settings.max_nodes;
    if nodes >= GROUP_NODES_MIN
        && let Some(group) = backend.group()?
    {
        let index = group
            .count_handler()
            .map_err(|error| RendezvousError::connection(&settings.run_id, error))?;
        return Ok(Choice {
            engine: Box::new(GroupEngine::new(me, index, settings, seed, now)),
            group: Some((group, index)),
            lease: None,
            watch: None,
        });
    }
    Ok(Choice {
        engine: Box::new(Solo::new(me, settings, seed, now)),
        group: None,
        lease: if (WRITE_LEASE_NODES_MIN..GROUP_NODES_MIN).contains(&nodes) {
            backend.write_lease()?
        } else {
            None
        },
        watch: backend.watch()?,
    })
}
