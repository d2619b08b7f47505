//! The workers that an agent knows of, by id.

use std::sync::{Arc, PoisonError, RwLock};

use super::entry::PeerEntry;
use crate::peer::Config;
use crate::worker::WorkerInfo;

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

    /// All, the agent's own worker included.
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
