//! Connections whose session has no link (docs/spec/wire-extensions.md, SESSION 11).

use super::*;

impl Store {
    fn set_away(&mut self, conn: u64, is_away: bool) -> Vec<(u64, OwnedReply)> {
        let mut recorder = Recorder::default();
        self.state.set_away(ConnId(conn), is_away, &mut recorder);
        self.state.check_invariants();
        recorder.0
    }
}

#[test]
fn a_connection_that_is_away_takes_no_element_and_no_wakeup() {
    let mut store = Store::default();
    assert_eq!(store.on(A, take("q", 5)), []);
    assert_eq!(store.set_away(A, true), []);
    assert_eq!(store.on(B, take("q", 5)), [], "it came later");
    assert_eq!(store.on(C, push("q", "e")), taken(B, &[b"e"]));
    // There is no other waiter: the element stays for the next one.
    assert_eq!(store.on(C, push("q", "f")), []);
    assert_eq!(store.on(B, take("q", 5)), taken(B, &[b"f"]));

    let mut store = Store::default();
    store.wait(A, &["q"]);
    store.set_away(A, true);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(B)]);
}

#[test]
fn a_connection_that_comes_back_is_given_what_is_there() {
    let mut store = Store::default();
    store.on(A, take("q", 5));
    store.wait(B, &["p", "x"]);
    store.set_away(A, true);
    store.set_away(B, true);
    store.on(C, push("q", "e"));
    store.on(C, push("p", "e"));
    assert_eq!(store.set("x", "1"), [], "the queue is missing");
    assert_eq!(store.set_away(A, false), taken(A, &[b"e"]));
    assert_eq!(store.set_away(B, false), [stop(B)]);
    // Its wakeup is like the wakeup of a push.
    store.wait(A, &["r", "x"]);
    store.on(C, Request::DeleteKey { key: b"x" });
    store.wait(A, &["p", "y"]);
    assert_eq!(store.set("y", "1"), [stop(A)]);
}

#[test]
fn a_wakeup_is_passed_on_when_its_connection_is_away() {
    let mut store = Store::default();
    store.wait(A, &["q"]);
    store.wait(B, &["q"]);
    assert_eq!(store.on(C, push("q", "e")), [stop(A)]);
    assert_eq!(store.set_away(A, true), [stop(B)]);
    assert_eq!(store.set_away(A, true), [], "only once");
    assert_eq!(store.set_away(A, false), []);
}

#[test]
fn a_value_ends_the_wait_of_a_connection_that_is_away() {
    let mut store = Store::default();
    store.wait(A, &["k"]);
    store.set_away(A, true);
    store.wait(B, &["k"]);
    assert_eq!(store.set("k", "v"), [stop(B), stop(A)]);
    assert_eq!(store.set_away(A, false), []);
}

#[test]
fn a_connection_that_comes_back_is_behind_those_that_have_waited_meanwhile() {
    let mut store = Store::default();
    store.on(A, take("q", 1));
    store.set_away(A, true);
    store.on(B, take("q", 1));
    store.set_away(A, false);
    assert_eq!(store.on(C, push("q", "e")), taken(B, &[b"e"]));
    assert_eq!(store.on(C, push("q", "f")), taken(A, &[b"f"]));
    // The end of a connection that is away leaves nothing.
    store.on(A, take("q", 1));
    store.set_away(A, true);
    assert_eq!(store.disconnect(A), []);
    assert_eq!(store.on(C, push("q", "g")), []);
}
