//! How many descriptors a client's connection takes. Alone in its process, as it counts all of them.
#![cfg(target_os = "linux")]

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};

const LONG: Duration = Duration::from_secs(60);

/// What the open descriptors refer to, without the number of each.
fn descriptors() -> Vec<String> {
    let mut kinds = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        // The descriptor of this very listing is gone by now.
        if let Ok(target) = fs::read_link(entry.unwrap().path()) {
            let target = target.to_string_lossy();
            kinds.push(target.split(":[").next().unwrap().to_owned());
        }
    }
    kinds
}

fn count(kind: &str) -> usize {
    descriptors().iter().filter(|it| *it == kind).count()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: {:?}", descriptors());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_takes_a_socket_and_a_poll_and_gives_both_back() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let port = server.local_addr().port();
    let total = || descriptors().len();
    let (before, sockets) = (total(), count("socket"));

    let stores: Vec<Arc<TcpStore>> = (0..5)
        .map(|_| Arc::new(TcpStore::connect("127.0.0.1", port).unwrap()))
        .collect();
    // The server in this process has a socket for each too.
    wait_until("five connections", || count("socket") == sockets + 2 * 5);
    assert_eq!(total(), before + 3 * 5, "{:?}", descriptors());

    // A call that blocks makes the next one open a second connection.
    let waiters: Vec<_> = stores
        .iter()
        .map(|store| {
            let store = Arc::clone(store);
            thread::spawn(move || store.wait_timeout(&["go"], Some(LONG)))
        })
        .collect();
    for (rank, store) in stores.iter().enumerate() {
        wait_until("a second connection", || {
            store.set("rank", b"1").unwrap();
            count("socket") == sockets + 2 * (5 + rank + 1)
        });
    }
    assert_eq!(total(), before + 3 * 10, "{:?}", descriptors());

    stores[0].set("go", b"1").unwrap();
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    // A closed store keeps nothing, though its handle lives on.
    for store in &stores {
        store.close();
    }
    wait_until("everything is closed", || total() == before);
}
