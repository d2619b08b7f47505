//! Every command's replies as whole lists, and what ours does where PyTorch's server has a bug.

use super::{Refusal, StoreState};
use crate::known::Known;
use crate::message::{ConnId, Keys, Payload, Replies, Reply, Request};

/// A reply that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Nonce(u32),
    Integer(i64),
    Ready(bool),
    Stop,
    Canceled,
    Exchanged(bool),
    Bytes(Vec<u8>),
    Added(i64),
    NotANumber(Vec<u8>, usize),
}

/// Collects replies in order.
#[derive(Debug, Default)]
pub(super) struct Recorder(pub(super) Vec<(u64, Said)>);

impl Replies for Recorder {
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>) {
        let said = match reply {
            Reply::Nonce(nonce) => Said::Nonce(nonce),
            Reply::Integer(number) => Said::Integer(number),
            Reply::Ready(ready) => Said::Ready(ready),
            Reply::StopWaiting => Said::Stop,
            Reply::WaitCanceled => Said::Canceled,
            Reply::Exchanged(exchanged) => Said::Exchanged(exchanged),
            Reply::Added(sum) => Said::Added(sum),
            Reply::NotANumber { head, length } => Said::NotANumber(head.to_vec(), length),
            Reply::Value(None) => Said::Bytes(Vec::new()),
            Reply::Value(Some(value)) => Said::Bytes(value.as_bytes().to_vec()),
            Reply::Bytes(bytes) => Said::Bytes(bytes.to_vec()),
        };
        self.0.push((conn.0, said));
    }
}

/// A state and a way to talk to it in one line.
#[derive(Debug, Default)]
struct Store {
    state: StoreState,
}

const A: u64 = 1;
const B: u64 = 2;
const C: u64 = 3;

impl Store {
    fn on(&mut self, conn: u64, request: Request<'_>) -> Vec<(u64, Said)> {
        let mut recorder = Recorder::default();
        self.state
            .handle(ConnId(conn), request, &mut recorder)
            .expect("a request that can be answered");
        self.state.check_invariants();
        recorder.0
    }

    fn refused(&mut self, conn: u64, request: Request<'_>) -> Refusal {
        let mut recorder = Recorder::default();
        let result = self.state.handle(ConnId(conn), request, &mut recorder);
        assert_eq!(recorder.0, [], "a refusal says nothing");
        self.state.check_invariants();
        result.expect_err("a request that cannot be answered")
    }

    fn disconnect(&mut self, conn: u64) -> Vec<(u64, Said)> {
        let mut recorder = Recorder::default();
        self.state.disconnect(ConnId(conn), &mut recorder);
        self.state.check_invariants();
        recorder.0
    }

    fn set(&mut self, key: &str, value: &str) -> Vec<(u64, Said)> {
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
            [(C, Said::Bytes(bytes))] => bytes.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, conn: u64, keys: &[&str]) -> Vec<(u64, Said)> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let keys = Keys::from(&keys[..]);
        self.on(conn, Request::Wait { keys })
    }

    fn wait_get(&mut self, conn: u64, keys: &[&str]) -> Vec<(u64, Said)> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let keys = Keys::from(&keys[..]);
        self.on(conn, Request::WaitGet { keys })
    }

    fn wait_change(&mut self, conn: u64, key: &str, known: Known<'_>) -> Vec<(u64, Said)> {
        self.on(conn, wait_change(key, known))
    }
}

fn set<'a>(key: &'a str, value: &'a str) -> Request<'a> {
    Request::Set {
        key: key.as_bytes(),
        value: Payload::Borrowed(value.as_bytes()),
    }
}

fn wait_change<'a>(key: &'a str, known: Known<'a>) -> Request<'a> {
    Request::WaitChange {
        key: key.as_bytes(),
        offset: known.offset(),
        length: known.len(),
        known: Payload::Borrowed(known.bytes()),
    }
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
    Request::TryAdd {
        key: key.as_bytes(),
        delta,
    }
}

fn compare_set<'a>(key: &'a str, expected: &'a str, desired: &'a str) -> Request<'a> {
    Request::CompareSet {
        key: key.as_bytes(),
        expected: expected.as_bytes(),
        desired: Payload::Borrowed(desired.as_bytes()),
        reports_outcome: false,
    }
}

fn compare_exchange<'a>(key: &'a str, expected: &'a str, desired: &'a str) -> Request<'a> {
    Request::CompareSet {
        key: key.as_bytes(),
        expected: expected.as_bytes(),
        desired: Payload::Borrowed(desired.as_bytes()),
        reports_outcome: true,
    }
}

fn barrier(key: &str, world_size: i64) -> Request<'_> {
    Request::Barrier {
        key: key.as_bytes(),
        world_size,
    }
}

fn push<'a>(key: &'a str, element: &'a str) -> Request<'a> {
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

fn delete(key: &str) -> Request<'_> {
    Request::DeleteKey {
        key: key.as_bytes(),
    }
}

fn stop(conn: u64) -> (u64, Said) {
    (conn, Said::Stop)
}

fn bytes(conn: u64, text: &str) -> (u64, Said) {
    (conn, Said::Bytes(text.as_bytes().to_vec()))
}

#[test]
fn compare_set_writes_on_a_match_and_answers_with_what_is_there() {
    // docs/wire.md, COMPARE_SET: present value (if any), expected, answer, value afterwards.
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
        let said = store.on(A, compare_set("k", expected, "new"));
        assert_eq!(said, [bytes(A, answer)], "{present:?} {expected:?}");
        let key: &[&[u8]] = &[b"k"];
        let keys = Keys::from(key);
        assert_eq!(
            store.on(A, Request::Check { keys }),
            [(A, Said::Ready(after.is_some()))]
        );
        assert_eq!(store.get("k"), after.unwrap_or_default().as_bytes());
    }
}

#[test]
fn compare_exchange_tells_a_write_from_a_value_that_was_desired_already() {
    let mut store = Store::default();
    let mut ask = |expected| store.on(A, compare_exchange("k", expected, "new"));
    // docs/wire.md, COMPARE_EXCHANGE: the answers of COMPARE_SET alone are "x", "new" and "new".
    let told = |exchanged, value| [(A, Said::Exchanged(exchanged)), bytes(A, value)];
    assert_eq!(ask("x"), told(false, "x"));
    assert_eq!(ask(""), told(true, "new"));
    assert_eq!(ask(""), told(false, "new"));
    assert_eq!(ask("new"), told(true, "new"));
}

#[test]
fn compare_set_wakes_exactly_when_it_wrote() {
    let mut store = Store::default();
    assert_eq!(store.wait(A, &["k"]), []);
    assert_eq!(store.on(B, compare_set("k", "x", "v")), [bytes(B, "x")]);
    assert_eq!(
        store.on(B, compare_set("k", "", "v")),
        [stop(A), bytes(B, "v")]
    );
}

#[test]
fn add_refuses_what_is_no_number_and_changes_nothing() {
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
        [(A, Said::Integer(i64::MIN))],
        "overflow wraps"
    );
    assert_eq!(store.get("k"), b"-9223372036854775808");
}

#[test]
fn try_add_answers_what_is_no_number_and_changes_nothing() {
    let mut store = Store::default();
    let long = "x".repeat(100);
    for text in ["", "abc", "--1", "9223372036854775808", &long] {
        store.set("k", text);
        let head = text.as_bytes()[..text.len().min(64)].to_vec();
        assert_eq!(
            store.on(A, try_add("k", 1)),
            [(A, Said::NotANumber(head, text.len()))]
        );
        assert_eq!(store.get("k"), text.as_bytes());
    }
    // TRY_ADD 1: otherwise it is ADD, which creates, wraps and wakes.
    assert_eq!(store.wait(B, &["n"]), []);
    assert_eq!(
        store.on(A, try_add("n", i64::MAX)),
        [stop(B), (A, Said::Added(i64::MAX))]
    );
    assert_eq!(store.on(A, try_add("n", 1)), [(A, Said::Added(i64::MIN))]);
    assert_eq!(store.get("n"), b"-9223372036854775808");
}

#[test]
fn a_wait_ends_when_each_key_has_been_there_once() {
    let mut store = Store::default();
    store.set("a", "1");
    assert_eq!(store.wait(A, &["a", "b", "c", "b"]), []);
    assert_eq!(store.set("b", "1"), []);
    store.on(C, delete("b"));
    assert_eq!(store.set("c", "1"), [stop(A)]);
    assert_eq!(store.set("c", "2"), [], "one answer for one wait");
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let mut store = Store::default();
    for conn in [B, A, 9, 4] {
        assert_eq!(store.wait(conn, &["k"]), []);
    }
    assert_eq!(store.set("k", "v"), [stop(B), stop(A), stop(9), stop(4)]);
}

#[test]
fn a_second_wait_replaces_the_first() {
    let mut store = Store::default();
    store.wait(A, &["old"]);
    store.wait(A, &["new"]);
    assert_eq!(store.set("old", "1"), []);
    assert_eq!(store.set("new", "1"), [stop(A)]);
}

#[test]
fn after_a_cancel_nothing_more_comes() {
    let mut store = Store::default();
    store.wait(A, &["k", "l"]);
    assert_eq!(store.set("k", "1"), []);
    assert_eq!(store.on(A, Request::CancelWait), [(A, Said::Canceled)]);
    assert_eq!(store.set("l", "1"), []);
    assert_eq!(
        store.on(A, Request::CancelWait),
        [(A, Said::Canceled)],
        "one answer for each cancel, pending or not"
    );
}

#[test]
fn wait_get_answers_with_the_values_of_one_moment() {
    let mut store = Store::default();
    store.set("a", "1");
    assert_eq!(
        store.wait_get(A, &["a", "a"]),
        [stop(A), bytes(A, "1"), bytes(A, "1")]
    );
    assert_eq!(store.wait_get(A, &[]), [stop(A)]);

    assert_eq!(store.wait_get(A, &["b", "a"]), []);
    assert_eq!(store.set("b", "2"), [stop(A), bytes(A, "2"), bytes(A, "1")]);

    // A key that came first and is gone when the last one comes is waited for again.
    assert_eq!(store.wait_get(A, &["x", "y"]), []);
    store.set("x", "1");
    store.on(C, delete("x"));
    assert_eq!(store.set("y", "2"), []);
    assert_eq!(store.set("x", "3"), [stop(A), bytes(A, "3"), bytes(A, "2")]);
}

#[test]
fn multi_set_writes_all_before_it_wakes_anyone() {
    let mut store = Store::default();
    store.set("a", "old");
    store.wait_get(A, &["a", "b"]);
    let pairs: &[&[u8]] = &[b"b", b"1", b"a", b"new", b"b", b"2"];
    let pairs = Keys::from(pairs);
    assert_eq!(
        store.on(C, Request::MultiSet { pairs }),
        [stop(A), bytes(A, "new"), bytes(A, "2")]
    );
}

#[test]
fn wait_get_does_not_take_a_queue_for_a_value() {
    let mut store = Store::default();
    assert_eq!(store.wait_get(A, &["k"]), []);
    assert_eq!(store.wait(B, &["k"]), []);
    assert_eq!(store.on(C, push("k", "e")), [stop(B)]);
    assert_eq!(store.set("k", "v"), [stop(A), bytes(A, "v")]);
}

#[test]
fn wait_get_can_be_cancelled() {
    let mut store = Store::default();
    store.wait_get(A, &["k"]);
    assert_eq!(store.on(A, Request::CancelWait), [(A, Said::Canceled)]);
    assert_eq!(store.set("k", "v"), []);
}

/// docs/wire.md, WAIT_CHANGE 1.
#[test]
fn wait_change_answers_at_once_what_differs_already() {
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
        let said = store.wait_change(A, "k", known);
        assert_eq!(said, [stop(A), bytes(A, "round 7, beat 1")], "{known:?}");
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

/// docs/wire.md, WAIT_CHANGE 2: the first write after which it differs, whatever writes.
#[test]
fn wait_change_answers_the_first_write_that_makes_a_difference() {
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
        assert_eq!(store.set("k", "5"), [], "a write of the same");
        assert_eq!(
            store.on(B, compare_set("k", "x", "6")),
            [bytes(B, "5")],
            "no write"
        );
        assert_eq!(store.set("other", "6"), []);
        let said = store.on(B, write);
        assert_eq!(said[..2], [stop(A), bytes(A, after)]);
        assert_eq!(store.set("k", "8"), [], "one answer for one wait");
    }

    // The part only, and the whole value in the answer.
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

/// docs/wire.md, WAIT_CHANGE 3.
#[test]
fn wait_change_waits_for_a_missing_key_and_compares_what_comes() {
    let mut store = Store::default();
    assert_eq!(store.wait_change(A, "k", Known::whole(b"1")), []);
    assert_eq!(store.wait_change(B, "k", Known::nothing()), []);
    assert_eq!(store.set("k", "1"), [stop(B), bytes(B, "1")]);
    store.on(C, delete("k"));
    assert_eq!(store.set("k", "1"), [], "deleted and back: no difference");
    store.on(C, delete("k"));
    assert_eq!(store.set("k", ""), [stop(A), bytes(A, "")]);
    store.on(C, delete("k"));
    assert!(store.state.slots.is_empty());
}

/// docs/wire.md, WAIT_CHANGE 4.
#[test]
fn wait_change_takes_no_queue_for_a_value_and_no_unfinished_barrier_for_a_write() {
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

    // Who knows what an unfinished arrival wrote waits on when the next write brings it again.
    store.set("n", "1");
    assert_eq!(store.wait_change(A, "n", Known::whole(b"1")), []);
    assert_eq!(store.on(B, barrier("n", 9)), []);
    assert_eq!(store.set("n", "1"), [stop(B)]);
    assert_eq!(store.set("n", "2"), [stop(A), bytes(A, "2")]);
}

/// docs/wire.md, WAIT_CHANGE 5.
#[test]
fn wait_change_is_replaced_cancelled_and_forgotten_as_any_wait() {
    let mut store = Store::default();
    store.set("k", "1");
    let known = Known::whole(b"1");
    store.wait_change(A, "k", known);
    assert_eq!(store.on(A, Request::CancelWait), [(A, Said::Canceled)]);
    assert_eq!(store.set("k", "2"), []);

    store.set("k", "1");
    store.wait_change(A, "k", known);
    store.wait(A, &["other"]);
    assert_eq!(store.set("k", "2"), []);
    store.wait_change(A, "k", Known::whole(b"2"));
    assert_eq!(store.set("other", ""), []);
    assert_eq!(store.set("k", "3"), [stop(A), bytes(A, "3")]);

    store.wait_change(A, "k", Known::whole(b"3"));
    store.wait_change(B, "k", Known::whole(b"3"));
    assert_eq!(store.disconnect(A), []);
    assert_eq!(store.set("k", "4"), [stop(B), bytes(B, "4")]);
    store.on(C, delete("k"));
    store.on(C, delete("other"));
    assert!(store.state.slots.is_empty());
}

#[test]
fn multi_set_compares_once_all_pairs_are_written() {
    let mut store = Store::default();
    store.set("k", "1");
    store.wait_change(A, "k", Known::whole(b"1"));
    let there_and_back: &[&[u8]] = &[b"k", b"2", b"k", b"1"];
    let pairs = Keys::from(there_and_back);
    assert_eq!(store.on(C, Request::MultiSet { pairs }), []);
    let twice: &[&[u8]] = &[b"k", b"2", b"k", b"3"];
    let pairs = Keys::from(twice);
    let said = store.on(C, Request::MultiSet { pairs });
    assert_eq!(said, [stop(A), bytes(A, "3")]);
}

/// Counted, not timed: heartbeats behind a part that thousands wait for must stay cheap.
#[test]
fn a_write_is_compared_once_for_all_who_know_the_same() {
    let mut store = StoreState::new();
    let mut sink = Recorder::default();
    let mut handle = |store: &mut StoreState, conn: u64, request: Request<'_>| {
        store
            .handle(ConnId(conn), request, &mut sink)
            .expect("a request that can be answered");
        std::mem::take(&mut sink.0)
    };
    handle(&mut store, 0, set("k", "round 7, beat 0"));
    let round = Known::part(b"round 7, beat 0", 0..7);
    let waiters = 1_000;
    for conn in 1..=waiters {
        assert_eq!(handle(&mut store, conn, wait_change("k", round)), []);
    }
    for beat in 1..=9 {
        let said = handle(&mut store, 0, set("k", &format!("round 7, beat {beat}")));
        assert_eq!(said, []);
    }
    assert_eq!(store.comparisons, 9);
    let said = handle(&mut store, 0, set("k", "round 8"));
    assert_eq!(store.comparisons, 10);
    let want: Vec<_> = (1..=waiters)
        .flat_map(|conn| [stop(conn), bytes(conn, "round 8")])
        .collect();
    assert!(said == want, "everybody, in order of arrival");
    store.check_invariants();
}

#[test]
fn a_push_wakes_one_waiter_and_an_unused_wake_goes_to_the_next() {
    let mut store = Store::default();
    store.wait(A, &["q"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    // Dying, cancelling (a timeout that crosses the wake) and turning to something else all leave
    // the element to B.
    assert_eq!(store.disconnect(A), [stop(B)]);
    assert_eq!(
        store.on(B, pop("q")),
        [(B, Said::Integer(1)), bytes(B, "e")]
    );

    store.wait(A, &["q"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    assert_eq!(
        store.on(A, Request::CancelWait),
        [stop(B), (A, Said::Canceled)]
    );
    store.on(B, pop("q"));

    store.wait(A, &["q"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    assert_eq!(
        store.on(A, Request::Ping { nonce: 5 }),
        [(A, Said::Nonce(5))],
        "a PING decides nothing"
    );
    assert_eq!(
        store.on(A, pop("q")),
        [(A, Said::Integer(1)), bytes(A, "e")]
    );
    assert_eq!(store.on(C, push("q", "f")), [stop(B)]);
}

#[test]
fn a_waiter_of_a_queue_and_a_key_needs_both_once() {
    // PyTorch hangs on the first order and counts two pushes as two keys.
    let mut store = Store::default();
    store.on(C, push("q", "e"));
    assert_eq!(store.wait(A, &["q", "x"]), []);
    assert_eq!(store.set("x", "1"), [stop(A)]);

    let mut store = Store::default();
    assert_eq!(store.wait(A, &["q", "x"]), []);
    assert_eq!(store.on(C, push("q", "e")), []);
    assert_eq!(store.on(C, push("q", "f")), []);
    assert_eq!(store.set("x", "1"), [stop(A)]);
}

#[test]
fn a_woken_waiter_is_off_the_queues_list() {
    // In PyTorch the second push releases the wait on another key.
    let mut store = Store::default();
    store.wait(A, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    store.on(A, pop("q"));
    store.wait(A, &["other"]);
    assert_eq!(store.on(C, push("q", "f")), []);
    assert_eq!(store.set("other", "1"), [stop(A)]);
}

#[test]
fn an_emptied_queue_leaves_nothing_behind() {
    let mut store = Store::default();
    for name in ["p", "q", "r"] {
        assert_eq!(store.on(A, pop(name)), [(A, Said::Integer(0))]);
        store.on(A, push(name, "e"));
        store.on(A, pop(name));
        store.wait(A, &[name]);
        store.on(A, Request::CancelWait);
    }
    assert!(store.state.slots.is_empty());
}

#[test]
fn barrier_rows_of_the_document() {
    let mut store = Store::default();
    assert_eq!(store.on(A, barrier("one", 1)), [stop(A)]);
    assert_eq!(store.on(A, barrier("none", 0)), [stop(A)]);
    assert_eq!(store.on(A, barrier("less", -5)), [stop(A)]);

    assert_eq!(store.on(A, barrier("two", 2)), []);
    assert_eq!(
        store.get("two"),
        b"1",
        "an unfinished arrival is there already"
    );
    assert_eq!(store.on(B, barrier("two", 2)), [stop(A), stop(B)]);
    assert_eq!(store.on(C, barrier("two", 2)), [stop(C)], "stays open");
    store.on(C, delete("two"));
    assert_eq!(store.on(A, barrier("two", 2)), [], "fresh after a delete");

    assert_eq!(store.on(B, barrier("same", 2)), []);
    assert_eq!(store.on(B, barrier("same", 2)), [stop(B), stop(B)]);

    store.on(A, barrier("mixed", 2));
    assert_eq!(store.on(B, barrier("mixed", 3)), [], "2 < 3: both wait");
    assert_eq!(
        store.on(C, barrier("mixed", 3)),
        [stop(A), stop(B), stop(C)]
    );
}

#[test]
fn a_barrier_arrival_counts_even_when_it_is_given_up() {
    let mut store = Store::default();
    store.on(A, barrier("k", 2));
    assert_eq!(store.on(A, Request::CancelWait), [(A, Said::Canceled)]);
    assert_eq!(store.on(B, barrier("k", 2)), [stop(B)]);

    store.on(A, barrier("l", 2));
    store.disconnect(A);
    assert_eq!(store.on(B, barrier("l", 2)), [stop(B)]);
}

#[test]
fn an_unfinished_barrier_wakes_nobody_and_any_write_releases_it() {
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
        "a push releases one"
    );
}

#[test]
fn a_disconnect_forgets_the_wait() {
    let mut store = Store::default();
    store.wait(A, &["k", "l"]);
    store.wait(B, &["k"]);
    assert_eq!(store.disconnect(A), []);
    assert_eq!(store.set("k", "v"), [stop(B)]);
}

#[test]
fn the_capability_nonce_is_answered_with_capabilities_and_others_echoed() {
    let mut store = Store::default();
    let mut ping = |nonce| store.on(A, Request::Ping { nonce });
    assert_eq!(ping(0xC10D_0000), [(A, Said::Nonce(0xC10D_000F))]);
    for nonce in [0, 1, 0xC10D_0001, 0xC10D_FFFF, u32::MAX] {
        assert_eq!(ping(nonce), [(A, Said::Nonce(nonce))]);
    }
}

/// A cancel must cost the canceller's entries, not everybody's; counted, not timed.
#[test]
fn a_cancel_touches_only_its_own_entries() {
    let mut store = StoreState::new();
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
    let before = store.waiters.steps();
    for conn in 0..waiters {
        store
            .handle(ConnId(conn), Request::CancelWait, &mut sink)
            .expect("a cancel");
    }
    assert_eq!(store.waiters.steps() - before, 2 * waiters);
    store.check_invariants();
    assert!(store.slots.is_empty());
}
