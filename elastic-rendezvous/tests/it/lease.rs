//! The write lease of small jobs (docs/rendezvous.md, section 10.1).

use std::sync::Arc;

use c10d_store::{HashStore, Store, StoreExt};
use elastic_rendezvous::{C10dBackend, RendezvousBackend, WriteLease};

const TURN: &str = "torch.rendezvous.job/turn";

fn lease(store: &Arc<dyn Store>) -> WriteLease {
    let backend = C10dBackend::new(Arc::clone(store), "job").expect("a backend");
    backend.write_lease().expect("an answer").expect("a lease")
}

fn elements(store: &Arc<dyn Store>) -> u64 {
    store.queue_len(TURN).expect("a length")
}

/// docs/rendezvous.md, LEASE 1 and 4.
#[test]
fn one_node_at_a_time_holds_the_lease_and_others_may_write() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (a, b) = (lease(&store), lease(&store));
    assert_eq!(elements(&store), 1, "of the first of them");
    a.acquire();
    assert_eq!(elements(&store), 0);
    let without = C10dBackend::new(Arc::clone(&store), "job").expect("a backend");
    let written = without.set_state(b"state", None).expect("a write");
    assert!(written.expect("a state").is_ours);
    a.release();
    assert_eq!(elements(&store), 1);
    b.acquire();
    b.release();
    assert_eq!(elements(&store), 1);
}

/// docs/rendezvous.md, LEASE 2 and 3.
#[test]
fn a_lost_lease_is_replaced_and_a_second_one_disappears() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (slow, other) = (lease(&store), lease(&store));
    slow.acquire();
    // After its patience, 3 s.
    other.acquire();
    other.release();
    assert_eq!(elements(&store), 1, "the lost one is replaced");
    slow.release();
    assert_eq!(elements(&store), 1, "it was only late");
}
