//! Ranks whose relay has lost its connection to the store.

use std::thread;

use c10d_relay::RelayOptions;
use c10d_sim::Proxy;
use c10d_store::{Store, StoreExt, TcpStore};

use crate::basics::{rank_of, relay_to, server, wait_until};

/// The number of connections that are away according to the server.
fn away(server: &c10d_store::TcpStoreServer) -> usize {
    let snapshot = server
        .observer()
        .snapshot(std::time::Duration::from_secs(60));
    let connections = snapshot.expect("a snapshot").connections;
    let away = connections.iter().filter(|it| it.away_since.is_some());
    away.count()
}

/// docs/spec/wire-extensions.md, SESSION 11.
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
    // All waiters are away: the element stays.
    other.queue_push("jobs", b"two").expect("queue_push");
    assert_eq!(live.queue_len("jobs").expect("queue_len"), 1);

    proxy.mend();
    let taken = taking.join().expect("no panic").expect("queue_take");
    assert_eq!(taken, [b"two"]);
    assert_eq!(away(&server), 0);
}

/// docs/spec/wire-extensions.md, EPHEMERAL 3: the keys of a rank expire when the rank or its relay has ended.
#[test]
fn the_keys_of_a_rank_end_with_it_or_with_its_relay() {
    let server = server();
    let relay = relay_to(server.local_addr().port(), RelayOptions::default());
    let other = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    let [first, second] = [(); 2].map(|()| rank_of(&relay));
    for (rank, key) in [(&first, "first"), (&second, "second")] {
        let will = format!("{key} has left");
        let claimed = rank.set_ephemeral(key, b"here", Some((&will, b"1")));
        assert_eq!(claimed.expect("claimed"), None);
        assert!(
            rank.keep_alive(Some(std::time::Duration::from_secs(60)))
                .expect("kept")
        );
    }
    let taken = first.set_ephemeral("second", b"", None);
    assert_eq!(taken.expect("an answer"), Some(b"here".to_vec()));
    drop(first);
    assert_eq!(other.get("first has left").expect("get"), b"1");
    assert!(!other.check(&["first"]).expect("check") && other.check(&["second"]).expect("check"));
    relay.shutdown();
    assert_eq!(other.get("second has left").expect("get"), b"1");
}
