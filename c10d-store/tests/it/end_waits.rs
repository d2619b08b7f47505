//! END_WAITS with our client: docs/spec/wire-extensions.md, section 9.11.

use std::thread;
use std::time::Duration;

use c10d_store::{
    HashStore, Known, Operation, PrefixStore, Store, StoreError, StoreExt, TcpStore,
    TcpStoreOptions,
};

use crate::journal::client;
use crate::raw::{LONG, Raw, serve, wait_until};
use crate::without_extensions::WithoutExtensions;

/// The example of docs/spec/wire-extensions.md, section 9.11. docs/spec/wire-extensions.md, END_WAITS 1 and 2.
#[test]
fn the_waits_for_a_prefix_end() {
    let server = serve();
    let [mut a, mut b] = [(); 2].map(|()| Raw::with_handshake(server.local_addr()));
    let wait = |key: u8| [6, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'/', key];
    let end = [0x8a, 2, 0, 0, 0, 0, 0, 0, 0, b'/', b'k'];
    a.send(&wait(b'k'));
    a.fence();
    b.send(&end);
    b.expect(&[1, 0, 0, 0, 0, 0, 0, 0]);
    a.expect(&[1]);
    a.send(&wait(b'x'));
    a.fence();
    b.send(&end);
    b.expect(&[0; 8]);
    // It crosses the cancel.
    a.send(&wait(b'k'));
    a.fence();
    b.send(&end);
    b.expect(&[1, 0, 0, 0, 0, 0, 0, 0]);
    a.send(&[0x0c]);
    a.expect(&[1]);
    a.fence();
}

/// docs/spec/wire-extensions.md, END_WAITS 1.
#[test]
fn every_call_that_waits_fails_at_once_and_its_store_stays_usable() {
    type Call = fn(&dyn Store) -> Result<(), StoreError>;
    let calls: [(Operation, Call); 7] = [
        (Operation::Get, |store| store.get("p/k").map(drop)),
        (Operation::MultiGet, |store| {
            store.multi_get(&["p/k", "x"]).map(drop)
        }),
        (Operation::Wait, |store| store.wait(&["x", "p/k"])),
        (Operation::WaitChange, |store| {
            store.wait_change("p/k", Known::nothing(), LONG).map(drop)
        }),
        (Operation::Barrier, |store| store.barrier("p/b", 2)),
        (Operation::QueuePop, |store| {
            store.queue_pop("p/q").map(drop)
        }),
        (Operation::QueueTake, |store| {
            store.queue_take("p/q", 1, LONG).map(drop)
        }),
    ];
    let server = serve();
    let ender = PrefixStore::new("p", std::sync::Arc::new(client(&server)));
    for (operation, call) in calls {
        let options = TcpStoreOptions::default().with_resume(LONG);
        let resuming = TcpStore::open("127.0.0.1", server.local_addr().port(), options);
        for store in [client(&server), resuming.expect("a client")] {
            thread::scope(|scope| {
                let waiting = scope.spawn(|| call(&store));
                wait_until("it waits", || server.waiting_count() == 1);
                assert_eq!(ender.end_waits("none").expect("a number"), 0);
                assert_eq!(ender.end_waits("").expect("a number"), 1);
                let error = waiting.join().expect("no panic").expect_err("ended");
                let StoreError::WaitEnded { context } = &error else {
                    panic!("{error}");
                };
                assert_eq!(context.operation, operation);
                assert!(!error.is_timeout() && !error.has_unknown_outcome());
            });
            // An arrival stays counted.
            let arrived = operation == Operation::Barrier;
            assert_eq!(store.delete_key("p/b").expect("delete"), arrived);
            let error = store.get_timeout("p/none", Duration::from_millis(1));
            assert!(error.expect_err("missing").is_timeout());
            assert!(!store.check(&["p/k"]).expect("it stays usable"));
        }
    }
}

#[test]
fn other_stores_cannot_end_waits_and_say_so() {
    let server = serve();
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    let like_torch = TcpStore::connect("127.0.0.1", proxy.port()).expect("a client");
    let hash = HashStore::new();
    let stores: [&dyn Store; 2] = [&like_torch, &hash];
    for store in stores {
        let error = store.end_waits("p").expect_err("refused");
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("END_WAITS"), "{error}");
    }
}
