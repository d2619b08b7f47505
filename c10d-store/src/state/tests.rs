//! The complete replies to each command, and the correct behaviour where PyTorch's server has a bug.

use byteorder::{ByteOrder, LittleEndian};

use super::{Refusal, StoreState};
use crate::known::Known;
use crate::message::CloseReason;
use crate::message::{ConnId, Extension, Keys, Payload, Replies, Reply, Request};

mod away;
mod one_wait;

/// A reply that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnedReply {
    Nonce(u32),
    Integer(i64),
    Ready(bool),
    Stop,
    Canceled,
    Exchanged(bool),
    Bytes(Vec<u8>),
    Added(i64),
    NotANumber(Vec<u8>, usize),
    Owned,
    NotOwned,
    TooManyOwned,
    KeptAlive(bool),
    Full(usize, usize),
}

/// Collects replies in order.
#[derive(Debug, Default)]
pub(super) struct Recorder(pub(super) Vec<(u64, OwnedReply)>);

impl Replies for Recorder {
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>) {
        let owned = match reply {
            Reply::Nonce(nonce) => OwnedReply::Nonce(nonce),
            Reply::Integer(number) => OwnedReply::Integer(number),
            Reply::Ready(ready) => OwnedReply::Ready(ready),
            Reply::StopWaiting => OwnedReply::Stop,
            Reply::WaitCanceled => OwnedReply::Canceled,
            Reply::Exchanged(exchanged) => OwnedReply::Exchanged(exchanged),
            Reply::Added(sum) => OwnedReply::Added(sum),
            Reply::NotANumber { head, length } => OwnedReply::NotANumber(head.to_vec(), length),
            Reply::Owned => OwnedReply::Owned,
            Reply::NotOwned => OwnedReply::NotOwned,
            Reply::TooManyOwned => OwnedReply::TooManyOwned,
            Reply::KeptAlive(kept) => OwnedReply::KeptAlive(kept),
            Reply::Value(None) => OwnedReply::Bytes(Vec::new()),
            Reply::Value(Some(value)) => OwnedReply::Bytes(value.as_bytes().to_vec()),
            Reply::Bytes(bytes) => OwnedReply::Bytes(bytes.to_vec()),
            Reply::Refused { .. } => unreachable!("the event loop answers it"),
            Reply::Full { used, limit } => OwnedReply::Full(used, limit),
            Reply::Encoded(blobs) => {
                let mut rest = blobs.as_bytes();
                while let Some((length, after)) = rest.split_first_chunk::<8>() {
                    let (blob, after) = after.split_at(LittleEndian::read_u64(length) as usize);
                    self.0.push((conn.0, OwnedReply::Bytes(blob.to_vec())));
                    rest = after;
                }
                return;
            }
        };
        self.0.push((conn.0, owned));
    }
}

/// A state with shorthands for requests.
#[derive(Debug, Default)]
struct Store {
    state: StoreState,
}

const A: u64 = 1;
const B: u64 = 2;
const C: u64 = 3;

impl Store {
    fn on(&mut self, conn: u64, request: Request<'_>) -> Vec<(u64, OwnedReply)> {
        let mut recorder = Recorder::default();
        self.state
            .handle(ConnId(conn), request, &mut recorder)
            .expect("the request is accepted");
        self.state.check_invariants();
        recorder.0
    }

    fn refused(&mut self, conn: u64, request: Request<'_>) -> Refusal {
        let mut recorder = Recorder::default();
        let result = self.state.handle(ConnId(conn), request, &mut recorder);
        assert_eq!(recorder.0, [], "a refusal sends no reply");
        self.state.check_invariants();
        result.expect_err("the request is refused")
    }

    fn disconnect(&mut self, conn: u64) -> Vec<(u64, OwnedReply)> {
        let mut recorder = Recorder::default();
        self.state
            .disconnect(ConnId(conn), CloseReason::Peer, &mut recorder);
        self.state.check_invariants();
        recorder.0
    }

    fn set(&mut self, key: &str, value: &str) -> Vec<(u64, OwnedReply)> {
        self.on(C, set(key, value))
    }

    fn get(&mut self, key: &str) -> Vec<u8> {
        match &self.on(
            C,
            Request::Get {
                key: key.as_bytes(),
            },
        )[..]
        {
            [(C, OwnedReply::Bytes(bytes))] => bytes.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, conn: u64, keys: &[&str]) -> Vec<(u64, OwnedReply)> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let keys = Keys::from(&keys[..]);
        self.on(conn, Request::Wait { keys })
    }

    fn wait_get(&mut self, conn: u64, keys: &[&str]) -> Vec<(u64, OwnedReply)> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let keys = Keys::from(&keys[..]);
        self.on(conn, Request::Extension(Extension::WaitGet { keys }))
    }

    fn wait_change(&mut self, conn: u64, key: &str, known: Known<'_>) -> Vec<(u64, OwnedReply)> {
        self.on(conn, wait_change(key, known))
    }
}

pub(super) fn set<'a>(key: &'a str, value: &'a str) -> Request<'a> {
    Request::Set {
        key: key.as_bytes(),
        value: Payload::Borrowed(value.as_bytes()),
    }
}

fn wait_change<'a>(key: &'a str, known: Known<'a>) -> Request<'a> {
    Request::Extension(Extension::WaitChange {
        key: key.as_bytes(),
        offset: known.offset(),
        length: known.len(),
        known: Payload::Borrowed(known.bytes()),
    })
}

fn append<'a>(key: &'a str, more: &'a str) -> Request<'a> {
    Request::Append {
        key: key.as_bytes(),
        value: Payload::Borrowed(more.as_bytes()),
    }
}

fn add(key: &str, delta: i64) -> Request<'_> {
    Request::Add {
        key: key.as_bytes(),
        delta,
    }
}

fn try_add(key: &str, delta: i64) -> Request<'_> {
    Request::Extension(Extension::TryAdd {
        key: key.as_bytes(),
        delta,
    })
}

fn compare_set<'a>(key: &'a str, expected: &'a str, desired: &'a str) -> Request<'a> {
    Request::CompareSet {
        key: key.as_bytes(),
        expected: expected.as_bytes(),
        desired: Payload::Borrowed(desired.as_bytes()),
    }
}

fn compare_exchange<'a>(key: &'a str, expected: &'a str, desired: &'a str) -> Request<'a> {
    Request::Extension(Extension::CompareExchange {
        key: key.as_bytes(),
        expected: expected.as_bytes(),
        desired: Payload::Borrowed(desired.as_bytes()),
    })
}

fn barrier(key: &str, world_size: i64) -> Request<'_> {
    Request::Barrier {
        key: key.as_bytes(),
        world_size,
    }
}

pub(super) fn push<'a>(key: &'a str, element: &'a str) -> Request<'a> {
    Request::QueuePush {
        key: key.as_bytes(),
        value: Payload::Borrowed(element.as_bytes()),
    }
}

fn pop(key: &str) -> Request<'_> {
    Request::QueuePop {
        key: key.as_bytes(),
    }
}

pub(super) fn delete(key: &str) -> Request<'_> {
    Request::DeleteKey {
        key: key.as_bytes(),
    }
}

fn stop(conn: u64) -> (u64, OwnedReply) {
    (conn, OwnedReply::Stop)
}

fn bytes(conn: u64, text: &str) -> (u64, OwnedReply) {
    (conn, OwnedReply::Bytes(text.as_bytes().to_vec()))
}

#[test]
fn compare_set_writes_on_a_match_and_returns_the_value() {
    // docs/spec/wire.md, COMPARE_SET 1 to 5: present value (if any), expected, answer, value afterwards.
    let table = [
        (None, "", "new", Some("new")),
        (None, "x", "x", None),
        (Some("old"), "old", "new", Some("new")),
        (Some("old"), "x", "old", Some("old")),
        (Some("old"), "", "old", Some("old")),
        (Some(""), "", "new", Some("new")),
    ];
    for (present, expected, answer, after) in table {
        let mut store = Store::default();
        if let Some(value) = present {
            store.set("k", value);
        }
        let replies = store.on(A, compare_set("k", expected, "new"));
        assert_eq!(replies, [bytes(A, answer)], "{present:?} {expected:?}");
        let key: &[&[u8]] = &[b"k"];
        let keys = Keys::from(key);
        assert_eq!(
            store.on(A, Request::Check { keys }),
            [(A, OwnedReply::Ready(after.is_some()))]
        );
        assert_eq!(store.get("k"), after.unwrap_or_default().as_bytes());
    }
}

#[test]
fn compare_exchange_reports_whether_it_wrote() {
    let mut store = Store::default();
    let mut exchange = |expected| store.on(A, compare_exchange("k", expected, "new"));
    // docs/spec/wire-extensions.md, COMPARE_EXCHANGE 1: the replies of COMPARE_SET to the first three are only "x", "new"
    // and "new".
    let written = [(A, OwnedReply::Exchanged(true))];
    let kept = |value| [(A, OwnedReply::Exchanged(false)), bytes(A, value)];
    assert_eq!(exchange("x"), kept("x"));
    assert_eq!(exchange(""), written);
    assert_eq!(exchange(""), kept("new"));
    assert_eq!(exchange("new"), written);
}

/// docs/spec/wire.md, COMPARE_SET 6.
#[test]
fn compare_set_wakes_waiters_only_if_it_writes() {
    let mut store = Store::default();
    assert_eq!(store.wait(A, &["k"]), []);
    assert_eq!(store.on(B, compare_set("k", "x", "v")), [bytes(B, "x")]);
    assert_eq!(
        store.on(B, compare_set("k", "", "v")),
        [stop(A), bytes(B, "v")]
    );
}

/// docs/spec/wire.md, ADD 3 and 4, BARRIER 1.
#[test]
fn add_refuses_a_value_that_is_not_a_number() {
    let mut store = Store::default();
    for text in ["", "abc", "--1", "9223372036854775808"] {
        store.set("k", text);
        assert_eq!(store.refused(A, add("k", 1)), Refusal::NotANumber);
        assert_eq!(store.refused(A, barrier("k", 1)), Refusal::NotANumber);
        assert_eq!(store.get("k"), text.as_bytes());
    }
    store.set("k", "9223372036854775807");
    assert_eq!(
        store.on(A, add("k", 1)),
        [(A, OwnedReply::Integer(i64::MIN))],
        "overflow wraps"
    );
    assert_eq!(store.get("k"), b"-9223372036854775808");
}

/// docs/spec/wire-extensions.md, TRY_ADD 1 and 2.
#[test]
fn try_add_returns_a_value_that_is_not_a_number() {
    let mut store = Store::default();
    let long = "x".repeat(100);
    for text in ["", "abc", "--1", "9223372036854775808", &long] {
        store.set("k", text);
        let head = text.as_bytes()[..text.len().min(64)].to_vec();
        assert_eq!(
            store.on(A, try_add("k", 1)),
            [(A, OwnedReply::NotANumber(head, text.len()))]
        );
        assert_eq!(store.get("k"), text.as_bytes());
    }
    // Otherwise it works like ADD, which creates the key, wraps around and wakes waiters.
    assert_eq!(store.wait(B, &["n"]), []);
    assert_eq!(
        store.on(A, try_add("n", i64::MAX)),
        [stop(B), (A, OwnedReply::Added(i64::MAX))]
    );
    assert_eq!(
        store.on(A, try_add("n", 1)),
        [(A, OwnedReply::Added(i64::MIN))]
    );
    assert_eq!(store.get("n"), b"-9223372036854775808");
}

/// docs/spec/wire.md, WAIT 2, 4 and 5.
#[test]
fn a_wait_ends_when_each_key_has_existed_once() {
    let mut store = Store::default();
    store.set("a", "1");
    assert_eq!(store.wait(A, &["a", "b", "c", "b"]), []);
    assert_eq!(store.set("b", "1"), []);
    store.on(C, delete("b"));
    assert_eq!(store.set("c", "1"), [stop(A)]);
    assert_eq!(store.set("c", "2"), [], "a wait gets one reply");
}

/// docs/spec/wire.md, WAIT 3.
#[test]
fn waiters_are_served_in_order_of_arrival() {
    let mut store = Store::default();
    for conn in [B, A, 9, 4] {
        assert_eq!(store.wait(conn, &["k"]), []);
    }
    assert_eq!(store.set("k", "v"), [stop(B), stop(A), stop(9), stop(4)]);
}

/// docs/spec/wire-extensions.md, WAIT_GET 1 and 2.
#[test]
fn wait_get_returns_values_that_exist_at_the_same_time() {
    let mut store = Store::default();
    store.set("a", "1");
    assert_eq!(
        store.wait_get(A, &["a", "a"]),
        [stop(A), bytes(A, "1"), bytes(A, "1")]
    );
    assert_eq!(store.wait_get(A, &[]), [stop(A)]);

    assert_eq!(store.wait_get(A, &["b", "a"]), []);
    assert_eq!(store.set("b", "2"), [stop(A), bytes(A, "2"), bytes(A, "1")]);

    // A key that is set first, but deleted before the last one is set, is waited for again.
    assert_eq!(store.wait_get(A, &["x", "y"]), []);
    store.set("x", "1");
    store.on(C, delete("x"));
    assert_eq!(store.set("y", "2"), []);
    assert_eq!(store.set("x", "3"), [stop(A), bytes(A, "3"), bytes(A, "2")]);
}

/// docs/spec/wire.md, MULTI_SET 3.
#[test]
fn multi_set_writes_all_pairs_before_waking_waiters() {
    let mut store = Store::default();
    store.set("a", "old");
    store.wait_get(A, &["a", "b"]);
    let pairs: &[&[u8]] = &[b"b", b"1", b"a", b"new", b"b", b"2"];
    let pairs = Keys::from(pairs);
    assert_eq!(
        store.on(C, Request::MultiSet { pairs }),
        [stop(A), bytes(A, "new"), bytes(A, "2")]
    );

    store.wait(A, &["first"]);
    store.wait(B, &["second"]);
    let pairs: &[&[u8]] = &[b"second", b"", b"first", b""];
    let pairs = Keys::from(pairs);
    assert_eq!(
        store.on(C, Request::MultiSet { pairs }),
        [stop(B), stop(A)],
        "in the order of the pairs"
    );
}

/// docs/spec/wire-extensions.md, WAIT_GET 3.
#[test]
fn wait_get_ignores_queues() {
    let mut store = Store::default();
    assert_eq!(store.wait_get(A, &["k"]), []);
    assert_eq!(store.wait(B, &["k"]), []);
    assert_eq!(store.on(C, push("k", "e")), [stop(B)]);
    assert_eq!(store.set("k", "v"), [stop(A), bytes(A, "v")]);
}

/// docs/spec/wire-extensions.md, WAIT_CHANGE 1.
#[test]
fn wait_change_returns_a_different_value_at_once() {
    let mut store = Store::default();
    store.set("k", "round 7, beat 1");
    let differs = [
        Known::nothing(),
        Known::whole(b""),
        Known::whole(b"round 7, beat 2"),
        Known::whole(b"round 7"),
        Known::whole(b"round 7, beat 1."),
        Known::part(b"round 6", 0..7),
        Known::part(b"round 7, beat 1.", 0..16),
    ];
    for known in differs {
        let replies = store.wait_change(A, "k", known);
        assert_eq!(replies, [stop(A), bytes(A, "round 7, beat 1")], "{known:?}");
    }
    let same = [
        Known::whole(b"round 7, beat 1"),
        Known::part(b"round 7", 0..7),
        Known::part(b"", 0..0),
        Known::part(b"round 7, beat 1", 15..15),
    ];
    for known in same {
        assert_eq!(store.wait_change(A, "k", known), [], "{known:?}");
    }
}

/// docs/spec/wire-extensions.md, WAIT_CHANGE 2: the first write of any kind after which the value differs.
#[test]
fn wait_change_ends_at_the_first_different_value() {
    let mut store = Store::default();
    let writes: [(Request<'_>, &str); 5] = [
        (set("k", "6"), "6"),
        (append("k", "0"), "50"),
        (compare_set("k", "5", "7"), "7"),
        (add("k", -9), "-4"),
        (barrier("k", 6), "6"),
    ];
    for (write, after) in writes {
        store.set("k", "5");
        assert_eq!(store.wait_change(A, "k", Known::whole(b"5")), []);
        assert_eq!(
            store.set("k", "5"),
            [],
            "the write does not change the value"
        );
        assert_eq!(
            store.on(B, compare_set("k", "x", "6")),
            [bytes(B, "5")],
            "the compare_set does not write"
        );
        assert_eq!(store.set("other", "6"), []);
        let replies = store.on(B, write);
        assert_eq!(replies[..2], [stop(A), bytes(A, after)]);
        assert_eq!(store.set("k", "8"), [], "a wait gets one reply");
    }

    // Only the known part is compared, but the reply holds the whole value.
    store.set("k", "round 7, beat 1");
    store.wait_change(A, "k", Known::part(b"round 7", 0..7));
    assert_eq!(store.set("k", "round 7, beat 2"), []);
    assert_eq!(store.on(B, append("k", "!")), []);
    assert_eq!(
        store.set("k", "round 8, beat 1"),
        [stop(A), bytes(A, "round 8, beat 1")]
    );
    store.wait_change(A, "k", Known::part(b"round 8", 0..7));
    assert_eq!(
        store.set("k", "round"),
        [stop(A), bytes(A, "round")],
        "too short to hold the part"
    );
}

/// docs/spec/wire-extensions.md, WAIT_CHANGE 3.
#[test]
fn wait_change_waits_for_a_missing_key_and_compares_its_value() {
    let mut store = Store::default();
    assert_eq!(store.wait_change(A, "k", Known::whole(b"1")), []);
    assert_eq!(store.wait_change(B, "k", Known::nothing()), []);
    assert_eq!(store.set("k", "1"), [stop(B), bytes(B, "1")]);
    store.on(C, delete("k"));
    assert_eq!(
        store.set("k", "1"),
        [],
        "the key is deleted and set to the known value"
    );
    store.on(C, delete("k"));
    assert_eq!(store.set("k", ""), [stop(A), bytes(A, "")]);
    store.on(C, delete("k"));
    assert!(store.state.slots.iter().next().is_none());
}

/// docs/spec/wire-extensions.md, WAIT_CHANGE 4.
#[test]
fn wait_change_ignores_queues_and_unfinished_barriers() {
    let mut store = Store::default();
    assert_eq!(store.wait_change(A, "k", Known::nothing()), []);
    assert_eq!(store.wait(B, &["k"]), []);
    assert_eq!(store.on(C, push("k", "e")), [stop(B)]);
    assert_eq!(store.on(B, pop("k")).len(), 2);

    assert_eq!(store.on(B, barrier("k", 3)), []);
    assert_eq!(store.on(C, barrier("k", 3)), []);
    assert_eq!(
        store.on(4, barrier("k", 3)),
        [stop(A), bytes(A, "3"), stop(B), stop(C), stop(4)]
    );

    // The wait ignores the count of an unfinished barrier, and the next write restores the known value.
    store.set("n", "1");
    assert_eq!(store.wait_change(A, "n", Known::whole(b"1")), []);
    assert_eq!(store.on(B, barrier("n", 9)), []);
    assert_eq!(store.set("n", "1"), [stop(B)]);
    assert_eq!(store.set("n", "2"), [stop(A), bytes(A, "2")]);
}

/// docs/spec/wire.md, MULTI_SET 3.
#[test]
fn multi_set_compares_after_writing_all_pairs() {
    let mut store = Store::default();
    store.set("k", "1");
    store.wait_change(A, "k", Known::whole(b"1"));
    let changed_and_restored: &[&[u8]] = &[b"k", b"2", b"k", b"1"];
    let pairs = Keys::from(changed_and_restored);
    assert_eq!(store.on(C, Request::MultiSet { pairs }), []);
    let twice: &[&[u8]] = &[b"k", b"2", b"k", b"3"];
    let pairs = Keys::from(twice);
    let replies = store.on(C, Request::MultiSet { pairs });
    assert_eq!(replies, [stop(A), bytes(A, "3")]);
}

/// Thousands of clients may wait for one part of a value while heartbeats change the rest. The test
/// counts comparisons instead of time.
#[test]
fn a_write_is_compared_once_per_known_value() {
    let mut store = StoreState::default();
    let mut sink = Recorder::default();
    let mut handle = |store: &mut StoreState, conn: u64, request: Request<'_>| {
        store
            .handle(ConnId(conn), request, &mut sink)
            .expect("the request is accepted");
        std::mem::take(&mut sink.0)
    };
    handle(&mut store, 0, set("k", "round 7, beat 0"));
    let round = Known::part(b"round 7, beat 0", 0..7);
    let waiters = 1_000;
    for conn in 1..=waiters {
        assert_eq!(handle(&mut store, conn, wait_change("k", round)), []);
    }
    for beat in 1..=9 {
        let replies = handle(&mut store, 0, set("k", &format!("round 7, beat {beat}")));
        assert_eq!(replies, []);
    }
    assert_eq!(store.comparisons, 9);
    let replies = handle(&mut store, 0, set("k", "round 8"));
    assert_eq!(store.comparisons, 10);
    let want: Vec<_> = (1..=waiters)
        .flat_map(|conn| [stop(conn), bytes(conn, "round 8")])
        .collect();
    assert!(replies == want, "all waiters, in order of arrival");
    store.check_invariants();
}

/// docs/spec/wire.md, QUEUE_PUSH 2 and 3.
#[test]
fn a_push_wakes_one_waiter_and_an_unused_wakeup_passes_to_the_next() {
    let mut store = Store::default();
    store.wait(A, &["q"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    // The wakeup passes to B if A disconnects or cancels its wait (a timeout that crosses the wakeup).
    assert_eq!(store.disconnect(A), [stop(B)]);
    assert_eq!(
        store.on(B, pop("q")),
        [(B, OwnedReply::Integer(1)), bytes(B, "e")]
    );

    store.wait(A, &["q"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    assert_eq!(
        store.on(A, Request::CancelWait),
        [stop(B), (A, OwnedReply::Canceled)]
    );
    store.on(B, pop("q"));

    store.wait(A, &["q"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    assert_eq!(
        store.on(A, Request::Ping { nonce: 5 }),
        [(A, OwnedReply::Nonce(5))],
        "a PING keeps the wakeup"
    );
    assert_eq!(
        store.on(A, pop("q")),
        [(A, OwnedReply::Integer(1)), bytes(A, "e")]
    );
    assert_eq!(store.on(C, push("q", "f")), [stop(B)]);
}

/// docs/spec/wire.md, WAIT 2 and 4, QUEUE_PUSH 2.
#[test]
fn a_wait_for_a_queue_and_a_key_needs_both() {
    // PyTorch's server hangs in the first order, and counts two pushes as two keys in the second.
    let mut store = Store::default();
    store.on(C, push("q", "e"));
    assert_eq!(store.wait(A, &["q", "x"]), []);
    assert_eq!(store.set("x", "1"), [stop(A)]);

    let mut store = Store::default();
    assert_eq!(store.wait(A, &["q", "x"]), []);
    assert_eq!(store.on(C, push("q", "e")), []);
    assert_eq!(store.on(C, push("q", "f")), []);
    assert_eq!(store.set("x", "1"), [stop(A)]);

    // A wait with another missing key does not use the push up, and its queue counts even when it is empty again.
    let mut store = Store::default();
    store.wait(A, &["q", "x"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(B)]);
    store.on(B, pop("q"));
    assert_eq!(store.set("x", "1"), [stop(A)]);
}

#[test]
fn a_woken_waiter_is_removed_from_the_queue() {
    // In PyTorch's server the second push wakes the wait for another key.
    let mut store = Store::default();
    store.wait(A, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    store.on(A, pop("q"));
    store.wait(A, &["other"]);
    assert_eq!(store.on(C, push("q", "f")), []);
    assert_eq!(store.set("other", "1"), [stop(A)]);
}

fn take<'a>(key: &'a str, max: usize) -> Request<'a> {
    let key = key.as_bytes();
    Request::Extension(Extension::QueueTake { key, max })
}

fn taken(conn: u64, elements: &[&[u8]]) -> Vec<(u64, OwnedReply)> {
    let count = OwnedReply::Integer(elements.len() as i64);
    let mut replies = vec![stop(conn), (conn, count)];
    let bytes = |element: &&[u8]| (conn, OwnedReply::Bytes(element.to_vec()));
    replies.extend(elements.iter().map(bytes));
    replies
}

/// docs/spec/wire-extensions.md, QUEUE_TAKE 3 and 4: takes and waits are served in order of arrival, and a wakeup that is
/// passed on reaches a take.
#[test]
fn a_take_is_served_in_its_turn() {
    let mut store = Store::default();
    store.wait(A, &["q"]);
    assert_eq!(store.on(B, take("q", 5)), []);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    assert_eq!(store.set("q", "a value"), [], "values are ignored");
    let passed_on = store.on(A, Request::CancelWait);
    assert_eq!(passed_on[..3], taken(B, &[b"e"]));
    assert_eq!(passed_on[3..], [(A, OwnedReply::Canceled)]);

    // A woken connection uses its wakeup for a take.
    store.on(C, Request::DeleteKey { key: b"q" });
    store.wait(A, &["q"]);
    assert_eq!(store.on(C, push("q", "f")), [stop(A)]);
    assert_eq!(store.on(B, take("q", 5)), taken(B, &[b"f"]));
    assert_eq!(store.on(A, take("q", 5)), [], "B was first");
    assert_eq!(store.on(C, push("q", "g")), taken(A, &[b"g"]));
}

/// docs/spec/wire-extensions.md, QUEUE_TAKE 2.
#[test]
fn a_take_has_at_most_4_mib_and_at_least_one_element() {
    let mut store = Store::default();
    let half = "h".repeat((2 << 20) - 8);
    let whole = "w".repeat(5 << 20);
    for element in [&half, &half, &half, &whole, &half] {
        store.on(C, push("q", element));
    }
    let (half, whole) = (half.as_bytes(), whole.as_bytes());
    let max = usize::MAX;
    assert!(store.on(A, take("q", max)) == taken(A, &[half, half]));
    assert!(store.on(A, take("q", max)) == taken(A, &[half]));
    assert!(store.on(A, take("q", max)) == taken(A, &[whole]));
    assert!(store.on(A, take("q", max)) == taken(A, &[half]));
    assert!(store.state.slots.iter().next().is_none());
}

/// docs/spec/wire.md, QUEUE_POP 3.
#[test]
fn an_emptied_queue_is_removed() {
    let mut store = Store::default();
    for name in ["p", "q", "r"] {
        assert_eq!(store.on(A, pop(name)), [(A, OwnedReply::Integer(0))]);
        store.on(A, push(name, "e"));
        store.on(A, pop(name));
        store.wait(A, &[name]);
        store.on(A, Request::CancelWait);
    }
    assert!(store.state.slots.iter().next().is_none());
}

/// docs/spec/wire.md, BARRIER 2, 3 and 5.
#[test]
fn barriers_complete_as_documented() {
    let mut store = Store::default();
    assert_eq!(store.on(A, barrier("one", 1)), [stop(A)]);
    assert_eq!(store.on(A, barrier("none", 0)), [stop(A)]);
    assert_eq!(store.on(A, barrier("less", -5)), [stop(A)]);

    assert_eq!(store.on(A, barrier("two", 2)), []);
    assert_eq!(
        store.get("two"),
        b"1",
        "the count of an unfinished barrier is visible"
    );
    assert_eq!(store.on(B, barrier("two", 2)), [stop(A), stop(B)]);
    assert_eq!(
        store.on(C, barrier("two", 2)),
        [stop(C)],
        "a completed barrier stays open"
    );
    store.on(C, delete("two"));
    assert_eq!(
        store.on(A, barrier("two", 2)),
        [],
        "a delete resets the barrier"
    );

    assert_eq!(store.on(B, barrier("same", 2)), []);
    assert_eq!(store.on(B, barrier("same", 2)), [stop(B), stop(B)]);

    store.wait(B, &["other"]);
    assert_eq!(store.on(B, barrier("one", 1)), [stop(B)]);
    assert_eq!(store.set("other", "1"), [], "the wait was replaced");

    store.on(A, barrier("mixed", 2));
    assert_eq!(store.on(B, barrier("mixed", 3)), [], "2 < 3: both wait");
    assert_eq!(
        store.on(C, barrier("mixed", 3)),
        [stop(A), stop(B), stop(C)]
    );
}

/// docs/spec/wire.md, BARRIER 6.
#[test]
fn a_cancelled_barrier_arrival_still_counts() {
    let mut store = Store::default();
    store.on(A, barrier("k", 2));
    assert_eq!(
        store.on(A, Request::CancelWait),
        [(A, OwnedReply::Canceled)]
    );
    assert_eq!(store.on(B, barrier("k", 2)), [stop(B)]);

    store.on(A, barrier("l", 2));
    store.disconnect(A);
    assert_eq!(store.on(B, barrier("l", 2)), [stop(B)]);
}

/// docs/spec/wire.md, BARRIER 3 and 4.
#[test]
fn an_unfinished_barrier_wakes_no_waiter_and_any_write_ends_it() {
    let mut store = Store::default();
    store.wait(C, &["k"]);
    assert_eq!(store.on(A, barrier("k", 2)), []);
    assert_eq!(store.on(B, barrier("k", 2)), [stop(C), stop(A), stop(B)]);

    store.on(A, barrier("l", 9));
    assert_eq!(store.set("l", "x"), [stop(A)]);
    store.on(C, delete("l"));
    store.on(A, barrier("l", 9));
    store.on(B, barrier("l", 9));
    assert_eq!(
        store.on(C, push("l", "e")),
        [stop(A)],
        "a push wakes one waiter"
    );
}

/// docs/spec/wire.md, PING 1, and docs/spec/wire-extensions.md, CAPABILITY 2.
#[test]
fn a_ping_returns_capabilities_for_their_nonce_and_echoes_others() {
    let mut store = Store::default();
    let mut ping = |nonce| store.on(A, Request::Ping { nonce });
    let without_groups = 0xC10D_53FF;
    assert_eq!(ping(0xC10D_0000), [(A, OwnedReply::Nonce(without_groups))]);
    for nonce in [0, 1, 0xC10D_0001, 0xC10D_FFFF, u32::MAX] {
        assert_eq!(ping(nonce), [(A, OwnedReply::Nonce(nonce))]);
    }
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 14.
#[test]
fn a_store_without_groups_refuses_requests_to_them_as_unknown_commands() {
    let mut store = StoreState::default();
    for (waits, byte) in [(false, "0x8b"), (true, "0x8c")] {
        let request = Request::Extension(Extension::Membership {
            name: b"/g",
            bytes: &[5],
            waits,
        });
        let refusal = store.handle(ConnId(1), request, &mut Recorder::default());
        let refusal = refusal.expect_err("no groups").to_string();
        assert_eq!(refusal, format!("unknown command {byte}"));
    }
}

/// A cancel must not visit the entries of other connections. The test counts steps instead of time.
#[test]
fn a_cancel_touches_only_its_own_entries() {
    let mut store = StoreState::default();
    let mut sink = Recorder::default();
    let waiters = 2_000_u64;
    for conn in 0..waiters {
        let own = conn.to_string();
        let keys: &[&[u8]] = &[b"shared", own.as_bytes()];
        let keys = Keys::from(keys);
        store
            .handle(ConnId(conn), Request::Wait { keys }, &mut sink)
            .expect("a wait");
    }
    let before = store.waiters.visits();
    for conn in 0..waiters {
        store
            .handle(ConnId(conn), Request::CancelWait, &mut sink)
            .expect("a cancel");
    }
    assert_eq!(store.waiters.visits() - before, 2 * waiters);
    store.check_invariants();
    assert!(store.slots.iter().next().is_none());
}
