//! Workers that were replaced by another process. Unanswered messages may have gone to either process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::scripted::{A, B, C, Context, context, create, created, fetched, sent, worker};
use crate::context::fork::UNANSWERED_MAX;
use crate::context::{Carrier, FetchError, Handle, Timing, UserStatus};
use crate::context::{Control, Delivery, Effect, LossReport, ReceiveError};
use crate::id::{ForkId, GloballyUniqueId, RRefId};
use crate::places::PLACES_ALONE as WAITING_MAX;
use crate::protocol::{Answer, ForkData, Message};

/// The first process of B.
const OLD: u64 = 101;
const NEW: u64 = 999;

fn by(incarnation: u64, answer: Answer) -> Delivery {
    Delivery::Answered {
        incarnation,
        answer,
    }
}

fn id(of: u32, incarnation: u64, local_id: u64) -> GloballyUniqueId {
    GloballyUniqueId {
        created_on: worker(of),
        incarnation,
        local_id,
    }
}

/// The reference that A sends for a value of this process of B.
fn from_a(incarnation: u64) -> ForkData {
    ForkData {
        owner: worker(B),
        owner_incarnation: incarnation,
        rref: RRefId(id(B, incarnation, 0)),
        fork: ForkId(id(A, 100, 1)),
        parent: worker(A),
        type_name: "t".into(),
    }
}

/// Returns the deletions among the effects.
fn deleted(effects: &[Effect<&'static str>]) -> Vec<(RRefId, ForkId)> {
    let forks = effects.iter().filter_map(|effect| match effect {
        Effect::Send {
            message: Message::UserDelete { forks },
            ..
        } => Some(forks.clone()),
        _ => None,
    });
    forks.flatten().collect()
}

#[test]
fn a_reference_sent_to_a_new_process_survives_the_old_one() {
    let now = Instant::now();
    let mut owner = context(A, now);
    assert!(owner.heard_from(now, worker(B), OLD));
    let rref = owner.create_local(now, "t", "value").unwrap();
    // The transport is connected to the new process, but no message of it has arrived.
    let data = owner.fork(now, Handle::Owner(rref), worker(B)).unwrap();
    owner.commit_fork(now, &data, Carrier::Answer);
    owner.drop_handle(now, Handle::Owner(rref));
    owner.take_effects();
    assert!(owner.heard_from(now, worker(B), NEW));
    let effects = owner.take_effects();
    assert!(!effects.contains(&Effect::Free("value")), "{effects:?}");
    owner.receive(now, worker(B), NEW, 7, None, Message::Fetch { rref });
    assert_eq!(owner.take_effects(), [fetched(7, Ok("value"))]);
    // If the message did not reach the new process, the answer to the probe reports that, and the value is freed.
    let due = now + Timing::default().probe_after;
    owner.tick(due);
    owner.take_effects();
    let probe = Control::Probe(data.fork);
    owner.control_finished(due, probe, by(NEW, Answer::NotReceived));
    assert_eq!(owner.take_effects(), [Effect::Free("value")]);
    assert!(owner.is_drained());
}

#[test]
fn a_reference_answered_by_a_new_process_survives_the_old_one() {
    let now = Instant::now();
    let mut owner = context(A, now);
    assert!(owner.heard_from(now, worker(B), OLD));
    let rref = owner.create_local(now, "t", "value").unwrap();
    let data = owner.fork(now, Handle::Owner(rref), worker(B)).unwrap();
    owner.commit_fork(now, &data, Carrier::Answer);
    owner.fork_arrived(now, &data);
    owner.drop_handle(now, Handle::Owner(rref));
    owner.take_effects();
    assert!(owner.heard_from(now, worker(B), NEW));
    let effects = owner.take_effects();
    assert!(!effects.contains(&Effect::Free("value")), "{effects:?}");
}

#[test]
fn a_process_that_was_heard_from_while_a_loss_was_reported_is_not_lost() {
    let now = Instant::now();
    let mut owner = context(A, now);
    let rref = owner.create_local(now, "t", "value").unwrap();
    let data = owner.fork(now, Handle::Owner(rref), worker(B)).unwrap();
    owner.commit_fork(now, &data, Carrier::Answer);
    owner.drop_handle(now, Handle::Owner(rref));
    // The report was made from values that were read before the new process sent its first message.
    let (heard, connected) = (owner.incarnation_of(worker(B)), Some(OLD));
    assert!(owner.heard_from(now, worker(B), NEW));
    let report = owner.process_ended(now, worker(B), Some(OLD), connected, heard);
    assert_eq!(report, LossReport::Outdated);
    // The repeated report finds the worker connected as the new process.
    let heard = owner.incarnation_of(worker(B));
    let report = owner.process_ended(now, worker(B), Some(OLD), Some(NEW), heard);
    assert_eq!(report, LossReport::Replaced);
    assert_eq!(owner.incarnation_of(worker(B)), Some(NEW));
    owner.take_effects();
    // Only the end of the new process counts as the loss of the worker.
    let report = owner.process_ended(now, worker(B), Some(NEW), Some(NEW), heard);
    assert_eq!(report, LossReport::Lost { was_involved: true });
    assert_eq!(owner.take_effects(), [Effect::Free("value")]);
    assert!(owner.is_drained());
}

#[test]
fn a_parent_waits_for_a_child_that_went_to_a_new_process() {
    let now = Instant::now();
    let mut user = context(A, now);
    assert!(user.heard_from(now, worker(C), OLD));
    let fork = created(&mut user, now);
    let data = user.fork(now, Handle::User(fork), worker(C)).unwrap();
    user.commit_fork(now, &data, Carrier::Answer);
    user.drop_handle(now, Handle::User(fork));
    user.take_effects();
    assert!(user.heard_from(now, worker(C), NEW));
    let effects = user.take_effects();
    assert_eq!(deleted(&effects), [], "its child is in flight: {effects:?}");
    let accept = Message::ChildAccept { fork: data.fork };
    user.receive(now, worker(C), NEW, 7, None, accept);
    assert_eq!(deleted(&user.take_effects()), [(data.rref, fork)]);
}

#[test]
fn a_creation_accepted_by_a_new_process_is_confirmed() {
    let now = Instant::now();
    let mut user = context(A, now);
    assert!(user.heard_from(now, worker(B), OLD));
    let fork = create(&mut user);
    let rref = user.rref_of(Handle::User(fork)).unwrap();
    user.control_finished(now, Control::Create(fork), by(NEW, Answer::RemoteAccept));
    user.take_effects();
    assert_eq!(user.status(fork), Some(UserStatus::Confirmed));
    user.drop_handle(now, Handle::User(fork));
    assert_eq!(deleted(&user.take_effects()), [(rref, fork)]);
}

#[test]
fn a_creation_that_reaches_a_new_process_after_the_loss_of_the_old_one_is_deleted() {
    let now = Instant::now();
    let mut user = context(A, now);
    assert!(user.heard_from(now, worker(B), OLD));
    let fork = create(&mut user);
    let rref = user.rref_of(Handle::User(fork)).unwrap();
    // The worker has no process at this time; the creation is still being retried.
    user.peer_lost(now, worker(B), Some(OLD));
    user.drop_handle(now, Handle::User(fork));
    user.take_effects();
    user.control_finished(now, Control::Create(fork), by(NEW, Answer::RemoteAccept));
    assert_eq!(deleted(&user.take_effects()), [(rref, fork)]);
}

/// The transport connects to the next process before it has received anything from it, and abandons the creation.
#[test]
fn a_creation_whose_outcome_is_unknown_after_the_loss_is_deleted() {
    let now = Instant::now();
    let mut user = context(A, now);
    assert!(user.heard_from(now, worker(B), OLD));
    let fork = create(&mut user);
    let rref = user.rref_of(Handle::User(fork)).unwrap();
    user.peer_lost(now, worker(B), Some(OLD));
    user.drop_handle(now, Handle::User(fork));
    user.take_effects();
    let unknown = Delivery::Unknown("abandoned".into());
    user.control_finished(now, Control::Create(fork), unknown);
    assert_eq!(deleted(&user.take_effects()), [(rref, fork)]);
    // There was no next process.
    user.peer_lost(now, worker(B), Some(OLD));
    user.check_invariants().unwrap();
    assert!(!user.is_involved(worker(B)));
}

#[test]
fn requests_for_a_value_that_its_creator_has_abandoned_end() {
    let now = Instant::now();
    let rref = RRefId(id(A, 100, 0));
    let delete = || Message::UserDelete {
        forks: vec![(rref, rref.creators_fork())],
    };
    for is_deleted_first in [false, true] {
        let mut owner = context(B, now);
        let mut messages = [Message::Fetch { rref }, delete()];
        if is_deleted_first {
            messages.reverse();
        }
        for (token, message) in (0..).zip(messages) {
            owner.receive(now, worker(A), 100, token, None, message);
        }
        let effects = owner.take_effects();
        let is_end = |effect: &Effect<_>| {
            let Effect::AnswerFetch { result, .. } = effect else {
                return false;
            };
            *result == Err(FetchError::Deleted(rref))
        };
        assert_eq!(effects.iter().filter(|it| is_end(it)).count(), 1);
        owner.check_invariants().unwrap();
        assert_eq!(owner.sizes().owners, 0);
    }
}

#[test]
fn an_orphaned_registration_at_a_new_owner_process_is_deleted() {
    let now = Instant::now();
    for is_lost_first in [false, true] {
        let mut third = context(C, now);
        assert!(third.heard_from(now, worker(B), OLD));
        let data = from_a(OLD);
        let received = third.receive_fork(now, &data).unwrap();
        third.take_effects();
        if is_lost_first {
            third.peer_lost(now, worker(B), Some(OLD));
            third.take_effects();
        }
        let request = Control::ForkRequest(data.fork);
        third.control_finished(now, request, by(NEW, Answer::Ack));
        let effects = third.take_effects();
        assert_eq!(deleted(&effects), [(data.rref, data.fork)], "{effects:?}");
        third.drop_handle(now, received.handle);
        assert_eq!(deleted(&third.take_effects()), []);
    }
}

#[test]
fn a_reference_of_a_new_owner_process_is_accepted_before_that_process_is_known() {
    let now = Instant::now();
    let mut third = context(C, now);
    assert!(third.heard_from(now, worker(B), OLD));
    let data = from_a(NEW);
    third.receive_fork(now, &data).unwrap();
    third.take_effects();
    let request = Control::ForkRequest(data.fork);
    third.control_finished(now, request, by(NEW, Answer::Ack));
    third.take_effects();
    assert_eq!(third.status(data.fork), Some(UserStatus::Confirmed));
}

#[test]
fn a_child_whose_worker_refuses_its_parent_is_queried_at_the_owner() {
    let now = Instant::now();
    let mut user = context(A, now);
    let fork = created(&mut user, now);
    let data = user.fork(now, Handle::User(fork), worker(C)).unwrap();
    user.commit_fork(now, &data, Carrier::Answer);
    user.drop_handle(now, Handle::User(fork));
    user.take_effects();
    let due = now + Timing::default().probe_after;
    user.tick(due);
    user.take_effects();
    let why: Arc<str> =
        "worker 0 was declared dead here; only a new process of it is accepted".into();
    let probe = Control::Probe(data.fork);
    user.control_finished(due, probe, by(102, Answer::Refused(why)));
    let query = sent(
        B,
        Control::Query(data.fork),
        Message::Query {
            rref: data.rref,
            fork: data.fork,
        },
    );
    assert_eq!(user.take_effects(), [query]);
    user.control_finished(due, Control::Query(data.fork), by(OLD, Answer::Known));
    assert_eq!(deleted(&user.take_effects()), [(data.rref, fork)]);
}

#[test]
fn a_late_report_of_an_old_process_does_not_end_the_new_one() {
    let now = Instant::now();
    let mut owner = context(A, now);
    assert!(owner.heard_from(now, worker(B), OLD));
    assert!(owner.heard_from(now, worker(B), NEW));
    owner.peer_lost(now, worker(B), Some(OLD));
    assert_eq!(owner.incarnation_of(worker(B)), Some(NEW));
    assert!(owner.heard_from(now, worker(B), NEW));
    owner.peer_lost(now, worker(B), Some(NEW));
    assert!(!owner.heard_from(now, worker(B), NEW));
}

#[test]
fn a_fork_being_encoded_when_its_receiver_dies_may_go_to_its_successor() {
    let now = Instant::now();
    let mut owner = context(A, now);
    let rref = owner.create_local(now, "t", "value").unwrap();
    let data = owner.fork(now, Handle::Owner(rref), worker(B)).unwrap();
    owner.peer_lost(now, worker(B), Some(OLD));
    owner.drop_handle(now, Handle::Owner(rref));
    owner.commit_fork(now, &data, Carrier::Answer);
    assert_eq!(owner.take_effects(), []);
    owner.undo_fork(now, &data);
    assert_eq!(owner.take_effects(), [Effect::Free("value")]);
}

#[test]
fn timers_of_unlimited_length_never_fire() {
    let now = Instant::now();
    let timing = Timing {
        probe_after: Duration::MAX,
        resend_after: Duration::MAX,
    };
    let mut owner = Context::new(worker(A), 100, timing, now);
    let rref = owner.create_local(now, "t", "value").unwrap();
    let data = owner.fork(now, Handle::Owner(rref), worker(B)).unwrap();
    owner.commit_fork(now, &data, Carrier::Answer);
    assert_eq!(owner.next_tick(), None);
    owner.tick(now);
    owner.fork_outcome_unknown(now, &data);
    let probe = Control::Probe(data.fork);
    owner.control_finished(now, probe, Delivery::Unknown("no answer".into()));
    assert_eq!(owner.next_tick(), None);
    owner.tick(now);
}

#[test]
fn timers_of_zero_length_count_as_a_millisecond() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let now = Instant::now();
        let timing = Timing {
            probe_after: Duration::ZERO,
            resend_after: Duration::ZERO,
        };
        let mut user = Context::new(worker(A), 100, timing, now);
        let fork = created(&mut user, now);
        // A reference that the worker sends to itself waits for the owner's answer.
        let data = user.fork(now, Handle::User(fork), worker(A)).unwrap();
        user.commit_fork(now, &data, Carrier::Answer);
        user.receive_fork(now, &data).unwrap();
        user.tick(now);
        done.send(user.next_tick().is_some_and(|next| next > now))
    });
    let is_later = is_done.recv_timeout(Duration::from_secs(10));
    assert_eq!(is_later, Ok(true));
}

#[test]
fn references_are_refused_at_the_limit_of_unanswered_messages() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let rref = owner.create_local(now, "t", "value").unwrap();
    let data = |local_id| ForkData {
        owner: worker(B),
        owner_incarnation: 101,
        rref,
        fork: ForkId(id(A, 100, local_id)),
        parent: worker(A),
        type_name: "t".into(),
    };
    for n in 0..UNANSWERED_MAX as u64 {
        owner.receive_fork(now, &data(n)).unwrap();
        owner.effects.clear();
    }
    let max = UNANSWERED_MAX;
    assert_eq!(
        owner.receive_fork(now, &data(max as u64)),
        Err(ReceiveError::TooManyMessages { max })
    );
    // A reference that the owner sends to itself needs no answer.
    let own = owner.fork(now, Handle::Owner(rref), worker(B)).unwrap();
    owner.receive_fork(now, &own).unwrap();
}

#[test]
fn the_maximum_number_of_waiting_requests_ends_in_linear_time() {
    let time_of = |count: usize| {
        let now = Instant::now();
        let mut owner = context(B, now);
        let rref = RRefId(id(A, 100, 0));
        let deadline = now + Duration::from_secs(1);
        for token in 0..count as u64 {
            owner.fetch(now, token, rref, Some(deadline));
        }
        let began = Instant::now();
        owner.tick(deadline);
        let took = began.elapsed();
        assert_eq!(owner.take_effects().len(), count);
        assert!(owner.is_drained());
        took
    };
    // Eight times as many: the square would take 64 times as long. The best of three pairs, because the machine may
    // be busy.
    let ratios = (0..3).map(|_| {
        let few = time_of(WAITING_MAX / 8);
        time_of(WAITING_MAX).as_secs_f64() / few.as_secs_f64()
    });
    let ratio = ratios.fold(f64::MAX, f64::min);
    assert!(ratio < 24.0, "{ratio:.1} times as long");
}
