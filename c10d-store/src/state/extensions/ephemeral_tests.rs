//! Keys that expire with their owners: docs/spec/wire-extensions.md, section 9.10.

use std::time::Duration;

use c10d_sim::Seeds;

use super::owners::{KeptClient, OWNED_KEYS_MAX};
use super::recovery::recovered;
use crate::message::CloseReason;
use crate::message::{ConnId, Extension, Keys, Payload, Request};
use crate::moment::Moment;
use crate::session::SessionId;
use crate::state::StoreState;
use crate::state::tests::{OwnedReply, Recorder, delete, push, set};

const A: u64 = 1;
const B: u64 = 2;
const W: u64 = 9;

#[derive(Default)]
struct Store {
    state: StoreState,
    now: Duration,
}

type Replies = Vec<(u64, OwnedReply)>;

impl Store {
    fn on(&mut self, conn: u64, request: Request<'_>) -> Replies {
        let mut replies = Recorder::default();
        let handled = self.state.handle(ConnId(conn), request, &mut replies);
        handled.expect("it is accepted");
        self.state.check_invariants();
        replies.0
    }

    fn claim(&mut self, conn: u64, key: &str, value: &str, will: (&str, &str)) -> OwnedReply {
        let replies = self.on(conn, claim(key, value, will));
        replies
            .into_iter()
            .find(|(of, _)| *of == conn)
            .expect("a reply")
            .1
    }

    fn get(&mut self, key: &str) -> String {
        let key = key.as_bytes();
        match &self.on(W, Request::Get { key })[..] {
            [(W, OwnedReply::Bytes(value))] => String::from_utf8_lossy(value).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn has(&mut self, key: &str) -> bool {
        let keys = [key.as_bytes()];
        let keys = Keys::from(&keys[..]);
        self.on(W, Request::Check { keys }) == [(W, OwnedReply::Ready(true))]
    }

    fn wait(&mut self, conn: u64, key: &str) -> Replies {
        let keys = [key.as_bytes()];
        let keys = Keys::from(&keys[..]);
        self.on(conn, Request::Extension(Extension::WaitGet { keys }))
    }

    fn end(&mut self, conn: u64) -> Replies {
        let mut replies = Recorder::default();
        self.state
            .disconnect(ConnId(conn), CloseReason::Peer, &mut replies);
        self.state.check_invariants();
        replies.0
    }

    fn connect(&mut self, conn: u64) {
        let peer = ([127, 0, 0, 1], 1).into();
        self.state.connect(ConnId(conn), peer);
    }

    fn keep_alive(&mut self, conn: u64, millis: u32) -> bool {
        match self.on(conn, Request::Extension(Extension::KeepAlive { millis }))[..] {
            [(_, OwnedReply::KeptAlive(kept))] => kept,
            ref other => panic!("{other:?}"),
        }
    }

    /// Lets time pass as the event loop does: it sleeps until something is due, at most for `step`.
    fn pass(&mut self, time: Duration, step: Duration) -> Replies {
        let end = self.now + time;
        let mut replies = Recorder::default();
        while self.now < end {
            let due = self.state.next_silence().map(Moment::since_start);
            let due = due.map_or(end, |due| due.max(self.now + Duration::from_nanos(1)));
            self.now = end.min(due.max(self.now + step));
            self.state.set_now(Moment::from(self.now));
            self.state.end_silent(&mut replies);
            self.state.check_invariants();
        }
        replies.0
    }
}

fn claim<'a>(key: &'a str, value: &'a str, will: (&'a str, &'a str)) -> Request<'a> {
    Request::Extension(Extension::SetEphemeral {
        key: key.as_bytes(),
        value: value.as_bytes(),
        will_key: will.0.as_bytes(),
        will_value: will.1.as_bytes(),
    })
}

fn bytes(value: &str) -> OwnedReply {
    OwnedReply::Bytes(value.into())
}

/// docs/spec/wire-extensions.md, EPHEMERAL 1 and 2.
#[test]
fn the_first_owns_a_key_and_others_get_its_value() {
    let mut store = Store::default();
    assert_eq!(store.wait(W, "k"), []);
    assert_eq!(
        store.on(A, claim("k", "a", ("", ""))),
        [
            (W, OwnedReply::Stop),
            (W, bytes("a")),
            (A, OwnedReply::Owned)
        ]
    );
    assert_eq!(
        store.on(B, claim("k", "b", ("w", "b"))),
        [(B, OwnedReply::NotOwned), (B, bytes("a"))]
    );
    assert_eq!(store.claim(A, "k", "a2", ("", "")), OwnedReply::Owned);
    assert_eq!(store.get("k"), "a2");
    // A plain value has no owner.
    store.on(A, set("plain", ""));
    assert_eq!(
        store.on(A, claim("plain", "a", ("", ""))),
        [(A, OwnedReply::NotOwned), (A, bytes(""))]
    );
    // A queue is not a value.
    store.on(B, push("q", "e"));
    assert_eq!(store.claim(A, "q", "a", ("", "")), OwnedReply::Owned);
}

/// docs/spec/wire-extensions.md, EPHEMERAL 3.
#[test]
fn keys_end_with_their_owner_in_one_step_and_wills_wake() {
    let mut store = Store::default();
    for (key, will) in [("a", ("gone", "1")), ("b", ("b", "2")), ("c", ("", "3"))] {
        assert_eq!(store.claim(A, key, "x", will), OwnedReply::Owned);
    }
    assert_eq!(
        store.claim(B, "other", "y", ("gone", "4")),
        OwnedReply::Owned
    );
    let keys: [&[u8]; 2] = [b"gone", b"b"];
    let keys = Keys::from(&keys[..]);
    assert_eq!(
        store.on(W, Request::Extension(Extension::WaitGet { keys })),
        []
    );
    store.on(
        7,
        Request::Extension(Extension::WaitChange {
            key: b"b",
            offset: 0,
            length: None,
            known: Payload::Borrowed(b"x"),
        }),
    );
    // The owner's own wait is not answered.
    assert_eq!(store.wait(A, "gone"), []);
    let stop = OwnedReply::Stop;
    assert_eq!(
        store.end(A),
        [
            (W, stop.clone()),
            (W, bytes("1")),
            (W, bytes("2")),
            (7, stop),
            (7, bytes("2"))
        ]
    );
    assert!(!store.has("a") && !store.has("c"));
    // The value of a will has no owner.
    assert_eq!(store.claim(A, "b", "x", ("", "")), OwnedReply::NotOwned);
    assert_eq!(store.get("other"), "y");
    assert_eq!(store.end(B), []);
    assert_eq!(store.get("gone"), "4");
    assert_eq!(store.end(B), [], "once");
}

/// docs/spec/wire-extensions.md, EPHEMERAL 4.
#[test]
fn a_delete_ends_the_ownership_and_a_write_does_not() {
    let mut store = Store::default();
    store.claim(A, "k", "1", ("w", "1"));
    store.on(B, set("k", "2"));
    store.on(B, delete("k"));
    assert_eq!(store.claim(B, "k", "3", ("", "")), OwnedReply::Owned);
    store.claim(A, "l", "1", ("w2", "1"));
    store.on(B, set("l", "2"));
    assert_eq!(store.end(A), []);
    assert!(
        !store.has("w") && !store.has("l"),
        "a write leaves its owner"
    );
    assert_eq!((store.get("k"), store.get("w2")), ("3".into(), "1".into()));
}

/// docs/spec/wire-extensions.md, EPHEMERAL 6.
#[test]
fn an_owner_has_a_limit_of_keys() {
    let mut store = Store::default();
    for key in 0..OWNED_KEYS_MAX {
        assert_eq!(
            store.claim(A, &key.to_string(), "", ("", "")),
            OwnedReply::Owned
        );
    }
    assert_eq!(
        store.claim(A, "more", "", ("", "")),
        OwnedReply::TooManyOwned
    );
    assert!(!store.has("more"));
    assert_eq!(store.claim(A, "7", "again", ("", "")), OwnedReply::Owned);
    store.on(B, delete("7"));
    assert_eq!(store.claim(A, "more", "", ("", "")), OwnedReply::Owned);
    store.end(A);
    assert_eq!(store.state.memory(), 0);
}

/// docs/spec/wire-extensions.md, EPHEMERAL 7.
#[test]
fn wills_take_memory_and_a_full_store_refuses_them() {
    let mut store = Store::default();
    store.state.set_memory_max(Some(10_000));
    let long = "x".repeat(9000);
    store.claim(A, "k", "", ("w", &long));
    let used = store.state.memory();
    assert!((9_500..10_000).contains(&used), "{used}");
    for (conn, key) in [(A, "k2"), (B, "l"), (A, "k")] {
        let request = claim(key, "", ("w", &long));
        let full = OwnedReply::Full(used, 10_000);
        assert_eq!(store.on(conn, request), [(conn, full)]);
    }
    // That changes nothing.
    assert_eq!(store.claim(B, "k", "", ("w", &long)), OwnedReply::NotOwned);
    store.end(A);
    assert!(store.has("w"));
    store.on(B, delete("w"));
    assert_eq!(store.state.memory(), 0);
}

/// docs/spec/wire-extensions.md, EPHEMERAL 5.
#[test]
fn keys_end_by_silence_and_their_owner_learns_of_it_once() {
    let second = Duration::from_secs(1);
    let mut store = Store::default();
    for conn in [A, B, W] {
        store.connect(conn);
    }
    assert!(store.keep_alive(A, 0), "of one that owns nothing");
    store.claim(A, "a", "", ("w", "a"));
    store.claim(B, "b", "", ("", ""));
    assert!(store.keep_alive(A, 1000) && store.keep_alive(B, 1000));
    assert_eq!(store.wait(W, "w"), []);
    assert_eq!(store.pass(second * 9 / 10, second), []);
    // Any request counts.
    store.on(B, Request::GetNumKeys);
    // Includes the time for data that has already arrived.
    let told = store.pass(second / 4, second / 100);
    assert_eq!(told, [(W, OwnedReply::Stop), (W, bytes("a"))]);
    assert!(!store.has("a") && store.has("b"));
    assert!(!store.keep_alive(A, 1000), "it has been silent");
    assert!(store.keep_alive(A, 1000), "it has heard of that");
    // The connection continues, and without keys it may be silent.
    assert_eq!(store.claim(A, "a", "", ("", "")), OwnedReply::Owned);
    assert!(store.keep_alive(B, 0));
    store.pass(second * 2, second / 100);
    assert!(!store.has("a") && store.has("b"), "only B may be silent");
    assert_eq!(store.state.next_silence(), None);
    store.end(A);
    store.end(B);
    assert!(!store.has("b"));
}

/// docs/spec/wire-extensions.md, EPHEMERAL 5. The clients pause for two thirds of the time, and the server is busy.
#[test]
fn no_key_ends_by_a_pause_that_is_shorter_than_the_silence() {
    for seed in Seeds::fresh(1000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut store = Store::default();
        let silence = random.u32(50..5000);
        let pause = Duration::from_millis(u64::from(silence)) * 2 / 3;
        for conn in [A, B] {
            store.connect(conn);
            store.claim(conn, &conn.to_string(), "", ("", ""));
            assert!(store.keep_alive(conn, silence));
        }
        for _ in 0..20 {
            let step = Duration::from_millis(random.u64(1..50));
            store.pass(pause, step);
            for conn in [A, B] {
                assert!(store.keep_alive(conn, silence));
            }
        }
        // A stopped server first reads the data that has arrived, or reads it soon.
        store.now += pause * 9;
        store.state.set_now(Moment::from(store.now));
        store.state.end_silent(&mut Recorder::default());
        assert!(store.keep_alive(A, silence));
        // The keys of a silent owner expire in time.
        let silence = Duration::from_millis(u64::from(silence));
        store.pass(silence, Duration::from_millis(20));
        store.pass(Duration::from_millis(130), Duration::from_millis(20));
        assert!(!store.has("1") && !store.has("2"));
    }
}

/// docs/spec/wire-extensions.md, EPHEMERAL 5. A stopped member is detected within this time, whatever its group does.
#[test]
fn a_server_that_is_awake_ends_the_keys_of_a_silent_owner_within_21_ms() {
    let ms = Duration::from_millis(1);
    for silence in [1, 30, 500, 2000] {
        let mut store = Store::default();
        store.connect(A);
        store.claim(A, "a", "", ("", ""));
        assert!(store.keep_alive(A, silence));
        store.pass(ms * 10, Duration::ZERO);
        // Any request counts.
        store.on(A, Request::GetNumKeys);
        store.pass(ms * silence, Duration::ZERO);
        assert!(store.has("a"), "silence {silence}");
        store.pass(ms * 21, Duration::ZERO);
        assert!(!store.has("a"), "silence {silence}");
    }
}

/// docs/spec/wire-extensions.md, EPHEMERAL 5. The server may be stopped at any time, and for any length; it reads the
/// data that has arrived within 60 ms.
#[test]
fn a_server_that_was_stopped_hears_what_has_arrived_first() {
    let ms = Duration::from_millis(1);
    for stopped_at in (0..2200).step_by(7) {
        for stopped_for in [30, 110, 900, 9000] {
            let mut store = Store::default();
            store.connect(A);
            store.claim(A, "a", "", ("", ""));
            assert!(store.keep_alive(A, 1000));
            for heard in [500, 1000, 1500, 2000] {
                let until = (ms * heard.min(stopped_at)).max(store.now);
                store.pass(until - store.now, Duration::ZERO);
                if heard <= stopped_at {
                    assert!(store.keep_alive(A, 1000), "stopped at {stopped_at}");
                }
            }
            store.pass((ms * stopped_at).max(store.now) - store.now, Duration::ZERO);
            store.now += ms * stopped_for;
            store.state.set_now(Moment::from(store.now));
            store.state.end_silent(&mut Recorder::default());
            store.pass(ms * 60, ms);
            assert!(
                store.keep_alive(A, 1000),
                "stopped at {stopped_at} ms for {stopped_for} ms"
            );
        }
    }
}

/// Whatever is set, and however often owners change, nothing is left of those that have ended.
#[test]
fn changes_of_ownership_leave_the_memory_flat() {
    let mut store = Store::default();
    let mut most = 0;
    for round in 0..10_000_u64 {
        let conn = 100 + round;
        store.connect(conn);
        store.keep_alive(conn, 500 + (round % 7) as u32);
        assert_eq!(
            store.claim(conn, "leader", &round.to_string(), ("last", "x")),
            OwnedReply::Owned
        );
        store.keep_alive(conn, 400);
        most = most.max(store.state.memory());
        store.end(conn);
        assert_eq!(store.state.next_silence(), None);
    }
    assert!(most < 1500, "{most}");
    assert_eq!(
        (store.get("last").as_str(), store.has("leader")),
        ("x", false)
    );
    let last = store.state.memory();
    assert!(last < 300, "{last}");
}

const SESSION: SessionId = SessionId::nth(7);

fn client(number: u32) -> KeptClient {
    KeptClient {
        session: SESSION,
        number,
    }
}

/// The store after a restart, from its batches or from a snapshot.
fn restart(store: &mut Store, from_snapshot: bool) -> Store {
    let mut restarted = Store {
        state: recovered(&mut store.state, from_snapshot),
        ..Store::default()
    };
    restarted.state.start_recording(100);
    restarted.state.end_recovered();
    restarted.state.check_invariants();
    restarted
}

/// docs/spec/wire-extensions.md, EPHEMERAL 8.
#[test]
fn keys_of_connections_end_at_a_restart_and_those_of_kept_clients_go_on() {
    for from_snapshot in [false, true] {
        let mut store = Store::default();
        store.state.start_recording(0);
        store.claim(A, "direct", "", ("w", "direct"));
        for conn in [3, 4, 5] {
            store.connect(conn);
            store.state.name_client(ConnId(conn), client(conn as u32));
            let key = conn.to_string();
            store.claim(conn, &key, "", ("w2", &key));
        }
        store.keep_alive(3, 1000);
        store.claim(A, "deleted", "", ("w3", ""));
        store.on(B, delete("deleted"));

        let mut store = restart(&mut store, from_snapshot);
        assert!(!store.has("direct") && !store.has("w3"));
        assert_eq!(store.get("w"), "direct");
        assert!(store.has("3") && store.has("4") && store.has("5"));
        // One client has returned, and owns its key.
        store.connect(33);
        store.state.adopt(ConnId(33), client(3));
        assert_eq!(
            store.claim(33, "3", "again", ("w2", "3")),
            OwnedReply::Owned
        );
        assert_eq!(store.claim(33, "4", "", ("", "")), OwnedReply::NotOwned);
        // One client does not continue its session.
        store.state.end_client(client(4), &mut Recorder::default());
        assert!(!store.has("4"));
        assert_eq!(store.get("w2"), "4");
        // The time of the silence starts again.
        store.pass(Duration::from_millis(900), Duration::from_millis(10));
        assert!(store.has("3"));
        store.pass(Duration::from_millis(350), Duration::from_millis(10));
        assert!(!store.has("3"));
        // The client is notified after another restart as well.
        let mut store = restart(&mut store, false);
        assert!(!store.has("3"));
        store.connect(34);
        store.state.adopt(ConnId(34), client(3));
        assert!(!store.keep_alive(34, 1000) && store.keep_alive(34, 1000));
    }
}

/// docs/spec/wire-extensions.md, EPHEMERAL 8.
#[test]
fn keys_of_clients_that_have_not_come_back_end_with_their_session() {
    let mut store = Store::default();
    store.state.start_recording(0);
    for conn in [3, 4] {
        store.state.name_client(ConnId(conn), client(conn as u32));
        let key = conn.to_string();
        store.claim(conn, &key, "", (&key, "gone"));
    }
    let mut store = restart(&mut store, false);
    assert_eq!(store.wait(W, "5"), []);
    store
        .state
        .end_clients_of(SESSION, &mut Recorder::default());
    store.state.check_invariants();
    assert_eq!(
        (store.get("3"), store.get("4")),
        ("gone".into(), "gone".into())
    );
    assert_eq!(store.claim(3, "3", "", ("", "")), OwnedReply::NotOwned);
}
