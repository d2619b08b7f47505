//! Keys that expire with their owners, over real connections: docs/spec/wire-extensions.md, section 9.10.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{
    FileStore, HashStore, Operation, PrefixStore, Store, StoreError, StoreExt, StoreHandle,
    TcpStore, TcpStoreOptions, TcpStoreServer,
};

use crate::journal::client;
use crate::memory_journal::Memory;
use crate::raw::{LONG, Raw, serve, wait_until};
use crate::without_extensions::WithoutExtensions;

fn resuming(server: &TcpStoreServer) -> TcpStore {
    let options = TcpStoreOptions::default().with_resume(LONG);
    TcpStore::open("127.0.0.1", server.local_addr().port(), options).expect("a client")
}

/// The example of docs/spec/wire-extensions.md, section 9.10. docs/spec/wire-extensions.md, EPHEMERAL 1 to 3 and 5.
#[test]
fn a_key_ends_with_its_connection_and_the_will_is_written() {
    let server = serve();
    let [mut a, mut b] = [(); 2].map(|()| Raw::with_handshake(server.local_addr()));
    let key = [2, 0, 0, 0, 0, 0, 0, 0, b'/', b'k'];
    let value = |value: u8| [1, 0, 0, 0, 0, 0, 0, 0, value];
    let claim = |value: &[u8], will_key: &[u8], will: &[u8]| {
        [&[0x87][..], &key, value, will_key, will].concat()
    };
    let none = [0; 8];
    a.send(&claim(&value(b'a'), &key, &value(b'-')));
    a.expect(&[0]);
    b.send(&claim(&value(b'b'), &none, &none));
    b.expect(&[1, 1, 0, 0, 0, 0, 0, 0, 0, b'a']);
    a.send(&[0x88, 0xe8, 3, 0, 0]);
    a.expect(&[0]);
    // WAIT_CHANGE /k: is "a".
    b.send(&[&[0x81][..], &key, &none, &[0xff; 8], &value(b'a')].concat());
    b.fence();
    drop(a);
    b.expect(&[0, 1, 0, 0, 0, 0, 0, 0, 0, b'-']);
}

/// docs/spec/wire-extensions.md, EPHEMERAL 3: however an owner ends.
#[test]
fn the_keys_of_a_store_end_with_it() {
    let server = serve();
    let other = client(&server);
    let ends: [fn(TcpStore); 3] = [
        drop,
        |store| {
            store.close();
            let error = store.set_ephemeral("k", b"", None).expect_err("closed");
            assert!(matches!(error, StoreError::Closed { .. }), "{error}");
        },
        |store| {
            // A second handle keeps it.
            let handle = store.with_cancel(&c10d_socket::Cancel::NEVER);
            drop(store);
            assert_eq!(handle.get("k").expect("get"), b"mine");
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        for store in [client(&server), resuming(&server)] {
            let will = format!("will {number}");
            store.set("shown", number.to_string()).expect("set");
            let claimed = store.set_ephemeral("k", b"mine", Some((&will, b"left")));
            assert_eq!(claimed.expect("claimed"), None);
            // Clients that see the key also see earlier writes.
            assert_eq!(other.get("k").expect("get"), b"mine");
            assert_eq!(
                other.get("shown").expect("get"),
                number.to_string().as_bytes()
            );
            let refused = other.set_ephemeral("k", b"", None).expect("an answer");
            assert_eq!(refused, Some(b"mine".to_vec()));
            // Its clones own other keys.
            let clone = store.clone_store().expect("a clone");
            let refused = clone.set_ephemeral("k", b"", None).expect("an answer");
            assert_eq!(refused, Some(b"mine".to_vec()));
            end(store);
            assert_eq!(other.get(&will).expect("get"), b"left");
            assert!(!other.check(&["k"]).expect("check"));
            assert!(other.delete_key(&will).expect("delete"));
        }
    }
}

/// docs/spec/wire-extensions.md, EPHEMERAL 5. A call that waits delays no heartbeat.
#[test]
fn a_silent_owner_loses_its_keys_and_one_that_waits_does_not() {
    let server = serve();
    let [silent, waiting, other] = [(); 3].map(|()| client(&server));
    // Before the last request of the silent one, so that its silence is never shorter.
    let start = Instant::now();
    for (store, key) in [(&silent, "silent"), (&waiting, "waiting")] {
        assert_eq!(store.set_ephemeral(key, b"", None).expect("claimed"), None);
        assert!(
            store
                .keep_alive(Some(Duration::from_secs(2)))
                .expect("kept")
        );
    }
    thread::scope(|scope| {
        // These do not give way.
        let meeting = scope.spawn(|| waiting.barrier("meet", 2));
        while other.check(&["silent"]).expect("check") {
            assert!(
                waiting
                    .keep_alive(Some(Duration::from_secs(2)))
                    .expect("kept")
            );
            assert!(start.elapsed() < LONG, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(start.elapsed() >= Duration::from_millis(1900), "too early");
        assert!(other.check(&["waiting"]).expect("check"));
        other.barrier("meet", 2).expect("the second one");
        meeting.join().expect("no panic").expect("met");
    });
    assert!(!silent.keep_alive(None).expect("an answer"), "it has ended");
    assert!(silent.keep_alive(None).expect("an answer"), "it knows");
    // The store continues.
    assert_eq!(
        silent.set_ephemeral("silent", b"", None).expect("claimed"),
        None
    );
}

#[test]
fn other_stores_refuse_by_name() {
    let server = serve();
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    let like_torch = TcpStore::connect("127.0.0.1", proxy.port()).expect("a client");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(like_torch),
        Arc::new(HashStore::new()),
        Arc::new(FileStore::open(file.path(), None).expect("a store")),
    ];
    for store in stores {
        for prefixed in [false, true] {
            let inner = Arc::clone(&store);
            let store: Arc<dyn Store> = match prefixed {
                true => Arc::new(PrefixStore::new("p", inner)),
                false => inner,
            };
            let error = store.set_ephemeral("k", b"", None).expect_err("refused");
            let text = error.to_string();
            assert!(matches!(error, StoreError::Unsupported { .. }), "{text}");
            assert!(text.contains("k\"") && text.contains("EPHEMERAL"), "{text}");
            let error = store.keep_alive(Some(LONG)).expect_err("refused");
            assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
            assert!(!store.check(&["k"]).expect("it stays usable"));
        }
        drop(store);
    }
}

#[test]
fn a_prefix_holds_for_the_key_and_its_will() {
    let server = serve();
    let other = client(&server);
    let store = PrefixStore::new("p", Arc::new(client(&server)));
    let claimed = store.set_ephemeral("k", b"v", Some(("w", b"left")));
    assert_eq!(claimed.expect("claimed"), None);
    assert!(store.keep_alive(Some(LONG)).expect("kept"));
    assert_eq!(other.get("p/k").expect("get"), b"v");
    store.close();
    assert_eq!(other.get("p/w").expect("get"), b"left");
}

/// docs/spec/wire-extensions.md, EPHEMERAL 6.
#[test]
fn a_store_owns_a_limited_number_of_keys_and_says_so() {
    let server = serve();
    let store = client(&server);
    for key in 0..1024 {
        let claimed = store.set_ephemeral(&key.to_string(), b"", None);
        assert_eq!(claimed.expect("claimed"), None);
    }
    let error = store.set_ephemeral("more", b"", None).expect_err("refused");
    let StoreError::LimitExceeded { context, limit, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((context.operation, *limit), (Operation::SetEphemeral, 1024));
    let other = client(&server);
    assert_eq!(other.num_keys().expect("a number"), 1024);
    drop(store);
    wait_until("they end", || other.num_keys().expect("a number") == 0);
}

/// docs/spec/wire-extensions.md, EPHEMERAL 8.
#[test]
fn the_keys_of_connections_end_with_a_crash_of_their_server() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    let claimed = store.set_ephemeral("k", b"v", Some(("w", b"left")));
    assert_eq!(claimed.expect("claimed"), None);
    let (journal, old) = (journal.crashed(), server);
    let server = journal.serve();
    drop(old);
    let other = client(&server);
    assert_eq!(other.get("w").expect("get"), b"left");
    assert!(!other.check(&["k"]).expect("check"));
    // That is kept in its turn.
    assert_eq!(other.add("n", 1).expect("add"), 1);
    let kept = journal.contents();
    let kept: Vec<_> = kept.iter().map(|(key, _)| key.to_vec()).collect();
    assert_eq!(kept, [b"/n".to_vec(), b"/w".to_vec()]);
}
