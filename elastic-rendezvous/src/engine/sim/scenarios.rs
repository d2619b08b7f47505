//! Named histories: typical events of a job, and faults of PyTorch's nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::node::{Command, Outcome, Stage, Watching};
use super::{Faults, World};
use crate::values::goal::{Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

/// The correct wall clock at the start of a simulation.
const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn settings(min_nodes: usize, max_nodes: usize) -> RendezvousSettings {
    RendezvousSettings::for_test(min_nodes, max_nodes)
}

/// A world of `count` of our nodes, which all start now.
fn started(settings: RendezvousSettings, count: usize) -> World {
    let mut world = World::new(7, settings);
    for number in 0..count {
        let node = world.add(&format!("node{number}"));
        world.command(node, Command::Start);
    }
    world
}

#[track_caller]
fn settle(world: &mut World, limit: Duration) {
    let end = world.now() + limit;
    let is_settled = world.run_until(end, World::is_settled);
    assert!(is_settled, "{:#?}", world.store.state());
}

/// Carries out the command, and runs until the nodes are settled again.
#[track_caller]
fn settle_after(world: &mut World, node: usize, command: Command, limit: Duration) {
    world.command(node, command);
    world.run_for(SECOND / 10);
    settle(world, limit);
}

/// Adds a node, not of PyTorch, which starts.
fn start(world: &mut World, name: &str) -> usize {
    let node = world.add(name);
    world.command(node, Command::Start);
    node
}

#[track_caller]
fn settled(settings: RendezvousSettings, count: usize) -> World {
    let limit = settings.last_call_timeout + 8 * SECOND;
    let mut world = started(settings, count);
    settle(&mut world, limit);
    world
}

fn outcome(world: &World, node: usize) -> Stage {
    world.nodes[node].stage
}

fn is_spare(world: &World, node: usize) -> bool {
    let me = &world.nodes[node].me;
    world.store.state().redundancy_list.contains(me)
}

/// The number of rounds that a node has joined.
fn joins(world: &World, node: usize) -> usize {
    world.nodes[node].joins.len()
}

#[test]
fn a_late_node_joins_the_next_round() {
    // The last call ends when all members are back, or when the round is full.
    for max_nodes in [4, 3] {
        let mut world = settled(settings(2, max_nodes), 2);
        start(&mut world, "late");
        world.run_for(SECOND / 10);
        assert!(!world.is_settled());
        settle(&mut world, 5 * SECOND);
        let state = world.store.state();
        assert_eq!((state.round, state.participants.len()), (1, 3));
    }
}

#[test]
fn survivors_report_only_the_killed_node_as_lost() {
    let ways = [Watching::Members, Watching::Round, Watching::Polls];
    for (seed, (first, second)) in (0..).zip(ways.into_iter().flat_map(|a| ways.map(|b| (a, b)))) {
        let mut world = World::new(seed, settings(2, 3));
        for number in 0..3 {
            let node = world.add(&format!("node{number}"));
            world.command(node, Command::Start);
        }
        world.nodes[0].watching = first;
        world.nodes[1].watching = second;
        settle(&mut world, 10 * SECOND);
        // The seed determines the position between two heartbeats.
        world.run_for(SECOND * seed as u32 / 2);
        world.command(2, Command::Crash);
        // The workers of both survivors fail as their connections break, and both agents restart them.
        world.command_in(200 + 150 * seed, 0, Command::Rejoin);
        world.command_in(400, 1, Command::Rejoin);
        world.run_for(SECOND);
        // No node counts as lost yet, not even a survivor that is about to rejoin.
        for node in [0, 1] {
            assert_eq!(
                world.nodes[node].lost,
                [],
                "node{node}, {first:?} {second:?}"
            );
        }
        let limit = world.settings.dead_after() + 15 * SECOND;
        settle(&mut world, limit);
        assert_eq!(world.store.state().participants.len(), 2);
        let killed = [world.nodes[2].me.clone()];
        for node in [0, 1] {
            assert_eq!(
                world.nodes[node].lost, killed,
                "node{node}, {first:?} {second:?}"
            );
        }
    }
}

/// docs/spec/rendezvous.md, EFFECT 3.
#[test]
fn surplus_nodes_become_spares_and_the_members_stay() {
    let mut world = settled(settings(2, 3), 5);
    world.command(0, Command::Rejoin);
    world.command(1, Command::Rejoin);
    settle_after(&mut world, 2, Command::Rejoin, 30 * SECOND);
    let round = world.store.state().round;
    world.run_for(60 * SECOND);
    assert!(world.is_settled());
    assert_eq!(world.store.state().round, round);
}

#[test]
fn spares_end_gracefully_when_the_job_ends() {
    let mut world = settled(settings(2, 2), 4);
    let spares: Vec<usize> = (0..4).filter(|node| is_spare(&world, *node)).collect();
    assert_eq!(spares.len(), 2);
    let member = (0..4).find(|node| !spares.contains(node)).expect("a node");
    world.command(member, Command::Close);
    world.run_for(3 * SECOND);
    assert_eq!(outcome(&world, member), Stage::Ended(Outcome::Closed));
    for spare in spares {
        let expected = Stage::Ended(Outcome::Failed(OperationError::GracefulExit));
        assert_eq!(outcome(&world, spare), expected);
    }
    // A late node fails, because the rendezvous is closed.
    let late = start(&mut world, "late");
    world.run_for(SECOND);
    let expected = Stage::Ended(Outcome::Failed(OperationError::Closed));
    assert_eq!(outcome(&world, late), expected);
}

/// docs/spec/rendezvous.md, LOOP 5.
#[test]
fn a_join_that_times_out_leaves_nothing_behind() {
    let mut settings = settings(3, 3);
    settings.join_timeout = 20 * SECOND;
    let mut world = started(settings, 2);
    world.run_for(20 * SECOND);
    assert_eq!(world.store.state().participants.len(), 2);
    world.run_for(SECOND);
    for node in 0..2 {
        let expected = Stage::Ended(Outcome::Failed(OperationError::Timeout));
        assert_eq!(outcome(&world, node), expected);
    }
    assert_eq!(world.store.state(), RendezvousState::default());
}

#[test]
fn a_waiting_node_that_times_out_leaves_the_wait_list() {
    let mut settings = settings(1, 2);
    settings.join_timeout = 20 * SECOND;
    settings.last_call_timeout = SECOND;
    let mut world = settled(settings, 1);
    // The node's workers never stop.
    world.nodes[0].restarts = false;
    let late = start(&mut world, "late");
    world.run_for(19 * SECOND);
    assert_eq!(world.store.state().wait_list.len(), 1);
    world.run_for(2 * SECOND);
    let expected = Stage::Ended(Outcome::Failed(OperationError::Timeout));
    assert_eq!(outcome(&world, late), expected);
    assert_eq!(world.store.state().wait_list, BTreeSet::new());
}

/// A state of an earlier job, whose nodes are dead.
fn stale(participants: usize, is_complete: bool, heartbeat: Timestamp) -> RendezvousState {
    let mut state = RendezvousState {
        round: 5,
        complete: is_complete,
        ..RendezvousState::default()
    };
    for number in 0..participants {
        let node = NodeId::new(format!("dead{number}"), 1, 0);
        let rank = if is_complete { number as i64 } else { 0 };
        state.participants.insert(node.clone(), rank);
        state.last_heartbeats.insert(node, heartbeat);
    }
    state
}

fn assert_dead_nodes_are_excluded(stale: &RendezvousState, min_nodes: usize, max_nodes: usize) {
    for watching in [Watching::Polls, Watching::Members, Watching::Round] {
        let mut world = started(settings(min_nodes, max_nodes), 3);
        for node in &mut world.nodes {
            node.watching = watching;
        }
        world.store.put(stale, Duration::ZERO);
        world.run_for(SECOND);
        assert_eq!(world.store.state().round, 5);
        let limit = world.settings.dead_after() + 10 * SECOND;
        settle(&mut world, limit);
        for node in &world.nodes {
            let joins = node
                .joins
                .iter()
                .filter_map(|answer| answer.joined.as_ref());
            let nodes: Vec<usize> = joins.map(|joined| joined.nodes.len()).collect();
            assert_eq!(nodes, [3], "no round contained a dead node");
        }
    }
}

#[test]
fn a_complete_round_of_dead_nodes_is_followed_by_one_of_live_nodes() {
    let long_ago = START.before(3600 * SECOND);
    assert_dead_nodes_are_excluded(&stale(2, true, long_ago), 3, 3);
    // The same holds if the round is full, so that all nodes start as spares.
    assert_dead_nodes_are_excluded(&stale(3, true, long_ago), 2, 3);
}

#[test]
fn an_open_round_is_not_completed_with_dead_nodes() {
    let long_ago = START.before(3600 * SECOND);
    assert_dead_nodes_are_excluded(&stale(2, false, long_ago), 3, 3);
    let mut state = stale(2, false, long_ago);
    state.deadline = Some(long_ago.after(30 * SECOND));
    assert_dead_nodes_are_excluded(&state, 2, 3);
}

/// PyTorch's nodes would wait for an hour.
#[test]
fn dead_nodes_are_dropped_after_the_same_time_if_their_clocks_were_ahead() {
    let ahead = START.after(3600 * SECOND);
    assert_dead_nodes_are_excluded(&stale(2, true, ahead), 3, 3);
}

#[test]
fn a_short_pause_of_a_node_is_tolerated() {
    let mut world = settled(settings(3, 3), 3);
    world.command(0, Command::Pause(9 * SECOND));
    world.run_for(60 * SECOND);
    assert!(world.is_settled());
    assert_eq!(world.store.state().round, 0);
}

/// docs/spec/rendezvous.md, CLOCK 2.
#[test]
fn a_node_that_was_dropped_during_a_pause_rejoins() {
    let mut world = settled(settings(3, 3), 3);
    world.command(0, Command::Pause(30 * SECOND));
    world.run_for(29 * SECOND);
    assert!(
        !world
            .store
            .state()
            .participants
            .contains_key(&world.nodes[0].me)
    );
    world.run_for(SECOND);
    settle(&mut world, 10 * SECOND);
    assert_eq!(world.store.state().participants.len(), 3);
}

#[test]
fn wrong_or_changed_clocks_cause_no_restart() {
    let mut world = World::new(11, settings(4, 4));
    for (number, skew) in [0, 900, -900, 61].into_iter().enumerate() {
        let node = world.add(&format!("node{number}"));
        world.nodes[node].skew = skew;
        world.command(node, Command::Start);
        world.command_in(20_000, node, Command::Jump(-skew * 2));
        world.command_in(40_000, node, Command::Jump(86_400));
    }
    settle(&mut world, 8 * SECOND);
    world.run_for(120 * SECOND);
    assert!(world.is_settled());
    assert_eq!(world.store.state().round, 0);
}

#[test]
fn wrong_clocks_do_not_delay_a_restart() {
    let mut world = World::new(12, settings(3, 3));
    for (number, skew) in [0, 900, -900].into_iter().enumerate() {
        let node = world.add(&format!("node{number}"));
        world.nodes[node].skew = skew;
        world.command(node, Command::Start);
    }
    settle(&mut world, 8 * SECOND);
    world.run_for(10 * SECOND);
    // The nodes have seen each other write, so none is a suspect.
    world.command(0, Command::Rejoin);
    world.run_for(SECOND / 10);
    let limit = 2 * SECOND + SECOND / 2;
    settle(&mut world, limit);
    assert_eq!(world.store.state().round, 1);
}

#[test]
fn forty_nodes_complete_a_round_with_a_bounded_number_of_writes() {
    for watching in [Watching::Polls, Watching::Members, Watching::Round] {
        let mut world = started(settings(40, 40), 40);
        for node in &mut world.nodes {
            node.watching = watching;
        }
        settle(&mut world, 10 * SECOND);
        // All nodes write at once: in the worst case each conflicts with all before it.
        assert!(world.writes_tried < 40 * 40, "{}", world.writes_tried);
        world.command(17, Command::Rejoin);
        world.command(23, Command::Crash);
        let replacement = world.add("replacement");
        world.command_in(5_000, replacement, Command::Start);
        world.run_for(10 * SECOND);
        let limit = 2 * world.settings.dead_after();
        settle(&mut world, limit);
    }
}

/// docs/spec/rendezvous.md, WATCH 1.
#[test]
fn heartbeats_wake_no_other_node() {
    let mut world = settled(settings(12, 12), 12);
    world.run_for(10 * SECOND);
    let before = (world.writes_tried, world.timeline.added());
    world.run_for(100 * SECOND);
    let writes = world.writes_tried - before.0;
    // 12 nodes, one write each in 5 s, and few conflicts. Ten times as often, each node reads the marks.
    assert!((230..=300).contains(&writes), "{writes}");
    let events_by_write = (world.timeline.added() - before.1) / writes;
    assert!(events_by_write <= 60, "{events_by_write}");
}

#[test]
fn a_write_whose_answer_is_lost_is_not_repeated() {
    let mut world = World::new(3, settings(2, 2));
    world.set_faults(Faults {
        unanswered: 1.0,
        ..Faults::CALM
    });
    for number in 0..2 {
        let node = world.add(&format!("node{number}"));
        world.command(node, Command::Start);
    }
    world.run_for(10 * SECOND);
    assert!(world.is_settled());
    assert_eq!(world.nodes[0].joins.len(), 1);
    assert_eq!(world.nodes[1].joins.len(), 1);
}

#[test]
fn nodes_of_both_kinds_complete_rounds_together() {
    let mut world = World::new(5, settings(2, 4));
    let ours = world.add("ours");
    let theirs = world.add_torch("theirs");
    world.command(ours, Command::Start);
    world.command_in(500, theirs, Command::Start);
    settle(&mut world, 33 * SECOND);
    assert_eq!(world.store.state().round, 0);
    // A PyTorch node joins: both other nodes restart.
    let late = world.add_torch("late");
    world.command(late, Command::Start);
    world.run_for(SECOND);
    settle(&mut world, 38 * SECOND);
    assert_eq!(world.store.state().participants.len(), 3);
    // Ours restarts: the PyTorch nodes see it on the wait list.
    let round = world.store.state().round;
    world.command(ours, Command::Rejoin);
    world.run_for(SECOND);
    settle(&mut world, 38 * SECOND);
    assert_eq!(world.store.state().round, round + 1);
    // A PyTorch node restarts: ours sees it.
    world.command(theirs, Command::Rejoin);
    world.run_for(SECOND);
    settle(&mut world, 38 * SECOND);
    assert_eq!(world.store.state().round, round + 2);
    // A PyTorch node dies: only ours notices. Its restart makes the other PyTorch node restart.
    world.command(theirs, Command::Crash);
    world.run_for(SECOND);
    settle(&mut world, 65 * SECOND);
    assert_eq!(world.store.state().participants.len(), 2);
}

/// Whether `node` has a heartbeat in the copy of the node `observer`.
fn considers_alive(world: &World, observer: usize, node: usize) -> bool {
    let me = &world.nodes[node].me;
    world.nodes[observer]
        .state()
        .last_heartbeats
        .contains_key(me)
}

#[test]
fn a_pytorch_node_that_was_seen_writing_keeps_our_node_whose_clock_is_behind() {
    for watching in [Watching::Polls, Watching::Members] {
        let mut world = World::new(9, settings(2, 2));
        let (ours, theirs) = (world.add("ours"), world.add_torch("theirs"));
        world.nodes[ours].skew = -60;
        world.nodes[ours].watching = watching;
        world.command(theirs, Command::Start);
        world.command_in(10_000, ours, Command::Start);
        world.run_for(11 * SECOND);
        settle(&mut world, 20 * SECOND);
        let (round, joins_of_ours) = (world.store.state().round, joins(&world, ours));
        for _ in 0..300 {
            world.run_for(SECOND);
            assert!(considers_alive(&world, theirs, ours), "{:?}", world.now());
        }
        assert_eq!(world.store.state().round, round);
        assert_eq!(joins(&world, ours), joins_of_ours);
    }
}

/// Not curable: our heartbeat was written before the other clock was known.
#[test]
fn a_pytorch_node_that_joins_drops_our_node_whose_clock_is_behind_once() {
    let mut world = World::new(10, settings(2, 2));
    let (ours, theirs) = (world.add("ours"), world.add_torch("theirs"));
    world.nodes[ours].skew = -60;
    world.command(ours, Command::Start);
    world.command_in(7_000, theirs, Command::Start);
    world.run_for(7 * SECOND + SECOND / 2);
    // Our node was dropped, saw the other node write, and rejoined with the other node's time.
    settle(&mut world, 10 * SECOND);
    let round = world.store.state().round;
    for _ in 0..100 {
        world.run_for(SECOND);
        assert!(considers_alive(&world, theirs, ours), "{:?}", world.now());
    }
    assert_eq!(world.store.state().round, round);
}

#[test]
fn a_pytorch_node_whose_clock_is_behind_is_not_dropped() {
    let mut world = World::new(13, settings(2, 2));
    let (ours, theirs) = (world.add("ours"), world.add_torch("theirs"));
    world.nodes[theirs].skew = -60;
    world.command(theirs, Command::Start);
    world.command_in(2_000, ours, Command::Start);
    world.run_for(2 * SECOND);
    // The PyTorch node is a suspect until its next heartbeat.
    settle(&mut world, 8 * SECOND);
    world.run_for(120 * SECOND);
    assert!(world.is_settled());
    assert_eq!(world.store.state().round, 0);
}

/// Checks the model of PyTorch's nodes against their known behaviour.
#[test]
fn pytorch_nodes_alone_drop_each_other_when_a_clock_is_ahead() {
    let mut world = World::new(14, settings(2, 2));
    let (correct, ahead) = (world.add_torch("correct"), world.add_torch("ahead"));
    world.nodes[ahead].skew = 20;
    world.command(correct, Command::Start);
    world.command_in(3_000, ahead, Command::Start);
    world.run_for(2 * SECOND);
    assert!(
        world
            .store
            .state()
            .participants
            .contains_key(&world.nodes[correct].me)
    );
    let has_dropped = |world: &World| {
        let state = world.store.state();
        !state.participants.contains_key(&world.nodes[correct].me)
    };
    assert!(world.run_until(5 * SECOND, has_dropped));
    assert_eq!(outcome(&world, ahead), Stage::Busy(Operation::Join));
}

/// Measured: three handlers of PyTorch 2.15 with two places restarted about once a second after the first
/// restart.
#[test]
fn pytorch_nodes_alone_restart_endlessly_when_a_node_without_a_place_waits() {
    let mut world = World::new(15, settings(2, 2));
    for number in 0..3 {
        let node = world.add_torch(&format!("node{number}"));
        world.command_in(1_300 * number, node, Command::Start);
    }
    settle(&mut world, 8 * SECOND);
    world.command(0, Command::Rejoin);
    world.run_for(60 * SECOND);
    let rounds = world.store.state().round;
    assert!(rounds > 10, "{rounds}");
}

/// A world with two members and a spare, whose name is the first in the order of nodes. The members have joined round 0.
fn with_spare(settings: RendezvousSettings) -> (World, usize) {
    let mut world = settled(settings, 2);
    let spare = world.add("a");
    settle_after(&mut world, spare, Command::Start, 8 * SECOND);
    assert!(is_spare(&world, spare));
    (world, spare)
}

fn ranks(world: &World) -> Vec<(usize, i64)> {
    let state = world.store.state();
    let nodes = world.nodes.iter().enumerate();
    nodes
        .filter_map(|(number, node)| Some((number, *state.participants.get(&node.me)?)))
        .collect()
}

/// docs/spec/rendezvous.md, EFFECT 4 and SPARE 1.
#[test]
fn members_that_restart_keep_their_places_and_ranks_before_a_spare() {
    let (mut world, spare) = with_spare(settings(2, 2));
    for round in 1..20 {
        settle_after(&mut world, 0, Command::Rejoin, 5 * SECOND);
        assert_eq!(world.store.state().round, round);
        assert_eq!(ranks(&world), [(0, 0), (1, 1)], "round {round}");
        assert!(is_spare(&world, spare), "round {round}");
    }
}

#[test]
fn a_member_that_is_away_for_less_than_the_setting_keeps_its_place_and_rank() {
    let (mut world, spare) = with_spare(settings(2, 2));
    world.command(0, Command::Exit);
    world.run_for(14 * SECOND);
    let state = world.store.state();
    assert_eq!((state.round, state.participants.len()), (1, 1));
    settle_after(&mut world, 0, Command::Rejoin, SECOND);
    assert_eq!(ranks(&world), [(0, 0), (1, 1)]);
    assert!(is_spare(&world, spare));
}

#[test]
fn a_spare_takes_the_place_and_the_rank_of_a_member_that_is_away_for_longer() {
    let (mut world, spare) = with_spare(settings(2, 2));
    world.command(0, Command::Exit);
    world.run_for(14 * SECOND);
    assert!(!world.store.state().complete);
    world.run_for(4 * SECOND);
    assert_eq!(ranks(&world), [(1, 1), (spare, 0)]);
}

#[test]
fn a_spare_takes_the_place_of_a_member_that_leaves_at_once() {
    let (mut world, spare) = with_spare(settings(2, 2));
    let begun = world.now();
    settle_after(&mut world, 0, Command::Leave, 10 * SECOND);
    assert_eq!(world.store.state().round, 1);
    assert_eq!(ranks(&world), [(1, 1), (spare, 0)]);
    // The other member stops its workers for 2 s at most; the rest are exchanges with the store.
    let took = world.now() - begun;
    assert!(took < SECOND * 21 / 10, "{took:?}");
}

/// docs/spec/rendezvous.md, NOTICE 6.
#[test]
fn the_last_call_does_not_wait_for_a_member_that_has_left() {
    let mut world = settled(settings(1, 3), 3);
    let begun = world.now();
    settle_after(&mut world, 0, Command::Leave, 10 * SECOND);
    assert_eq!(ranks(&world), [(1, 0), (2, 1)]);
    let took = world.now() - begun;
    assert!(took < SECOND * 21 / 10, "{took:?}");
}

/// docs/spec/rendezvous.md, SPARE 3.
#[test]
fn a_spare_takes_the_place_of_a_member_that_crashes_as_soon_as_that_is_known() {
    let (mut world, spare) = with_spare(settings(2, 2));
    world.command(0, Command::Crash);
    let begun = world.now();
    let end = begun + 60 * SECOND;
    assert!(world.run_until(end, |world| world.store.state().round == 1));
    assert!(world.now() - begun > 10 * SECOND);
    settle(&mut world, SECOND / 10);
    assert_eq!(ranks(&world), [(1, 1), (spare, 0)]);
}

#[test]
fn a_pytorch_node_that_completes_a_round_assigns_ranks_in_the_order_of_nodes() {
    let mut world = settled(settings(2, 2), 2);
    let theirs = world.add_torch("a");
    world.command(theirs, Command::Start);
    world.run_for(3 * SECOND);
    // Only the node with rank 1 is left of the first two nodes.
    world.command(0, Command::Crash);
    world.run_for(60 * SECOND);
    settle(&mut world, 5 * SECOND);
    let complete = ranks(&world);
    // PyTorch's node polls, so it was the last of the two.
    assert_eq!(complete, [(1, 1), (theirs, 0)]);
    // When it restarts last, it counts from the first node again; ours reads the ranks as they are.
    start(&mut world, "0");
    world.run_for(3 * SECOND);
    world.command(1, Command::Leave);
    world.run_for(60 * SECOND);
    settle(&mut world, 5 * SECOND);
    let state = world.store.state();
    let mut ranks: Vec<i64> = state.participants.values().copied().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1]);
}
