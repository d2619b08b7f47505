//! Sessions, with links that are only tokens.

use super::*;

const KEEP: Duration = Duration::from_secs(60);

fn candidate(link: usize) -> Candidate {
    Candidate {
        link: Token(link),
        peer: IpAddr::from([10, 0, 0, 2]),
    }
}

fn hello(session: SessionId, store: StoreId, attempt: u64) -> Hello {
    Hello {
        session,
        store,
        attempt,
        received: 0,
        keep: KEEP,
        carries_over: false,
        takes_pieces: false,
        takes_positions: false,
        wants_heartbeats: false,
        knows_refusal: false,
    }
}

fn sessions() -> (Sessions, StoreId) {
    let store = StoreId::random();
    (Sessions::new(store, 10 * KEEP), store)
}

fn accepted(attached: Attached) -> (usize, Option<Token>) {
    match attached {
        Attached::Accepted { slot, replaced, .. } => (slot, replaced),
        other => panic!("{other:?}"),
    }
}

/// docs/spec/wire-extensions.md, SESSION 9.
#[test]
fn a_session_goes_on_over_another_link_until_its_time_has_passed() {
    let (mut sessions, store) = sessions();
    let (id, start) = (SessionId::random(), Instant::now());
    let (slot, _) = accepted(sessions.attach(&hello(id, StoreId::ANY, 1), candidate(1)));
    assert_eq!(sessions.next_expiry(), None);
    assert!(sessions.link_closed(slot, Token(1), start));
    assert_eq!(sessions.next_expiry(), Some(start + KEEP));

    let again = sessions.attach(&hello(id, store, 2), candidate(2));
    assert_eq!(accepted(again), (slot, None));
    assert_eq!(sessions.next_expired(start + KEEP), None);
    // The late end of the first link is not the end of the second link.
    assert!(!sessions.link_closed(slot, Token(1), start));
    assert_eq!(sessions.next_expiry(), None);

    sessions.link_closed(slot, Token(2), start + KEEP);
    assert_eq!(sessions.next_expired(start + KEEP), None);
    assert_eq!(sessions.next_expired(start + 2 * KEEP), Some(slot));
    assert!(sessions.remove(slot).is_some());
    let late = sessions.attach(&hello(id, store, 3), candidate(3));
    assert_eq!(
        late,
        Attached::Refused(Welcome::Unknown { store, begins: 0 })
    );

    // The server's own limit is 10 * KEEP.
    let keeps_long = Hello {
        keep: 99 * KEEP,
        ..hello(SessionId::random(), StoreId::ANY, 1)
    };
    let (slot, _) = accepted(sessions.attach(&keeps_long, candidate(4)));
    assert!(sessions.link_closed(slot, Token(4), start));
    assert_eq!(sessions.next_expiry(), Some(start + 10 * KEEP));
}

/// docs/spec/wire-extensions.md, SESSION 3.
#[test]
fn a_new_link_replaces_one_that_still_seems_to_work_but_never_a_newer_one() {
    let (mut sessions, store) = sessions();
    let id = SessionId::random();
    accepted(sessions.attach(&hello(id, StoreId::ANY, 1), candidate(1)));
    let third = sessions.attach(&hello(id, store, 3), candidate(3));
    assert_eq!(accepted(third).1, Some(Token(1)));
    for late in [2, 3] {
        let late = sessions.attach(&hello(id, store, late), candidate(2));
        assert_eq!(late, Attached::Late);
    }
}

/// docs/spec/wire-extensions.md, SESSION 2.
#[test]
fn a_session_of_another_server_is_unknown() {
    let (mut sessions, store) = sessions();
    let (id, other) = (SessionId::random(), StoreId::random());
    let unknown = Attached::Refused(Welcome::Unknown { store, begins: 0 });
    assert_eq!(sessions.attach(&hello(id, other, 1), candidate(1)), unknown);
    accepted(sessions.attach(&hello(id, StoreId::ANY, 1), candidate(1)));
    assert_eq!(sessions.attach(&hello(id, other, 2), candidate(2)), unknown);
    // The answer to the first SESSION was lost.
    let again = sessions.attach(&hello(id, StoreId::ANY, 2), candidate(2));
    assert_eq!(accepted(again).1, Some(Token(1)));
    let elsewhere = Hello {
        received: 1,
        ..hello(id, store, 3)
    };
    assert_eq!(sessions.attach(&elsewhere, candidate(3)), unknown);
}

/// docs/spec/wire-extensions.md, SESSION 3.
#[test]
fn an_attempt_without_a_number_leaves_nothing() {
    let (mut sessions, _) = sessions();
    for _ in 0..10 {
        let attached = sessions.attach(&hello(SessionId::random(), StoreId::ANY, 0), candidate(1));
        assert_eq!(attached, Attached::Late);
    }
    assert!(sessions.slots.is_empty() && sessions.by_id.is_empty());
}

/// docs/spec/wire-extensions.md, SESSION 2.
#[test]
fn sessions_that_were_never_used_make_room_for_others() {
    let (mut sessions, store) = sessions();
    let now = Instant::now();
    let begin = |sessions: &mut Sessions| {
        sessions.attach(&hello(SessionId::random(), StoreId::ANY, 1), candidate(1))
    };
    let (used, _) = accepted(begin(&mut sessions));
    let (counted, _) = accepted(begin(&mut sessions));
    sessions.get_mut(counted).expect("it").counted_bytes = 9;
    sessions.link_closed(counted, Token(1), now);
    sessions.get_mut(used).expect("it").open(0, Token(7));
    sessions.link_closed(used, Token(1), now);
    while sessions.slots.len() < SESSIONS_MAX {
        let (slot, _) = accepted(begin(&mut sessions));
        sessions.link_closed(slot, Token(1), now);
    }
    accepted(begin(&mut sessions));
    assert_eq!(sessions.slots.len(), 2, "this one and the used one");
    assert_eq!(sessions.forgotten_bytes, 9);
    assert!(sessions.get_mut(used).is_some());
    assert_eq!(sessions.by_id.len(), 2);
    while sessions.slots.len() < SESSIONS_MAX {
        accepted(begin(&mut sessions));
    }
    let full = Attached::Refused(Welcome::Full { store });
    assert_eq!(begin(&mut sessions), full, "all others have links");
    assert_eq!(sessions.by_id.len(), SESSIONS_MAX);
}

/// docs/spec/wire-extensions.md, SESSION 7.
#[test]
fn clients_have_new_numbers_and_late_frames_of_closed_ones_are_no_error() {
    let (mut sessions, _) = sessions();
    let attached = sessions.attach(&hello(SessionId::random(), StoreId::ANY, 1), candidate(1));
    let (slot, _) = accepted(attached);
    let session = sessions.get_mut(slot).expect("the session");
    assert!(session.client(0).is_err());
    session.check_new(0).expect("a new number");
    session.open(0, Token(7));
    session.check_new(5).expect("a new number");
    session.open(5, Token(8));
    assert_eq!(session.client(0), Ok(Some(Token(7))));
    assert!(session.check_new(5).is_err() && session.check_new(3).is_err());
    session.close(0);
    assert_eq!(session.client(0), Ok(None));
    assert_eq!(session.client(3), Ok(None));
    assert!(session.client(6).is_err());
}
