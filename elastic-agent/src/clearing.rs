//! Clears the workers' store between two rounds: one node does it for all.
//!
//! The store holds keys of all workers. If each node read them, the cost would grow with the square of the
//! number of nodes.

use c10d_store::{Store, StoreError};
use elastic_rendezvous::{RendezvousInfo, clear_workers_store};

/// Ours, in the round's store: how many nodes have offered to clear the workers' store.
const OFFERS_KEY: &str = "c10d/clearing";

/// Clears the workers' store if no other node of the round does. Call it before the exchange of ranks: all
/// nodes of the round have stopped their earlier workers, and no worker of the round starts before all nodes
/// have taken part in the exchange, the one that clears included.
pub(crate) fn clear_once(round: &RendezvousInfo) -> Result<(), StoreError> {
    if round.bootstrap.is_workers_own && is_first(&*round.store)? {
        clear_workers_store(&round.bootstrap);
    }
    Ok(())
}

/// Removes the count from the store of an earlier round.
pub(crate) fn forget(store: &dyn Store) -> Result<(), StoreError> {
    store.delete_key(OFFERS_KEY).map(drop)
}

/// True for one node of the round: not always the one with group rank 0, as that may be a PyTorch node.
pub(crate) fn is_first(store: &dyn Store) -> Result<bool, StoreError> {
    Ok(store.add(OFFERS_KEY, 1)? == 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_socket::HostPort;
    use c10d_store::{HashStore, StoreExt, TcpStore, TcpStoreOptions};
    use elastic_rendezvous::BootstrapInfo;

    use super::*;

    /// docs/rendezvous.md, BOOT 5.
    #[test]
    fn the_first_node_of_each_round_clears_the_workers_store() {
        let options = TcpStoreOptions::default().with_master(true);
        let workers = TcpStore::open("127.0.0.1", 0, options).unwrap();
        let round = |number, is_workers_own| {
            let master = HostPort::new("127.0.0.1", workers.port());
            let bootstrap = BootstrapInfo::new(master, true, is_workers_own);
            RendezvousInfo::new(number, Arc::new(HashStore::new()), 1, 2, bootstrap)
        };
        for number in 0..2 {
            let round = round(number, true);
            workers.set("left by a worker", b"1").unwrap();
            clear_once(&round).unwrap();
            assert!(workers.list_keys().unwrap().is_empty());
            workers.set("of a worker of this round", b"1").unwrap();
            clear_once(&round).unwrap();
            assert_eq!(workers.list_keys().unwrap(), ["of a worker of this round"]);
        }
        // The store of the rendezvous itself, as with the static rendezvous.
        let shared = round(0, false);
        clear_once(&shared).unwrap();
        assert_eq!(workers.list_keys().unwrap().len(), 1);
        assert_eq!(shared.store.num_keys().unwrap(), 0);
    }
}
