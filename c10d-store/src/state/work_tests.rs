//! The cost of requests, as counted work instead of time: a small request must not cause much work.

use super::StoreState;
use super::tests::Recorder;
use crate::message::{ConnId, Extension, Keys, Payload, Request};

const WAITER: u64 = 1;
const OTHER: u64 = 2;

/// The most keys of a request.
const KEYS: usize = 131_072;

/// Carries out a request and returns its work.
fn work_of(store: &mut StoreState, conn: u64, request: Request<'_>) -> u64 {
    let before = store.work();
    store
        .handle(ConnId(conn), request, &mut Recorder::default())
        .expect("the request is accepted");
    store.work() - before
}

fn set(store: &mut StoreState, key: &[u8]) -> u64 {
    let value = Payload::Borrowed(b"v");
    work_of(store, OTHER, Request::Set { key, value })
}

fn wait_get(store: &mut StoreState, keys: &[&[u8]]) {
    let keys = Keys::from(keys);
    let work = work_of(
        store,
        WAITER,
        Request::Extension(Extension::WaitGet { keys }),
    );
    assert!(work >= keys.len() as u64);
}

#[test]
fn a_listing_visits_values_only() {
    let mut store = StoreState::default();
    let names: Vec<String> = (0..KEYS).map(|i| i.to_string()).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let keys = Keys::from(&names[..]);
    work_of(&mut store, WAITER, Request::Wait { keys });
    // Values that are written before, among and after the missing names, and a deleted value.
    for key in [&b"new"[..], names[7], names[KEYS - 1], b"last", b"deleted"] {
        set(&mut store, key);
    }
    work_of(&mut store, OTHER, Request::DeleteKey { key: b"deleted" });
    store.check_invariants();
    assert_eq!(store.slots.names_with_value().count(), 4);
    assert_eq!(work_of(&mut store, OTHER, Request::ListKeys), 1 + 4);
}

#[test]
fn a_repeated_key_of_a_wait_is_visited_once() {
    let mut store = StoreState::default();
    let mut keys = vec![&b"a"[..]; KEYS - 1];
    keys.push(b"b");
    wait_get(&mut store, &keys);
    assert_eq!(store.waiters.len(), 2, "one entry for each distinct key");
    // The first check after both were written finds out which keys are distinct.
    set(&mut store, b"a");
    work_of(&mut store, OTHER, Request::DeleteKey { key: b"a" });
    set(&mut store, b"b");
    for _ in 0..200 {
        let toggles = [(&b"b"[..], &b"a"[..]), (b"a", b"b")];
        for (deleted, written) in toggles {
            let delete = Request::DeleteKey { key: deleted };
            let work = work_of(&mut store, OTHER, delete) + set(&mut store, written);
            assert!(work <= 8, "{work} units of work");
        }
        store.check_invariants();
    }
    let mut replies = Recorder::default();
    let value = Payload::Borrowed(b"w");
    store
        .handle(
            ConnId(OTHER),
            Request::Set { key: b"a", value },
            &mut replies,
        )
        .expect("a write");
    assert_eq!(replies.0.len(), 1 + KEYS, "each occurrence is answered");
}

#[test]
fn a_push_does_not_visit_waits_for_a_value() {
    let mut store = StoreState::default();
    for conn in 0..1000 {
        let keys: &[&[u8]] = &[b"q"];
        let keys = Keys::from(keys);
        work_of(
            &mut store,
            10 + conn,
            Request::Extension(Extension::WaitGet { keys }),
        );
    }
    let value = || Payload::Borrowed(b"e");
    for _ in 0..3 {
        let push = Request::QueuePush {
            key: b"q",
            value: value(),
        };
        assert_eq!(
            work_of(&mut store, OTHER, push),
            2,
            "the request and its key"
        );
    }
    store.check_invariants();
}

#[test]
fn a_write_does_not_visit_waits_for_an_element() {
    let mut store = StoreState::default();
    for conn in 0..1000 {
        let take = Request::Extension(Extension::QueueTake { key: b"q", max: 1 });
        work_of(&mut store, 10 + conn, take);
    }
    assert_eq!(set(&mut store, b"q"), 2, "the request and its key");
    store.check_invariants();
}

#[test]
fn removed_names_and_waits_return_their_memory() {
    let mut store = StoreState::default();
    let names: Vec<String> = (0..50_000).map(|i| i.to_string()).collect();
    for name in &names {
        set(&mut store, name.as_bytes());
    }
    let missing: Vec<String> = names.iter().map(|name| format!("missing{name}")).collect();
    let missing: Vec<&[u8]> = missing.iter().map(|name| name.as_bytes()).collect();
    let keys = Keys::from(&missing[..]);
    work_of(&mut store, WAITER, Request::Wait { keys });
    assert!(store.slots.capacity() >= 100_000);
    work_of(&mut store, WAITER, Request::CancelWait);
    for (number, name) in names.iter().enumerate() {
        let key = name.as_bytes();
        work_of(&mut store, OTHER, Request::DeleteKey { key });
        let left = names.len() - number - 1;
        let room = store.slots.capacity();
        assert!(
            room < 8 * left.max(512) + 8,
            "room for {room} with {left} names"
        );
    }
    assert_eq!(store.waiters.capacity(), 0);
    store.check_invariants();
}
