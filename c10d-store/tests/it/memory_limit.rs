//! A server whose data may take only so much memory.

use c10d_store::{
    Opcode, ServerOptions, Store, StoreError, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer,
};

use crate::log_lines;
use crate::raw::Raw;

/// docs/spec/wire.md, MEMORY 1 and 2.
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
    raw.request(|request| {
        request.opcode(Opcode::Set).user_key("more").value(&value);
    });
    assert_eq!(raw.read_to_close(), b"", "no reply");
    let line = log_lines::wait_for("may take 3145728");
    assert!(line.contains("memory limit"), "{line}");

    let error = store.compare_set("more", b"", &value).unwrap_err();
    assert!(matches!(error, StoreError::ConnectionLost { .. }));
    assert!(error.to_string().contains("memory limit"), "{error}");

    // A set has no reply: the next calls say why.
    let store = open();
    store.set("more", &value).expect("it is sent");
    for _ in 0..2 {
        let error = store.get("large").unwrap_err();
        assert!(matches!(error, StoreError::ConnectionLost { .. }));
        assert!(error.to_string().contains("memory limit"), "{error}");
    }

    let store = open();
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
    store
        .compare_set("after", "", "value")
        .expect_err("the limit is reached");
    server.set_memory_max(0);
    open().set("after", "value").expect("no limit again");
}
