//! Unit tests: single events and all their effects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_agent::WorkerId;

use crate::context::probe::PROBES_MAX;
use crate::context::values::UNCREATED_MAX;
use crate::context::{Carrier, Handle, RRefContext, Timing, UserStatus, ValueState};
use crate::context::{
    Control, Delivery, Effect, FetchError, ReceiveError, SetValueError, UserError,
};
use crate::id::{ForkId, GloballyUniqueId, RRefId};
use crate::places::PLACES_ALONE as WAITING_MAX;
use crate::protocol::{Answer, ForkData, Message};

pub(super) type Context = RRefContext<&'static str>;

pub(super) const A: u32 = 0;
pub(super) const B: u32 = 1;
pub(super) const C: u32 = 2;

pub(super) fn worker(id: u32) -> WorkerId {
    WorkerId::new(id).unwrap()
}

fn incarnation(id: u32) -> u64 {
    100 + u64::from(id)
}

fn id(of: u32, local_id: u64) -> GloballyUniqueId {
    GloballyUniqueId {
        created_on: worker(of),
        incarnation: incarnation(of),
        local_id,
    }
}

pub(super) fn context(of: u32, now: Instant) -> Context {
    Context::new(worker(of), incarnation(of), Timing::default(), now)
}

fn receive(
    context: &mut Context,
    now: Instant,
    from: u32,
    message: Message,
) -> Vec<Effect<&'static str>> {
    context.receive(now, worker(from), incarnation(from), 7, None, message);
    context.take_effects()
}

fn reply(answer: Answer) -> Effect<&'static str> {
    Effect::Reply { token: 7, answer }
}

pub(super) fn answered(by: u32, answer: Answer) -> Delivery {
    Delivery::Answered {
        incarnation: incarnation(by),
        answer,
    }
}

/// Creates a user of a value of B.
pub(super) fn create(user: &mut Context) -> ForkId {
    let created = user.create_remote(worker(B), "t", "f".into(), Bytes::new());
    created.unwrap()
}

/// [`create`], which B has accepted.
pub(super) fn created(user: &mut Context, now: Instant) -> ForkId {
    let fork = create(user);
    let accepted = answered(B, Answer::RemoteAccept);
    user.control_finished(now, Control::Create(fork), accepted);
    fork
}

/// The owner B of a value that A has created.
fn owner_of_a_value(now: Instant) -> Context {
    let mut owner = context(B, now);
    receive(&mut owner, now, A, creation(R(), F()));
    owner.function_finished(now, R(), Ok("value"));
    owner
}

fn delete(rref: RRefId, fork: ForkId) -> Message {
    Message::UserDelete {
        forks: vec![(rref, fork)],
    }
}

pub(super) fn sent(to: u32, control: Control, message: Message) -> Effect<&'static str> {
    Effect::Send {
        to: worker(to),
        control,
        message,
    }
}

pub(super) fn fetched(
    token: u64,
    result: Result<&'static str, FetchError>,
) -> Effect<&'static str> {
    Effect::AnswerFetch { token, result }
}

#[track_caller]
fn assert_refused(effects: &[Effect<&'static str>]) {
    let is_refused = matches!(
        effects,
        [Effect::Reply {
            answer: Answer::Refused(_),
            ..
        }]
    );
    assert!(is_refused, "{effects:?}");
}

fn creation(rref: RRefId, fork: ForkId) -> Message {
    Message::RemoteCall {
        rref,
        fork,
        type_name: "t".into(),
        function: "f".into(),
        arguments: Bytes::from_static(b"x"),
    }
}

fn run(rref: RRefId) -> Effect<&'static str> {
    Effect::RunFunction {
        rref,
        from: worker(A),
        function: "f".into(),
        arguments: Bytes::from_static(b"x"),
    }
}

/// The reference data that A sends to C for a value of B.
fn forked(local_id: u64) -> ForkData {
    ForkData {
        owner: worker(B),
        owner_incarnation: incarnation(B),
        rref: RRefId(id(A, 0)),
        fork: ForkId(id(A, local_id)),
        parent: worker(A),
        type_name: "t".into(),
    }
}

const R: fn() -> RRefId = || RRefId(id(A, 0));
const F: fn() -> ForkId = || ForkId(id(A, 1));
const R9: fn() -> RRefId = || RRefId(id(A, 9));

#[test]
fn a_creation_is_accepted_before_its_function_has_run_and_runs_once() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let first = receive(&mut owner, now, A, creation(R(), F()));
    assert_eq!(first, [run(R()), reply(Answer::RemoteAccept)]);
    let second = receive(&mut owner, now, A, creation(R(), F()));
    assert_eq!(second, [reply(Answer::RemoteAccept)]);
}

#[test]
fn a_creation_that_arrives_after_its_deletion_does_not_run() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let delete = delete(R(), F());
    assert_eq!(receive(&mut owner, now, A, delete), [reply(Answer::Ack)]);
    let late = receive(&mut owner, now, A, creation(R(), F()));
    assert_eq!(late, [reply(Answer::RemoteAccept)]);
    assert!(owner.is_drained());
}

#[test]
fn a_result_without_references_is_freed_at_once() {
    let now = Instant::now();
    let mut owner = context(B, now);
    receive(&mut owner, now, A, creation(R(), F()));
    let delete = delete(R(), F());
    receive(&mut owner, now, A, delete);
    owner.function_finished(now, R(), Ok("value"));
    assert_eq!(owner.take_effects(), [Effect::Free("value")]);
}

#[test]
fn a_fetch_before_the_creation_waits_and_one_after_the_deletion_fails_at_once() {
    let now = Instant::now();
    let mut owner = context(B, now);
    assert_eq!(
        receive(&mut owner, now, C, Message::Fetch { rref: R() }),
        []
    );
    receive(&mut owner, now, A, creation(R(), F()));
    owner.function_finished(now, R(), Ok("value"));
    let answer = |result| Effect::AnswerFetch { token: 7, result };
    assert_eq!(owner.take_effects(), [answer(Ok("value"))]);
    let delete = delete(R(), F());
    let freed = receive(&mut owner, now, A, delete);
    assert_eq!(freed, [Effect::Free("value"), reply(Answer::Ack)]);
    assert_eq!(
        receive(&mut owner, now, C, Message::Fetch { rref: R() }),
        [answer(Err(FetchError::Deleted(R())))]
    );
}

#[test]
fn an_unanswered_fetch_ends_at_its_deadline_and_leaves_no_entry() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let deadline = now + Duration::from_secs(1);
    owner.fetch(now, 9, R(), Some(deadline));
    assert_eq!(owner.next_tick(), Some(deadline));
    owner.tick(deadline);
    assert_eq!(
        owner.take_effects(),
        [fetched(9, Err(FetchError::TimedOut(R())))]
    );
    assert!(owner.is_drained());
    assert_eq!(owner.next_tick(), None);
}

#[test]
fn a_late_copy_of_a_fork_request_does_not_revive_its_user() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let fork = ForkId(id(A, u64::from(C) << 48 | 2));
    let request = Message::ForkRequest { rref: R(), fork };
    receive(&mut owner, now, C, request.clone());
    let delete = delete(R(), fork);
    receive(&mut owner, now, C, delete);
    assert_eq!(receive(&mut owner, now, C, request), [reply(Answer::Ack)]);
    assert!(owner.is_drained());
}

#[test]
fn deletions_queue_behind_the_batch_under_way() {
    let now = Instant::now();
    let mut user = context(A, now);
    let forks: Vec<ForkId> = (0..3).map(|_| created(&mut user, now)).collect();
    user.take_effects();
    for fork in forks {
        user.drop_handle(now, Handle::User(fork));
    }
    // Each receiving worker has its own counter for ids.
    let for_b = u64::from(B) << 48;
    let batch = |batch, locals: &[u64]| Effect::Send {
        to: worker(B),
        control: Control::Deletes {
            owner: worker(B),
            batch,
        },
        message: Message::UserDelete {
            forks: locals
                .iter()
                .map(|&local| {
                    (
                        RRefId(id(A, for_b + local)),
                        ForkId(id(A, for_b + local + 1)),
                    )
                })
                .collect(),
        },
    };
    assert_eq!(user.take_effects(), [batch(0, &[0])]);
    let control = |batch| Control::Deletes {
        owner: worker(B),
        batch,
    };
    user.control_finished(now, control(0), answered(B, Answer::Ack));
    assert_eq!(user.take_effects(), [batch(1, &[2, 4])]);
    // The retries are exhausted. The batch is sent again after the next message from the owner.
    user.control_finished(now, control(1), Delivery::Unknown("no answer".into()));
    assert_eq!(user.take_effects(), []);
    let probe = Message::Probe {
        rref: RRefId(id(B, 49)),
        fork: ForkId(id(B, 50)),
    };
    let effects = receive(&mut user, now, B, probe);
    assert_eq!(effects, [batch(2, &[2, 4]), reply(Answer::NotReceived)]);
    user.control_finished(now, control(2), answered(B, Answer::Ack));
    assert!(user.is_drained());
}

#[test]
fn a_silent_child_is_probed_at_its_worker_and_queried_at_the_owner() {
    let now = Instant::now();
    let mut user = context(A, now);
    let fork = created(&mut user, now);
    let data = user.fork(now, Handle::User(fork), worker(C)).unwrap();
    user.commit_fork(now, &data, Carrier::Answer);
    user.drop_handle(now, Handle::User(fork));
    user.take_effects();
    let due = now + Timing::default().probe_after;
    assert_eq!(user.next_tick(), Some(due));
    user.tick(due);
    let (rref, child) = (data.rref, data.fork);
    assert_eq!(
        user.take_effects(),
        [sent(
            C,
            Control::Probe(child),
            Message::Probe { rref, fork: child }
        )]
    );
    user.control_finished(
        now,
        Control::Probe(child),
        Delivery::Unknown("no answer".into()),
    );
    assert_eq!(
        user.take_effects(),
        [sent(
            B,
            Control::Query(child),
            Message::Query { rref, fork: child }
        )]
    );
    user.control_finished(now, Control::Query(child), answered(B, Answer::Deleted));
    assert!(matches!(
        user.take_effects()[..],
        [Effect::Send {
            control: Control::Deletes { .. },
            ..
        }]
    ));
}

#[test]
fn a_reference_that_arrives_after_its_probe_is_refused() {
    let now = Instant::now();
    let mut third = context(C, now);
    let data = forked(2);
    let probe = Message::Probe {
        rref: data.rref,
        fork: data.fork,
    };
    assert_eq!(
        receive(&mut third, now, A, probe),
        [reply(Answer::NotReceived)]
    );
    assert_eq!(
        third.receive_fork(now, &data),
        Err(ReceiveError::ReceivedBefore(data.fork))
    );
}

#[test]
fn the_death_of_an_owner_fails_its_users_at_once() {
    let now = Instant::now();
    let mut third = context(C, now);
    let data = forked(2);
    third.receive_fork(now, &data).unwrap();
    third.take_effects();
    third.peer_lost(now, worker(B), None);
    let error = UserError::OwnerLost(worker(B));
    let accept = Control::ChildAccept(data.fork);
    assert_eq!(
        third.take_effects(),
        [
            Effect::Failed {
                fork: data.fork,
                error: error.clone()
            },
            // The parent no longer has to wait for this child.
            sent(A, accept, Message::ChildAccept { fork: data.fork })
        ]
    );
    assert_eq!(third.status(data.fork), Some(UserStatus::Failed(error)));
    third.drop_handle(now, Handle::User(data.fork));
    third.control_finished(now, accept, answered(A, Answer::Ack));
    assert!(third.is_drained());
    assert_eq!(
        third.receive_fork(
            now,
            &ForkData {
                owner_incarnation: 0,
                ..forked(3)
            }
        ),
        Err(ReceiveError::OwnerLost(worker(B)))
    );
}

#[test]
fn a_new_process_of_a_worker_releases_the_users_of_the_old_one() {
    let now = Instant::now();
    let mut owner = owner_of_a_value(now);
    let probe = Message::Probe {
        rref: R(),
        fork: ForkId(id(A, 9)),
    };
    owner.receive(now, worker(A), 999, 7, None, probe.clone());
    assert_eq!(
        owner.take_effects(),
        [Effect::Free("value"), reply(Answer::NotReceived)]
    );
    let old = receive(&mut owner, now, A, probe);
    assert_refused(&old);
}

#[test]
fn a_late_request_of_an_unknown_dead_process_is_refused() {
    let now = Instant::now();
    let mut owner = context(B, now);
    owner.peer_lost(now, worker(A), Some(incarnation(A)));
    let refused = receive(&mut owner, now, A, creation(R(), F()));
    assert_refused(&refused);
    assert!(owner.is_drained());
    // A later process of the worker is accepted.
    let of_new = |local_id| GloballyUniqueId {
        incarnation: 999,
        ..id(A, local_id)
    };
    let message = creation(RRefId(of_new(0)), ForkId(of_new(1)));
    owner.receive(now, worker(A), 999, 7, None, message);
    assert_eq!(owner.take_effects().len(), 2);
    assert_eq!(owner.incarnation_of(worker(A)), Some(999));
}

#[test]
fn requests_of_a_dead_worker_are_dropped() {
    let now = Instant::now();
    let mut owner = context(B, now);
    receive(&mut owner, now, A, creation(R(), F()));
    owner.receive(
        now,
        worker(C),
        incarnation(C),
        8,
        None,
        Message::Fetch { rref: R() },
    );
    owner.receive(
        now,
        worker(A),
        incarnation(A),
        9,
        None,
        Message::Fetch { rref: R() },
    );
    assert_eq!(owner.take_effects(), []);
    owner.peer_lost(now, worker(C), None);
    let refused = fetched(8, Err(FetchError::PeerDead(worker(C))));
    assert_eq!(owner.take_effects(), [refused]);
    assert_eq!(owner.sizes().parked_fetches, 1);
}

#[test]
fn a_fork_whose_receiver_has_answered_is_not_probed() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let rref = owner.create_local(now, "t", "value").unwrap();
    let first = owner.fork(now, Handle::Owner(rref), worker(A)).unwrap();
    let second = owner.fork(now, Handle::Owner(rref), worker(C)).unwrap();
    owner.commit_fork(now, &first, Carrier::Call);
    owner.commit_fork(now, &second, Carrier::Call);
    owner.fork_arrived(now, &first);
    // A reference in an unanswered call is not probed, regardless of the duration of the call.
    assert_eq!(owner.next_tick(), None);
    // The arrival of an answer is not reported, so its references are probed.
    owner.commit_fork(now, &second, Carrier::Answer);
    let due = now + Timing::default().probe_after;
    assert_eq!(owner.next_tick(), Some(due));
    owner.tick(due);
    let (rref, fork) = (second.rref, second.fork);
    assert_eq!(
        owner.take_effects(),
        [sent(C, Control::Probe(fork), Message::Probe { rref, fork })]
    );
    assert_eq!(owner.next_tick(), None);
}

#[test]
fn the_number_of_probes_under_way_is_limited() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let rref = owner.create_local(now, "t", "value").unwrap();
    for _ in 0..PROBES_MAX + 10 {
        let data = owner.fork(now, Handle::Owner(rref), worker(A)).unwrap();
        owner.commit_fork(now, &data, Carrier::Answer);
    }
    let due = now + Timing::default().probe_after;
    owner.tick(due);
    let sent: Vec<Control> = owner
        .take_effects()
        .into_iter()
        .map(|effect| match effect {
            Effect::Send { control, .. } => control,
            effect => panic!("{effect:?}"),
        })
        .collect();
    assert_eq!(sent.len(), PROBES_MAX);
    // No more probes until one is answered or fails. An unanswered probe of one worker does not block probes of other
    // workers.
    assert_eq!(owner.next_tick(), None);
    owner.control_finished(due, sent[0], answered(A, Answer::Received));
    owner.control_finished(due, sent[1], Delivery::NotDelivered("refused".into()));
    assert_eq!(owner.next_tick(), Some(due));
    owner.tick(due);
    assert_eq!(owner.take_effects().len(), 2);
}

#[test]
fn a_stalled_message_is_resent_after_its_timer() {
    let now = Instant::now();
    let mut third = context(C, now);
    let data = forked(2);
    third.receive_fork(now, &data).unwrap();
    third.take_effects();
    let request = Control::ForkRequest(data.fork);
    third.control_finished(now, request, Delivery::Unknown("no answer".into()));
    let due = now + Timing::default().resend_after;
    assert_eq!(third.next_tick(), Some(due));
    third.tick(due - Duration::from_millis(1));
    assert_eq!(third.take_effects(), []);
    third.tick(due);
    assert_eq!(third.take_effects().len(), 1);
    assert_eq!(third.next_tick(), None);
}

#[test]
fn an_agent_that_ends_frees_all_values_and_fails_all_waits() {
    let now = Instant::now();
    let mut worker_b = context(B, now);
    receive(&mut worker_b, now, A, creation(R(), F()));
    worker_b.function_finished(now, R(), Ok("value"));
    let other = worker_b
        .create_remote(worker(C), "t", "f".into(), Bytes::new())
        .unwrap();
    worker_b.fork(now, Handle::User(other), worker(A)).unwrap();
    worker_b.fetch(now, 8, R9(), None);
    worker_b.take_effects();
    worker_b.end(now);
    let effects = worker_b.take_effects();
    assert_eq!(effects.len(), 3);
    assert!(effects.contains(&Effect::Free("value")));
    assert!(effects.contains(&Effect::Failed {
        fork: other,
        error: UserError::ShutDown
    }));
    assert!(effects.contains(&fetched(8, Err(FetchError::Deleted(R9())))));
    assert!(worker_b.is_drained());
    assert_eq!(worker_b.status(other), None);
    worker_b.drop_handle(now, Handle::User(other));
}

#[test]
fn an_abandoned_creation_fails_all_waits_and_never_runs() {
    let now = Instant::now();
    let mut owner = context(B, now);
    receive(&mut owner, now, C, Message::Fetch { rref: R() });
    let error: Arc<str> = "no answer".into();
    let abandon = Message::Abandon {
        rref: R(),
        fork: F(),
        error: Arc::clone(&error),
    };
    let failed = fetched(7, Err(FetchError::Failed(error)));
    assert_eq!(
        receive(&mut owner, now, A, abandon.clone()),
        [failed, reply(Answer::Abandoned)]
    );
    assert_eq!(
        receive(&mut owner, now, A, creation(R(), F())),
        [reply(Answer::RemoteAccept)]
    );
    assert_eq!(
        receive(&mut owner, now, A, abandon),
        [reply(Answer::Abandoned)]
    );
}

#[test]
fn a_worker_cannot_register_delete_or_query_the_user_of_another() {
    let now = Instant::now();
    let mut owner = owner_of_a_value(now);
    let of_a = ForkId(id(A, u64::from(A) << 48 | 7));
    let delete = |fork| delete(R(), fork);
    // C sends messages about the creator's user, and about another user that A may have created.
    for fork in [F(), of_a] {
        assert_eq!(
            receive(&mut owner, now, C, delete(fork)),
            [reply(Answer::Ack)]
        );
        for message in [
            Message::ForkRequest { rref: R(), fork },
            Message::Probe { rref: R(), fork },
            Message::Query { rref: R(), fork },
        ] {
            let refused = receive(&mut owner, now, C, message);
            assert_refused(&refused);
        }
    }
    let known = Message::ForkRequest {
        rref: R(),
        fork: of_a,
    };
    assert_eq!(receive(&mut owner, now, A, known), [reply(Answer::Ack)]);
    assert_eq!(owner.sizes().forks, 2);
    // Only the worker that received a child may accept it.
    let mut user = context(A, now);
    let fork = create(&mut user);
    let child = user.fork(now, Handle::User(fork), worker(C)).unwrap().fork;
    let accept = Message::ChildAccept { fork: child };
    for (from, children) in [(B, 1), (C, 0)] {
        receive(&mut user, now, from, accept.clone());
        assert_eq!(user.sizes().pending_children, children);
    }
}

#[test]
fn strangers_cannot_fill_the_tables() {
    let now = Instant::now();
    let mut owner = context(B, now);
    for n in 0..UNCREATED_MAX as u64 + 10 {
        let message = Message::ForkRequest {
            rref: RRefId(id(A, 2 * n)),
            fork: ForkId(id(A, u64::from(C) << 48 | (2 * n + 1))),
        };
        receive(&mut owner, now, C, message);
    }
    assert_eq!(owner.sizes().pending_owners, UNCREATED_MAX);
    for token in 0..WAITING_MAX as u64 + 10 {
        owner.fetch(now, token, R(), None);
        owner.effects.clear();
    }
    assert_eq!(owner.sizes().parked_fetches, WAITING_MAX);
    // There are places for the requests of others.
    owner.fetch_for(now, u64::MAX, worker(C), R(), None);
    assert_eq!(owner.sizes().parked_fetches, WAITING_MAX + 1);
    owner.peer_lost(now, worker(C), None);
    owner.peer_lost(now, worker(A), None);
    assert!(owner.is_drained());
}

#[test]
fn the_report_has_the_holders_of_a_value() {
    let now = Instant::now();
    let owner = owner_of_a_value(now);
    let held = owner.held(now + Duration::from_secs(5));
    let [value] = &held[..] else {
        panic!("{held:?}");
    };
    assert_eq!(value.type_name.as_deref(), Some("t"));
    assert_eq!(value.state, ValueState::Ready);
    let [holder] = &value.held_by[..] else {
        panic!("{value:?}");
    };
    assert_eq!(
        (holder.worker.id, holder.age),
        (worker(A), Duration::from_secs(5))
    );
    assert_eq!(
        format!(
            "worker {}: {} {}",
            owner.missing()[0].worker,
            owner.missing()[0].count,
            owner.missing()[0].what
        ),
        "worker 0: 1 references to values of this worker"
    );
}

#[test]
fn a_value_is_set_once_for_all_waits() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let rref = owner.create_promised(now, "t").unwrap();
    assert_eq!(owner.try_value(rref), None);
    let soon = now + Duration::from_secs(1);
    for (token, deadline) in [(1, None), (2, Some(soon)), (3, Some(now))] {
        owner.fetch(now, token, rref, deadline);
    }
    let timed_out = |token| fetched(token, Err(FetchError::TimedOut(rref)));
    // A request with a timeout of zero is answered at once.
    assert_eq!(owner.take_effects(), [timed_out(3)]);
    owner.tick(soon);
    assert_eq!(owner.take_effects(), [timed_out(2)]);
    assert_eq!(owner.set_value(soon, rref, Ok("value")), Ok(()));
    let result = Ok("value");
    assert_eq!(
        owner.take_effects(),
        [Effect::AnswerFetch { token: 1, result }]
    );
    // A refused value is freed; a refused error has nothing to free.
    let refused = Err(SetValueError::AlreadySet);
    assert_eq!(owner.set_value(soon, rref, Ok("second")), refused);
    assert_eq!(owner.take_effects(), [Effect::Free("second")]);
    assert_eq!(owner.set_value(soon, rref, Err("error".into())), refused);
    assert_eq!(owner.take_effects(), []);
    assert_eq!(owner.try_value(rref), Some(Ok("value")));
    owner.drop_handle(soon, Handle::Owner(rref));
    assert_eq!(owner.take_effects(), [Effect::Free("value")]);
    let refused = Err(SetValueError::ShutDown);
    assert_eq!(owner.set_value(soon, rref, Ok("late")), refused);
}

#[test]
fn the_value_of_a_function_cannot_be_set() {
    let now = Instant::now();
    let mut owner = context(B, now);
    let rref = owner.create_here(now, "t").unwrap();
    let refused = Err(SetValueError::MadeByFunction);
    assert_eq!(owner.set_value(now, rref, Ok("given")), refused);
    owner.function_finished(now, rref, Ok("made"));
    assert_eq!(owner.try_value(rref), Some(Ok("made")));
}

#[test]
fn a_value_that_is_unset_at_the_shutdown_fails() {
    type End = fn(&mut Context, Instant);
    for end in [Context::sweep_unforked as End, Context::end as End] {
        let now = Instant::now();
        let mut owner = context(B, now);
        let rref = owner.create_promised(now, "t").unwrap();
        let fork = owner.fork(now, Handle::Owner(rref), worker(A)).unwrap();
        owner.commit_fork(now, &fork, Carrier::Call);
        owner.fork_arrived(now, &fork);
        let fetch = Message::Fetch { rref };
        assert_eq!(receive(&mut owner, now, A, fetch), []);
        owner.delete_all_users(now);
        assert_eq!(owner.take_effects(), [], "the value may still be set");
        end(&mut owner, now);
        let why = "its owner was shut down before it set the value";
        let result = Err(FetchError::Failed(why.into()));
        assert_eq!(
            owner.take_effects(),
            [Effect::AnswerFetch { token: 7, result }]
        );
        assert_eq!(
            owner.set_value(now, rref, Ok("late")),
            Err(SetValueError::ShutDown)
        );
        assert_eq!(owner.take_effects(), [Effect::Free("late")]);
    }
}

#[test]
fn a_creation_without_an_answer_has_timed_out_unless_its_owner_has_accepted_it() {
    let now = Instant::now();
    for (answer, has_timed_out) in [(Answer::Created, false), (Answer::Abandoned, true)] {
        let mut user = context(A, now);
        let fork = create(&mut user);
        assert!(!user.has_timed_out(fork));
        let silent = Delivery::Unknown("no answer".into());
        user.control_finished(now, Control::Create(fork), silent);
        assert!(user.has_timed_out(fork));
        user.control_finished(now, Control::Abandon(fork), answered(B, answer));
        assert_eq!(user.has_timed_out(fork), has_timed_out);
    }
}
