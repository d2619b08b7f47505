//! Chooses how a node reaches the state, by the number of nodes that may take part and by the
//! store's features.

use std::sync::Arc;
use std::time::Instant;

use c10d_socket::{Cancel, Deadline};

use crate::shell::backend::{RendezvousBackend, StateWatch};
use crate::shell::group_store::GroupStore;
use crate::shell::marks::MarkBoard;
use crate::shell::reconnection::repeated;
use crate::shell::write_lease::WriteLease;
use crate::values::error::RendezvousError;
use crate::values::settings::RendezvousSettings;

/// From this `max_nodes` on, a write lease pays off: of two nodes, one succeeds at its second write. 32 nodes take 0.1
/// s with it and 2.7 s without, and move a tenth of the data.
const WRITE_LEASE_NODES_MIN: usize = 3;

/// From this `max_nodes` on, one node writes for all, so that the cost of a round grows with the number of nodes and not
/// with its square.
const GROUP_NODES_MIN: usize = 33;

/// The features of the store that a node uses besides the state itself.
#[derive(Debug)]
pub(crate) enum Access {
    /// One node writes for all.
    Group {
        store: GroupStore,
        /// The index of this node in the group.
        index: u32,
        /// `None`: the store cannot have marks.
        marks: Option<MarkBoard>,
    },
    /// Each node writes the state itself.
    Own {
        lease: Option<WriteLease>,
        /// `None`: the state is polled.
        watch: Option<Arc<dyn StateWatch>>,
        /// `None`: the store cannot have marks.
        marks: Option<MarkBoard>,
    },
}

impl Access {
    /// Opens the best access. Blocks for at most the store's timeout, a few times; over an outage of the store, as long
    /// as its calls repeat their requests (docs/spec/rendezvous.md, OUTAGE 2).
    pub(crate) fn open(
        backend: &dyn RendezvousBackend,
        settings: &RendezvousSettings,
    ) -> Result<Self, RendezvousError> {
        let nodes = settings.max_nodes;
        if nodes >= GROUP_NODES_MIN
            && let Some((store, index)) = open_group(backend, settings)?
        {
            let marks = backend.marks();
            return Ok(Self::Group {
                store,
                index,
                marks,
            });
        }
        let has_lease = (WRITE_LEASE_NODES_MIN..GROUP_NODES_MIN).contains(&nodes);
        Ok(Self::Own {
            lease: has_lease
                .then(|| backend.write_lease())
                .transpose()?
                .flatten(),
            watch: backend.watch()?,
            marks: backend.marks(),
        })
    }
}

/// Makes this node a member of the group, if the store supports groups. An index whose answer was lost
/// stays unused.
fn open_group(
    backend: &dyn RendezvousBackend,
    settings: &RendezvousSettings,
) -> Result<Option<(GroupStore, u32)>, RendezvousError> {
    let attempt = || {
        let Some(group) = backend.group()? else {
            return Ok(None);
        };
        match group.count_handler() {
            Ok(index) => Ok(Some((group, index))),
            Err(error) => Err(RendezvousError::connection(&settings.run_id, error)),
        }
    };
    let deadline = Deadline::after(Instant::now(), settings.dead_after());
    // Opening has no other way to be ended than its deadline.
    repeated(&Cancel::NEVER, attempt, |error: &RendezvousError| {
        error.is_outage() && backend.is_reconnecting() && !deadline.has_passed(Instant::now())
    })
}
