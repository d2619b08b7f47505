//! Keeps the state of a rendezvous under one key of a c10d store, as PyTorch does.
//!
//! In PyTorch: `torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py`. `codec` decodes states.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use c10d_store::{Known, Store, StoreError};

use crate::backend::{Part, RendezvousBackend, SetState, StateWatch, Stored, Token, Watched};
use crate::codec::{self, CodecLimits, CorruptState, SENTINEL};
use crate::error::RendezvousError;
use crate::group_store::GroupStore;
use crate::parameters::ParametersError;

/// The name under which this backend is registered.
pub const C10D_BACKEND: &str = "c10d";

/// From this number of nodes on, a write lease pays off: of two nodes, one succeeds at its second write.
pub const WRITE_LEASE_NODES_MIN: usize = 3;

/// From this number of nodes on, one node writes for all ([`C10dBackend::with_group`]).
pub const GROUP_NODES_MIN: usize = 33;

/// How long a node waits for the write lease. A thousand nodes need less to pass it on; after this time
/// the lease of a node that died is replaced.
const LEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Keeps the state in any [`Store`], where PyTorch's nodes can use it too.
///
/// With a store that can wait for changes ([`Store::wakes_on_change`]) this backend can be watched;
/// otherwise it is polled.
#[derive(Debug)]
pub struct C10dBackend {
    store: Arc<dyn Store>,
    run_id: String,
    key: String,
    limits: CodecLimits,
    traffic: Arc<Traffic>,
    lease: Option<WriteLease>,
    group: Option<GroupStore>,
}

/// Counters of a backend.
#[derive(Debug, Default)]
pub struct Traffic {
    writes_tried: AtomicU64,
    writes_done: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    /// How many writes of a state were attempted.
    #[must_use]
    pub fn writes_tried(&self) -> u64 {
        self.writes_tried.load(Ordering::Relaxed)
    }

    /// How many of them succeeded, without a conflict.
    #[must_use]
    pub fn writes_done(&self) -> u64 {
        self.writes_done.load(Ordering::Relaxed)
    }

    /// How many bytes of states were transferred, in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A queue with one element: the node that has taken it holds the lease.
#[derive(Debug)]
struct WriteLease {
    /// A separate handle, because of its timeout.
    store: Arc<dyn Store>,
    queue: String,
}

impl C10dBackend {
    /// Opens the backend of the job `run_id` and creates its key if it is missing. Blocks for at most the
    /// store's timeout.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails, [`RendezvousError::Parameters`] for an
    /// empty run id.
    pub fn new(store: Arc<dyn Store>, run_id: &str) -> Result<Self, RendezvousError> {
        ParametersError::check_run_id(run_id)?;
        let key = format!("torch.rendezvous.{run_id}");
        let failed = |error| RendezvousError::connection(run_id, error);
        // A GET would block while the key is missing.
        store.compare_set(&key, b"", SENTINEL).map_err(failed)?;
        Ok(Self {
            store,
            run_id: run_id.to_owned(),
            key,
            limits: CodecLimits::default(),
            traffic: Arc::default(),
            lease: None,
            group: None,
        })
    }

    /// Makes nodes acquire a lease before they write, because of several concurrent writes all but one
    /// fail. A lease costs two requests per write and pays off from [`WRITE_LEASE_NODES_MIN`] nodes on.
    /// Has no effect with a store that lacks queues or that is not a server of this project. Blocks for
    /// at most the store's timeout, once per request.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    pub fn with_write_lease(mut self) -> Result<Self, RendezvousError> {
        if !self.store.wakes_on_change() {
            return Ok(self);
        }
        let failed = |error| RendezvousError::connection(&self.run_id, error);
        let store = self.store.clone_store().map_err(failed)?;
        store.set_timeout(Some(LEASE_TIMEOUT));
        let queue = format!("{}/turn", self.key);
        match store.queue_len(&queue) {
            Err(StoreError::Unsupported { .. }) => return Ok(self),
            Err(error) => return Err(failed(error)),
            Ok(_) => {}
        }
        if store.add(&format!("{queue}/made"), 1).map_err(failed)? == 1 {
            store.queue_push(&queue, b"").map_err(failed)?;
        }
        self.lease = Some(WriteLease { store, queue });
        Ok(self)
    }

    /// Makes one node write the state for all, so that the cost of a round grows with the number of nodes and not
    /// with its square. Pays off from [`GROUP_NODES_MIN`] nodes on. Has no effect with a store that lacks queues or
    /// that is not a server of this project. Blocks for at most the store's timeout.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    pub fn with_group(mut self) -> Result<Self, RendezvousError> {
        if !self.store.wakes_on_change() {
            return Ok(self);
        }
        let group = GroupStore::new(Arc::clone(&self.store), &self.key);
        match group.has_queue() {
            Ok(true) => self.group = Some(group),
            Ok(false) => {}
            Err(error) => return Err(self.failed(error)),
        }
        Ok(self)
    }

    /// The counters of this backend, which keep counting.
    #[must_use]
    pub fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.traffic)
    }

    fn failed(&self, error: StoreError) -> RendezvousError {
        RendezvousError::connection(&self.run_id, error)
    }

    fn state_lost(&self) -> RendezvousError {
        RendezvousError::StateLost {
            run_id: self.run_id.clone(),
            store: self.store.label(),
        }
    }

    fn unwrap(&self, text: Vec<u8>) -> Result<Option<Stored>, RendezvousError> {
        self.traffic.moved(text.len());
        unwrap(text, &self.limits).map_err(|source| RendezvousError::CorruptState {
            store: self.store.label(),
            key: self.store.full_key(&self.key),
            source,
        })
    }
}

impl RendezvousBackend for C10dBackend {
    fn name(&self) -> &str {
        C10D_BACKEND
    }

    fn get_state(&self) -> Result<Option<Stored>, RendezvousError> {
        // A GET would wait for a key that is lost until the store's timeout.
        let text = self
            .store
            .try_get(&self.key)
            .map_err(|error| self.failed(error))?;
        self.unwrap(text.ok_or_else(|| self.state_lost())?)
    }

    fn set_state(
        &self,
        state: &[u8],
        token: Option<&Token>,
    ) -> Result<Option<SetState>, RendezvousError> {
        let expected = token.map_or(SENTINEL, Token::as_bytes);
        let desired = codec::to_base64(state);
        self.traffic.writes_tried.fetch_add(1, Ordering::Relaxed);
        self.traffic.moved(expected.len() + desired.len());
        let current = self
            .store
            .compare_set(&self.key, expected, &desired)
            .map_err(|error| self.failed(error))?
            .into_value();
        if current == desired {
            self.traffic.writes_done.fetch_add(1, Ordering::Relaxed);
            self.traffic.moved(current.len());
            return Ok(Some(SetState {
                stored: Stored {
                    state: state.to_vec(),
                    token: Token::new(current),
                },
                is_ours: true,
            }));
        }
        // The answer is the expected text although nothing was written: the key is missing
        // (docs/wire.md, COMPARE_SET 4).
        if current == expected {
            return Err(self.state_lost());
        }
        let stored = self.unwrap(current)?;
        Ok(stored.map(|stored| SetState {
            stored,
            is_ours: false,
        }))
    }

    fn watch(&self) -> Result<Option<Arc<dyn StateWatch>>, RendezvousError> {
        if !self.store.wakes_on_change() {
            return Ok(None);
        }
        let store = self
            .store
            .clone_store()
            .map_err(|error| self.failed(error))?;
        Ok(Some(Arc::new(C10dWatch {
            store,
            run_id: self.run_id.clone(),
            key: self.key.clone(),
            limits: self.limits,
            traffic: self.traffic(),
        })))
    }

    fn is_current(&self, token: Option<&Token>) -> Result<bool, RendezvousError> {
        let text = token.map_or(SENTINEL, Token::as_bytes);
        let known = match codec::watch_ranges(text) {
            None => Known::whole(text),
            // The lists of ten thousand nodes have a megabyte. Most of their changes change their length.
            Some(ranges) => Known::part(text, ranges.header).with_len(text.len()),
        };
        let changed = self
            .store
            .wait_change(&self.key, known, Some(Duration::ZERO));
        match changed {
            Ok(text) => {
                self.traffic.moved(text.len());
                Ok(false)
            }
            Err(StoreError::Timeout { .. }) => Ok(true),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn acquire_write_lease(&self) -> bool {
        let Some(lease) = &self.lease else {
            return false;
        };
        // After a timeout the lease is taken for lost with its holder. This node writes without it, and
        // its release puts a new one into the queue.
        if let Err(error) = lease.store.queue_pop(&lease.queue) {
            log::debug!(
                "writing run {:?} without the write lease: {error}",
                self.run_id
            );
        }
        true
    }

    fn release_write_lease(&self) {
        let Some(lease) = &self.lease else { return };
        let released = match lease.store.queue_len(&lease.queue) {
            Ok(0) => lease.store.queue_push(&lease.queue, b""),
            // The lease was late, not lost, and has been replaced meanwhile: drop the second one.
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            log::debug!(
                "cannot release the write lease of run {:?}: {error}",
                self.run_id
            );
        }
    }

    fn group(&self) -> Option<GroupStore> {
        self.group.clone()
    }

    fn label(&self) -> String {
        self.store.label()
    }

    fn close(&self) {
        if let Some(lease) = &self.lease {
            lease.store.close();
        }
    }
}

#[derive(Debug)]
struct C10dWatch {
    store: Arc<dyn Store>,
    run_id: String,
    key: String,
    limits: CodecLimits,
    traffic: Arc<Traffic>,
}

impl StateWatch for C10dWatch {
    fn wait(
        &self,
        known: Option<&Token>,
        part: Part,
        timeout: Option<Duration>,
    ) -> Result<Watched, RendezvousError> {
        let text = known.map_or(SENTINEL, Token::as_bytes);
        // A state in another layout than PyTorch's is watched as a whole.
        let known = match codec::watch_ranges(text).filter(|_| known.is_some()) {
            None => Known::whole(text),
            Some(ranges) => Known::part(
                text,
                match part {
                    Part::Round => ranges.header,
                    Part::Members => ranges.members,
                },
            ),
        };
        let text = match self.store.wait_change(&self.key, known, timeout) {
            Ok(text) => text,
            Err(StoreError::Timeout { .. }) => return Ok(Watched::Unchanged),
            Err(error) => return Err(RendezvousError::connection(&self.run_id, error)),
        };
        self.traffic.moved(text.len());
        match unwrap(text, &self.limits) {
            Ok(stored) => Ok(Watched::Changed(stored)),
            Err(source) => Err(RendezvousError::CorruptState {
                store: self.store.label(),
                key: self.store.full_key(&self.key),
                source,
            }),
        }
    }

    fn close(&self) {
        self.store.close();
    }
}

/// Decodes the base64 of a stored text; `None` for the sentinel.
fn unwrap(text: Vec<u8>, limits: &CodecLimits) -> Result<Option<Stored>, CorruptState> {
    if text == SENTINEL {
        return Ok(None);
    }
    let state = codec::from_base64(&text, limits)?;
    Ok(Some(Stored {
        state,
        token: Token::new(text),
    }))
}
