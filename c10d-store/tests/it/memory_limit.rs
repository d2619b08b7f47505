//! A server whose data has a memory limit.

use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::unstable::REFUSAL_NONCE;
use c10d_store::{
    Known, Opcode, PrefixStore, ServerOptions, Store, StoreError, StoreExt, StoreHandle, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};

use crate::log_lines;
use crate::memory_journal::Memory;
use crate::raw::{LONG, Raw, wait_until};

/// docs/spec/wire.md, MEMORY 1 and 2, and docs/spec/wire-extensions.md, REFUSAL 2 and 3.
#[test]
fn a_full_server_refuses_writes_and_goes_on_with_reads_and_deletes() {
    log_lines::record();
    let options = ServerOptions::default().with_memory_max(3 << 20);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port");
    assert_eq!(server.memory_max(), Some(3 << 20));
    let open = || {
        let port = server.local_addr().port();
        TcpStore::open("127.0.0.1", port, TcpStoreOptions::default()).expect("a store")
    };
    let store = open();
    let value = vec![7; 2 << 20];
    store.set("large", &value).expect("there is memory");

    let mut raw = Raw::with_handshake(server.local_addr());
    raw.set(b"/more", &value);
    assert_eq!(raw.read_to_close(), b"", "no reply");
    let line = log_lines::wait_for("may take 3145728");
    assert!(line.contains("memory limit"), "{line}");

    // Each write reports it, and the store stays usable, reads and deletes included.
    let known = vec![8; 8 << 20];
    let zero = Duration::ZERO;
    for refused in [
        store.set("more", &value),
        store.append("large", &value),
        store.multi_set(&[("more", &value), ("and more", &value)]),
        store.queue_push("queue", &value),
        store.compare_set("more", b"", &value).map(drop),
        store.set_ephemeral("more", &value, None).map(drop),
        store
            .wait_change("large", Known::whole(&value), None)
            .map(drop),
        store
            .wait_change("more", Known::whole(&known), zero)
            .map(drop),
    ] {
        let error = refused.unwrap_err();
        let StoreError::MemoryFull { used, limit, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*limit, 3 << 20);
        assert!((2 << 20..3 << 20).contains(used), "{used}");
        assert!(error.to_string().contains("memory limit"), "{error}");
        assert!(!error.has_unknown_outcome() && !error.is_timeout());
        assert_eq!(store.num_keys().expect("a count"), 1);
    }
    assert_eq!(store.get("large").expect("it is there"), value);
    assert!(!store.check(&["more"]).expect("a check"));
    assert!(store.delete_key("large").expect("a delete"));
    store.set("more", &value).expect("there is memory again");
    assert_eq!(store.num_keys().expect("a count"), 1);
}

#[test]
fn the_limit_of_a_running_server_can_be_set() {
    let options = ServerOptions::default();
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port");
    assert_eq!(server.memory_max(), None);
    let port = server.local_addr().port();
    let open = || TcpStore::open("127.0.0.1", port, TcpStoreOptions::default()).expect("a store");
    let store = open();
    store.set("before", "value").expect("no limit");
    // A set has no reply.
    store.get("before").expect("it is written");
    server.set_memory_max(1);
    store.get("before").expect("reads go on");
    for refused in [
        store.compare_set("after", "", "value").map(drop),
        store.add("count", 1).map(drop),
        store
            .get_timeout("missing", Duration::from_secs(30))
            .map(drop),
        store.try_get("missing").map(drop),
    ] {
        let error = refused.expect_err("the limit is reached");
        assert!(matches!(error, StoreError::MemoryFull { .. }), "{error}");
    }
    server.set_memory_max(0);
    store.set("after", "value").expect("no limit again");
}

/// A journal, a prefix, a session, and another handle change nothing about it, and no other client learns of a refused write.
#[test]
fn every_handle_reports_a_refused_write_and_nothing_of_it_is_kept() {
    let journal = Memory::default();
    let server = journal.serve_with(ServerOptions::default().with_memory_max(3 << 20));
    let port = server.local_addr().port();
    let open = |options| TcpStore::open("127.0.0.1", port, options).expect("a store");
    let plain: Arc<dyn Store> = Arc::new(open(TcpStoreOptions::default()));
    let resumed: Arc<dyn Store> = Arc::new(open(TcpStoreOptions::default().with_resume(LONG)));
    let value = vec![7; 2 << 20];
    plain.set("large", &value).expect("there is memory");
    plain.get("large").expect("it is written");
    let mut waiter = Raw::with_handshake(server.local_addr());
    waiter.wait(b"/p/more");
    wait_until("the wait", || server.waiting_count() == 1);
    for store in [
        plain.clone_store().expect("a handle"),
        plain.with_cancel(&Cancel::new()),
        resumed.clone_store().expect("a handle"),
        resumed,
        plain,
    ] {
        let store = PrefixStore::new("p", store);
        for refused in [store.set("more", &value), store.queue_push("more", &value)] {
            let error = refused.expect_err("there is no memory");
            assert!(matches!(error, StoreError::MemoryFull { .. }), "{error}");
            assert!(error.to_string().contains("\"p/more\""), "{error}");
        }
        assert_eq!(store.num_keys().expect("it lives"), 1);
        assert_eq!(store.try_get("more").expect("it lives"), None);
        store.set("small", "s").expect("there is memory for this");
        assert!(store.delete_key("small").expect("it lives"));
    }
    assert_eq!(server.waiting_count(), 1);
    drop(server);
    let contents = journal.contents();
    let again = journal.crashed().serve();
    let port = again.local_addr().port();
    let store = TcpStore::connect("127.0.0.1", port).expect("a store");
    assert_eq!(store.num_keys().expect("a count"), 1, "{contents:?}");
    assert_eq!(store.queue_len("p/more").expect("a length"), 0);
}

/// docs/spec/wire-extensions.md, REFUSAL 4.
#[test]
fn the_bit_shows_that_writes_can_be_refused() {
    let bits_of = |options: ServerOptions| {
        let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
        let mut raw = Raw::connect(server.local_addr());
        raw.request(|request| {
            request.hello();
        });
        raw.read(4)[1]
    };
    let options = ServerOptions::default();
    assert_eq!(bits_of(options.clone()), 0x13);
    let limited = options.with_memory_max(3 << 20);
    assert_eq!(bits_of(limited.clone()), 0x53);
    assert_eq!(
        bits_of(limited.clone().with_journal(Memory::default())),
        0x53
    );

    let log = Memory::default();
    let candidate = log.candidate(0);
    let server = candidate.stand_by(limited);
    log.lead(0);
    log.wait_until_led_by(0);
    candidate.renew(Duration::from_secs(3600));
    wait_until("it leads", || !server.is_standby());
    let mut raw = Raw::connect(server.local_addr());
    raw.request(|request| {
        request.hello();
    });
    assert_eq!(raw.read(4)[1], 0x53, "another process may take over");
    let port = server.local_addr().port();
    for options in [
        TcpStoreOptions::default(),
        TcpStoreOptions::default().with_resume(LONG),
    ] {
        let store = TcpStore::open("127.0.0.1", port, options).expect("a store");
        let error = store.set("k", vec![7; 4 << 20]).expect_err("no memory");
        assert!(matches!(error, StoreError::MemoryFull { .. }), "{error}");
        store.set("k", "v").expect("there is memory for this");
        assert_eq!(store.get("k").expect("it lives"), b"v");
    }
}

/// docs/spec/wire-extensions.md, REFUSAL 1 and 2.
#[test]
fn a_client_that_does_not_ask_why_its_write_was_refused_is_closed() {
    let options = ServerOptions::default().with_memory_max(3 << 20);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
    let value = vec![7; 4 << 20];
    let ask = |raw: &mut Raw| {
        raw.request(|request| {
            request.opcode(Opcode::Ping).u32(REFUSAL_NONCE);
        });
    };
    let done = [0x00, 0x00, 0x0e, 0xc1];
    for asks in [true, false] {
        let mut raw = Raw::connect(server.local_addr());
        raw.request(|request| {
            request.hello();
        });
        raw.read(4);
        raw.set(b"/k", b"v");
        ask(&mut raw);
        assert_eq!(raw.read(4), done);
        raw.set(b"/k", &value);
        if asks {
            ask(&mut raw);
            assert_eq!(raw.read(4), [0x01, 0x00, 0x0e, 0xc1]);
            let sizes = raw.read(16);
            assert_eq!(sizes[8..], [0, 0, 0x30, 0, 0, 0, 0, 0], "3 MiB");
            ask(&mut raw);
            assert_eq!(raw.read(4), done, "it is asked once");
        } else {
            raw.request(|request| {
                request.opcode(Opcode::DeleteKey).user_key("k");
            });
            assert_eq!(raw.read_to_close(), b"");
        }
    }
    let port = server.local_addr().port();
    let store = TcpStore::connect("127.0.0.1", port).expect("a store");
    assert_eq!(store.get("k").expect("it was not deleted"), b"v");
}

/// docs/spec/wire-extensions.md, REFUSAL 5.
#[test]
fn a_write_does_not_wait_for_the_journal() {
    let journal = Memory::default();
    let server = journal.serve_with(ServerOptions::default().with_memory_max(3 << 20));
    let port = server.local_addr().port();
    let store = TcpStore::connect("127.0.0.1", port).expect("a store");
    journal.set_blocked(true);
    store.set("k", "v").expect("it is in the memory");
    journal.wait_until_appending();
    store.append("k", "w").expect("it is in the memory");
    store.set_timeout(Some(Duration::ZERO));
    let reader = store.clone_store().expect("a handle");
    let counted = reader.num_keys();
    assert!(
        matches!(counted, Err(StoreError::NoReply { .. })),
        "{counted:?}"
    );
    journal.set_blocked(false);
    store.set_timeout(Some(LONG));
    assert_eq!(store.get("k").expect("it is durable"), b"vw");
}
