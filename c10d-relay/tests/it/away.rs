//! Ranks whose relay has lost its connection to the store.

use std::thread;

use c10d_relay::RelayOptions;
use c10d_store::{StoreExt, TcpStore};

use crate::basics::{rank_of, relay_to, server, wait_until};
use crate::proxy::Proxy;

/// How many connections the server knows to be away.
fn away(server: &c10d_store::TcpStoreServer) -> usize {
    let snapshot = server
        .observer()
        .snapshot(std::time::Duration::from_secs(60));
    let connections = snapshot.expect("a snapshot").connections;
    let away = connections.iter().filter(|it| it.away_since.is_some());
    away.count()
}

/// docs/wire-extensions.md, SESSION 11.
#[test]
fn the_ranks_of_a_lost_relay_take_no_elements_from_others() {
    let server = server();
    let proxy = Proxy::to(server.local_addr());
    let relay = relay_to(proxy.port(), RelayOptions::default());
    let lost = rank_of(&relay);
    let taking = thread::spawn(move || lost.queue_take("jobs", 4, None));
    wait_until("it waits", || server.waiting_count() == 1);
    assert_eq!(away(&server), 0);
    proxy.cut(true);
    wait_until("the server has noticed", || away(&server) == 1);

    let port = server.local_addr().port();
    let live = TcpStore::connect("127.0.0.1", port).expect("a client");
    let other = TcpStore::connect("127.0.0.1", port).expect("a client");
    let live_taking = thread::spawn(move || live.queue_take("jobs", 4, None).map(|it| (live, it)));
    wait_until("both wait", || server.waiting_count() == 2);
    other.queue_push("jobs", b"one").expect("queue_push");
    let (live, taken) = live_taking.join().expect("no panic").expect("queue_take");
    assert_eq!(taken, [b"one"]);
    // Nobody that can be reached waits: the element stays.
    other.queue_push("jobs", b"two").expect("queue_push");
    assert_eq!(live.queue_len("jobs").expect("queue_len"), 1);

    proxy.mend();
    let taken = taking.join().expect("no panic").expect("queue_take");
    assert_eq!(taken, [b"two"]);
    assert_eq!(away(&server), 0);
}
