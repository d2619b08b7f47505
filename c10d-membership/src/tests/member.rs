//! A member that a test drives step by step: docs/spec/membership.md, MEMBER.

use std::sync::Arc;

use super::driven::{key, seconds};
use crate::member::{Action, Ending, Member, MemberInput, MemberOptions};
use crate::message::{Cause, EndReason, Event, EventNumber, Leave, Message, Reason, Reply};
use crate::record::{Attempt, Nonce, Record, Seat};

fn attempt(count: u32) -> Attempt {
    Attempt::new(Nonce::new(20), count)
}

fn record(count: u32) -> Arc<Record> {
    let seats = [7, 8].map(|id| Seat {
        member: key(id),
        handle: format!("gloo:{id}").into(),
        step: 0,
        previous: None,
    });
    Arc::new(Record::new(attempt(count), seats.into(), 0))
}

fn propose(count: u32) -> Event {
    Event::Propose {
        attempt: attempt(count),
        leave: Leave::Now(Cause::First),
        deadline: seconds(9),
    }
}

fn change(count: u32) -> Event {
    Event::Propose {
        attempt: attempt(count),
        leave: Leave::AtBoundary { step: Some(3) },
        deadline: seconds(9),
    }
}

/// Delivers an event.
fn event(member: &mut Member, number: u64, event: Event) -> Vec<Action> {
    let poll = member.poll().expect("it polls");
    let reply = Reply::Event(EventNumber(number), event);
    member.step(seconds(1), MemberInput::Reply(poll, reply))
}

/// Answers the message that it owes.
fn answer(member: &mut Member, reply: Reply) -> Vec<Action> {
    let owed = member.owed().expect("it owes a message");
    member.step(seconds(1), MemberInput::Reply(owed, reply))
}

fn joined() -> Member {
    let mut member = Member::new(key(8), MemberOptions::default());
    assert_eq!(member.poll(), None);
    let hello = Message::Hello {
        handle: "gloo:8".into(),
        step: 4,
    };
    let join = MemberInput::Join {
        handle: "gloo:8".into(),
        step: 4,
    };
    assert_eq!(member.step(seconds(1), join), [Action::Send(hello)]);
    assert_eq!(answer(&mut member, Reply::Accepted), []);
    member
}

/// In generation 1, as rank 1 of two.
fn inside() -> Member {
    let mut member = joined();
    event(&mut member, 4, propose(1));
    answer(&mut member, Reply::Accepted);
    let record = record(1);
    let deadline = seconds(20);
    let call = Event::Call {
        record: Arc::clone(&record),
        deadline,
    };
    let calls = event(&mut member, 5, call);
    let record_called = Arc::clone(&record);
    assert_eq!(
        calls,
        [Action::Call {
            record: record_called,
            deadline
        }]
    );
    let ack = Message::Ack {
        attempt: attempt(1),
        is_ok: true,
    };
    let acks = member.step(seconds(1), MemberInput::Called { is_ok: true });
    assert_eq!(acks, [Action::Send(ack)]);
    let commit = Event::Commit {
        record: Arc::clone(&record),
    };
    let enters = event(&mut member, 6, commit);
    assert_eq!(enters, [Action::Enter { record, rank: 1 }]);
    member
}

const LEAVE: Action = Action::LeaveMesh {
    is_at_boundary: false,
};
const STOP: Action = Action::LeaveMesh {
    is_at_boundary: true,
};

fn left(member: &mut Member) -> Vec<Action> {
    let handle = "gloo:1".into();
    member.step(seconds(2), MemberInput::Left { handle, step: 5 })
}

fn ready(count: u32) -> Action {
    Action::Send(Message::Ready {
        attempt: attempt(count),
        handle: "gloo:1".into(),
        step: 5,
    })
}

/// docs/spec/membership.md, MEMBER 1.
#[test]
fn a_member_leaves_a_broken_mesh_before_it_is_ready() {
    let mut member = inside();
    assert_eq!(event(&mut member, 8, propose(2)), [LEAVE]);
    assert_eq!(member.owed(), None);
    // A later attempt replaces the previous attempt.
    assert_eq!(event(&mut member, 12, propose(3)), []);
    assert_eq!(left(&mut member), [ready(3)]);
    // Late and repeated events change nothing.
    assert_eq!(event(&mut member, 8, propose(2)), []);
    assert_eq!(answer(&mut member, Reply::Accepted), []);
    assert_eq!(event(&mut member, 16, propose(4)), [ready(4)]);
}

/// docs/spec/membership.md, MEMBER 1: a member whose call failed uses no mesh, whatever a service answers.
#[test]
fn a_member_whose_call_failed_enters_no_generation() {
    let mut member = joined();
    event(&mut member, 4, propose(1));
    let record = record(1);
    let call = Event::Call {
        record: Arc::clone(&record),
        deadline: seconds(20),
    };
    event(&mut member, 5, call);
    member.step(seconds(1), MemberInput::Called { is_ok: false });
    assert_eq!(event(&mut member, 6, Event::Commit { record }), []);
    assert_eq!(event(&mut member, 8, propose(2)), [LEAVE]);
}

/// docs/spec/membership.md, MEMBER 2.
#[test]
fn an_exception_is_the_programs_own_if_the_service_knows_of_no_break() {
    let mut member = inside();
    assert_eq!(member.step(seconds(3), MemberInput::StepFailed), []);
    assert_eq!(member.wake_at(), Some(seconds(8)));
    assert_eq!(member.step(seconds(7), MemberInput::Tick), []);
    assert_eq!(
        member.step(seconds(8), MemberInput::Tick),
        [Action::StepError]
    );
    assert_eq!(member.wake_at(), None);

    member.step(seconds(9), MemberInput::StepFailed);
    assert_eq!(event(&mut member, 8, propose(2)), [LEAVE]);
    assert_eq!(member.step(seconds(99), MemberInput::Tick), []);
}

/// docs/spec/membership.md, MEMBER 2: another server waits for the members before it evicts one.
#[test]
fn an_exception_is_not_the_programs_own_until_another_server_has_waited_for_the_members() {
    let mut member = inside();
    member.step(seconds(3), MemberInput::StepFailed);
    assert_eq!(member.step(seconds(4), MemberInput::ServiceReturned), []);
    assert_eq!(member.step(seconds(8), MemberInput::Tick), []);
    assert_eq!(
        member.step(seconds(9), MemberInput::Tick),
        [Action::StepError]
    );
    // Without an exception nothing is waited for.
    assert_eq!(member.step(seconds(10), MemberInput::ServiceReturned), []);
    assert_eq!(member.wake_at(), None);
}

/// docs/spec/membership.md, MEMBER 3.
#[test]
fn the_answer_at_the_boundary_decides() {
    let mut member = inside();
    assert_eq!(event(&mut member, 8, change(2)), []);
    let boundary = Message::Boundary {
        generation: attempt(1),
        step: 5,
    };
    let asks = member.step(seconds(1), MemberInput::Boundary(5));
    assert_eq!(asks, [Action::Send(boundary)]);
    assert_eq!(answer(&mut member, Reply::Proceed), [Action::Proceed]);
    member.step(seconds(1), MemberInput::Boundary(6));
    assert_eq!(answer(&mut member, Reply::Change(attempt(2))), [STOP]);
    assert_eq!(left(&mut member), [ready(2)]);

    let mut member = inside();
    member.step(seconds(1), MemberInput::Boundary(6));
    assert_eq!(answer(&mut member, Reply::Over), [LEAVE]);
}

/// docs/spec/membership.md, MEMBER 4.
#[test]
fn a_member_that_has_finished_stops_when_a_change_is_proposed() {
    let mut member = inside();
    let finished = Message::finished(attempt(1));
    let finishes = member.step(seconds(1), MemberInput::Finish);
    assert_eq!(finishes, [Action::Send(finished.clone())]);
    assert_eq!(answer(&mut member, Reply::Accepted), []);
    // A restarted service has forgotten it.
    let after = EventNumber(6);
    let generation = attempt(1);
    assert_eq!(
        member.poll(),
        Some(Message::PollFinished { generation, after })
    );
    assert_eq!(event(&mut member, 8, change(2)), [STOP]);
    assert_eq!(left(&mut member), [ready(2)]);
    let ended = Ending::Ended(EndReason::Finished);
    let over = answer(&mut member, Reply::Ended(EndReason::Finished));
    assert_eq!(over, [Action::Over(ended)]);
    assert_eq!((member.ending(), member.poll()), (Some(ended), None));

    // The change was proposed before.
    let mut member = inside();
    event(&mut member, 8, change(2));
    let finishes = member.step(seconds(1), MemberInput::Finish);
    // First, because otherwise the service would list it in the next generation.
    assert_eq!(finishes, [Action::Send(finished)]);
    assert_eq!(answer(&mut member, Reply::Accepted), [STOP]);

    // All have finished: no connection of the mesh is to be ended.
    let mut member = inside();
    member.step(seconds(1), MemberInput::Finish);
    answer(&mut member, Reply::Accepted);
    let poll = member.poll().expect("it polls");
    let reply = Reply::Ended(EndReason::Finished);
    let ends = member.step(seconds(2), MemberInput::Reply(poll, reply));
    assert_eq!(ends, [STOP, Action::Over(ended)]);
}

/// docs/spec/membership.md, MEMBER 4: a service of release 0.2 answers as to a boundary.
#[test]
fn a_member_that_has_finished_leaves_a_service_that_does_not_know_what_that_is() {
    let mut member = inside();
    member.step(seconds(1), MemberInput::Finish);
    let leaves = answer(&mut member, Reply::Proceed);
    assert_eq!(leaves, [Action::Send(Message::Leave)]);
    assert_eq!(answer(&mut member, Reply::Accepted), []);
    let is_leaving = true;
    let after = EventNumber(6);
    assert_eq!(member.poll(), Some(Message::Poll { after, is_leaving }));
}

/// docs/spec/membership.md, MEMBER 5.
#[test]
fn a_member_that_the_service_does_not_know_leaves_and_says_hello_again() {
    let mut member = inside();
    let poll = member.poll().expect("it polls");
    let unknown = MemberInput::Reply(poll, Reply::Unknown);
    assert_eq!(member.step(seconds(1), unknown), [LEAVE]);
    assert_eq!(member.poll(), None);
    let hello = Message::Hello {
        handle: "gloo:1".into(),
        step: 5,
    };
    assert_eq!(left(&mut member), [Action::Send(hello)]);
    answer(&mut member, Reply::Accepted);
    let after = EventNumber::NONE;
    assert_eq!(
        member.poll(),
        Some(Message::Poll {
            after,
            is_leaving: false
        })
    );
}

/// docs/spec/membership.md, MEMBER 6.
#[test]
fn a_member_that_is_evicted_leaves_its_mesh_and_learns_why() {
    let mut member = inside();
    let poll = member.poll().expect("it polls");
    let evicted = MemberInput::Reply(poll.clone(), Reply::Evicted(Reason::Silent));
    let over = Action::Over(Ending::Evicted(Reason::Silent));
    assert_eq!(member.step(seconds(1), evicted.clone()), [LEAVE, over]);
    assert_eq!(member.step(seconds(1), evicted), []);

    let mut member = joined();
    let ended = event(&mut member, 9, Event::Ended(EndReason::Closed));
    assert_eq!(ended, [Action::Over(Ending::Ended(EndReason::Closed))]);
}

/// docs/spec/membership.md, MEMBER 7.
#[test]
fn a_member_says_whether_it_knows_of_a_change_at_a_boundary() {
    let mut member = inside();
    assert!(!member.has_change());
    event(&mut member, 8, change(2));
    assert!(member.has_change());
    // Before the boundary at which all stop.
    member.step(seconds(1), MemberInput::Boundary(2));
    assert_eq!(answer(&mut member, Reply::Proceed), [Action::Proceed]);
    assert!(member.has_change());
    member.step(seconds(1), MemberInput::Boundary(3));
    assert_eq!(answer(&mut member, Reply::Change(attempt(2))), [STOP]);
    assert!(!member.has_change());

    // An event that removes the member from its generation does not wait for a boundary.
    let mut member = inside();
    event(&mut member, 8, propose(2));
    assert!(!member.has_change());
}
