//! The end of the work: docs/spec/membership.md, FINISH.

use super::driven::{Driven, key};
use crate::group::Group;
use crate::message::{EndReason, EventNumber, Message, Reply};
use crate::options::GroupOptions;
use crate::record::MemberKey;

impl Driven {
    fn finish(&mut self, id: u64) -> Reply {
        let generation = self.generation();
        self.tell(key(id), Message::finished(generation))
    }
}

/// docs/spec/membership.md, FINISH 1 and 2: newcomers learn that there is nothing to do, also with a change for them under way.
#[test]
fn a_group_whose_members_have_done_their_last_step_stays_finished() {
    for has_change in [false, true] {
        let mut driven = Driven::formed(3, |_| {});
        driven.boundary(1, 8);
        assert_eq!(driven.finish(1), Reply::Accepted);
        assert_eq!(driven.finish(1), Reply::Accepted);
        if has_change {
            driven.hello(4);
            // It leaves its mesh, because members 2 and 3 may stop at a boundary.
            driven.ready(1);
        }
        driven.finish(3);
        driven.finish(2);
        let ended = Reply::Ended(EndReason::Finished);
        for id in 1..=4 {
            assert_eq!(driven.poll(id), ended);
        }
        // A crash at the exit, and the process that takes its place.
        driven.dead(2);
        assert_eq!(driven.hello_of(MemberKey::new(2, 7)), ended);
        let kept = driven.kept.clone().expect("it is kept");
        assert_eq!(kept.end, Some(EndReason::Finished));
    }
}

/// docs/spec/membership.md, FINISH 1: a member has not done its last step.
#[test]
fn a_loss_before_all_have_finished_breaks_the_generation() {
    let mut driven = Driven::formed(3, |_| {});
    driven.finish(1);
    driven.finish(2);
    driven.dead(2);
    driven.commit();
    assert_eq!(driven.list(), [1, 3]);
    driven.finish(1);
    assert_eq!(driven.list(), [1, 3]);
    driven.finish(3);
    assert_eq!(driven.poll(1), Reply::Ended(EndReason::Finished));
}

/// docs/spec/membership.md, FINISH 3.
#[test]
fn a_restarted_service_learns_again_who_has_finished() {
    let mut driven = Driven::formed(2, |_| {});
    let generation = driven.generation();
    driven.finish(1);
    let kept = driven.kept.clone().expect("it is kept");
    (driven.group, _) = Group::recover(GroupOptions::new(1), kept, driven.now);
    driven.finish(2);
    assert_eq!(driven.list(), [1, 2]);
    let after = EventNumber::NONE;
    driven.tell(key(1), Message::PollFinished { generation, after });
    assert_eq!(driven.poll(1), Reply::Ended(EndReason::Finished));
}
