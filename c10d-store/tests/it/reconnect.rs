//! A store that connects again after a lost connection.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{
    Known, Opcode, Outcome, ServerOptions, Store, StoreError, StoreExt, StoreHandle, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};

use crate::raw::{LONG, Raw, wait_until};

/// A port on which one server follows another. The socket stays, so that no other test gets the port.
struct Place(TcpListener);

impl Place {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("bound").port()
    }

    fn serve(&self) -> TcpStoreServer {
        let listener = self.0.try_clone().expect("a descriptor");
        TcpStoreServer::serve(vec![listener], ServerOptions::default()).expect("a server")
    }

    fn open(&self) -> TcpStore {
        let options = TcpStoreOptions::default()
            .with_timeout(LONG)
            .with_reconnect();
        TcpStore::open("127.0.0.1", self.port(), options).expect("a store")
    }

    fn accept(&self) -> Raw {
        let (stream, _) = self.0.accept().expect("the store connects");
        stream.set_read_timeout(Some(LONG)).expect("an option");
        let mut raw = Raw(stream);
        let hello = raw.read(10);
        raw.send(&hello[6..]);
        raw
    }
}

fn is_lost(error: &StoreError, outcome: Outcome) -> bool {
    matches!(error, StoreError::ConnectionLost { outcome: it, .. } if *it == outcome)
}

#[test]
fn a_handle_goes_on_with_the_next_server() {
    let place = Place::new();
    let mut server = place.serve();
    let store = place.open();
    let clone = store.clone_store().expect("a handle");
    let with_cancel = store.with_cancel(&Cancel::new());
    let handles: [&dyn Store; 3] = [&store, &*clone, &with_cancel];
    for round in 0..3_u8 {
        let other = place.open();
        other.set("round", [round]).expect("set");
        for (index, store) in handles.into_iter().enumerate() {
            assert_eq!(store.get("round").expect("get"), [round]);
            let key = index.to_string();
            store.set(&key, "set").expect("set");
            assert_eq!(store.add("sum", 1).expect("add"), index as i64 + 1);
            assert!(store.check(&[&key]).expect("check"));
            let swapped = store
                .compare_set(&key, "set", "swapped")
                .expect("compare_set");
            let reported = cfg!(feature = "extensions").then_some(true);
            assert_eq!(swapped.swapped(), reported);
        }
        // The lost connections are noticed before anything is sent.
        drop(server);
        server = place.serve();
    }
    assert_eq!(store.add("sum", 1).expect("nothing was sent before"), 1);
}

#[test]
fn calls_that_wait_go_on_at_the_next_server() {
    let place = Place::new();
    let server = place.serve();
    let store = place.open();
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| store.get("a").map(drop)),
            scope.spawn(|| store.wait(&["a", "b"])),
            scope.spawn(|| store.wait_change("a", Known::whole(b"old"), LONG).map(drop)),
        ];
        let popping = scope.spawn(|| store.queue_pop("queue"));
        wait_until("the waits", || server.waiting_count() >= 2);
        drop(server);
        let server = place.serve();
        let other = place.open();
        other
            .multi_set(&[("a", b"new"), ("b", b"")])
            .expect("multi_set");
        for wait in waits {
            wait.join().expect("no panic").expect("it goes on");
        }
        // It may have taken an element, or have given way to another call: then nothing had been sent.
        other.queue_push("queue", "element").expect("queue_push");
        if let Err(error) = popping.join().expect("no panic") {
            let is_lost = matches!(error, StoreError::ConnectionLost { .. });
            assert!(is_lost, "{error}");
        }
        drop(server);
    });
    store.close();
    let closed = store.get("a");
    assert!(
        matches!(closed, Err(StoreError::Closed { .. })),
        "{closed:?}"
    );
}

#[test]
fn of_what_must_not_happen_twice_the_outcome_is_unknown_and_the_handle_goes_on() {
    let place = Place::new();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            // A server like PyTorch's, which ends in the middle of a write.
            let mut raw = place.accept();
            let push = raw.read(1 + 8 + 6 + 8 + 7);
            assert_eq!(push[0], Opcode::QueuePush as u8);
            drop(raw);
            // Then in the middle of a COMPARE_SET, which it has carried out.
            let mut raw = place.accept();
            let compare_set = raw.read(1 + 8 + 2 + 8 + 8 + 1);
            assert_eq!(compare_set[0], Opcode::CompareSet as u8);
            drop(raw);
            let mut raw = place.accept();
            assert_eq!(raw.read(compare_set.len()), compare_set);
            raw.send(&[1, 0, 0, 0, 0, 0, 0, 0, b'v']);
            raw
        });
        let store = place.open();
        let pushed = store.queue_push("queue", "element").expect_err("no answer");
        assert!(is_lost(&pushed, Outcome::Unknown), "{pushed}");
        let written = store.compare_set("k", "", "v").expect("it is repeated");
        assert_eq!((written.swapped(), written.value()), (None, &b"v"[..]));
        drop(serving.join().expect("no panic"));
    });
}

#[cfg(feature = "extensions")]
#[test]
fn the_keys_of_an_owner_end_with_its_connection() {
    let place = Place::new();
    let server = place.serve();
    let store: std::sync::Arc<dyn Store> = std::sync::Arc::new(place.open());
    assert_eq!(
        store.set_ephemeral("k", "v", None).expect("it owns it"),
        None
    );
    assert!(store.keep_alive(None).expect("it lives"));
    drop(server);
    let _server = place.serve();
    let lost = store.keep_alive(None).expect_err("it was lost");
    assert!(matches!(lost, StoreError::ConnectionLost { .. }), "{lost}");
    assert!(!store.keep_alive(None).expect("it is another"));
    assert_eq!(
        store.set_ephemeral("k", "v", None).expect("it owns it"),
        None
    );
    assert!(
        store
            .keep_alive(Some(Duration::from_secs(60)))
            .expect("it lives")
    );
}

#[test]
fn a_call_ends_at_its_timeout_while_there_is_no_server() {
    let place = Place::new();
    let server = place.serve();
    let store = place.open();
    drop(server);
    store.set_timeout(Some(Duration::from_millis(300)));
    for result in [
        store.get("k").map(drop),
        store.add("k", 1).map(drop),
        store.set("k", "v"),
    ] {
        let error = result.expect_err("nobody answers");
        let is_expected = matches!(
            error,
            StoreError::Connect { .. }
                | StoreError::ConnectionLost { .. }
                | StoreError::NoReply { .. }
        );
        assert!(is_expected, "{error}");
    }
    let _server = place.serve();
    store.set_timeout(Some(LONG));
    assert_eq!(store.try_get("k").expect("it goes on"), None);
}
