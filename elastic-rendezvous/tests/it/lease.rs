//! The write lease of small jobs (docs/spec/rendezvous.md, section 10.1).

use std::sync::Arc;
use std::time::Duration;

use c10d_store::{HashStore, Store};
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousBackend, RendezvousHandler,
    RendezvousSettings, WriteLease,
};

use super::nodes::eventually;

const TURN: &str = "torch.rendezvous.job/turn";

fn lease(store: &Arc<dyn Store>) -> WriteLease {
    let backend = C10dBackend::new(Arc::clone(store), "job").expect("a backend");
    backend.write_lease().expect("an answer").expect("a lease")
}

fn elements(store: &Arc<dyn Store>) -> u64 {
    store.queue_len(TURN).expect("a length")
}

/// docs/spec/rendezvous.md, LEASE 1 and 4.
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

/// docs/spec/rendezvous.md, LEASE 2 and 3.
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

/// docs/spec/rendezvous.md, LEASE 5.
#[test]
fn a_heartbeat_that_meets_no_other_write_needs_no_lease() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job").expect("a backend"));
    let settings = RendezvousSettings::new("job", 1, 3)
        .expect("a number of nodes")
        .with_last_call_timeout(Duration::from_millis(1))
        .with_keep_alive(Duration::from_millis(100), 1000);
    let options = DynamicRendezvousOptions::new().with_local_addr("127.0.0.1");
    let traffic = backend.traffic();
    let node = DynamicRendezvous::new(backend, Arc::clone(&store), settings, options);
    node.as_ref()
        .expect("a handler")
        .next_rendezvous()
        .expect("a round");
    // This simulates another node that dies with the lease.
    store.queue_pop(TURN).expect("the lease");
    let before = traffic.writes_done();
    eventually("heartbeats", || traffic.writes_done() >= before + 3);
    assert_eq!(elements(&store), 0, "it has not replaced the lost one");
}
