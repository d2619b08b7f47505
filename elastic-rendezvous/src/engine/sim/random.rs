//! Random histories.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::time::Duration;

use c10d_sim::{Run, Seeds, run};

use super::node::{Command, Watching};
use super::{Act, Faults, World};
use crate::values::settings::RendezvousSettings;

const SECOND: Duration = Duration::from_secs(1);

/// The largest error of a wall clock, in seconds.
const SKEW_MAX: i64 = 900;

/// A node that paused before it got the answer to a write considered its heartbeat new, and was dropped. In the first
/// history, a spare took the place of a member that had lost its connection for a moment. The other seeds revealed
/// defects of the simulator: it checked the round in a node's copy of the state, which may decrease; it carried out a
/// restart that was planned in an earlier round; it gave no time to a node that had paused in its join and started its
/// workers in a world that was over; and it treated a slow clock as a clock that all other nodes had read again.
#[test]
fn histories_that_once_failed_pass() {
    faults(11714147631740837244, 12);
    faults(11272875999176661462, 12);
    faults(3740591573270001998, 12);
    faults(9199012546027969569, 12);
    faults(4855890615172970828, 12);
    nodes_of_both_kinds(2066653375588246547);
}

/// A world of `count` nodes with random clocks and a random [`Watching`].
fn world(seed: u64, settings: RendezvousSettings, count: usize) -> (World, fastrand::Rng) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let mut world = World::new(seed, settings);
    for _ in 0..count {
        Clocks::random(&mut random).add_to(&mut world);
    }
    (world, random)
}

/// Our node, which writes the state itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    name: u32,
    skew: i64,
    boot: Duration,
    watching: Watching,
}

impl Clocks {
    fn random(random: &mut fastrand::Rng) -> Self {
        Self {
            // The nodes do not start in the order of their names.
            name: random.u32(..),
            skew: match random.bool() {
                true => random.i64(-SKEW_MAX..=SKEW_MAX),
                false => 0,
            },
            boot: Duration::from_millis(random.u64(..10_000_000)),
            watching: match random.u8(0..3) {
                0 => Watching::Polls,
                1 => Watching::Members,
                _ => Watching::Round,
            },
        }
    }

    pub(super) fn add_to(self, world: &mut World) -> usize {
        let index = world.add(&format!("node{}", self.name));
        let node = &mut world.nodes[index];
        (node.skew, node.boot, node.watching) = (self.skew, self.boot, self.watching);
        index
    }
}

/// Runs until the world is settled, and then for 20 s, in which no node may join.
fn settle(world: &mut World, limit: Duration) {
    let end = world.now() + limit;
    let is_settled = world.run_until(end, World::is_settled);
    assert!(
        is_settled,
        "not settled after {limit:?}: {}",
        world.describe()
    );
    let joins: usize = world.nodes.iter().map(|node| node.joins.len()).sum();
    world.run_for(20 * SECOND);
    assert!(
        world.is_settled(),
        "no longer settled: {}",
        world.describe()
    );
    let later: usize = world.nodes.iter().map(|node| node.joins.len()).sum();
    assert_eq!(joins, later, "nodes restarted without a reason");
}

fn random_time(random: &mut fastrand::Rng, millis: RangeInclusive<u64>) -> Duration {
    Duration::from_millis(random.u64(millis))
}

fn random_millis(random: &mut fastrand::Rng, millis: RangeInclusive<u64>) -> u64 {
    random.u64(millis)
}

#[test]
fn the_last_of_max_nodes_completes_the_round_at_once() {
    Seeds::fixed(30).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(2..=12);
        let settings = RendezvousSettings::for_test(count, count);
        let (mut world, mut random) = world(seed, settings, count);
        let mut last = 0;
        for node in 0..count {
            let millis = random_millis(&mut random, 0..=20_000);
            world.command_in(millis, node, Command::Start);
            last = last.max(millis);
        }
        world.run_for(Duration::from_millis(last));
        // A node whose clock is behind is a suspect until it writes.
        let limit = world.settings.keep_alive_interval + 2 * SECOND;
        settle(&mut world, limit);
        assert!(world.nodes.iter().all(|node| node.joins.len() == 1));
    });
}

#[test]
fn min_nodes_complete_the_round_after_the_last_call() {
    Seeds::fixed(30).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(1..=11);
        let mut settings = RendezvousSettings::for_test(random.usize(1..=count), count + 1);
        settings.last_call_timeout = random.u32(1..=30) * SECOND;
        let (mut world, mut random) = world(seed, settings, count);
        // All nodes start before the last call can end.
        let longest = world.settings.last_call_timeout.as_millis() as u64 - 500;
        for node in 0..count {
            let millis = random_millis(&mut random, 0..=longest);
            world.command_in(millis, node, Command::Start);
        }
        world.run_for(Duration::from_millis(longest));
        let limit = world.settings.last_call_timeout + 7 * SECOND;
        settle(&mut world, limit);
        assert!(world.nodes.iter().all(|node| node.joins.len() == 1));
    });
}

/// docs/spec/rendezvous.md, STATE 2 and 3: invariants of every write.
#[test]
fn survivors_of_random_faults_complete_a_round() {
    Seeds::fixed(50).for_each(|seed| faults(seed, 12));
}

fn faults(seed: u64, nodes_max: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(2..=nodes_max);
    let max = random.usize(1..=count + 1);
    let mut settings = RendezvousSettings::for_test(random.usize(1..=max), max);
    settings.last_call_timeout = random.u32(1..=30) * SECOND;
    let horizon = Cell::new(Duration::ZERO);
    let history = |world: &mut Run<World>, random: &mut fastrand::Rng| {
        let horizon_ms = random.u64(1..=90_000);
        horizon.set(Duration::from_millis(horizon_ms));
        for node in 0..count {
            let after = random_time(random, 0..=horizon_ms / 2);
            world.take(Act::Command(after, node, Command::Start));
        }
        if random.bool() {
            world.take(Act::SetFaults(Faults::ROUGH));
        }
        for _ in 0..random.usize(0..=2 * count) {
            let at = random_time(random, 0..=horizon_ms);
            let node = random.usize(0..count);
            let pause = random_time(random, 0..=40_000);
            let command = match random.u8(0..12) {
                0 => Command::Crash,
                1 => {
                    world.take(Act::Command(at, node, Command::Crash));
                    let next = world.nodes.len();
                    world.take(Act::AddSolo(Clocks::random(random)));
                    world.take(Act::Command(at + pause, next, Command::Start));
                    continue;
                }
                2 => Command::Leave,
                3..6 => Command::Pause(pause),
                6..8 => Command::Jump(random.i64(-SKEW_MAX..=SKEW_MAX)),
                _ => Command::Rejoin,
            };
            world.take(Act::Command(at, node, command));
        }
    };
    let end = |world: &mut World, acts: &[Act]| {
        let ends = acts.iter().filter_map(|act| match act {
            Act::Command(after, _, Command::Pause(time)) => Some(*after + *time),
            Act::Command(after, ..) => Some(*after),
            _ => None,
        });
        let horizon = horizon.get();
        let ends = ends.fold(horizon, Duration::max);
        world.run_for(horizon);
        world.set_faults(Faults::CALM);
        world.run_for(ends - horizon);
        // Old messages arrive.
        world.run_for(5 * SECOND);
        if world.alive() < world.settings.min_nodes {
            // The round cannot complete, but the invariants must still hold.
            return world.run_for(60 * SECOND);
        }
        // Dead nodes are dropped, their round is left, and the next one has its last call: at worst twice.
        let limit = 2 * (2 * world.settings.dead_after() + world.settings.last_call_timeout);
        settle(world, limit + 20 * SECOND);
    };
    run(|| world(seed, settings.clone(), count), history, end);
}

/// docs/spec/rendezvous.md, OUTAGE 1 to 5.
#[test]
fn nodes_come_back_from_outages_of_the_store() {
    Seeds::fixed(200).for_each(outages);
}

/// Nodes whose connections are cut or fall silent, and a store that stops and comes back, with its state or empty.
fn outages(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(2..=6);
    let max = random.usize(1..=count + 1);
    let mut settings = RendezvousSettings::for_test(random.usize(1..=max), max);
    settings.last_call_timeout = random.u32(1..=30) * SECOND;
    let ends = Cell::new(Duration::ZERO);
    let history = |world: &mut Run<World>, random: &mut fastrand::Rng| {
        let horizon_ms = random.u64(10_000..=120_000);
        for node in 0..count {
            let after = random_time(random, 0..=10_000);
            world.take(Act::Command(after, node, Command::Start));
        }
        let mut faults: Vec<Duration> = (0..random.usize(1..=6))
            .map(|_| random_time(random, 0..=horizon_ms))
            .collect();
        faults.sort_unstable();
        let longest = [100, 3_000, 20_000, 60_000][random.usize(..4)];
        ends.set(Duration::from_millis(horizon_ms + longest));
        for at in faults {
            world.take(Act::RunFor(at - world.now()));
            let node = random.usize(0..count);
            let time = random_time(random, 0..=longest);
            let cut = |node, is_silent| {
                Act::Command(Duration::ZERO, node, Command::Cut { time, is_silent })
            };
            match random.u8(0..10) {
                0..3 => world.take(cut(node, random.bool())),
                3..5 => (0..count).for_each(|node| world.take(cut(node, random.bool()))),
                5..7 => world.take(Act::RestartStore(time, false)),
                7 | 8 => world.take(Act::RestartStore(time, true)),
                _ => world.take(Act::Command(Duration::ZERO, node, Command::Rejoin)),
            }
        }
    };
    let end = |world: &mut World, _: &[Act]| {
        // A node learns of its removal later: after keep-alive, its last attempt and a pause.
        let late = world.settings.dead_after() + 10 * SECOND;
        world.run_until(ends.get() + late, |_| false);
        if world.alive() < world.settings.min_nodes {
            return;
        }
        let limit = 2 * (2 * world.settings.dead_after() + world.settings.last_call_timeout);
        settle(world, limit + 30 * SECOND);
    };
    run(|| world(seed, settings.clone(), count), history, end);
}

/// Starts some nodes that all have a place, and runs until they have joined and have seen each other's marks.
fn connected(seed: u64) -> (World, fastrand::Rng) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(2..=6);
    let settings = RendezvousSettings::for_test(1, count);
    let (mut world, random) = world(seed, settings, count);
    for node in 0..count {
        world.command(node, Command::Start);
    }
    settle(&mut world, 10 * SECOND);
    (world, random)
}

/// docs/spec/rendezvous.md, LINK 3.
#[test]
fn connections_that_return_within_two_seconds_cost_no_restart() {
    Seeds::fixed(100).for_each(|seed| {
        let (mut world, mut random) = connected(seed);
        for _ in 0..10 {
            let node = random.usize(0..world.nodes.len());
            let time = Duration::from_millis(random_millis(&mut random, 0..=2_000));
            let is_silent = false;
            world.command(node, Command::Cut { time, is_silent });
            world.run_for(time + Duration::from_millis(random_millis(&mut random, 1_500..=9_000)));
        }
        assert!(world.is_settled(), "{}", world.describe());
        assert!(world.nodes.iter().all(|node| node.joins.len() == 1));
    });
}

/// docs/spec/rendezvous.md, LINK 3 and 5: the restart of a store closes all connections, and no node is lost.
#[test]
fn a_store_that_restarts_costs_no_restart() {
    Seeds::fixed(50).for_each(|seed| {
        let (mut world, mut random) = connected(seed);
        for _ in 0..5 {
            let time = Duration::from_millis(random_millis(&mut random, 0..=8_000));
            world.restart_store(time, false);
            world.run_for(time + 10 * SECOND);
        }
        assert!(world.is_settled(), "{}", world.describe());
        assert!(world.nodes.iter().all(|node| node.joins.len() == 1));
    });
}

/// docs/spec/rendezvous.md, LINK 3.
#[test]
fn a_killed_node_is_replaced_by_a_round_of_the_others_within_seconds() {
    Seeds::fixed(50).for_each(|seed| {
        let (mut world, mut random) = connected(seed);
        let killed = random.usize(0..world.nodes.len());
        world.command(killed, Command::Crash);
        world.run_for(SECOND / 10);
        // 3 s until it is noticed, 2 s to stop the workers, 1 s for each poll of a node that does not watch.
        let end = world.now() + 9 * SECOND;
        assert!(
            world.run_until(end, World::is_settled),
            "{}",
            world.describe()
        );
    });
}

#[test]
fn forty_nodes_survive_the_same_faults() {
    Seeds::fixed(2).for_each(|seed| faults(seed, 40));
}

#[test]
fn nodes_of_both_kinds_complete_rounds_together_in_any_order() {
    Seeds::fixed(30).for_each(nodes_of_both_kinds);
}

fn nodes_of_both_kinds(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(2..=8);
    // Every node has a place, because PyTorch's nodes otherwise restart without end.
    let mut settings = RendezvousSettings::for_test(random.usize(1..=count), count);
    settings.last_call_timeout = random.u32(2..=30) * SECOND;
    let mut world = World::new(seed, settings);
    for number in 0..count {
        let node = if number == 0 || random.bool() {
            world.add(&format!("ours{number}"))
        } else {
            world.add_torch(&format!("theirs{number}"))
        };
        world.nodes[node].watching = Watching::Members;
        world.command_in(random_millis(&mut random, 0..=20_000), node, Command::Start);
    }
    for _ in 0..random.usize(0..=4) {
        let at = random_millis(&mut random, 20_000..=80_000);
        world.command_in(at, random.usize(0..count), Command::Rejoin);
    }
    // Node 0 is ours and does not crash, because PyTorch's nodes do not notice a crash.
    if random.bool() && count > world.settings.min_nodes {
        let at = random_millis(&mut random, 20_000..=80_000);
        world.command_in(at, random.usize(1..count), Command::Crash);
    }
    world.run_for(80 * SECOND);
    let limit = 2 * (2 * world.settings.dead_after() + world.settings.last_call_timeout);
    settle(&mut world, limit + 30 * SECOND);
}

#[test]
fn a_restart_of_running_nodes_needs_no_last_call() {
    Seeds::fixed(30).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(1..=11);
        let settings = RendezvousSettings::for_test(random.usize(1..=count), count + 1);
        let (mut world, mut random) = world(seed, settings, count);
        for node in 0..count {
            world.command(node, Command::Start);
        }
        settle(&mut world, 38 * SECOND);
        let round = world.store.state().round;
        world.command(random.usize(0..count), Command::Rejoin);
        world.run_for(SECOND / 10);
        settle(&mut world, 10 * SECOND);
        assert_eq!(
            world.store.state().round,
            round + 1,
            "the members restarted more than once"
        );
    });
}
