//! The write lease of small jobs (docs/spec/rendezvous.md, section 10.1).

use std::sync::Arc;
use std::time::Duration;

use c10d_store::{Store, StoreError, StoreExt};

/// How long a node waits for the lease. A thousand nodes need less time to pass it on; after this time, the lease of
/// a dead node is replaced.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// After this number of conflicts in a row with writes of other nodes, a heartbeat takes the write lease. A failed
/// heartbeat changes nothing in the store, while the lease changes it twice: when it is taken and when it is returned.
const CONFLICTS_MAX: u32 = 3;

/// A lease that lets one node at a time write the state, because only one of several concurrent writes succeeds.
///
/// It is advisory: it saves writes that would conflict, and only the token of the state decides. Its clones are one
/// handle to a queue with one element; the node that has taken the element holds the lease.
///
/// ```
/// use std::sync::Arc;
///
/// use c10d_store::HashStore;
/// use elastic_rendezvous::{C10dBackend, RendezvousBackend};
///
/// let backend = C10dBackend::new(Arc::new(HashStore::new()), "job-7")?;
/// let lease = backend.write_lease()?.expect("a store with queues");
/// lease.acquire();
/// // Read the state, and write the changed state.
/// lease.release();
/// # Ok::<(), elastic_rendezvous::RendezvousError>(())
/// ```
#[derive(Debug, Clone)]
pub struct WriteLease {
    /// A separate handle, because of its timeout.
    store: Arc<dyn Store>,
    queue: String,
}

impl WriteLease {
    /// Opens the lease of the state under `key`; `None` if the store lacks queues.
    ///
    /// Losing the connection is not an error: if the element was not created, the first node that waits for it times
    /// out and creates it.
    pub(crate) fn open(store: &dyn Store, key: &str) -> Result<Option<Self>, StoreError> {
        let store = store.clone_store()?;
        store.set_timeout(Some(ACQUIRE_TIMEOUT));
        let queue = format!("{key}/turn");
        let make = || {
            store.queue_len(&queue)?;
            if store.add(&format!("{queue}/made"), 1)? == 1 {
                store.queue_push(&queue, b"")?;
            }
            Ok(())
        };
        match make() {
            Err(StoreError::Unsupported { .. }) => return Ok(None),
            Err(error) => log::debug!("cannot make the lease {queue:?}: {error}"),
            Ok(()) => {}
        }
        Ok(Some(Self { store, queue }))
    }

    /// Waits for the lease, for 3 s at most. The caller reads the state before it writes, even after a timeout. A
    /// timeout means that the lease was lost with its holder, so [`release`](Self::release) replaces it.
    pub fn acquire(&self) {
        if let Err(error) = self.store.queue_pop(&self.queue) {
            log::debug!("writing without the lease {:?}: {error}", self.queue);
        }
    }

    /// Gives the lease to the next node. Blocks for at most 3 s, twice.
    pub fn release(&self) {
        let released = match self.store.queue_len(&self.queue) {
            Ok(0) => self.store.queue_push(&self.queue, b""),
            // The lease was late, not lost, and has been replaced in the meantime: drop the second
            // element.
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            log::debug!("cannot release the lease {:?}: {error}", self.queue);
        }
    }

    /// Closes the handle. Calls in other threads fail soon.
    pub(crate) fn close(&self) {
        self.store.close();
    }
}

/// This node's use of the write lease, if its store has one.
#[derive(Debug)]
pub(crate) struct LeaseUse {
    lease: Option<WriteLease>,
    is_held: bool,
    /// The number of writes in a row that have conflicted with writes of other nodes.
    conflicts: u32,
}

impl LeaseUse {
    pub(crate) const fn new(lease: Option<WriteLease>) -> Self {
        Self {
            lease,
            is_held: false,
            conflicts: 0,
        }
    }

    /// Takes the lease, unless this node holds it, or `may_be_alone` and no other node seems to write. Returns whether it has
    /// waited for the lease.
    pub(crate) fn acquire(&mut self, may_be_alone: bool) -> bool {
        let is_alone = may_be_alone && self.conflicts < CONFLICTS_MAX;
        let Some(lease) = self.lease.as_ref().filter(|_| !self.is_held && !is_alone) else {
            return false;
        };
        lease.acquire();
        self.is_held = true;
        true
    }

    /// Notes a write, and releases the lease.
    pub(crate) fn written(&mut self, has_conflict: bool) {
        self.conflicts = if has_conflict { self.conflicts + 1 } else { 0 };
        self.release();
    }

    pub(crate) fn release(&mut self) {
        if let Some(lease) = &self.lease
            && std::mem::take(&mut self.is_held)
        {
            lease.release();
        }
    }
}
