//! A connection has one wait at most, whatever the commands.

use super::*;

const KINDS: usize = 5;

impl Store {
    /// Starts a wait of each kind in turn.
    fn begin(&mut self, conn: u64, kind: usize, key: &str) -> Vec<(u64, OwnedReply)> {
        match kind {
            0 => self.wait(conn, &[key]),
            1 => self.wait_get(conn, &[key]),
            2 => self.wait_change(conn, key, Known::nothing()),
            3 => self.on(conn, take(key, 1)),
            _ => self.on(conn, barrier(key, 9)),
        }
    }

    /// Ends every wait for the key, and returns the replies to others than C.
    fn end_waits(&mut self, key: &str) -> Vec<(u64, OwnedReply)> {
        let mut replies = self.set(key, "1");
        replies.extend(self.on(C, push(key, "e")));
        replies
    }
}

/// docs/spec/wire.md, WAIT 7, and docs/spec/wire-extensions.md, WAIT_GET 4, WAIT_CHANGE 5, QUEUE_TAKE 5.
#[test]
fn each_wait_replaces_a_wait_of_each_kind() {
    for first in 0..KINDS {
        for second in 0..KINDS {
            let mut store = Store::default();
            assert_eq!(store.begin(A, first, "old"), []);
            assert_eq!(store.begin(A, second, "new"), []);
            assert_eq!(store.end_waits("old"), [], "{first} and {second}");
            assert_eq!(store.end_waits("new")[0], stop(A), "{first} and {second}");
            // A take that was replaced has taken nothing.
            let left = store.on(C, pop("old"));
            assert_eq!(left, [(C, OwnedReply::Integer(1)), bytes(C, "e")]);
        }
    }
}

/// docs/spec/wire.md, CANCEL_WAIT 1, WAIT 8, and docs/spec/wire-extensions.md, WAIT_GET 4, WAIT_CHANGE 5, QUEUE_TAKE 5.
#[test]
fn a_wait_of_each_kind_ends_with_a_cancel_or_its_connection() {
    for kind in 0..KINDS {
        for is_cancelled in [true, false] {
            let mut store = Store::default();
            store.begin(A, kind, "k");
            if is_cancelled {
                let canceled = [(A, OwnedReply::Canceled)];
                assert_eq!(store.on(A, Request::CancelWait), canceled);
            } else {
                assert_eq!(store.disconnect(A), []);
            }
            assert_eq!(store.end_waits("k"), [], "{kind}");
            let left = store.on(C, pop("k"));
            assert_eq!(left, [(C, OwnedReply::Integer(1)), bytes(C, "e")]);
        }
    }
}

/// docs/spec/wire.md, WAIT 6, and docs/spec/wire-extensions.md, WAIT_GET 4, WAIT_CHANGE 5, QUEUE_TAKE 5.
#[test]
fn a_wait_of_each_kind_lets_later_requests_pass() {
    for kind in 0..KINDS {
        let mut store = Store::default();
        store.begin(A, kind, "k");
        assert_eq!(
            store.on(A, Request::Ping { nonce: 5 }),
            [(A, OwnedReply::Nonce(5))]
        );
        assert_eq!(store.on(A, set("other", "1")), []);
        assert_eq!(store.end_waits("k")[0], stop(A), "{kind}");
    }
}

/// docs/spec/wire.md, ORDER 4.
#[test]
fn a_request_that_ends_the_wait_of_its_connection_is_answered_after_it() {
    let mut store = Store::default();
    store.wait(A, &["k"]);
    assert_eq!(
        store.on(A, add("k", 5)),
        [stop(A), (A, OwnedReply::Integer(5))]
    );
    store.wait_get(A, &["l"]);
    assert_eq!(
        store.on(A, compare_set("l", "", "v")),
        [stop(A), bytes(A, "v"), bytes(A, "v")]
    );
}
