//! The consequences of losses in a generation: docs/spec/membership.md, BREAK.

use super::driven::{Driven, key, seconds};
use crate::group::{Effect, Input};
use crate::message::{Cause, EndReason, Event, EventNumber, Leave, Message, Reason, Reply};

/// docs/spec/membership.md, BREAK 1 and 2, EVENT 1 and 2.
#[test]
fn survivors_are_asked_at_once_and_go_on_with_their_ranks_closed_up() {
    let mut driven = Driven::formed(4, |_| {});
    let formed = driven.generation();
    driven.effects.clear();
    driven.dead(2);
    let [
        Effect::Dismiss(..),
        Effect::ReleaseWaits(released),
        Effect::Keep(kept),
        Effect::Announce(number, Event::Propose { leave, .. }),
    ] = &driven.effects[..]
    else {
        panic!("{:?}", driven.effects);
    };
    assert_eq!(*released, formed);
    assert_eq!(kept.last.count(), 2);
    assert_eq!(*leave, Leave::Now(Cause::Lost(key(2), Reason::Dead)));
    let number = *number;
    assert_eq!(driven.poll(2), Reply::Evicted(Reason::Dead));
    let seen = driven.tell(
        key(1),
        Message::Poll {
            after: number,
            is_leaving: false,
        },
    );
    assert_eq!(seen, Reply::NotYet);
    // A second loss in the same attempt; reported twice.
    driven.input(Input::Silent(key(4)));
    driven.input(Input::Silent(key(4)));
    assert_eq!(driven.group.status(driven.now).lost, [key(2), key(4)]);
    driven.commit();
    assert_eq!(driven.group.status(driven.now).lost, []);
    assert_eq!(driven.list(), [1, 3]);
    assert_eq!(
        driven.group.status(driven.now).departures,
        [(key(4), Reason::Silent), (key(2), Reason::Dead)]
    );
    assert_eq!(driven.generation().count(), 2);
    let Reply::Event(commit, _) = driven.poll(1) else {
        panic!("no event");
    };
    assert!(commit.is_news_after(number) && number.is_news_after(EventNumber::NONE));
    assert!(!number.is_news_after(commit));
    assert_eq!(driven.poll(9), Reply::Unknown);
}

/// A poll is the first to arrive after the time, and its answer has what the time has brought: it waits for no announcement.
#[test]
fn a_poll_that_brings_the_end_of_a_wait_is_told() {
    let mut driven = Driven::formed(2, |options| options.size_min = 2);
    driven.dead(1);
    let Reply::Event(after, Event::Break { .. }) = driven.poll(2) else {
        panic!("not broken");
    };
    driven.now += seconds(600);
    let is_leaving = false;
    let reply = driven.tell(key(2), Message::Poll { after, is_leaving });
    assert_eq!(reply, Reply::Ended(EndReason::BelowMinimum));
}

/// docs/spec/membership.md, BREAK 3.
#[test]
fn fewer_than_the_minimum_wait_and_then_the_group_ends() {
    let mut driven = Driven::formed(2, |options| options.size_min = 2);
    driven.dead(1);
    let Event::Break { cause, .. } = driven.event(2) else {
        panic!("not broken");
    };
    assert_eq!(cause, Cause::Lost(key(1), Reason::Dead));
    driven.now += seconds(599);
    driven.input(Input::Tick);
    driven.hello(3);
    driven.commit();
    assert_eq!(driven.list(), [3, 2]);

    driven.dead(3);
    driven.wake();
    assert_eq!(driven.poll(2), Reply::Ended(EndReason::BelowMinimum));
    assert!(matches!(&driven.kept, Some(kept) if kept.end == Some(EndReason::BelowMinimum)));
}

/// docs/spec/membership.md, BREAK 4.
#[test]
fn survivors_wait_for_replacements_as_long_as_they_are_told_to() {
    let mut driven = Driven::formed(3, |options| options.replace_wait = seconds(20));
    driven.dead(2);
    assert!(matches!(driven.event(1), Event::Break { .. }));
    driven.now += seconds(1);
    driven.hello(4);
    driven.commit();
    assert_eq!(driven.list(), [1, 4, 3]);

    let broken = driven.now;
    driven.dead(1);
    driven.wake();
    assert_eq!(driven.now, broken + seconds(20));
    driven.commit();
    assert_eq!(driven.list(), [4, 3]);
}

/// docs/spec/membership.md, EVENT 3.
#[test]
fn the_owner_can_end_the_group() {
    let mut driven = Driven::formed(2, |_| {});
    driven.dead(1);
    driven.call();
    driven.effects.clear();
    driven.input(Input::Close);
    assert_eq!(driven.released().len(), 1);
    let ended = Event::Ended(EndReason::Closed);
    assert!(
        driven
            .effects
            .contains(&Effect::Announce(EventNumber(u64::MAX), ended))
    );
    driven.input(Input::Dead(key(2)));
    driven.input(Input::Close);
    assert_eq!(driven.poll(2), Reply::Ended(EndReason::Closed));
    assert_eq!(driven.group.wake_at(), None);
}
