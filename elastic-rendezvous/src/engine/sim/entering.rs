//! Nodes of a job whose launchers keep workers: a running round takes nodes in (docs/spec/rendezvous.md, section 7.3).

use std::time::Duration;

use c10d_sim::Seeds;

use super::World;
use super::node::{Command, Kind, Stage, Watching};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;

const SECOND: Duration = Duration::from_secs(1);

/// A round of `count` nodes, up to `max`, whose workers run.
fn running(seed: u64, count: usize, (min, max): (usize, usize)) -> World {
    let mut settings = RendezvousSettings::for_test(min, max);
    settings.last_call_timeout = 2 * SECOND;
    let mut world = World::new(seed, settings);
    for number in 0..count {
        start(&mut world, &format!("node{number}"), 0);
    }
    until(&mut world, "the round runs", 20 * SECOND, |world| {
        members(world).len() == count.min(max)
    });
    world
}

fn start(world: &mut World, name: &str, millis: u64) -> usize {
    let node = world.add(name);
    world.nodes[node].keeps = true;
    world.command_in(millis, node, Command::Start);
    node
}

/// The live members of the stored round, with their ranks.
fn members(world: &World) -> Vec<(NodeId, i64)> {
    let Some(version) = world.store.current() else {
        return Vec::new();
    };
    let is_member = |node: &NodeId| {
        let mut nodes = world.nodes.iter();
        nodes.any(|it| it.me == *node && it.stage == Stage::Member)
    };
    let all = version.state.participants.iter();
    let all = all.filter(|(node, _)| version.state.complete && is_member(node));
    all.map(|(node, rank)| (node.clone(), *rank)).collect()
}

#[track_caller]
fn until(world: &mut World, what: &str, limit: Duration, is_so: impl Fn(&World) -> bool) {
    let end = world.now() + limit;
    assert!(world.run_until(end, is_so), "{what}: {}", world.describe());
}

fn joins(world: &World, node: usize) -> usize {
    world.nodes[node].joins.len()
}

/// docs/spec/rendezvous.md, ENTRY 3.
#[test]
fn a_new_node_enters_a_running_round_that_has_a_place() {
    let mut world = running(7, 2, (2, 3));
    let late = start(&mut world, "late", 0);
    until(&mut world, "it enters", 5 * SECOND, |world| {
        members(world).len() == 3
    });
    assert_eq!(joins(&world, late), 1);
    let answer = world.nodes[late].joins[0].joined.as_ref().unwrap();
    assert_eq!((answer.rank, answer.world_size), (2, 3));
    // The next one finds no place.
    let spare = start(&mut world, "spare", 0);
    world.run_for(40 * SECOND);
    assert!(
        world
            .store
            .state()
            .redundancy_list
            .contains(&world.nodes[spare].me)
    );
    assert_eq!(world.store.state().round, 0);
    assert!((0..3).all(|node| joins(&world, node) == 1));
}

/// docs/spec/rendezvous.md, ENTRY 3 and 4.
#[test]
fn a_spare_takes_the_rank_of_a_lost_node() {
    let mut world = running(3, 4, (3, 3));
    let spare = (0..4).find(|node| joins(&world, *node) == 0).unwrap();
    let lost = (0..4).find(|node| *node != spare).unwrap();
    let rank = world.store.state().participants[&world.nodes[lost].me];
    world.command(lost, Command::Crash);
    let limit = world.settings.dead_after() + 8 * SECOND;
    until(&mut world, "it enters", limit, |world| {
        joins(world, spare) == 1 && members(world).len() == 3
    });
    assert_eq!(
        world.store.state().participants[&world.nodes[spare].me],
        rank
    );
    assert_eq!(world.store.state().round, 0);
}

/// docs/spec/rendezvous.md, ENTRY 2 and 5.
#[test]
fn a_round_that_is_not_open_restarts_for_a_node_that_waits() {
    let mut world = running(7, 2, (2, 3));
    world.entries.clear();
    let late = start(&mut world, "late", 0);
    world.run_for(50 * SECOND);
    assert_eq!(joins(&world, late), 0);
    until(&mut world, "all restart", 30 * SECOND, |world| {
        joins(world, late) == 1 && members(world).len() == 3
    });
    assert_eq!(world.store.state().round, 1);
    // A round that is about to end keeps the node as a spare.
    let mut world = running(7, 2, (2, 3));
    world.entries.get_mut(&0).unwrap().1 = true;
    let late = start(&mut world, "late", 0);
    world.run_for(200 * SECOND);
    assert!(
        world
            .store
            .state()
            .redundancy_list
            .contains(&world.nodes[late].me)
    );
}

/// docs/spec/rendezvous.md, ENTRY 6.
#[test]
fn a_holder_lets_no_node_in() {
    let mut world = World::new(11, RendezvousSettings::for_test(2, 3));
    for number in 0..3 {
        let node = world.add_kind(&format!("node{number}"), Kind::Group);
        world.nodes[node].keeps = true;
        world.command_in(60_000 * (number / 2), node, Command::Start);
    }
    until(&mut world, "two run", 50 * SECOND, |world| {
        joins(world, 1) == 1
    });
    until(&mut world, "all restart", 120 * SECOND, |world| {
        (0..3).all(|node| joins(world, node) == 2 - node / 2)
    });
    assert_eq!(world.nodes[2].joins[0].round, 1);
}

/// A PyTorch node neither enters nor opens.
#[test]
fn a_node_of_pytorch_restarts_the_round() {
    let mut world = running(9, 2, (2, 3));
    let torch = world.add_torch("torch");
    world.command(torch, Command::Start);
    until(&mut world, "all restart", 40 * SECOND, |world| {
        joins(world, torch) == 1 && members(world).len() == 3
    });
    assert_eq!(world.store.state().round, 1);
}

/// Nodes that join, crash, pause, leave and give up their places: afterwards each live node is a member or a spare, and
/// the laws hold.
#[test]
fn random_histories_of_nodes_that_enter_come_to_rest() {
    Seeds::fixed(200).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let max = random.usize(1..=5);
        let count = random.usize(1..=7);
        let min = random.usize(1..=max.min(count));
        let mut settings = RendezvousSettings::for_test(min, max);
        settings.last_call_timeout = random.u32(1..=10) * SECOND;
        let mut world = World::new(seed, settings);
        let mut ends = 0;
        for _ in 0..count {
            let name = format!("node{}", random.u32(..));
            let node = start(&mut world, &name, random.u64(0..60_000));
            let ways = [Watching::Members, Watching::Round, Watching::Polls];
            world.nodes[node].watching = ways[random.usize(..3)];
            world.nodes[node].skew = random.i64(-900..=900);
        }
        for _ in 0..random.usize(0..=6) {
            let (at, node) = (random.u64(0..90_000), random.usize(..world.nodes.len()));
            let pause = random.u64(0..40_000);
            ends = ends.max(at + pause);
            match random.u8(..6) {
                0 => world.command_in(at, node, Command::Crash),
                1 => {
                    world.command_in(at, node, Command::Crash);
                    start(&mut world, &format!("new{}", random.u32(..)), at + pause);
                }
                2 => world.command_in(at, node, Command::Leave),
                3 => world.command_in(at, node, Command::Pause(Duration::from_millis(pause))),
                4 => world.command_in(at, node, Command::Rejoin),
                _ => world.command_in(at, node, Command::GiveUp),
            }
        }
        world.run_for(Duration::from_millis(ends.max(60_000)));
        let is_at_rest = |world: &World| {
            let alive = world.alive();
            let Some(version) = world.store.current() else {
                return alive == 0;
            };
            let state = &version.state;
            let spares = state.redundancy_list.len();
            let is_waiting = |node: &super::SimNode| matches!(node.stage, Stage::Busy(_));
            let waiting = world.nodes.iter().filter(|node| is_waiting(node)).count();
            let is_running = state.complete
                && members(world).len() == alive.min(max)
                && members(world).len() + spares == alive;
            is_running || (alive < min && waiting == alive)
        };
        until(&mut world, "at rest", 300 * SECOND, is_at_rest);
    });
}
