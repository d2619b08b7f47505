//! Removes what earlier rounds left in the store of the rendezvous, which lives as long as the job.
//!
//! PyTorch's agents leave it. A job that restarts thousands of times would grow by some kilobytes each time.

use c10d_store::StoreError;
use elastic_rendezvous::{RendezvousHandler, RendezvousInfo, forget_workers_store};

use crate::{clearing, incarnation, job_end, ranks, relay};

/// Removes the keys of `old`, two rounds before `current`, that no node reads any more: its own, and those that nodes
/// share on the node with group rank 0. The round between them keeps its keys, as another node may not have left it.
///
/// Call it when the workers have started, as nothing waits for it. A failure is logged, and returned as false.
pub(crate) fn forget(old: &RendezvousInfo, current: &RendezvousInfo) -> bool {
    let forgotten = || -> Result<(), StoreError> {
        ranks::forget_ranks(&*old.store, old.rank)?;
        incarnation::forget(&*old.store, old.rank)?;
        if current.rank == 0 {
            clearing::forget(&*old.store)?;
            job_end::forget(&*old.store)?;
            relay::forget(&*old.store)?;
            forget_workers_store(old);
        }
        Ok(())
    };
    forgotten()
        .inspect_err(|error| log::debug!("cannot remove the keys of round {}: {error}", old.round))
        .is_ok()
}

/// Removes what nodes that have left the job meanwhile did not: on the node with group rank 0, of rounds before those
/// whose keys each node removes itself. A failure is logged only.
pub(crate) fn forget_departed(handler: &dyn RendezvousHandler, current: &RendezvousInfo) {
    if current.rank == 0
        && let Err(error) = handler.forget_rounds_before(current.round.saturating_sub(2))
    {
        log::debug!("cannot remove the keys of departed nodes: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_socket::HostPort;
    use c10d_store::{HashStore, Store, StoreExt};
    use elastic_rendezvous::BootstrapInfo;

    use super::*;
    use crate::ranks::RoleInfo;

    fn round(number: i64, rank: usize, store: &Arc<HashStore>) -> RendezvousInfo {
        let bootstrap = BootstrapInfo::new(HostPort::new("node0", 1), true, false);
        let store: Arc<dyn Store> = Arc::<HashStore>::clone(store);
        RendezvousInfo::new(number, store, rank, 2, bootstrap)
    }

    /// docs/rendezvous.md, BOOT 8.
    #[test]
    fn nothing_of_a_round_is_left_when_all_its_nodes_are_in_a_later_one() {
        let store = Arc::new(HashStore::new());
        let of_relays = ["port", "nodes", "refusals"].map(|it| format!("c10d/relay/0/{it}"));
        let of_relays = of_relays.iter().map(String::as_str);
        for key in ["MASTER_ADDR", "MASTER_PORT"].into_iter().chain(of_relays) {
            store.set(key, b"1").unwrap();
        }
        assert!(clearing::is_first(&*store).unwrap());
        assert!(job_end::report_stuck(&*store).unwrap());
        for (rank, expected) in [(0, 1), (1, 1), (0, 2)] {
            assert_eq!(incarnation::next(&*store, rank).unwrap(), expected);
        }
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let store = &store;
                scope.spawn(move || {
                    let own = RoleInfo {
                        role: "trainer".to_owned(),
                        local_world_size: 1,
                    };
                    ranks::exchange_ranks(
                        &**store,
                        rank,
                        2,
                        &own,
                        None,
                        &c10d_socket::Cancel::NEVER,
                    )
                    .unwrap();
                });
            }
        });
        assert_eq!(store.num_keys().unwrap(), 13);
        let elsewhere = Arc::new(HashStore::new());
        // Their ranks may have changed.
        for (then, now) in [(0, 1), (1, 0)] {
            assert!(forget(&round(3, then, &store), &round(5, now, &elsewhere)));
        }
        assert_eq!(store.list_keys().unwrap(), Vec::<String>::new());
    }
}
