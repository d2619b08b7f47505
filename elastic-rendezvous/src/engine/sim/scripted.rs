//! Steps one executor through scripted events: times to the nanosecond, and rare events.

use std::time::Duration;

use crate::engine::decide::Rule;
use crate::engine::executor::{Executor, Need};
use crate::engine::links::{Mark, Marks};
use crate::values::goal::{Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::{RendezvousState, Token, Written};
use crate::values::timestamp::{Now, Timestamp};

const SECOND: Duration = Duration::from_secs(1);
const NANOSECOND: Duration = Duration::from_nanos(1);
const MILLISECOND: Duration = Duration::from_millis(1);

const START: Now = Now {
    monotonic: Duration::from_secs(1000),
    wall: Timestamp::from_micros(1_800_000_000_000_000),
};

fn node(name: &str) -> NodeId {
    NodeId::new(name, 1, 0)
}

fn at(after_start: Duration) -> Now {
    START.after(after_start)
}

fn token(number: u8) -> Token {
    Token::new([number])
}

/// An open round of `nodes`, all with the heartbeat `heartbeat`.
fn open(nodes: &[&str], heartbeat: Timestamp) -> RendezvousState {
    let mut state = RendezvousState::default();
    for name in nodes {
        state.participants.insert(node(name), 0);
        state.last_heartbeats.insert(node(name), heartbeat);
    }
    state
}

/// A complete round of `nodes` with their ranks, all with the heartbeat `heartbeat`.
fn complete(nodes: &[(&str, i64)], heartbeat: Timestamp) -> RendezvousState {
    let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
    let mut state = open(&names, heartbeat);
    state.complete = true;
    for (name, rank) in nodes {
        state.participants.insert(node(name), *rank);
    }
    state
}

/// The executor of `me` in a job of 2 to 4 nodes that has begun `operation` at [`START`] and read `state`, in which it may
/// be listed itself.
fn executor(operation: Operation, state: RendezvousState) -> Executor {
    executor_with(
        RendezvousSettings::for_test(2, 4),
        operation,
        600 * SECOND,
        state,
    )
}

fn executor_with(
    settings: RendezvousSettings,
    operation: Operation,
    timeout: Duration,
    state: RendezvousState,
) -> Executor {
    let mut executor = Executor::new(node("me"), settings, START);
    executor.keep_id();
    executor.begin(operation, START.monotonic + timeout, START);
    assert_eq!(executor.step(START), Need::Read);
    executor.on_read(Some((state, token(1))), START);
    executor
}

/// Makes the executor read `state`.
fn read_again(executor: &mut Executor, state: &RendezvousState, now: Now) {
    executor.wake();
    assert_eq!(executor.step(now), Need::Read);
    executor.on_read(Some((state.clone(), token(1))), now);
}

fn rule(executor: &Executor) -> Rule {
    executor.last_decision().expect("a decision").rule
}

/// docs/spec/rendezvous.md, LOOP 4.
#[test]
fn a_heartbeat_is_due_when_the_last_one_is_an_interval_old() {
    let state = open(&["me"], START.wall);
    let mut executor = executor(Operation::Join, state.clone());
    let until = START.monotonic + 5 * SECOND;
    assert_eq!(executor.step(START), Need::Wait { until });
    let early = at(5 * SECOND - NANOSECOND);
    read_again(&mut executor, &state, early);
    executor.step(early);
    assert_eq!(rule(&executor), Rule::J15);
    let due = at(5 * SECOND);
    read_again(&mut executor, &state, due);
    assert_eq!(executor.step(due), Need::Write);
    assert_eq!(rule(&executor), Rule::J14);
    let written = executor.to_write().0.last_heartbeats[&node("me")];
    assert_eq!(written, due.wall);
}

/// The process is stopped between its write and the answer, or learns only from a later read that it has written.
/// docs/spec/rendezvous.md, OUTAGE 3.
#[test]
fn a_heartbeat_is_as_old_as_the_request_that_wrote_it() {
    for is_answered in [true, false] {
        let mut executor = executor(Operation::Join, open(&["peer"], START.wall));
        assert_eq!(executor.step(START), Need::Write);
        let mut written = executor.to_write().0.clone();
        let late = at(14 * SECOND);
        if is_answered {
            executor.on_written(Written::Ours(token(2)), late);
        } else {
            executor.on_outage();
            assert_eq!(executor.step(late), Need::Read);
            written.last_heartbeats.insert(node("peer"), late.wall);
            executor.on_read(Some((written, token(2))), late);
        }
        assert_eq!(
            executor.heartbeat_due_at(),
            Some(START.monotonic + 5 * SECOND)
        );
        assert_eq!(
            executor.is_kept_until(),
            Some(START.monotonic + 15 * SECOND)
        );
        assert_eq!(executor.step(late), Need::Write);
        assert_eq!(rule(&executor), Rule::J14, "answered: {is_answered}");
        // A conflict: it is still due.
        let mut others = executor.to_write().0.clone();
        others.last_heartbeats.insert(node("me"), START.wall);
        executor.on_written(Written::Theirs(Box::new(others), token(3)), late);
        assert_eq!(executor.step(late), Need::Write);
        executor.on_written(Written::Ours(token(4)), late);
        let due_at = late.monotonic + 5 * SECOND;
        assert_eq!(executor.heartbeat_due_at(), Some(due_at));
    }
}

/// docs/spec/rendezvous.md, CLOCK 5.
#[test]
fn the_last_call_is_over_when_more_than_its_time_has_passed() {
    let mut state = open(&["me", "peer"], START.wall);
    // The writer's clock does not matter.
    state.deadline = Some(START.wall.before(3600 * SECOND));
    let mut executor = executor(Operation::Join, state.clone());
    for seconds in (5..=30).step_by(5) {
        let now = at(seconds * SECOND);
        for name in ["me", "peer"] {
            state.last_heartbeats.insert(node(name), now.wall);
        }
        read_again(&mut executor, &state, now);
        executor.step(now);
        assert_eq!(rule(&executor), Rule::J15, "{seconds} s");
    }
    let over = at(30 * SECOND + NANOSECOND);
    read_again(&mut executor, &state, over);
    assert_eq!(executor.step(over), Need::Write);
    assert_eq!(rule(&executor), Rule::J12);
    assert!(executor.to_write().0.complete);
}

/// docs/spec/rendezvous.md, LOOP 4 to 6.
#[test]
fn a_join_wakes_at_its_deadline() {
    let settings = RendezvousSettings::for_test(2, 4);
    let state = open(&["me"], START.wall);
    let mut executor = executor_with(settings, Operation::Join, 2 * SECOND, state.clone());
    let until = START.monotonic + 2 * SECOND + MILLISECOND;
    assert_eq!(executor.step(START), Need::Wait { until });
    let late = at(2 * SECOND + MILLISECOND);
    read_again(&mut executor, &state, late);
    assert_eq!(executor.step(late), Need::Write);
    assert_eq!(rule(&executor), Rule::J7);
    executor.on_written(Written::Ours(token(2)), late);
    assert_eq!(
        executor.step(late),
        Need::Done(Err(OperationError::Timeout))
    );
}

/// docs/spec/rendezvous.md, CLOCK 1 and EFFECT 2.
#[test]
fn a_node_is_dropped_after_a_silence_longer_than_dead_after() {
    let state = open(&["me", "peer"], START.wall);
    let mut executor = executor(Operation::KeepAlive, state.clone());
    read_again(&mut executor, &state, at(15 * SECOND));
    assert!(executor.state().participants.contains_key(&node("peer")));
    let late = at(15 * SECOND + NANOSECOND);
    read_again(&mut executor, &state, late);
    assert!(!executor.state().participants.contains_key(&node("peer")));
    assert_eq!(executor.report(late).dropped.len(), 1);
    // The next write removes it from the store.
    assert_eq!(executor.step(late), Need::Write);
    assert!(
        !executor
            .to_write()
            .0
            .last_heartbeats
            .contains_key(&node("peer"))
    );
    // A node that is back is no longer reported as dropped.
    let state = open(&["me", "peer"], late.wall);
    executor.on_written(Written::Theirs(Box::new(state), token(2)), late);
    assert!(executor.state().participants.contains_key(&node("peer")));
    assert_eq!(executor.report(late).dropped.len(), 0);
}

/// docs/spec/rendezvous.md, STATE 4. PyTorch's nodes write no such state.
#[test]
fn a_state_that_breaks_the_rules_is_decided_by_the_same_rows() {
    let mut state = open(&["me", "silent"], START.wall);
    state.last_heartbeats.shift_remove(&node("silent"));
    state.wait_list.insert(node("me"));
    let mut executor = executor(Operation::Join, state.clone());
    assert!(matches!(executor.step(START), Need::Wait { .. }));
    assert_eq!(rule(&executor), Rule::J15);
    let late = at(3600 * SECOND);
    state.last_heartbeats.insert(node("me"), late.wall);
    read_again(&mut executor, &state, late);
    assert!(executor.state().participants.contains_key(&node("silent")));
    assert_eq!(executor.report(late).dropped.len(), 0);
}

/// After a SIGSTOP, the answer lacks later heartbeats of the other nodes.
/// docs/spec/rendezvous.md, CLOCK 1.
#[test]
fn an_answer_that_is_read_late_drops_no_node() {
    let state = open(&["me", "peer"], START.wall);
    let mut executor = executor(Operation::KeepAlive, state.clone());
    let requested = at(4 * SECOND);
    executor.begin(
        Operation::KeepAlive,
        requested.monotonic + 5 * SECOND,
        requested,
    );
    assert_eq!(executor.step(requested), Need::Read);
    executor.on_read(Some((state, token(1))), at(60 * SECOND));
    assert!(executor.state().participants.contains_key(&node("peer")));
}

/// The loop passes states to a waiting executor without a request; silence also counts in this case.
#[test]
fn silent_nodes_are_dropped_by_states_read_during_waits() {
    let mut state = open(&["me", "peer"], START.wall);
    state.round = 1;
    let mut executor = executor(Operation::Join, state.clone());
    for seconds in 1..=17 {
        let now = at(seconds * SECOND);
        if let Need::Write = executor.step(now) {
            let (written, _) = executor.to_write();
            state = written.clone();
            executor.on_written(Written::Ours(token(2)), now);
            assert!(matches!(executor.step(now), Need::Wait { .. }));
        }
        executor.on_read(Some((state.clone(), token(1))), now);
    }
    assert!(!executor.state().participants.contains_key(&node("peer")));
}

/// docs/spec/rendezvous.md, CLOCK 1.
#[test]
fn a_silent_member_is_dropped_only_after_all_had_time_to_read_the_complete_round() {
    let open = open(&["a", "b", "me"], START.wall);
    let mut executor = executor(Operation::KeepAlive, open);
    let mut state = complete(&[("a", 0), ("b", 1), ("me", 2)], START.wall);
    let completed = at(14 * SECOND);
    read_again(&mut executor, &state, completed);
    let later = at(29 * SECOND);
    state.last_heartbeats.insert(node("a"), later.wall);
    read_again(&mut executor, &state, later);
    assert_eq!(executor.state().participants.len(), 3);
    let late = at(29 * SECOND + NANOSECOND);
    read_again(&mut executor, &state, late);
    assert_eq!(executor.state().participants.len(), 2);
    assert!(!executor.state().participants.contains_key(&node("b")));
}

#[test]
fn a_node_leaves_a_complete_round_that_has_lost_a_member() {
    let mut executor = executor(Operation::Join, open(&["a", "b"], START.wall));
    assert_eq!(executor.step(START), Need::Write);
    // The write succeeded but its answer was lost; b has joined and left.
    let state = complete(&[("a", 0), ("me", 2)], START.wall);
    executor.on_read(Some((state, token(2))), START);
    assert_eq!(executor.step(START), Need::Write);
    assert_eq!(rule(&executor), Rule::H3);
    executor.on_written(Written::Ours(token(3)), START);
    assert_eq!(executor.step(START), Need::Write);
    assert_eq!(rule(&executor), Rule::J10);
    assert!(executor.to_write().0.wait_list.contains(&node("me")));
}

/// docs/spec/rendezvous.md, CLOCK 3 and LOOP 4.
#[test]
fn a_node_checks_suspects_once_a_second_until_they_write_or_are_dead() {
    let state = open(&["a", "b", "c"], START.wall.before(60 * SECOND));
    let mut executor = executor(Operation::Join, state.clone());
    let until = START.monotonic + SECOND;
    assert_eq!(executor.step(START), Need::Wait { until });
    assert_eq!(rule(&executor), Rule::H2);
    assert_eq!(executor.report(START).suspects.len(), 3);
    // Two suspects have written. The third is dead, and is dropped after 15 s.
    let mut state = state;
    for name in ["a", "b"] {
        state
            .last_heartbeats
            .insert(node(name), START.wall.before(55 * SECOND));
    }
    let now = at(14 * SECOND + SECOND / 2);
    read_again(&mut executor, &state, now);
    let until = START.monotonic + 15 * SECOND + NANOSECOND;
    assert_eq!(executor.step(now), Need::Wait { until });
    let now = at(15 * SECOND + NANOSECOND);
    read_again(&mut executor, &state, now);
    assert_eq!(executor.step(now), Need::Write);
    assert_eq!(rule(&executor), Rule::J13);
    let names: Vec<NodeId> = executor.to_write().0.participants.keys().cloned().collect();
    assert_eq!(names, [node("a"), node("b"), node("me")]);
}

/// docs/spec/rendezvous.md, CLOCK 3.
#[test]
fn a_node_that_appears_after_the_first_read_is_no_suspect() {
    let mut executor = executor(Operation::Join, open(&["me"], START.wall));
    executor.step(START);
    let mut state = open(&["me", "a", "b"], START.wall.before(900 * SECOND));
    state.last_heartbeats.insert(node("me"), START.wall);
    state.deadline = Some(START.wall);
    let now = at(SECOND);
    read_again(&mut executor, &state, now);
    assert_eq!(executor.report(now).suspects, []);
    // After 16 s without a read, the node cannot know when the other nodes joined.
    let mut executor = self::executor(Operation::Join, open(&["me"], START.wall));
    executor.step(START);
    let now = at(16 * SECOND);
    read_again(&mut executor, &state, now);
    assert_eq!(executor.report(now).suspects, [node("a"), node("b")]);
}

#[test]
fn the_first_heartbeat_of_a_new_node_reveals_its_clock() {
    let mut executor = executor(Operation::Join, open(&["me"], START.wall));
    executor.step(START);
    // The new node has dropped `me`, because its clock is a minute ahead.
    let state = open(&["ahead"], START.wall.after(60 * SECOND));
    read_again(&mut executor, &state, START);
    assert_eq!(executor.step(START), Need::Write);
    let written = executor.to_write().0.last_heartbeats[&node("me")];
    assert_eq!(written, START.wall.after(60 * SECOND));
}

#[test]
fn a_wait_for_a_suspect_after_the_last_call_is_not_a_busy_loop() {
    let mut state = open(&["me", "a"], START.wall);
    state
        .last_heartbeats
        .insert(node("a"), START.wall.before(60 * SECOND));
    state.deadline = Some(START.wall);
    let mut settings = RendezvousSettings::for_test(2, 4);
    settings.last_call_timeout = SECOND;
    let mut executor = executor_with(settings, Operation::Join, 600 * SECOND, state.clone());
    let now = at(2 * SECOND);
    read_again(&mut executor, &state, now);
    let until = now.monotonic + SECOND;
    assert_eq!(executor.step(now), Need::Wait { until });
    assert_eq!(rule(&executor), Rule::H2);
}

#[test]
fn a_spare_that_is_needed_has_the_whole_join_timeout() {
    let mut state = complete(&[("a", 0), ("b", 1), ("c", 2)], START.wall);
    state.redundancy_list.insert(node("me"));
    state.last_heartbeats.insert(node("me"), START.wall);
    let mut executor = executor(Operation::Join, state.clone());
    let now = at(3600 * SECOND);
    for name in ["a", "b", "c"] {
        state.last_heartbeats.insert(node(name), now.wall);
    }
    read_again(&mut executor, &state, now);
    assert_eq!(executor.step(now), Need::Write);
    assert_eq!(rule(&executor), Rule::J5);
    executor.on_written(Written::Ours(token(2)), now);
    assert_eq!(executor.step(now), Need::Write);
    assert_eq!(rule(&executor), Rule::J10);
    assert_eq!(executor.report(now).time_left, 600 * SECOND);
}

#[test]
fn a_join_starts_again_without_a_token_when_the_state_disappears() {
    let mut executor = executor(Operation::Join, open(&["a"], START.wall));
    assert_eq!(executor.step(START), Need::Write);
    assert_eq!(executor.to_write().1, Some(&token(1)));
    executor.on_written(Written::Nothing, START);
    assert_eq!(executor.step(START), Need::Write);
    let (state, token) = executor.to_write();
    assert_eq!(token, None);
    assert_eq!(*state, open(&["me"], START.wall));
    assert_eq!(executor.conflicts(), 1);
}

/// docs/spec/rendezvous.md, LOOP 4.
#[test]
fn a_participant_wakes_at_the_end_of_the_last_call() {
    let mut state = open(&["me", "a"], START.wall);
    state.deadline = Some(START.wall);
    let mut settings = RendezvousSettings::for_test(2, 4);
    settings.last_call_timeout = 2 * SECOND;
    let mut executor = executor_with(settings, Operation::Join, 600 * SECOND, state);
    let until = START.monotonic + 2 * SECOND + MILLISECOND;
    assert_eq!(executor.step(START), Need::Wait { until });
}

/// docs/spec/rendezvous.md, SPARE 3.
#[test]
fn heartbeats_distinguish_members_that_left_from_lost_ones() {
    let members = complete(&[("a", 0), ("b", 1), ("me", 2)], START.wall);
    let mut executor = executor(Operation::Join, members.clone());
    assert_eq!(executor.step(START), Need::Done(Ok(())));
    executor.begin(Operation::KeepAlive, START.monotonic, START);
    let names = |executor: &Executor| {
        let (lost, left) = executor.departed();
        let lost = lost.iter().map(|it| it.to_string());
        let left = left.iter().map(|it| it.to_string());
        lost.chain(left).collect::<Vec<_>>()
    };
    // a writes and then leaves.
    let mut state = members.clone();
    let wrote_at = at(5 * SECOND);
    state.last_heartbeats.insert(node("a"), wrote_at.wall);
    read_again(&mut executor, &state, wrote_at);
    state.participants.shift_remove(&node("a"));
    state.last_heartbeats.shift_remove(&node("a"));
    read_again(&mut executor, &state, at(10 * SECOND));
    assert_eq!(names(&executor), ["a (pid 1) left the round"]);
    // Another node drops b, 10 s after its last heartbeat observed here.
    state.participants.shift_remove(&node("b"));
    state.last_heartbeats.shift_remove(&node("b"));
    state.wait_list.insert(node("a"));
    state.last_heartbeats.insert(node("a"), wrote_at.wall);
    read_again(&mut executor, &state, at(10 * SECOND));
    let expected = [
        "b (pid 1): no heartbeat for 10 s",
        "a (pid 1) left the round to restart",
    ];
    assert_eq!(names(&executor), expected);
    assert_eq!(executor.take_newly_lost().len(), 1);
    assert_eq!(executor.take_newly_lost(), []);
    let missing = executor.report(at(10 * SECOND));
    assert_eq!(missing.missing_nodes().collect::<Vec<_>>(), [&node("b")]);
    // Both are members again.
    read_again(&mut executor, &members, at(11 * SECOND));
    assert_eq!(names(&executor), [""; 0]);
}

/// docs/spec/rendezvous.md, LINK 6.
#[test]
fn a_closed_connection_tells_a_lost_member_from_one_that_left() {
    let members = complete(&[("a", 0), ("b", 1), ("me", 2)], START.wall);
    let mut executor = executor(Operation::Join, members.clone());
    assert_eq!(executor.step(START), Need::Done(Ok(())));
    executor.begin(Operation::KeepAlive, START.monotonic, START);
    let closed_at = at(SECOND);
    for (mark, now) in [(Mark::Connected, START), (Mark::Closed, closed_at)] {
        let marks = Marks::from([(node("a"), Mark::Connected), (node("b"), mark)]);
        executor.on_marks(Some(&marks), now.monotonic, now);
    }
    // Another node has removed both, b long before its last heartbeat was old.
    let mut state = members;
    for name in ["a", "b"] {
        state.participants.shift_remove(&node(name));
        state.last_heartbeats.shift_remove(&node(name));
    }
    read_again(&mut executor, &state, at(3 * SECOND));
    let (lost, left) = executor.departed();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].node, node("b"));
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0].to_string(), "a (pid 1) left the round");
}

/// docs/spec/rendezvous.md, LOOP 3.
#[test]
fn pauses_after_conflicts_double_up_to_a_share_of_the_time_until_the_drop() {
    let state = open(&["me", "other"], START.wall);
    let mut executor = executor(Operation::Join, state.clone());
    let mut pause_after = |seconds| {
        let now = at(seconds * SECOND);
        let written = Written::Theirs(Box::new(state.clone()), token(9));
        executor.on_written(written, now);
        executor.conflict_pause_max(now)
    };
    assert_eq!(pause_after(1), None);
    assert_eq!(pause_after(1), Some(4 * MILLISECOND));
    assert_eq!(pause_after(1), Some(8 * MILLISECOND));
    for _ in 0..20 {
        pause_after(1);
    }
    // 128 attempts fit into the rest of 15 s.
    assert_eq!(pause_after(1), Some(14 * SECOND / 128));
    assert_eq!(pause_after(10), Some(5 * SECOND / 128));
    assert_eq!(pause_after(15), Some(4 * MILLISECOND));

    let settings = RendezvousSettings {
        cas_backoff_max: 50 * MILLISECOND,
        ..RendezvousSettings::for_test(2, 4)
    };
    let mut executor = executor_with(settings, Operation::Join, 600 * SECOND, state.clone());
    executor.on_written(Written::Theirs(Box::new(state.clone()), token(9)), START);
    let pause = executor.conflict_pause_max(START);
    assert_eq!(pause, Some(50 * MILLISECOND), "after the first conflict");
}

#[test]
fn after_a_conflict_local_changes_are_discarded() {
    let mut executor = executor(Operation::Join, open(&["a"], START.wall));
    assert_eq!(executor.step(START), Need::Write);
    assert!(executor.to_write().0.participants.contains_key(&node("me")));
    // Other nodes have filled the round, so this node becomes a spare.
    let full = complete(&[("a", 0), ("b", 1), ("c", 2), ("d", 3)], START.wall);
    executor.on_written(Written::Theirs(Box::new(full.clone()), token(2)), START);
    assert_eq!(*executor.state(), full);
    assert_eq!(executor.step(START), Need::Write);
    assert_eq!(rule(&executor), Rule::J11);
    // An earlier write, whose answer was lost, has made this node a spare.
    let mut listed = executor.to_write().0.clone();
    listed
        .last_heartbeats
        .insert(node("a"), START.wall.after(SECOND));
    executor.on_written(Written::Theirs(Box::new(listed), token(3)), START);
    assert!(matches!(executor.step(START), Need::Wait { .. }));
    executor.wake();
    assert_eq!(executor.step(START), Need::Read);
}

/// An executor that has left a complete round of `me`, `a` and `b`, while `late` was waiting, and has now read
/// the open round `state`, whose last call has just begun.
fn after_a_restart(state: &RendezvousState) -> Executor {
    let mut executor = executor(
        Operation::Join,
        complete(&[("a", 0), ("b", 1), ("me", 2)], START.wall),
    );
    assert_eq!(executor.step(START), Need::Done(Ok(())));
    executor.begin(Operation::Exit, START.monotonic + 600 * SECOND, START);
    assert_eq!(executor.step(START), Need::Read);
    // b has left already and is about to wait.
    let mut left = complete(&[("a", 0), ("me", 2)], START.wall);
    left.wait_list.insert(node("late"));
    left.last_heartbeats.insert(node("late"), START.wall);
    executor.on_read(Some((left, token(2))), START);
    assert_eq!(executor.step(START), Need::Write);
    executor.on_written(Written::Ours(token(3)), START);
    assert_eq!(executor.step(START), Need::Done(Ok(())));
    executor.begin(Operation::Join, START.monotonic + 600 * SECOND, START);
    read_again(&mut executor, state, START);
    executor
}

fn reopened(nodes: &[&str]) -> RendezvousState {
    let mut state = open(nodes, START.wall);
    state.round = 1;
    state.deadline = Some(START.wall.after(30 * SECOND));
    state
}

/// docs/spec/rendezvous.md, CLOCK 5.
#[test]
fn the_last_call_ends_when_all_are_back() {
    let mut executor = after_a_restart(&reopened(&["me", "a", "b"]));
    let waits = matches!(executor.step(START), Need::Wait { .. });
    assert!(waits, "the last call must not end without the waiting node");
    let all = reopened(&["me", "a", "b", "late"]);
    let mut executor = after_a_restart(&all);
    assert_eq!(executor.step(START), Need::Write);
    assert_eq!(rule(&executor), Rule::J12);
}

/// docs/spec/rendezvous.md, CLOCK 5.
#[test]
fn a_node_that_does_not_rejoin_is_expected_for_2_s() {
    let state = reopened(&["me", "a", "late"]);
    let mut executor = after_a_restart(&state);
    let until = START.monotonic + 2 * SECOND + MILLISECOND;
    assert_eq!(executor.step(START), Need::Wait { until });
    let now = at(2 * SECOND);
    read_again(&mut executor, &state, now);
    assert!(matches!(executor.step(now), Need::Wait { .. }));
    let now = at(2 * SECOND + MILLISECOND);
    read_again(&mut executor, &state, now);
    assert_eq!(executor.step(now), Need::Write);
    assert_eq!(rule(&executor), Rule::J12);
}

#[test]
fn a_node_on_the_wait_list_is_expected_until_the_last_call_is_over() {
    let mut state = reopened(&["me", "a", "late"]);
    state.wait_list.insert(node("b"));
    state.last_heartbeats.insert(node("b"), START.wall);
    let mut executor = after_a_restart(&state);
    let now = at(4 * SECOND);
    read_again(&mut executor, &state, now);
    assert!(matches!(executor.step(now), Need::Wait { .. }));
}

#[test]
fn a_node_that_rejoins_after_an_eviction_waits_for_the_whole_last_call() {
    let mut executor = after_a_restart(&reopened(&["me", "a", "b", "late"]));
    assert_eq!(executor.step(START), Need::Write);
    executor.on_written(Written::Ours(token(4)), START);
    assert_eq!(executor.step(START), Need::Done(Ok(())));
    // The other nodes have dropped this node and started another round, so it leaves no round.
    let mut state = reopened(&["a", "b", "late"]);
    state.round = 2;
    executor.begin(Operation::Exit, START.monotonic + 600 * SECOND, START);
    read_again(&mut executor, &state, START);
    assert_eq!(executor.step(START), Need::Done(Ok(())));
    executor.begin(Operation::Join, START.monotonic + 600 * SECOND, START);
    let mut state = reopened(&["a", "b", "late", "me"]);
    state.round = 2;
    state.participants.shift_remove(&node("late"));
    state.last_heartbeats.shift_remove(&node("late"));
    let now = at(3 * SECOND);
    read_again(&mut executor, &state, now);
    assert!(matches!(executor.step(now), Need::Wait { .. }));
}
