//! The workers known to an agent: the state machine of each behind a lock, its counters, and its place in the group.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use c10d_socket::Deadline;

use super::socket::Socket;
use crate::future::{Hint, Promise};
use crate::peer::{Config, Effects, Peer};
use crate::sync::{Lock, Monitor, MutexGuard};
use crate::worker::WorkerInfo;

pub(crate) type Core = Peer<Promise<Bytes>, Arc<Socket>>;

pub(crate) type CoreEffects = Effects<Promise<Bytes>, Arc<Socket>>;

/// A worker of the group, the agent's own included.
pub(crate) struct PeerEntry {
    pub(crate) info: WorkerInfo,
    pub(crate) is_self: bool,
    /// How many workers had this id before: futures of calls to them must not be mistaken for futures of calls to
    /// this worker.
    pub(super) predecessors: u32,
    /// Notifies that no thread writes any more.
    state: Monitor<State>,
}

/// The state that a peer's lock guards.
pub(super) struct State {
    pub(super) core: Core,
    /// Threads that have taken expired calls out and have not completed all of them yet.
    pub(super) expiring: usize,
    is_write_awaited: bool,
}

impl PeerEntry {
    pub(super) fn new(config: &Arc<Config>, info: WorkerInfo, predecessors: u32) -> Self {
        Self {
            is_self: info.id == config.me.id,
            predecessors,
            state: Monitor::new(State {
                core: Peer::new(Arc::clone(config), info.clone()),
                expiring: 0,
                is_write_awaited: false,
            }),
            info,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Blocks until no thread writes to this worker, or the deadline.
    pub(super) fn wait_written(&self, deadline: Deadline) {
        let (mut state, mut has_passed) = (self.lock(), false);
        while state.core.is_writing() && !has_passed {
            state.is_write_awaited = true;
            (state, has_passed) = self.state.wait_until(state, deadline);
        }
    }

    /// Called after each step, with the lock.
    pub(super) fn stepped(&self, state: &mut State) {
        if state.is_write_awaited && !state.core.is_writing() {
            state.is_write_awaited = false;
            self.state.notify_all();
        }
    }

    /// Returns the hint that leads a waiting caller to the connection of its call.
    pub(super) fn hint(&self) -> Hint {
        if self.is_self {
            return Hint::NONE;
        }
        Hint(u64::from(self.predecessors) << 32 | u64::from(self.info.id.get()))
    }

    /// The incarnation of the process at the other end of the last connection.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        self.lock().core.peer_incarnation()
    }

    /// The incarnation of the connected process.
    pub(super) fn connected_incarnation(&self) -> Option<u64> {
        self.lock().core.connected_incarnation()
    }

    /// The incarnation of the process that has left, while no later one is connected.
    pub(crate) fn left_incarnation(&self) -> Option<u64> {
        self.lock().core.left_incarnation()
    }
}

impl fmt::Debug for PeerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerEntry")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// Which worker has which id. The lock is held for a lookup or a replacement only.
#[derive(Debug)]
pub(crate) struct PeerTable {
    config: Arc<Config>,
    places: RwLock<Places>,
}

#[derive(Debug, Default)]
struct Places {
    by_id: Vec<Option<Arc<PeerEntry>>>,
    /// The agent has shut down: further workers are not called.
    is_closed: bool,
}

impl PeerTable {
    pub(super) fn new(config: &Arc<Config>, workers: impl IntoIterator<Item = WorkerInfo>) -> Self {
        let table = Self {
            config: Arc::clone(config),
            places: RwLock::default(),
        };
        for worker in workers {
            table.place(worker);
        }
        table
    }

    /// Returns all workers, including the agent's own worker.
    pub(crate) fn all(&self) -> Vec<Arc<PeerEntry>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.by_id.iter().flatten().cloned().collect()
    }

    pub(crate) fn get(&self, id: u32) -> Option<Arc<PeerEntry>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.by_id.get(usize::try_from(id).ok()?)?.clone()
    }

    pub(super) fn named(&self, name: &str) -> Option<Arc<PeerEntry>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let mut entries = places.by_id.iter().flatten();
        entries
            .find(|peer| peer.info.name.as_str() == name)
            .cloned()
    }

    /// The entry of a worker that is known to exist, and the one of another worker that had its id until now.
    pub(super) fn place(&self, worker: WorkerInfo) -> (Arc<PeerEntry>, Option<Arc<PeerEntry>>) {
        if let Some(peer) = self.get(worker.id.get())
            && peer.info == worker
        {
            return (peer, None);
        }
        let index = worker.id.get() as usize;
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let is_closed = places.is_closed;
        if places.by_id.len() <= index {
            places.by_id.resize(index + 1, None);
        }
        let place = &mut places.by_id[index];
        if let Some(peer) = place
            && peer.info == worker
        {
            return (Arc::clone(peer), None);
        }
        let predecessors = place
            .as_ref()
            .map_or(0, |peer| peer.predecessors.wrapping_add(1));
        let peer = Arc::new(PeerEntry::new(&self.config, worker, predecessors));
        if is_closed {
            // There is nothing to say goodbye to yet.
            peer.lock().core.say_goodbye();
        }
        let replaced = place.replace(Arc::clone(&peer));
        (peer, replaced)
    }

    /// Workers that become known from now on are not called.
    pub(super) fn close(&self) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        places.is_closed = true;
    }
}

/// Which peers are to be flushed by the next thread that is about to sleep.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    peers: Lock<Vec<Arc<PeerEntry>>>,
    is_filled: AtomicBool,
    /// A thread outside of the pool has gathered something.
    has_outsiders: AtomicBool,
}

impl Gathered {
    /// `is_outsider`: the calling thread does not flush, so the standby thread must stay awake.
    pub(super) fn push(&self, peer: &Arc<PeerEntry>, is_outsider: bool) {
        self.peers.lock().push(Arc::clone(peer));
        self.is_filled.store(true, Ordering::SeqCst);
        if is_outsider && !self.has_outsiders.load(Ordering::Relaxed) {
            self.has_outsiders.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn take_outsiders(&self) -> bool {
        self.has_outsiders.swap(false, Ordering::Relaxed)
    }

    pub(super) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::SeqCst)
    }

    /// Takes all peers out; empty when there are none.
    pub(super) fn take(&self) -> Vec<Arc<PeerEntry>> {
        if !self.is_filled() || !self.is_filled.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.peers.lock())
    }
}
