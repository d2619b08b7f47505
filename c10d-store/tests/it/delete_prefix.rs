//! DELETE_PREFIX over real connections: docs/spec/wire-extensions.md, section 9.12.

use std::sync::Arc;
use std::time::Duration;

use c10d_store::{HashStore, Opcode, PrefixStore, Store, StoreError, StoreExt, TcpStore};

use crate::journal::{client, number};
use crate::memory_journal::Memory;
use crate::raw::{Raw, serve, wait_until};
use crate::without_extensions::WithoutExtensions;

const NOW: Duration = Duration::ZERO;

/// The example of docs/spec/wire-extensions.md, section 9.12. docs/spec/wire-extensions.md, DELETE_PREFIX 1, 3 and 6.
#[test]
fn the_reply_is_the_number_and_later_requests_wait_for_it() {
    let server = serve();
    let mut a = Raw::with_handshake(server.local_addr());
    for key in [b'a', b'b'] {
        let set = [1, 4, 0, 0, 0, 0, 0, 0, 0, b'/', b'p', b'/', key];
        a.send(&[&set[..], &[0; 8]].concat());
    }
    let delete = [0x89, 3, 0, 0, 0, 0, 0, 0, 0, b'/', b'p', b'/', 0, 0, 0, 0];
    a.send(&[&delete[..], &[7]].concat());
    a.expect(&[[2, 0, 0, 0, 0, 0, 0, 0], [0; 8]].concat());
    // Any number of them, each with its successor.
    let mut many = Vec::new();
    for round in 0..50 {
        let key = format!("p/{round}");
        many.extend([1, 2 + key.len() as u8 - 1, 0, 0, 0, 0, 0, 0, 0, b'/']);
        many.extend(key.as_bytes());
        many.extend([0; 8]);
        many.extend(delete);
    }
    a.send(&many);
    a.expect(&number(1).repeat(50));
    a.send(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(a.read_to_close(), b"");
}

/// Other clients are served between the slices, and the requesting client may end.
#[test]
fn a_long_deletion_lets_others_go_on() {
    let server = serve();
    let store = client(&server);
    let other = client(&server);
    let names: Vec<String> = (0..60_000).map(|name| format!("p/{name}")).collect();
    for names in names.chunks(10_000) {
        let pairs: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"v"[..])).collect();
        store.multi_set(&pairs).expect("set");
    }
    store.check(&[]).expect("done");
    let saw_a_part = std::thread::scope(|scope| {
        let deleting = scope.spawn(|| store.delete_prefix("p/", NOW));
        let mut saw_a_part = false;
        while !deleting.is_finished() {
            let left = other.num_keys().expect("a number");
            saw_a_part |= (1..60_000).contains(&left);
        }
        assert_eq!(deleting.join().expect("no panic").expect("deleted"), 60_000);
        saw_a_part
    });
    assert!(saw_a_part, "it was one step");
    let mut leaving = Raw::with_handshake(server.local_addr());
    for names in names.chunks(10_000) {
        let pairs: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"v"[..])).collect();
        store.multi_set(&pairs).expect("set");
    }
    store.check(&[]).expect("done");
    leaving.request(|r| {
        r.opcode(Opcode::DeletePrefix).user_key("p/").u32(0);
    });
    drop(leaving);
    wait_until("all are deleted", || {
        other.num_keys().expect("a number") == 0
    });
}

/// docs/spec/wire-extensions.md, DELETE_PREFIX 4.
#[test]
fn a_store_deletes_later_and_refuses_by_name() {
    let server = serve();
    let store = PrefixStore::new("p", Arc::new(client(&server)));
    store.set("a", b"").expect("set");
    let soon = Duration::from_millis(1);
    assert_eq!(store.delete_prefix("", soon).expect("scheduled"), 0);
    wait_until("it is deleted", || !store.check(&["a"]).expect("check"));
    let error = client(&server).delete_prefix("", NOW).expect_err("refused");
    assert!(
        matches!(error, StoreError::InvalidArgument { .. }),
        "{error}"
    );

    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    let like_torch = TcpStore::connect("127.0.0.1", proxy.port()).expect("a client");
    let hash = HashStore::new();
    let stores: [&dyn Store; 2] = [&like_torch, &hash];
    for store in stores {
        let error = store.delete_prefix("p", NOW).expect_err("refused");
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("DELETE_PREFIX"), "{error}");
    }
}

/// docs/spec/wire-extensions.md, DELETE_PREFIX 5. More is deleted than a batch may hold.
#[test]
fn what_was_deleted_stays_deleted_after_a_crash() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    let long = "x".repeat(100);
    let names: Vec<String> = (0..40_000).map(|name| format!("p/{long}{name}")).collect();
    let pairs: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"v"[..])).collect();
    store.multi_set(&pairs).expect("set");
    store.set("q", b"stays").expect("set");
    assert_eq!(store.delete_prefix("p/", NOW).expect("deleted"), 40_000);
    let (journal, old) = (journal.crashed(), server);
    let server = journal.serve();
    drop(old);
    let other = client(&server);
    assert_eq!(other.num_keys().expect("a number"), 1);
    assert_eq!(other.get("q").expect("get"), b"stays");
}
