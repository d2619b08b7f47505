//! A service that is started again: docs/spec/membership.md, KEEP.

use super::driven::{Driven, key};
use crate::group::{Effect, Group, GroupState, Input};
use crate::message::{Cause, Event, EventNumber, Leave, Message, Reason, Reply};
use crate::options::RETURN_TIMEOUT_MAX;
use crate::record::Nonce;

/// The service exits, and continues with the state that it has kept.
fn restart(driven: &mut Driven) {
    let kept = driven.kept.clone().expect("something is kept");
    let options = driven.group.options().clone();
    let (group, effects) = Group::recover(options, kept, driven.now);
    driven.group = group;
    driven.effects = effects;
}

/// docs/spec/membership.md, KEEP 1 and 4.
#[test]
fn a_whole_generation_goes_on_and_its_silent_members_are_evicted() {
    let mut driven = Driven::formed(3, |_| {});
    driven.boundary(1, 5);
    let generation = driven.generation();
    restart(&mut driven);
    assert_eq!(driven.generation(), generation);
    driven.poll(1);
    driven.hello(2);
    let restarted = driven.now;
    driven.wake();
    assert_eq!(driven.now, restarted + RETURN_TIMEOUT_MAX);
    assert_eq!(driven.poll(3), Reply::Evicted(Reason::Silent));
    driven.commit();
    assert_eq!(driven.list(), [1, 2]);
    // The uuids continue.
    assert_eq!(driven.generation().uuid(), generation.uuid() + 1);
}

/// docs/spec/membership.md, KEEP 4: member 1 had passed the boundary 5 before the restart.
#[test]
fn the_first_boundary_after_a_restart_is_passed() {
    let mut driven = Driven::formed(2, |_| {});
    driven.boundary(1, 5);
    restart(&mut driven);
    driven.hello(3);
    let attempt = driven.attempt();
    assert_eq!(driven.boundary(2, 5), Reply::Proceed);
    assert_eq!(driven.boundary(1, 6), Reply::Change(attempt));
    assert_eq!(driven.boundary(2, 6), Reply::Change(attempt));
}

/// docs/spec/membership.md, KEEP 2, UUID 2.
#[test]
fn an_attempt_that_was_under_way_is_over_and_another_begins() {
    let mut driven = Driven::formed(3, |_| {});
    driven.dead(3);
    driven.hello(4);
    driven.call();
    let attempt = driven.attempt();
    restart(&mut driven);
    assert_eq!(driven.released(), [attempt]);
    assert_eq!(driven.attempt().uuid(), attempt.uuid() + 1);
    let Event::Propose { leave, .. } = driven.event(1) else {
        panic!("not proposed");
    };
    assert_eq!(leave, Leave::Now(Cause::Restarted));
    // It was in no generation.
    assert_eq!(driven.poll(4), Reply::Unknown);
    driven.hello(4);
    for id in [1, 4, 2] {
        driven.ready(id);
    }
    driven.wake();
    assert_eq!(driven.list(), [1, 2, 4]);
    let late = Message::Ack {
        attempt,
        is_ok: true,
    };
    assert_eq!(driven.tell(key(1), late), Reply::Over);
}

/// docs/spec/membership.md, KEEP 3.
#[test]
fn a_generation_that_broke_below_the_minimum_is_not_whole_after_a_restart() {
    let mut driven = Driven::formed(2, |options| options.size_min = 2);
    driven.input(Input::Silent(key(1)));
    let Reply::Event(broken, _) = driven.poll(2) else {
        panic!("no event");
    };
    restart(&mut driven);
    // Both are asked: the service has forgotten who was silent.
    let after = broken;
    let event = driven.tell(
        key(2),
        Message::Poll {
            after,
            is_leaving: false,
        },
    );
    assert!(
        matches!(event, Reply::Event(_, Event::Propose { .. })),
        "{event:?}"
    );
    driven.ready(2);
    driven.wake();
    assert_eq!(driven.poll(1), Reply::Evicted(Reason::NotReady));
    assert!(matches!(driven.group.state(), GroupState::Breaking { .. }));
}

/// docs/spec/membership.md, UUID 2: the state on which an effect depends is kept before the effect.
#[test]
fn an_attempt_is_kept_before_it_is_told() {
    let mut driven = Driven::formed(3, |_| {});
    driven.dead(1);
    driven.commit();
    let mut kept = 0;
    for effect in &driven.effects {
        match effect {
            Effect::Keep(it) => kept = it.last.count(),
            Effect::Announce(_, Event::Propose { attempt, .. }) => {
                assert_eq!(attempt.count(), kept)
            }
            Effect::Announce(_, Event::Commit { record }) => {
                assert_eq!(record.attempt.count(), kept);
            }
            _ => {}
        }
    }
    assert_eq!(kept, 2);
}

/// docs/spec/membership.md, LEAVE 4.
#[test]
fn the_wish_to_leave_is_repeated_with_each_poll() {
    let mut driven = Driven::formed(2, |_| {});
    driven.tell(key(2), Message::Leave);
    restart(&mut driven);
    driven.ready(1);
    let after = EventNumber::NONE;
    let is_leaving = true;
    let poll = Message::Poll { after, is_leaving };
    assert_eq!(driven.tell(key(2), poll), Reply::Evicted(Reason::Left));
    assert_eq!(driven.list(), [1]);
}

#[test]
fn a_group_that_has_ended_stays_so() {
    let mut driven = Driven::formed(1, |_| {});
    driven.input(Input::Close);
    restart(&mut driven);
    assert!(matches!(driven.hello(2), Reply::Ended(_)));
    assert!(matches!(driven.poll(1), Reply::Ended(_)));
}

/// docs/spec/membership.md, EVENT 2: a delayed copy of the member's hello reaches the service that has lost all, so that the
/// member is not unknown to it.
#[test]
fn an_event_of_a_service_that_has_lost_its_state_is_news() {
    let mut driven = Driven::formed(3, |_| {});
    driven.dead(3);
    driven.commit();
    let Reply::Event(seen, _) = driven.poll(1) else {
        panic!("no event");
    };
    let options = driven.group.options().clone();
    driven.group = Group::new(options, Nonce::new(7));
    for id in 1..=3 {
        driven.hello(id);
    }
    let is_leaving = false;
    let after = seen;
    let reply = driven.tell(key(1), Message::Poll { after, is_leaving });
    let Reply::Event(number, Event::Propose { attempt, .. }) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(attempt.count(), 1);
    let after = number;
    let reply = driven.tell(key(1), Message::Poll { after, is_leaving });
    assert_eq!(reply, Reply::NotYet);
}
