//! A client with a separate session.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use c10d_sim::Proxy;
use c10d_store::{
    ServerOptions, Store, StoreError, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer,
};

use crate::basics::{server, wait_until};

const LONG: Duration = Duration::from_secs(60);

fn client(port: u16, resume: Duration) -> TcpStore {
    let options = TcpStoreOptions::default().with_resume(resume);
    TcpStore::open("127.0.0.1", port, options).expect("a client")
}

#[test]
fn a_client_survives_cuts_by_itself() {
    let server = server();
    let proxy = Proxy::to(server.local_addr());
    let store = Arc::new(client(proxy.port(), LONG));
    for round in 1..=30 {
        proxy.cut(false);
        assert_eq!(store.add("n", 1).expect("add"), round);
        proxy.cut(false);
        store.append("text", b"x").expect("append");
    }
    assert_eq!(store.get("text").expect("get").len(), 30);
    let big = vec![7; 2_000_000];
    proxy.cut(false);
    store.set("big", &big).expect("set");
    proxy.cut(false);
    assert!(store.get("big").expect("get") == big);

    // A wait of one thread, and calls of another, on lanes that are cut.
    let waiter = Arc::clone(&store);
    let waiting = thread::spawn(move || waiter.get("later"));
    wait_until("it waits", || server.waiting_count() == 1);
    proxy.cut(false);
    for round in 31..=60 {
        assert_eq!(store.add("n", 1).expect("add"), round);
        proxy.cut(false);
    }
    store.set("later", b"now").expect("set");
    assert_eq!(waiting.join().expect("no panic").expect("get"), b"now");
    drop(store);
    wait_until("the server has forgotten it", || {
        server.connection_count() == 0
    });
}

#[test]
fn a_call_keeps_its_timeout_while_the_server_cannot_be_reached() {
    let server = server();
    let proxy = Proxy::to(server.local_addr());
    let options = TcpStoreOptions::default()
        .with_resume(LONG)
        .with_timeout(Duration::from_millis(400));
    let store = TcpStore::open("127.0.0.1", proxy.port(), options).expect("a client");
    proxy.cut(true);
    let error = store.get("k").expect_err("no server");
    let is_late = matches!(
        error,
        StoreError::Timeout { .. } | StoreError::NoReply { .. }
    );
    assert!(is_late, "{error}");
    // Sent as soon as the server can be reached.
    let setting = store.set("k", b"v");
    proxy.mend();
    if setting.is_err() {
        store.set("k", b"v").expect("set");
    }
    assert_eq!(store.get("k").expect("get"), b"v");
}

#[test]
fn another_store_and_a_loss_for_too_long_are_final() {
    let first = server();
    let address = first.local_addr();
    let store = client(address.port(), LONG);
    store.set("k", b"v").expect("set");
    first.shutdown();
    let second = TcpStoreServer::bind(address, ServerOptions::default()).expect("the same port");
    let error = store.get("k").expect_err("another store");
    assert!(error.to_string().contains("was restarted"), "{error}");
    store.get("k").expect_err("permanently");

    let proxy = Proxy::to(second.local_addr());
    let store = client(proxy.port(), Duration::from_millis(200));
    store.set("k", b"v").expect("set");
    proxy.cut(true);
    store.get("k").expect_err("too long");
    proxy.mend();
    store.get("k").expect_err("permanently");
    wait_until("the server has forgotten it", || {
        second.connection_count() == 0
    });
}

#[test]
fn closing_ends_a_call_that_waits() {
    let server = server();
    let store = Arc::new(client(server.local_addr().port(), LONG));
    let waiter = Arc::clone(&store);
    let waiting = thread::spawn(move || waiter.get("never"));
    wait_until("it waits", || server.waiting_count() == 1);
    store.close();
    let error = waiting.join().expect("no panic").expect_err("closed");
    assert!(matches!(error, StoreError::Closed { .. }), "{error}");
}
