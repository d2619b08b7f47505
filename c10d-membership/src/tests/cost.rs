//! The cost of a change in a large group: docs/spec/membership.md, COST.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::driven::{Driven, key, seconds};
use crate::group::{Effect, GroupState};
use crate::message::{Event, EventNumber, Reply};
use crate::record::Record;

/// The list as each member gets it, without the parts that members share.
fn lists(driven: &Driven) -> (usize, BTreeSet<*const Record>) {
    let mut members = 0;
    let mut lists = BTreeSet::new();
    for (member, _) in driven.group.members() {
        let Reply::Event(_, event) = driven.group.poll(member, EventNumber::NONE) else {
            panic!("{member} has no event");
        };
        let (Event::Call { record, .. } | Event::Commit { record }) = event else {
            panic!("{member} has no list");
        };
        members += 1;
        lists.insert(Arc::as_ptr(&record));
    }
    (members, lists)
}

/// docs/spec/membership.md, COST 1.
#[test]
fn a_death_among_10000_makes_one_list_and_a_few_effects() {
    let mut driven = Driven::formed(10_000, |_| {});
    driven.effects.clear();
    driven.dead(5_000);
    driven.call();
    let (members, during) = lists(&driven);
    assert_eq!((members, during.len()), (9_999, 1));
    for id in driven.ids() {
        driven.ack(id, true);
    }
    let (members, after) = lists(&driven);
    assert_eq!((members, &after), (9_999, &during));
    // Dismiss, ReleaseWaits, two Keep, three Announce, DeleteKeysBefore.
    assert_eq!(driven.effects.len(), 8, "{:?}", driven.effects.len());
    let GroupState::Committed { record, .. } = driven.group.state() else {
        panic!("no generation");
    };
    let handles: usize = record.seats.iter().map(|seat| seat.handle.len()).sum();
    let seats = size_of_val(&*record.seats);
    // One list of 10,000: less than a megabyte, and not 10,000 times that.
    assert!(handles + seats < 1_000_000, "{handles} and {seats} bytes");
    let shared = Arc::strong_count(record);
    let kept = |it: &&Effect| matches!(it, Effect::Keep(_) | Effect::Announce(..));
    assert!(
        shared <= 4 + driven.effects.iter().filter(kept).count(),
        "{shared} owners"
    );
}

/// docs/spec/membership.md, COST 2. Twice the steps of a group that takes time in proportion to its size for each message
/// would be 10^10.
#[test]
fn a_group_of_65536_forms_loses_a_member_and_forms_again() {
    let size = 65_536;
    let mut driven = Driven::formed(size, |options| options.replace_wait = seconds(1));
    assert_eq!(driven.effects.len(), 6);
    driven.dead(7);
    driven.hello(size + 1);
    driven.commit();
    assert_eq!(driven.effects.len(), 16);
    let GroupState::Committed { record, .. } = driven.group.state() else {
        panic!("no generation");
    };
    assert_eq!(record.seats.len(), 65_536);
    // The newcomer has the free rank.
    assert_eq!(record.seats[6].member, key(size + 1));
    assert_eq!(record.seats[7].previous, Some(7));
}
