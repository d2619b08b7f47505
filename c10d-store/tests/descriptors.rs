//! Tests how many file descriptors a connection uses. The test counts the descriptors of its whole process, so it
//! needs a separate process.
#![cfg(target_os = "linux")]

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{ServerOptions, Store, StoreExt, TcpStore, TcpStoreServer};

const LONG: Duration = Duration::from_secs(60);

/// The kind of each open descriptor, such as `socket`.
fn descriptors() -> Vec<String> {
    let mut kinds = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        // Another thread may have closed the descriptor since the listing.
        if let Ok(target) = fs::read_link(entry.unwrap().path()) {
            let target = target.to_string_lossy();
            kinds.push(target.split(":[").next().unwrap().to_owned());
        }
    }
    kinds
}

fn count(kind: &str) -> usize {
    descriptors().iter().filter(|each| *each == kind).count()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: {:?}", descriptors());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_uses_a_socket_a_poller_and_a_waker_for_long_waits() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let port = server.local_addr().port();
    let total = || descriptors().len();
    let (before, sockets) = (total(), count("socket"));

    let stores: Vec<Arc<TcpStore>> = (0..5)
        .map(|_| Arc::new(TcpStore::connect("127.0.0.1", port).unwrap()))
        .collect();
    // The server's end of each connection is also a socket of this process.
    wait_until("five connections", || count("socket") == sockets + 2 * 5);
    assert_eq!(total(), before + 3 * 5, "{:?}", descriptors());

    // Calls that never wait leave it at that.
    for store in &stores {
        store.set("rank", b"1").unwrap();
        store.check(&["rank"]).unwrap();
    }
    assert_eq!(total(), before + 3 * 5, "{:?}", descriptors());

    // A call that could wait has a waker, if its answer takes a moment, so that it can give way: other calls need no
    // second connection.
    let waiters: Vec<_> = stores
        .iter()
        .map(|store| {
            let store = Arc::clone(store);
            thread::spawn(move || store.wait_timeout(&["go"], Some(LONG)))
        })
        .collect();
    wait_until("five wakers", || total() == before + 4 * 5);
    for store in &stores {
        store.set("rank", b"2").unwrap();
    }
    assert_eq!(total(), before + 4 * 5, "{:?}", descriptors());

    // An arrival at a barrier cannot be repeated, so the next call opens a second connection.
    let arrivals: Vec<_> = stores
        .iter()
        .map(|store| {
            let store = Arc::clone(store);
            thread::spawn(move || store.barrier_timeout("barrier", 6, Some(LONG)))
        })
        .collect();
    wait_until("second connections", || count("socket") == sockets + 2 * 10);
    wait_until("ten wakers", || total() == before + 4 * 10);

    stores[0].barrier_timeout("barrier", 6, Some(LONG)).unwrap();
    for arrival in arrivals {
        arrival.join().unwrap().unwrap();
    }
    stores[0].set("go", b"1").unwrap();
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    // A closed store keeps no descriptors, although its handle still exists.
    for store in &stores {
        store.close();
    }
    wait_until("everything is closed", || total() == before);
}
