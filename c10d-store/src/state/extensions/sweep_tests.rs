//! The deletion of names with a prefix: docs/spec/wire-extensions.md, section 9.12.

use std::collections::BTreeMap;
use std::time::Duration;

use c10d_sim::Seeds;

use super::recovery::recovered;
use super::sweeps::SCHEDULED_MAX;
use crate::message::CloseReason;
use crate::message::{ConnId, Extension, Keys, Request};
use crate::moment::Moment;
use crate::state::StoreState;
use crate::state::tests::{OwnedReply, Recorder, push, set};

const A: u64 = 1;
const B: u64 = 2;

type Replies = Vec<(u64, OwnedReply)>;

fn on(state: &mut StoreState, conn: u64, request: Request<'_>) -> Replies {
    let mut replies = Recorder::default();
    let handled = state.handle(ConnId(conn), request, &mut replies);
    handled.expect("it is accepted");
    state.check_invariants();
    replies.0
}

fn delete_prefix(prefix: &str, delay_millis: u32) -> Request<'_> {
    Request::Extension(Extension::DeletePrefix {
        prefix: prefix.as_bytes(),
        delay_millis,
    })
}

/// Deletes until nothing is left to do. Returns the replies.
fn finish(state: &mut StoreState) -> Replies {
    let mut replies = Recorder::default();
    state.continue_sweep(&mut replies);
    while state.can_sweep() {
        state.continue_sweep(&mut replies);
    }
    state.check_invariants();
    replies.0
}

fn has(state: &mut StoreState, key: &str) -> bool {
    let keys = [key.as_bytes()];
    let keys = Keys::from(&keys[..]);
    on(state, 99, Request::Check { keys }) == [(99, OwnedReply::Ready(true))]
}

fn deleted(conn: u64, count: i64) -> Replies {
    vec![(conn, OwnedReply::Integer(count))]
}

/// docs/spec/wire-extensions.md, DELETE_PREFIX 1 and 2.
#[test]
fn values_and_queues_with_the_prefix_are_deleted_and_waits_go_on() {
    let mut state = StoreState::default();
    for key in ["p/a", "p/b", "p", "q/a"] {
        on(&mut state, B, set(key, "v"));
    }
    for key in ["p/b", "p/q", "q"] {
        on(&mut state, B, push(key, "element"));
    }
    let owned = Request::Extension(Extension::SetEphemeral {
        key: b"p/owned",
        value: b"",
        will_key: b"p/will",
        will_value: b"",
    });
    on(&mut state, B, owned);
    let keys: [&[u8]; 1] = [b"p/new"];
    let keys = Keys::from(&keys[..]);
    assert_eq!(
        on(
            &mut state,
            B,
            Request::Extension(Extension::WaitGet { keys })
        ),
        []
    );
    assert_eq!(on(&mut state, A, delete_prefix("p/", 0)), []);
    assert!(state.is_sweeping_for(ConnId(A)) && state.is_waiting(ConnId(A)));
    // Later writes of this prefix are not deleted.
    on(&mut state, 3, set("p/late", "v"));
    on(&mut state, 3, push("p/late queue", "element"));
    assert_eq!(finish(&mut state), deleted(A, 4));
    assert!(!state.is_sweeping_for(ConnId(A)));
    for (key, is_there) in [
        ("p/a", false),
        ("p/b", false),
        ("p/q", false),
        ("p/owned", false),
        ("p", true),
        ("q", true),
        ("q/a", true),
        ("p/late", true),
        ("p/late queue", true),
    ] {
        assert_eq!(has(&mut state, key), is_there, "{key}");
    }
    let woken = on(&mut state, 3, set("p/new", "v"));
    assert_eq!(woken[0], (B, OwnedReply::Stop));
    // Without its will.
    let mut replies = Recorder::default();
    state.disconnect(ConnId(B), CloseReason::Peer, &mut replies);
    assert!(!has(&mut state, "p/will"));
    on(&mut state, A, delete_prefix("p/", 0));
    on(&mut state, A, delete_prefix("q", 0));
    let both = [deleted(A, 3), deleted(A, 2)].concat();
    assert_eq!(finish(&mut state), both, "one after the other");
    // The requesting connection has ended.
    on(&mut state, A, set("p/x", ""));
    on(&mut state, A, delete_prefix("p", 0));
    state.disconnect(ConnId(A), CloseReason::Peer, &mut replies);
    assert_eq!(finish(&mut state), []);
    assert!(!has(&mut state, "p/x") && !has(&mut state, "p"));
}

/// docs/spec/wire-extensions.md, DELETE_PREFIX 2, with other requests between any two slices.
#[test]
fn what_is_written_meanwhile_stays_and_all_else_goes() {
    for seed in Seeds::fresh(40) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut state = StoreState::default();
        let names: Vec<String> = (0..random.usize(6000..9000))
            .map(|name| format!("{}{name}", ["p/", "q/"][name % 2]))
            .collect();
        for name in &names {
            match random.u8(..4) {
                0 => _ = state.handle(ConnId(B), push(name, "element"), &mut Recorder::default()),
                1 => {}
                _ => _ = state.handle(ConnId(B), set(name, "1"), &mut Recorder::default()),
            }
        }
        let mut replies = Recorder::default();
        let asked = state.handle(ConnId(A), delete_prefix("p/", 0), &mut replies);
        asked.expect("accepted");
        // Whether a value, and a queue, was written since.
        let mut since: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
        while state.can_sweep() {
            state.continue_sweep(&mut replies);
            for _ in 0..random.usize(..60) {
                let name = &names[random.usize(..names.len())];
                let entry = since.entry(name).or_default();
                let key = name.as_bytes();
                let keys = [key];
                let request = match random.u8(..7) {
                    0 => {
                        entry.0 = true;
                        set(name, "2")
                    }
                    1 => {
                        entry.0 = false;
                        Request::DeleteKey { key }
                    }
                    2 => {
                        entry.1 = true;
                        push(name, "element")
                    }
                    3 => Request::Extension(Extension::WaitGet {
                        keys: Keys::from(&keys[..]),
                    }),
                    4 => Request::CancelWait,
                    _ => Request::Get { key },
                };
                let mut others = Recorder::default();
                state
                    .handle(ConnId(7), request, &mut others)
                    .expect("accepted");
            }
        }
        assert_eq!(replies.0.len(), 1);
        state.check_invariants();
        for name in names.iter().filter(|name| name.starts_with("p/")) {
            let (value, queue) = since.get(&**name).copied().unwrap_or_default();
            let key = name.as_bytes();
            let slot = state.slots.get(key);
            let has_queue = slot.is_some_and(|slot| slot.queue.is_some());
            assert_eq!(has_queue, queue, "{name}");
            let stored = slot.is_some_and(|slot| slot.stored.is_some());
            assert_eq!(stored, value, "{name}");
        }
    }
}

/// docs/spec/wire-extensions.md, DELETE_PREFIX 4.
#[test]
fn a_prefix_is_deleted_later_and_a_later_request_replaces_the_delay() {
    let mut state = StoreState::default();
    let at = |millis| Moment::from(Duration::from_millis(millis));
    for key in ["p/a", "q/a"] {
        on(&mut state, B, set(key, ""));
    }
    assert_eq!(on(&mut state, A, delete_prefix("p/", 100)), deleted(A, 0));
    assert_eq!(on(&mut state, A, delete_prefix("q/", 50)), deleted(A, 0));
    assert_eq!(on(&mut state, B, delete_prefix("q/", 300)), deleted(B, 0));
    assert_eq!(state.next_sweep(), Some(at(100)));
    state.set_now(at(99));
    finish(&mut state);
    // It is there when the time has come.
    on(&mut state, B, set("p/b", ""));
    assert!(has(&mut state, "p/a"));
    state.set_now(at(100));
    assert_eq!(finish(&mut state), []);
    assert!(!has(&mut state, "p/a") && !has(&mut state, "p/b") && has(&mut state, "q/a"));
    assert_eq!(state.next_sweep(), Some(at(300)));
    // A deletion at once also replaces the scheduled deletion.
    on(&mut state, A, delete_prefix("q/", 0));
    assert_eq!(finish(&mut state), deleted(A, 1));
    assert_eq!((state.next_sweep(), state.memory()), (None, 0));

    for prefix in 0..SCHEDULED_MAX {
        on(&mut state, A, delete_prefix(&prefix.to_string(), 1));
    }
    assert_eq!(on(&mut state, A, delete_prefix("more", 1)), deleted(A, -1));
    assert_eq!(on(&mut state, A, delete_prefix("7", 5)), deleted(A, 0));
    state.set_now(at(1000));
    finish(&mut state);
    assert_eq!((state.next_sweep(), state.memory()), (None, 0));
}

/// docs/spec/wire-extensions.md, DELETE_PREFIX 5.
#[test]
fn a_restart_keeps_what_is_deleted_and_what_will_be() {
    for from_snapshot in [false, true] {
        let mut state = StoreState::default();
        state.start_recording(0);
        for key in ["p/a", "p/b", "q/a", "r/a"] {
            on(&mut state, B, set(key, ""));
        }
        on(&mut state, A, delete_prefix("p/", 0));
        assert_eq!(finish(&mut state), deleted(A, 2));
        on(&mut state, A, delete_prefix("q/", 100));
        on(&mut state, A, delete_prefix("r/", 100));
        on(&mut state, A, delete_prefix("r/", 0));
        on(&mut state, B, set("r/b", ""));
        finish(&mut state);
        let mut state = recovered(&mut state, from_snapshot);
        state.start_recording(9);
        assert!(!has(&mut state, "p/a") && has(&mut state, "q/a"));
        assert!(!has(&mut state, "r/a") && has(&mut state, "r/b"));
        state.set_now(Moment::from(Duration::from_millis(100)));
        finish(&mut state);
        assert!(!has(&mut state, "q/a") && has(&mut state, "r/b"));
        assert_eq!(state.next_sweep(), None);
    }
}
