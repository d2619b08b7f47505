//! The limits, and the memory that they bound: docs/spec/membership.md, HELLO 3.

use super::driven::{Driven, key};
use crate::group::Input;
use crate::message::{Limit, Message, Reason, Reply};
use crate::options::GroupOptions;

/// docs/spec/membership.md, HELLO 3.
#[test]
fn members_newcomers_and_handles_are_limited() {
    let mut options = GroupOptions::new(2);
    options.members_max = 3;
    options.newcomers_max = 1;
    options.handle_bytes_max = 9;
    options.size_first = 3;
    let mut driven = Driven::new(options);
    let long = Message::Hello {
        handle: "gloo:12345".into(),
        step: 0,
    };
    let refused = Reply::Refused(Limit::HandleBytes(9));
    assert_eq!(driven.tell(key(1), long), refused);
    for id in 1..=3 {
        driven.hello(id);
    }
    assert_eq!(driven.hello(4), Reply::Refused(Limit::Members(3)));
    let attempt = driven.attempt();
    let long = Message::Ready {
        attempt,
        handle: "gloo:12345".into(),
        step: 0,
    };
    assert_eq!(driven.tell(key(1), long), refused);
    driven.commit();
    driven.dead(1);
    driven.dead(2);
    assert_eq!(driven.hello(5), Reply::Accepted);
    assert_eq!(driven.hello(6), Reply::Refused(Limit::Newcomers(1)));
    // A refused message has had no effect.
    assert_eq!(driven.ids(), [3, 5]);
}

/// docs/spec/membership.md, COST 3.
#[test]
fn memory_does_not_grow_with_the_members_that_come_and_go() {
    let mut driven = Driven::formed(1, |options| options.evicted_max = 10);
    let mut longest = 0;
    for id in 2..500 {
        driven.hello(id);
        driven.input(Input::Dead(key(id)));
        driven.input(Input::Dead(key(id + 1000)));
        driven.effects.clear();
        if id > 20 {
            let text = format!("{:?}", driven.group).len();
            longest = if id < 30 { text.max(longest) } else { longest };
            assert!(text <= longest + 100, "{text} bytes instead of {longest}");
        }
    }
    assert_eq!(driven.poll(499), Reply::Evicted(Reason::Dead));
    assert_eq!(driven.poll(400), Reply::Unknown);
}
