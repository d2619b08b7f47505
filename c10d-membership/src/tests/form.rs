//! How a group forms: docs/spec/membership.md, from HELLO to COMMIT.

use super::driven::{Driven, key, seconds};
use crate::group::{Effect, GroupState, Input};
use crate::message::{Cause, EndReason, Event, Leave, Message, Reason, Reply};
use crate::options::GroupOptions;
use crate::record::MemberKey;

/// docs/spec/membership.md, FORM 1, READY 1, CALL 1, COMMIT 1 and 2, UUID 2.
#[test]
fn members_are_ready_then_called_then_committed() {
    let mut driven = Driven::new(GroupOptions::new(2));
    assert_eq!(driven.hello(5), Reply::Accepted);
    assert_eq!(driven.poll(5), Reply::NotYet);
    driven.hello(3);
    let attempt = driven.attempt();
    let Event::Propose { leave, .. } = driven.event(5) else {
        panic!("not proposed");
    };
    assert_eq!(leave, Leave::Now(Cause::First));

    driven.ready_at(5, 7);
    assert_eq!(driven.attempt(), attempt);
    assert!(matches!(driven.event(5), Event::Propose { .. }));
    driven.ready_at(3, 6);
    let Event::Call { record, deadline } = driven.event(3) else {
        panic!("not called");
    };
    assert_eq!(record.attempt, attempt);
    assert_eq!(deadline, driven.now + seconds(15));
    // By id, with the handles that they were ready with; the newest step is rank 1's.
    assert_eq!(driven.list(), [3, 5]);
    assert_eq!(&*record.seats[0].handle, "gloo:3:1");
    assert_eq!(record.source, 1);

    driven.ack(3, true);
    driven.ack(3, true);
    assert!(matches!(driven.event(3), Event::Call { .. }));
    driven.effects.clear();
    driven.ack(5, true);
    assert_eq!(driven.event(5), Event::Commit { record });
    let [
        Effect::Keep(kept),
        Effect::DeleteKeysBefore(before),
        Effect::Announce(_, event),
    ] = &driven.effects[..]
    else {
        panic!("{:?}", driven.effects);
    };
    assert_eq!((kept.last, *before), (attempt, attempt));
    assert!(matches!(event, Event::Commit { .. }));
    assert_eq!(driven.group.wake_at(), None);
}

/// docs/spec/membership.md, FORM 2.
#[test]
fn the_first_members_wait_for_more_until_the_time_is_over() {
    let mut options = GroupOptions::new(2);
    options.size_first = 4;
    let mut driven = Driven::new(options.clone());
    assert_eq!(driven.group.wake_at(), None);
    driven.hello(1);
    driven.now += seconds(10);
    driven.hello(2);
    driven.wake();
    assert_eq!(driven.now, seconds(700));
    driven.commit();
    assert_eq!(driven.list(), [1, 2]);

    let mut driven = Driven::new(options);
    driven.hello(1);
    driven.wake();
    assert_eq!(driven.poll(1), Reply::Ended(EndReason::BelowMinimum));
    assert_eq!(driven.hello(2), Reply::Ended(EndReason::BelowMinimum));
}

/// docs/spec/membership.md, HELLO 1 and 2.
#[test]
fn a_later_process_takes_the_place_of_an_earlier_one() {
    let mut driven = Driven::formed(2, |_| {});
    assert_eq!(driven.hello(2), Reply::Accepted);
    assert_eq!(driven.list(), [1, 2]);

    driven.effects.clear();
    let second = MemberKey::new(2, 5);
    driven.hello_of(second);
    assert_eq!(driven.dismissed(), [(2, Reason::Replaced)]);
    // One attempt takes the loss and the newcomer.
    driven.commit();
    assert_eq!(driven.list(), [1, 2]);
    for old in [1, 3, 4] {
        let old = MemberKey::new(2, old);
        assert_eq!(driven.hello_of(old), Reply::Evicted(Reason::Replaced));
        driven.input(Input::Dead(old));
    }
    assert_eq!(driven.generation().count(), 2);

    driven.input(Input::Dead(second));
    assert_eq!(driven.hello_of(second), Reply::Evicted(Reason::Dead));
    // The launcher may know of an end before the hello arrives.
    let third = MemberKey::new(2, 6);
    driven.input(Input::Dead(third));
    assert_eq!(driven.hello_of(third), Reply::Evicted(Reason::Dead));
    assert_eq!(driven.hello_of(MemberKey::new(2, 7)), Reply::Accepted);
}

/// docs/spec/membership.md, READY 1 and 2.
#[test]
fn an_attempt_goes_on_without_those_that_die_and_with_those_that_come() {
    let mut driven = Driven::formed(3, |_| {});
    driven.dead(3);
    driven.effects.clear();
    let attempt = driven.attempt();
    // They arrive later, and take part if they are ready before the other members.
    driven.hello(4);
    driven.hello(5);
    driven.ready(4);
    driven.ready(1);
    driven.dead(2);
    assert_eq!(driven.list(), [1, 4]);
    assert_eq!(driven.attempt(), attempt);
    assert_eq!(driven.poll(5), Reply::NotYet);
    assert_eq!(driven.released(), []);
}

/// docs/spec/membership.md, READY 3.
#[test]
fn members_that_are_not_ready_in_time_are_evicted() {
    let mut driven = Driven::formed(4, |options| options.size_min = 2);
    driven.dead(4);
    driven.ready(1);
    driven.ready(2);
    let asked = driven.now;
    driven.wake();
    assert_eq!(driven.now, asked + seconds(10));
    assert_eq!(driven.poll(3), Reply::Evicted(Reason::NotReady));
    assert_eq!(driven.list(), [1, 2]);
    let too_late = driven.ready(3);
    assert_eq!(too_late, Reply::Evicted(Reason::NotReady));
}

/// docs/spec/membership.md, CALL 2.
#[test]
fn of_two_equal_handles_the_older_member_keeps_it() {
    let mut driven = Driven::formed(2, |_| {});
    driven.dead(1);
    driven.hello(0);
    let attempt = driven.attempt();
    for id in [0, 2] {
        let handle = "gloo:same".into();
        let ready = Message::Ready {
            attempt,
            handle,
            step: 0,
        };
        driven.tell(key(id), ready);
    }
    assert_eq!(driven.list(), [2]);
    assert_eq!(driven.poll(0), Reply::Evicted(Reason::HandleTaken));

    let mut driven = Driven::new(GroupOptions::new(2));
    for id in [7, 8, 9] {
        driven.hello(id);
    }
    let attempt = driven.attempt();
    for (id, handle) in [(9, "b"), (8, "a"), (7, "a")] {
        let handle = handle.into();
        let ready = Message::Ready {
            attempt,
            handle,
            step: 0,
        };
        driven.tell(key(id), ready);
    }
    assert_eq!(driven.list(), [7, 9]);
    assert_eq!(driven.poll(8), Reply::Evicted(Reason::HandleTaken));
}

/// docs/spec/membership.md, CALL 3.
#[test]
fn a_loss_or_a_failure_during_the_call_ends_the_waits_and_all_try_again() {
    let mut driven = Driven::formed(3, |_| {});
    driven.dead(3);
    driven.call();
    let attempt = driven.attempt();
    driven.ack(1, true);
    driven.effects.clear();
    driven.dead(2);
    assert_eq!(driven.released(), [attempt]);
    assert!(driven.attempt() > attempt);
    let Event::Propose { leave, .. } = driven.event(1) else {
        panic!("not proposed");
    };
    assert_eq!(leave, Leave::Now(Cause::Lost(key(2), Reason::Dead)));
    let late = Message::Ack {
        attempt,
        is_ok: true,
    };
    assert_eq!(driven.tell(key(1), late), Reply::Over);

    driven.hello(4);
    driven.call();
    let attempt = driven.attempt();
    driven.effects.clear();
    driven.ack(1, false);
    assert_eq!(driven.released(), [attempt]);
    let state = driven.group.state();
    assert!(
        matches!(
            state,
            GroupState::Proposed {
                cause: Cause::CallFailed(_),
                ..
            }
        ),
        "{state:?}"
    );

    // A copy that is late takes nothing back.
    driven.ready(1);
    let before = driven.group.clone();
    let late = Message::Ready {
        attempt,
        handle: "gloo:1".into(),
        step: 0,
    };
    assert_eq!(driven.tell(key(1), late), Reply::Over);
    assert_eq!(driven.group, before);
}

/// docs/spec/membership.md, CALL 4.
#[test]
fn members_that_do_not_acknowledge_in_time_are_evicted() {
    let mut driven = Driven::formed(3, |_| {});
    driven.dead(3);
    driven.call();
    driven.ack(1, true);
    let called = driven.now;
    driven.wake();
    assert_eq!(driven.now, called + seconds(15));
    assert_eq!(driven.poll(2), Reply::Evicted(Reason::NotAcknowledged));
    driven.commit();
    assert_eq!(driven.list(), [1]);
}

/// docs/spec/membership.md, CALL 5.
#[test]
fn newcomers_are_left_out_after_two_failed_calls_and_the_group_ends_after_more() {
    let mut driven = Driven::formed(3, |options| {
        options.failed_calls_max = 4;
        options.size_min = 2;
    });
    driven.hello(4);
    driven.dead(3);
    for is_out in [false, true] {
        driven.call();
        assert_eq!(driven.list(), [1, 2, 4]);
        driven.ack(2, false);
        let newcomer = driven.poll(4);
        assert_eq!(newcomer == Reply::Evicted(Reason::CallsFailed), is_out);
    }
    // The end of a member explains failures before it.
    driven.hello(5);
    driven.call();
    driven.dead(5);
    for _ in 0..3 {
        driven.call();
        driven.ack(1, false);
    }
    driven.call();
    driven.ack(1, false);
    assert_eq!(driven.poll(2), Reply::Ended(EndReason::CallsFailed));
}
