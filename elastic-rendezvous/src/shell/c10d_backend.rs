//! Keeps the state of a rendezvous under one key of a c10d store, as PyTorch does.
//!
//! In PyTorch: `torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py`. `codec` decodes states.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{Known, Store, StoreError, StoreExt};

use crate::shell::backend::{RendezvousBackend, StateWatch};
use crate::shell::board::state_key;
use crate::shell::group_store::GroupStore;
use crate::shell::marks::MarkBoard;
use crate::shell::workers_claim::claim;
use crate::shell::write_lease::WriteLease;
use crate::values::codec::{self, CodecLimits, CorruptState, SENTINEL};
use crate::values::error::RendezvousError;
use crate::values::parameters_error::ParametersError;
use crate::values::state::{Part, SetState, Stored, Token, Watched};

/// The name that selects this backend.
pub const C10D_BACKEND: &str = "c10d";

/// A backend that keeps the state in any [`Store`], where PyTorch's nodes can also use it.
///
/// With a store that can wait for changes ([`Store::has_prompt_watch`]) this backend can be watched;
/// otherwise it is polled.
///
/// ```
/// use std::sync::Arc;
///
/// use c10d_store::HashStore;
/// use elastic_rendezvous::{C10dBackend, RendezvousBackend};
///
/// let backend = C10dBackend::new(Arc::new(HashStore::new()), "job-7")?;
/// assert!(backend.get_state()?.is_none()); // no node has joined yet
/// # Ok::<(), elastic_rendezvous::RendezvousError>(())
/// ```
#[derive(Debug)]
pub struct C10dBackend {
    store: Arc<dyn Store>,
    run_id: String,
    key: String,
    limits: CodecLimits,
    traffic: Arc<Traffic>,
    is_reconnecting: bool,
    /// Whether this node serves the workers, if they use the same store; otherwise `None`.
    has_workers_here: Option<bool>,
}

/// Counters of a backend.
#[derive(Debug, Default)]
pub struct Traffic {
    writes_tried: AtomicU64,
    writes_done: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    /// Returns the number of attempted writes of a state.
    #[must_use]
    pub fn writes_tried(&self) -> u64 {
        self.writes_tried.load(Ordering::Relaxed)
    }

    /// Returns the number of writes of a state that succeeded, without a conflict.
    #[must_use]
    pub fn writes_done(&self) -> u64 {
        self.writes_done.load(Ordering::Relaxed)
    }

    /// Returns the number of transferred bytes of states, in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
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
        let key = state_key(run_id);
        let backend = Self {
            store,
            run_id: run_id.to_owned(),
            key,
            limits: CodecLimits::default(),
            traffic: Arc::default(),
            is_reconnecting: false,
            has_workers_here: None,
        };
        backend.start_anew()?;
        Ok(backend)
    }

    /// Uses another handle of the same store from now on, which reconnects automatically.
    #[must_use]
    pub(crate) fn with_reconnecting_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = store;
        self.is_reconnecting = true;
        self
    }

    /// The store is the workers' too, and is claimed for them, now and whenever it has been emptied.
    ///
    /// # Errors
    /// The errors of [`claim`].
    pub(crate) fn with_workers_here(
        mut self,
        is_served_here: bool,
    ) -> Result<Self, RendezvousError> {
        claim(&self.store, &self.run_id, is_served_here)?;
        self.has_workers_here = Some(is_served_here);
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
        // A GET would wait for a missing key until the store's timeout.
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
        // (docs/spec/wire.md, COMPARE_SET 4).
        if current == expected {
            return Err(self.state_lost());
        }
        let stored = self.unwrap(current)?;
        Ok(stored.map(|stored| SetState {
            stored,
            is_ours: false,
        }))
    }

    fn is_reconnecting(&self) -> bool {
        self.is_reconnecting
    }

    fn start_anew(&self) -> Result<(), RendezvousError> {
        if let Some(is_served_here) = self.has_workers_here {
            claim(&self.store, &self.run_id, is_served_here)?;
        }
        // A GET would block while the key is missing.
        let created = self.store.compare_set(&self.key, b"", SENTINEL);
        created.map(drop).map_err(|error| self.failed(error))
    }

    fn watch(&self) -> Result<Option<Arc<dyn StateWatch>>, RendezvousError> {
        if !self.store.has_prompt_watch() {
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

    fn write_lease(&self) -> Result<Option<WriteLease>, RendezvousError> {
        if !self.store.has_prompt_watch() {
            return Ok(None);
        }
        WriteLease::open(&*self.store, &self.key).map_err(|error| self.failed(error))
    }

    fn group(&self) -> Result<Option<GroupStore>, RendezvousError> {
        if !self.store.has_prompt_watch() {
            return Ok(None);
        }
        let group = GroupStore::new(Arc::clone(&self.store), &self.key);
        let has_queue = group.has_queue().map_err(|error| self.failed(error))?;
        Ok(has_queue.then_some(group))
    }

    fn marks(&self) -> Option<MarkBoard> {
        let may_have_marks = self.store.has_prompt_watch();
        may_have_marks.then(|| MarkBoard::new(Arc::clone(&self.store), &self.key))
    }

    fn label(&self) -> String {
        self.store.label()
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
        cancel: &Cancel,
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
        let store = self.store.with_cancel(cancel);
        let text = match store.wait_change(&self.key, known, timeout) {
            Ok(text) => text,
            Err(
                StoreError::Timeout { .. }
                // A busy server may report the timeout late.
                | StoreError::NoReply { .. }
                | StoreError::Interrupted { .. },
            ) => return Ok(Watched::Unchanged),
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
