//! A store that any of several processes serves, and this one too if need be.

use std::fmt;
use std::sync::Arc;

use c10d_socket::HostPort;
use c10d_store::Lookup;
use c10d_store::journal::JournalSource;

/// Makes the journal of a server that others find at this address.
type MakeJournal = dyn Fn(HostPort) -> JournalSource + Send + Sync;

/// Where a rendezvous finds its store, in place of an endpoint, and how nodes become candidates to serve it: for
/// [`RendezvousParameters::with_store`](crate::RendezvousParameters::with_store).
#[derive(Clone)]
pub struct StoreDirectory {
    lookup: Arc<dyn Lookup>,
    network: HostPort,
    candidates: Option<(usize, Arc<MakeJournal>)>,
    port: u16,
}

impl StoreDirectory {
    /// A store that other processes serve. `network` is an address that all nodes reach, as one of the directory itself:
    /// they find each other at their addresses in that network.
    #[must_use]
    pub fn new(lookup: Arc<dyn Lookup>, network: HostPort) -> Self {
        Self {
            lookup,
            network,
            candidates: None,
            port: 0,
        }
    }

    /// The first `max` nodes of each round are candidates to serve the store, and so is every node that finds nobody who
    /// serves. `journal` is called for each server, with the address at which others find it, and makes a journal that all
    /// candidates share.
    #[must_use]
    pub fn with_candidates(
        mut self,
        max: usize,
        journal: impl Fn(HostPort) -> JournalSource + Send + Sync + 'static,
    ) -> Self {
        self.candidates = (max > 0).then(|| (max, Arc::new(journal) as Arc<MakeJournal>));
        self
    }

    /// Every candidate's journal, changed by `change`: to learn of its failures, say.
    #[must_use]
    pub fn with_each_journal(
        mut self,
        change: impl Fn(&JournalSource) -> JournalSource + Send + Sync + 'static,
    ) -> Self {
        self.candidates = self.candidates.map(|(max, make)| {
            let make = move |address| change(&make(address));
            (max, Arc::new(make) as Arc<MakeJournal>)
        });
        self
    }

    /// The port at which a node serves the store (default: a free one).
    #[must_use]
    pub const fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// How many nodes of a round are candidates.
    #[must_use]
    pub fn candidates_max(&self) -> usize {
        self.candidates.as_ref().map_or(0, |(max, _)| *max)
    }

    pub(crate) const fn lookup(&self) -> &Arc<dyn Lookup> {
        &self.lookup
    }

    pub(crate) const fn network(&self) -> &HostPort {
        &self.network
    }

    /// 0 for a free one.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn journal_at(&self, address: HostPort) -> Option<JournalSource> {
        let (_, journal) = self.candidates.as_ref()?;
        Some(journal(address))
    }
}

/// Clones of one directory are equal.
impl PartialEq for StoreDirectory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lookup, &other.lookup)
    }
}

impl Eq for StoreDirectory {}

impl fmt::Debug for StoreDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let candidates = self.candidates_max();
        write!(f, "{} ({candidates} candidates)", self.lookup.name())
    }
}
