//! How a node reaches the state: by how many nodes may take part, and by what the store can do.

use std::sync::Arc;

use crate::shell::backend::{RendezvousBackend, StateWatch};
use crate::shell::group_store::GroupStore;
use crate::shell::write_lease::WriteLease;
use crate::values::error::RendezvousError;
use crate::values::settings::RendezvousSettings;

/// From this `max_nodes` on, a write lease pays off: of two nodes, one succeeds at its second write. 32 nodes take 0.1 s
/// with it and 2.7 s without, and move a tenth.
const WRITE_LEASE_NODES_MIN: usize = 3;

/// From this `max_nodes` on, one node writes for all, so that the cost of a round grows with the number of nodes and not
/// with its square.
const GROUP_NODES_MIN: usize = 33;

/// What a node has besides the state itself.
#[derive(Debug)]
pub(crate) enum Access {
    /// One node writes for all. The number is the node's index in the group.
    Group(GroupStore, u32),
    /// Each node writes by itself.
    Own {
        lease: Option<WriteLease>,
        /// `None`: the state is polled.
        watch: Option<Arc<dyn StateWatch>>,
    },
}

impl Access {
    /// Opens the best access. Blocks for at most the store's timeout, a few times.
    pub(crate) fn open(
        backend: &dyn RendezvousBackend,
        settings: &RendezvousSettings,
    ) -> Result<Self, RendezvousError> {
        let nodes = settings.max_nodes;
        if nodes >= GROUP_NODES_MIN
            && let Some(group) = backend.group()?
        {
            let index = group
                .count_handler()
                .map_err(|error| RendezvousError::connection(&settings.run_id, error))?;
            return Ok(Self::Group(group, index));
        }
        let has_lease = (WRITE_LEASE_NODES_MIN..GROUP_NODES_MIN).contains(&nodes);
        Ok(Self::Own {
            lease: has_lease
                .then(|| backend.write_lease())
                .transpose()?
                .flatten(),
            watch: backend.watch()?,
        })
    }
}
