//! Random histories. A seed determines each history; `SEED=n` repeats one, `ROUNDS=n` runs n new histories.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::node::{Command, Watching};
use super::{Network, World};
use crate::values::settings::RendezvousSettings;

const SECOND: Duration = Duration::from_secs(1);

/// The largest error of a wall clock, in seconds.
const SKEW_MAX: i64 = 900;

/// Runs `history` for each of [`seeds`], and prints the seed of a failure. By default, every run has the same
/// `rounds` seeds.
pub(super) fn for_seeds(rounds: u64, history: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("SEED and ROUNDS are numbers"))
    };
    for seed in seeds(number("SEED"), number("ROUNDS"), rounds, || {
        fastrand::u64(..)
    }) {
        let outcome = std::panic::catch_unwind(|| history(seed));
        assert!(outcome.is_ok(), "to repeat this history: SEED={seed}");
    }
}

/// The seeds of the histories: only `first` if just `first` is given, `rounds` new seeds if just `rounds` is given,
/// `rounds` seeds from `first` upwards if both are given, and otherwise `default_rounds` seeds from 0.
fn seeds(
    first: Option<u64>,
    rounds: Option<u64>,
    default_rounds: u64,
    fresh: impl FnOnce() -> u64,
) -> impl Iterator<Item = u64> {
    let (first, count) = match (first, rounds) {
        (Some(first), rounds) => (first, rounds.unwrap_or(1)),
        (None, Some(rounds)) => (fresh(), rounds),
        (None, None) => (0, default_rounds),
    };
    (0..count).map(move |index| first.wrapping_add(index))
}

#[test]
fn seeds_are_fixed_by_default_and_new_or_given_on_request() {
    let seeds = |first, rounds| seeds(first, rounds, 3, || 100).collect::<Vec<_>>();
    assert_eq!(seeds(None, None), [0, 1, 2]);
    assert_eq!(seeds(None, Some(2)), [100, 101]);
    assert_eq!(seeds(Some(7), None), [7]);
    assert_eq!(seeds(Some(u64::MAX), Some(2)), [u64::MAX, 0]);
}

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
        add(&mut world, &mut random);
    }
    (world, random)
}

fn add(world: &mut World, random: &mut fastrand::Rng) -> usize {
    // The nodes do not start in the order of their names.
    let index = world.add(&format!("node{}", random.u32(..)));
    let node = &mut world.nodes[index];
    if random.bool() {
        node.skew = random.i64(-SKEW_MAX..=SKEW_MAX);
    }
    node.boot = Duration::from_millis(random.u64(..10_000_000));
    node.watching = match random.u8(0..3) {
        0 => Watching::Polls,
        1 => Watching::Members,
        _ => Watching::Round,
    };
    index
}

/// Runs until the world is settled, and then for 20 s, in which no node may join.
fn settle(world: &mut World, limit: Duration) {
    let end = world.now + limit;
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

fn random_millis(random: &mut fastrand::Rng, millis: RangeInclusive<u64>) -> u64 {
    random.u64(millis)
}

#[test]
fn the_last_of_max_nodes_completes_the_round_at_once() {
    for_seeds(30, |seed| {
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
    for_seeds(30, |seed| {
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

#[test]
fn nodes_without_a_place_become_spares() {
    for_seeds(30, |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(2..=12);
        let max = random.usize(1..count);
        let settings = RendezvousSettings::for_test(random.usize(1..=max), max);
        let (mut world, mut random) = world(seed, settings, count);
        for node in 0..count {
            world.command_in(random_millis(&mut random, 0..=60_000), node, Command::Start);
        }
        world.run_for(60 * SECOND);
        settle(&mut world, 120 * SECOND);
    });
}

/// docs/spec/rendezvous.md, STATE 2 and 3: invariants of every write.
#[test]
fn survivors_of_random_faults_complete_a_round() {
    for_seeds(50, |seed| faults(seed, 12));
}

fn faults(seed: u64, nodes_max: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(2..=nodes_max);
    let max = random.usize(1..=count + 1);
    let mut settings = RendezvousSettings::for_test(random.usize(1..=max), max);
    settings.last_call_timeout = random.u32(1..=30) * SECOND;
    let (mut world, mut random) = world(seed, settings, count);
    let horizon = random.u64(1..=90_000);
    for node in 0..count {
        world.command_in(
            random_millis(&mut random, 0..=horizon / 2),
            node,
            Command::Start,
        );
    }
    if random.bool() {
        world.set_network(Network::ROUGH);
    }
    let mut ends = horizon;
    for _ in 0..random.usize(0..=2 * count) {
        let at = random_millis(&mut random, 0..=horizon);
        let node = random.usize(0..count);
        let pause = random_millis(&mut random, 0..=40_000);
        match random.u8(0..12) {
            0 => world.command_in(at, node, Command::Crash),
            1 => {
                world.command_in(at, node, Command::Crash);
                let next = add(&mut world, &mut random);
                world.command_in(at + pause, next, Command::Start);
                ends = ends.max(at + pause);
            }
            2 => world.command_in(at, node, Command::Leave),
            3..6 => {
                let pause_length = Duration::from_millis(pause);
                world.command_in(at, node, Command::Pause(pause_length));
                ends = ends.max(at + pause);
            }
            6..8 => {
                let seconds = random.i64(-SKEW_MAX..=SKEW_MAX);
                world.command_in(at, node, Command::Jump(seconds));
            }
            _ => world.command_in(at, node, Command::Rejoin),
        }
    }
    world.run_for(Duration::from_millis(horizon));
    world.set_network(Network::CALM);
    world.run_for(Duration::from_millis(ends - horizon));
    // Old messages arrive.
    world.run_for(5 * SECOND);
    if world.alive() < world.settings.min_nodes {
        // The round cannot complete, but the invariants must still hold.
        return world.run_for(60 * SECOND);
    }
    // Dead nodes are dropped, their round is left, and the next one has its last call: at worst twice.
    let limit = 2 * (2 * world.settings.dead_after() + world.settings.last_call_timeout);
    settle(&mut world, limit + 20 * SECOND);
}

/// docs/spec/rendezvous.md, OUTAGE 1 to 5.
#[test]
fn nodes_come_back_from_outages_of_the_store() {
    for_seeds(200, outages);
}

/// Nodes whose connections are cut or fall silent, and a store that stops and comes back, with its state or empty.
fn outages(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(2..=6);
    let max = random.usize(1..=count + 1);
    let mut settings = RendezvousSettings::for_test(random.usize(1..=max), max);
    settings.last_call_timeout = random.u32(1..=30) * SECOND;
    let (mut world, mut random) = world(seed, settings, count);
    let horizon = random.u64(10_000..=120_000);
    for node in 0..count {
        let millis = random_millis(&mut random, 0..=10_000);
        world.command_in(millis, node, Command::Start);
    }
    let mut faults: Vec<u64> = (0..random.usize(1..=6))
        .map(|_| random_millis(&mut random, 0..=horizon))
        .collect();
    faults.sort_unstable();
    let longest = [100, 3_000, 20_000, 60_000][random.usize(..4)];
    for at in faults {
        world.run_until(Duration::from_millis(at), |_| false);
        let node = random.usize(0..count);
        let time = Duration::from_millis(random_millis(&mut random, 0..=longest));
        match random.u8(0..10) {
            0..3 => {
                let is_silent = random.bool();
                world.command(node, Command::Cut { time, is_silent });
            }
            3..5 => {
                for node in 0..count {
                    let is_silent = random.bool();
                    world.command(node, Command::Cut { time, is_silent });
                }
            }
            5..7 => world.restart_store(time, false),
            7 | 8 => world.restart_store(time, true),
            _ => world.command(node, Command::Rejoin),
        }
    }
    // A node learns of its removal later: after keep-alive, its last attempt and a pause.
    let late = world.settings.dead_after() + 10 * SECOND;
    world.run_until(Duration::from_millis(horizon + longest) + late, |_| false);
    if world.alive() < world.settings.min_nodes {
        return;
    }
    let limit = 2 * (2 * world.settings.dead_after() + world.settings.last_call_timeout);
    settle(&mut world, limit + 30 * SECOND);
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
    for_seeds(100, |seed| {
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
    for_seeds(50, |seed| {
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
    for_seeds(50, |seed| {
        let (mut world, mut random) = connected(seed);
        let killed = random.usize(0..world.nodes.len());
        world.command(killed, Command::Crash);
        world.run_for(SECOND / 10);
        // 3 s until it is noticed, 2 s to stop the workers, 1 s for each poll of a node that does not watch.
        let end = world.now + 9 * SECOND;
        assert!(
            world.run_until(end, World::is_settled),
            "{}",
            world.describe()
        );
    });
}

#[test]
fn forty_nodes_survive_the_same_faults() {
    for_seeds(2, |seed| faults(seed, 40));
}

#[test]
fn nodes_of_both_kinds_complete_rounds_together_in_any_order() {
    for_seeds(30, nodes_of_both_kinds);
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
    for_seeds(30, |seed| {
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
