//! Changes at a step boundary: docs/spec/membership.md, CHANGE.

use super::driven::{Driven, key, seconds};
use crate::group::GroupState;
use crate::message::{Cause, EndReason, Event, EventNumber, Leave, Message, Reason, Reply};

fn step_of_change(driven: &mut Driven, id: u64) -> Option<u64> {
    let GroupState::Committed {
        change: Some(change),
        ..
    } = driven.group.state()
    else {
        panic!("no change: {:?}", driven.group.state());
    };
    let change = *change;
    let after = EventNumber(driven.generation().count().into());
    let event = driven.tell(
        key(id),
        Message::Poll {
            after,
            is_leaving: false,
        },
    );
    assert!(matches!(event, Reply::Event(..)), "{event:?}");
    change.step
}

/// docs/spec/membership.md, CHANGE 1, 2 and 3.
#[test]
fn newcomers_come_in_behind_the_newest_step_that_any_member_may_begin() {
    let mut driven = Driven::formed(2, |_| {});
    assert_eq!(driven.boundary(1, 1), Reply::Proceed);
    assert_eq!(driven.boundary(1, 2), Reply::Proceed);
    driven.hello(3);
    driven.hello(4);
    let attempt = driven.attempt();
    assert_eq!(step_of_change(&mut driven, 1), Some(3));
    // Member 1 has begun the step after 2: so does member 2.
    assert_eq!(driven.boundary(2, 1), Reply::Proceed);
    assert_eq!(driven.boundary(2, 2), Reply::Proceed);
    assert_eq!(driven.boundary(2, 3), Reply::Change(attempt));
    assert_eq!(driven.boundary(1, 2), Reply::Proceed);
    assert_eq!(driven.boundary(1, 3), Reply::Change(attempt));
    driven.ready(3);
    driven.ready(4);
    driven.ready_at(2, 3);
    assert_eq!(driven.attempt(), attempt);
    driven.ready_at(1, 3);
    for id in 1..=4 {
        driven.ack(id, true);
    }
    assert_eq!(driven.list(), [1, 2, 3, 4]);
    let old = Message::Boundary {
        generation: attempt,
        step: 4,
    };
    assert_eq!(driven.tell(key(1), old), Reply::Proceed);
    assert_eq!(driven.generation(), attempt);
}

/// docs/spec/membership.md, CHANGE 2: a newcomer costs no step of a generation that has not begun any.
#[test]
fn a_generation_that_waits_for_nobody_stops_at_its_first_boundary() {
    let mut driven = Driven::formed(1, |_| {});
    driven.hello(2);
    let attempt = driven.attempt();
    assert_eq!(driven.boundary(1, 40), Reply::Change(attempt));
    assert_eq!(driven.boundary(2, 40), Reply::Over);
}

/// docs/spec/membership.md, CHANGE 4.
#[test]
fn a_death_during_a_change_breaks_the_generation_and_takes_all_at_once() {
    let mut driven = Driven::formed(3, |_| {});
    driven.hello(4);
    let change = driven.attempt();
    driven.tell(key(2), Message::Leave);
    driven.effects.clear();
    driven.dead(3);
    assert_eq!(driven.dismissed(), [(3, Reason::Dead), (2, Reason::Left)]);
    assert!(driven.attempt() > change);
    driven.commit();
    assert_eq!(driven.list(), [1, 4]);
}

/// docs/spec/membership.md, CHANGE 5.
#[test]
fn a_change_that_reaches_no_boundary_is_withdrawn_and_one_that_did_breaks_the_generation() {
    let mut driven = Driven::formed(2, |_| {});
    driven.hello(3);
    driven.ready(3);
    let asked = driven.now;
    driven.wake();
    assert_eq!(driven.now, asked + seconds(600));
    assert_eq!(driven.poll(3), Reply::Evicted(Reason::NoBoundary));
    assert_eq!(driven.boundary(1, 1), Reply::Proceed);
    assert_eq!(driven.group.wake_at(), None);

    driven.hello(4);
    driven.now += seconds(500);
    let change = driven.attempt();
    assert_eq!(driven.boundary(1, 2), Reply::Change(change));
    let stopped = driven.now;
    driven.wake();
    assert_eq!(driven.now, stopped + seconds(600));
    let Event::Propose { leave, .. } = driven.event(2) else {
        panic!("not proposed");
    };
    assert_eq!(leave, Leave::Now(Cause::BoundaryTimedOut));
    driven.commit();
    assert_eq!(driven.list(), [1, 2, 4]);
}

/// docs/spec/membership.md, LEAVE 1 and 2.
#[test]
fn a_member_leaves_at_a_boundary_when_the_others_have_stopped_too() {
    let mut driven = Driven::formed(3, |_| {});
    driven.boundary(1, 1);
    assert_eq!(driven.tell(key(2), Message::Leave), Reply::Accepted);
    let attempt = driven.attempt();
    assert_eq!(driven.boundary(2, 1), Reply::Proceed);
    assert_eq!(driven.boundary(2, 2), Reply::Change(attempt));
    driven.ready(2);
    driven.ready(1);
    assert_eq!(driven.dismissed(), []);
    driven.ready(3);
    assert_eq!(driven.dismissed(), [(2, Reason::Left)]);
    assert_eq!(driven.list(), [1, 3]);
    // In a list: after the commit.
    driven.tell(key(3), Message::Leave);
    driven.ack(1, true);
    driven.ack(3, true);
    assert!(driven.attempt() > attempt);
    // A newcomer: at once.
    driven.hello(5);
    let left = driven.tell(key(5), Message::Leave);
    assert_eq!(left, Reply::Evicted(Reason::Left));
}

/// docs/spec/membership.md, LEAVE 3.
#[test]
fn a_group_whose_members_have_all_left_has_finished() {
    let mut driven = Driven::formed(2, |options| options.size_min = 2);
    driven.boundary(1, 8);
    driven.tell(key(1), Message::Leave);
    driven.tell(key(2), Message::Leave);
    // They have done their last step, and ask for no boundary.
    driven.ready(1);
    driven.ready(2);
    assert_eq!(driven.hello(3), Reply::Ended(EndReason::Finished));
    assert_eq!(driven.poll(1), Reply::Evicted(Reason::Left));
}

/// docs/spec/membership.md, EVENT 1: a member that acknowledged last learns of its generation, though a change follows.
#[test]
fn a_change_does_not_hide_the_generation_from_its_members() {
    let mut driven = Driven::formed(1, |_| {});
    driven.dead(1);
    driven.hello(2);
    driven.call();
    driven.hello(3);
    driven.ack(2, true);
    assert!(matches!(driven.event(2), Event::Commit { .. }));
    assert!(matches!(driven.event(3), Event::Propose { .. }));
}
