//! Histories of a group, with faults: nodes that die or pause at any step, lost answers, requests that arrive twice.
//! Some histories also have nodes that write the state themselves beside the group.

use std::time::Duration;

use c10d_sim::{Run, Seeds, run};
use fastrand::Rng;

use super::node::{Command, Kind, SimNode, Stage, WALL};
use super::{Act, Faults, World};
use crate::values::settings::RendezvousSettings;

const SECOND: Duration = Duration::from_secs(1);

/// Adds a node that starts after this time, with a name and clocks that the world's seed determines.
pub(super) fn add_after(world: &mut World, kind: Kind, after: Duration) -> usize {
    let name = format!("node{}", world.random.u32(..50));
    let index = world.add_kind(&name, kind);
    let node = &mut world.nodes[index];
    node.boot = SECOND * world.random.u32(1..10_000);
    node.skew = world.random.i64(0..3);
    world.command_after(after, index, Command::Start);
    index
}

/// Without [`Kind::Torch`]: a node in the group, or one in four beside it.
fn random_kind(random: &mut Rng, has_solo: bool) -> Kind {
    if has_solo && random.u8(..4) == 0 {
        Kind::Solo
    } else {
        Kind::Group
    }
}

/// Runs without faults, with nodes enough for a round, until all have settled, and for a while after.
fn settle(world: &mut World) {
    world.set_faults(Faults::CALM);
    world.run_for(SECOND * 30);
    while world.alive() < world.settings.min_nodes {
        add_after(world, Kind::Group, Duration::ZERO);
        world.run_for(SECOND);
    }
    let end = world.now() + SECOND * 120;
    let is_settled = world.run_until(end, World::is_settled);
    assert!(is_settled, "not settled: {}", world.describe());
    world.run_for(SECOND * 20);
    assert!(
        world.is_settled(),
        "not settled for long: {}",
        world.describe()
    );
}

fn settings(min: usize, max: usize) -> RendezvousSettings {
    RendezvousSettings::for_test(min, max)
}

/// docs/spec/rendezvous.md, GROUP 4 and 5.
#[test]
fn nodes_that_come_at_once_have_their_ranks_after_few_writes() {
    for seed in Seeds::fixed(20) {
        let mut world = World::new(seed, settings(100, 100));
        for _ in 0..100 {
            add_after(&mut world, Kind::Group, Duration::ZERO);
        }
        let end = world.now() + SECOND;
        assert!(world.run_until(end, World::is_settled));
        let writes = world.store.writes;
        assert!(writes <= 20, "{writes} writes");
    }
}

/// docs/spec/rendezvous.md, GROUP 5.
#[test]
fn the_writes_of_an_open_round_move_at_most_twice_as_much_as_the_last_one() {
    for seed in Seeds::fixed(5) {
        let mut world = World::new(seed, settings(400, 400));
        for _ in 0..400 {
            let after = Duration::from_micros(world.random.u64(..80_000));
            add_after(&mut world, Kind::Group, after);
        }
        let complete_bytes = |world: &World| {
            let version = world.store.current()?;
            version
                .state
                .complete
                .then_some(version.token.as_bytes().len())
        };
        let end = world.now() + SECOND * 2;
        assert!(world.run_until(end, |world| complete_bytes(world).is_some()));
        let last = complete_bytes(&world).expect("a complete round");
        let written = world.store.written_bytes;
        assert!(written < 3 * last, "{written} of {last} bytes");
    }
}

/// docs/spec/rendezvous.md, GROUP 1 and 2.
#[test]
fn the_death_of_the_holder_delays_a_join_by_seconds() {
    for seed in Seeds::fixed(200) {
        let mut world = World::new(seed, settings(30, 30));
        for _ in 0..31 {
            let after = Duration::from_micros(world.random.u64(..20_000));
            add_after(&mut world, Kind::Group, after);
        }
        // At any step.
        let after = Duration::from_micros(world.random.u64(..40_000));
        world.run_for(after);
        let Some(holder) = world.holder() else {
            continue;
        };
        world.command(holder, Command::Crash);
        let is_counted = |world: &World| {
            let joined = world.nodes.iter().filter(|node| !node.joins.is_empty());
            joined.count() >= 29
        };
        let end = world.now() + SECOND * 25;
        assert!(
            world.run_until(end, |world| is_counted(world) && world.is_settled()),
            "{}",
            world.describe()
        );
    }
}

/// A complete round of four nodes, at any moment of an interval, and the index of a node that does not hold the lease.
/// `has_solo`: one of the nodes writes the state itself.
fn four_nodes(seed: u64, has_solo: bool) -> (World, usize) {
    let mut random = Rng::with_seed(seed);
    let mut world = World::new(seed, settings(4, 4));
    for index in 0..4 {
        let kind = if has_solo && index == 0 {
            Kind::Solo
        } else {
            Kind::Group
        };
        let after = Duration::from_millis(random.u64(..5000));
        let node = add_after(&mut world, kind, after);
        world.nodes[node].skew = 0;
    }
    let end = world.now() + SECOND * 40;
    assert!(world.run_until(end, World::is_settled));
    world.run_for(Duration::from_millis(random.u64(..5000)));
    let holder = world.holder().expect("a holder");
    let others: Vec<usize> = (0..4).filter(|index| *index != holder).collect();
    let chosen = others[random.usize(..others.len())];
    (world, chosen)
}

/// Another node may write just before the holder drops the dead one. It is dead all the same.
/// docs/spec/rendezvous.md, GROUP 7.
#[test]
fn a_dead_node_is_dropped_in_time_though_others_write_too() {
    for seed in Seeds::fixed(200) {
        let (mut world, dead) = four_nodes(seed, true);
        world.command(dead, Command::Crash);
        let interval = world.settings.keep_alive_interval;
        let end = world.now() + world.settings.dead_after() + interval;
        let name = world.nodes[dead].me.clone();
        let is_dropped = |world: &World| {
            let version = world.store.current().expect("a state");
            !version.state.last_heartbeats.contains_key(&name)
        };
        assert!(world.run_until(end, is_dropped));
    }
}

/// PyTorch's nodes judge a node only by its heartbeat in the state.
/// docs/spec/rendezvous.md, GROUP 7.
#[test]
fn a_node_that_was_stopped_for_seven_seconds_is_not_taken_for_dead() {
    for seed in Seeds::fixed(200) {
        let (mut world, stopped) = four_nodes(seed, false);
        world.command(stopped, Command::Pause(SECOND * 7));
        for _ in 0..600 {
            world.run_for(Duration::from_millis(50));
            let version = world.store.current().expect("a state");
            let heartbeat = version.state.last_heartbeats[&world.nodes[stopped].me];
            let age = WALL.after(world.now()).since(heartbeat);
            let limit = world.settings.dead_after();
            assert!(age < limit, "{age:?} at {:?}", world.now());
        }
    }
}

/// The members with the lowest ranks may share a rack with the holder.
/// docs/spec/rendezvous.md, GROUP 2.
#[test]
fn the_members_go_on_soon_if_those_that_poll_the_lease_each_second_die_with_the_holder() {
    for seed in Seeds::fixed(200) {
        let mut world = World::new(seed, settings(2, 9));
        for _ in 0..9 {
            let after = Duration::from_millis(world.random.u64(..2000));
            add_after(&mut world, Kind::Group, after);
        }
        let end = world.now() + SECOND * 40;
        assert!(world.run_until(end, World::is_settled));
        let after = Duration::from_millis(world.random.u64(..10_000));
        world.run_for(after);
        let state = world.store.state();
        for index in 0..9 {
            if state.participants[&world.nodes[index].me] < 4 || world.holder() == Some(index) {
                world.command(index, Command::Crash);
            }
        }
        // Two heartbeats until there is a holder, which observes the silence of the dead nodes from then on.
        let end = world.now() + SECOND * 10 + world.settings.dead_after() + SECOND * 5;
        let go_on = |world: &World| world.alive() <= 5 && world.is_settled();
        assert!(world.run_until(end, go_on), "{}", world.describe());
    }
}

/// The holder may have taken the node's join from the queue before it paused. docs/spec/rendezvous.md, GROUP 12.
#[test]
fn a_node_that_leaves_while_the_holder_stands_still_is_not_listed_again() {
    for seed in Seeds::fixed(500) {
        let mut random = Rng::with_seed(seed);
        let mut world = World::new(seed, settings(2, 3));
        // This excludes other nodes that may take the lease.
        add_after(&mut world, Kind::Group, Duration::ZERO);
        world.run_for(SECOND * 2);
        let node = add_after(&mut world, Kind::Group, Duration::ZERO);
        world.run_for(Duration::from_micros(random.u64(..20_000)));
        let holder = world.holder().expect("a holder");
        let stopped = Duration::from_millis(random.u64(2_000..6_000));
        world.command(holder, Command::Pause(stopped));
        world.run_for(Duration::from_millis(random.u64(..5_000)));
        world.command(node, Command::Leave);
        let has_left = |world: &World| !world.nodes[node].is_alive();
        let end = world.now() + SECOND * 10;
        assert!(world.run_until(end, has_left));
        let me = world.nodes[node].me.clone();
        let is_listed = |world: &World| world.store.state().last_heartbeats.contains_key(&me);
        let end = world.now() + SECOND * 20;
        assert!(!world.run_until(end, is_listed), "{}", world.describe());
    }
}

/// Up to 60 nodes in a round get this command within some milliseconds, and all have ended within `limit` after that.
fn nodes_end(command: Command, limit: Duration) {
    for seed in Seeds::fixed(200) {
        let mut random = Rng::with_seed(seed);
        let count = random.usize(2..60);
        let mut world = World::new(seed, settings(count, count));
        for _ in 0..count {
            add_after(&mut world, Kind::Group, Duration::ZERO);
        }
        let end = world.now() + SECOND * 40;
        assert!(world.run_until(end, World::is_settled));
        world.run_for(Duration::from_millis(random.u64(..5000)));
        let width = [1, 10, 100][random.usize(..3)];
        for node in 0..count {
            let after = Duration::from_millis(random.u64(..width));
            world.command_after(after, node, command);
            // A launcher that ends does not restart its workers.
            world.nodes[node].restarts = false;
        }
        let end = world.now() + Duration::from_millis(width) + limit;
        let have_all_ended = |world: &World| world.alive() == 0;
        assert!(world.run_until(end, have_all_ended), "{}", world.describe());
    }
}

/// docs/spec/rendezvous.md, GROUP 10.
#[test]
fn nodes_that_close_at_once_end_at_once() {
    nodes_end(Command::Close, SECOND / 2);
}

/// docs/spec/rendezvous.md, GROUP 11.
#[test]
fn nodes_that_leave_at_once_end_at_once() {
    nodes_end(Command::Leave, SECOND / 2);
}

/// A complete round of this many nodes, whose marks are set and which have been connected for longer than keep-alive.
fn marked_nodes(seed: u64, count: usize) -> World {
    let mut world = World::new(seed, settings(2, count));
    for _ in 0..count {
        add_after(&mut world, Kind::Group, Duration::ZERO);
    }
    let end = world.now() + SECOND * 40;
    assert!(world.run_until(end, World::is_settled));
    world.run_for(world.settings.dead_after() + SECOND * 2);
    let after = Duration::from_millis(world.random.u64(..5000));
    world.run_for(after);
    world
}

/// A node other than the holder.
fn follower(world: &mut World) -> usize {
    let holder = world.holder().expect("a holder");
    let node = world.random.usize(1..world.nodes.len());
    (holder + node) % world.nodes.len()
}

/// How long it takes until the state lists none of these nodes.
fn dropped_after(world: &mut World, lost: &[usize]) -> Duration {
    let names: Vec<_> = lost.iter().map(|it| world.nodes[*it].me.clone()).collect();
    let are_dropped = |world: &World| {
        let state = world.store.state();
        let mut names = names.iter();
        names.all(|name| !state.last_heartbeats.contains_key(name))
    };
    let begun_at = world.now();
    let end = world.now() + SECOND * 60;
    assert!(world.run_until(end, are_dropped), "{}", world.describe());
    world.now() - begun_at
}

/// docs/spec/rendezvous.md, LINK 8.
#[test]
fn a_lost_member_of_a_group_is_dropped_soon_after_its_connection_has_closed() {
    for (count, seeds) in [(40, 10), (100, 5), (1000, 1)] {
        for seed in Seeds::fixed(seeds) {
            let mut world = marked_nodes(seed, count);
            let lost = follower(&mut world);
            world.command(lost, Command::Crash);
            let took = dropped_after(&mut world, &[lost]);
            assert!(took >= SECOND * 2, "{took:?}");
            assert!(took < SECOND * 4, "{count} nodes: {took:?}");
        }
    }
}

/// The next holder has not seen their connections.
/// docs/spec/rendezvous.md, LINK 9.
#[test]
fn a_lost_holder_and_the_members_lost_with_it_are_dropped_in_seconds() {
    for seed in Seeds::fixed(20) {
        let mut world = marked_nodes(seed, 100);
        let holder = world.holder().expect("a holder");
        let other = follower(&mut world);
        let mut lost = vec![holder, other];
        lost.truncate(1 + usize::try_from(seed % 2).expect("small"));
        for lost in &lost {
            world.command(*lost, Command::Crash);
        }
        let took = dropped_after(&mut world, &lost);
        assert!(took < SECOND * 9, "{took:?}");
    }
}

/// docs/spec/rendezvous.md, LINK 3 and 8.
#[test]
fn a_member_of_a_group_that_returns_within_2_s_is_not_dropped() {
    for seed in Seeds::fixed(30) {
        let mut world = marked_nodes(seed, 40);
        for _ in 0..3 {
            let cut = match world.random.u8(..3) {
                0 => world.holder().expect("a holder"),
                _ => follower(&mut world),
            };
            let time = Duration::from_millis(world.random.u64(..2000));
            let is_silent = false;
            world.command(cut, Command::Cut { time, is_silent });
            world.run_for(SECOND * 6);
        }
        assert_eq!(world.store.state().round, 0);
        assert!(world.is_settled(), "{}", world.describe());
    }
}

/// A node has a connection for its mark, and waits on another connection.
/// docs/spec/rendezvous.md, LINK 7 and 8.
#[test]
fn a_member_that_has_lost_only_its_mark_sets_it_again() {
    for count in [1, 2, 20] {
        for seed in Seeds::fixed(10) {
            let mut world = marked_nodes(seed, 40);
            for _ in 0..3 {
                let first = follower(&mut world);
                for node in (first..first + count).map(|it| it % 40) {
                    let node = &world.nodes[node];
                    world.store.on_closed(&node.me, node.connection);
                }
                world.run_for(SECOND * 6);
            }
            assert_eq!(world.store.state().round, 0);
            assert!(world.is_settled(), "{}", world.describe());
        }
    }
}

/// docs/spec/rendezvous.md, LINK 5.
#[test]
fn a_restart_of_the_store_drops_no_member_of_a_group() {
    for seed in Seeds::fixed(20) {
        let mut world = marked_nodes(seed, 40);
        let time = Duration::from_millis(world.random.u64(..10_000));
        world.restart_store(time, false);
        world.run_for(time + SECOND * 20);
        assert_eq!(world.store.state().round, 0);
        assert!(world.is_settled(), "{}", world.describe());
    }
}

/// One random history.
fn history(seed: u64) {
    let start = || {
        let mut random = Rng::with_seed(seed ^ 0xfeed);
        let most = if random.u8(..8) == 0 { 12 } else { 4 };
        let min = random.usize(1..=most);
        let max = min + random.usize(..4);
        (World::new(seed, settings(min, max)), random)
    };
    run(start, events_of_a_history, |world, _| {
        settle(world);
        // All end.
        let is_member = |node: &SimNode| node.stage == Stage::Member;
        if let Some(node) = world.nodes.iter().position(is_member) {
            world.command(node, Command::Close);
            world.run_for(SECOND * 10);
            let is_closed = world.store.state().closed;
            assert!(is_closed, "not closed: {}", world.describe());
        }
    });
}

fn events_of_a_history(world: &mut Run<World>, random: &mut Rng) {
    let count = world.settings.max_nodes + random.usize(..3);
    let has_solo = random.bool();
    for _ in 0..count {
        let kind = random_kind(random, has_solo);
        let after = Duration::from_millis(random.u64(..3000));
        world.take(Act::Add(kind, after));
    }
    let messages = c10d_sim::Faults {
        lost: [0.0, 0.01, 0.05][random.usize(..3)],
        twice: [0.0, 0.1, 0.5][random.usize(..3)],
        slow: [0.0, 0.02, 0.1][random.usize(..3)],
    };
    world.take(Act::SetFaults(Faults {
        messages,
        ..Faults::CALM
    }));
    for _ in 0..random.usize(..12) {
        world.take(Act::RunFor(Duration::from_millis(random.u64(..4000))));
        let node = random.usize(..world.nodes.len());
        let command = match random.u8(..10) {
            0 | 1 => Command::Crash,
            2 | 3 => Command::Pause(Duration::from_millis(random.u64(..20_000))),
            4 => Command::Leave,
            5 => {
                // The holder dies or pauses.
                if let Some(holder) = world.holder() {
                    let fault = if random.bool() {
                        Command::Crash
                    } else {
                        Command::Pause(Duration::from_millis(random.u64(1000..8000)))
                    };
                    world.take(Act::Command(Duration::ZERO, holder, fault));
                }
                continue;
            }
            6 | 7 => {
                let kind = random_kind(random, has_solo);
                world.take(Act::Add(kind, Duration::ZERO));
                continue;
            }
            8 => Command::Rejoin,
            _ => continue,
        };
        world.take(Act::Command(Duration::ZERO, node, command));
    }
}

/// Nodes whose connections are cut or fall silent, and a store that stops and comes back, with its data or empty.
fn outages(seed: u64) {
    let start = || {
        let mut random = Rng::with_seed(seed ^ 0xcafe);
        let count = random.usize(2..=6);
        let max = count + random.usize(..2);
        let min = random.usize(1..=count);
        let mut world = World::new(seed, settings(min, max));
        let has_solo = random.bool();
        for _ in 0..count {
            let kind = random_kind(&mut random, has_solo);
            let after = Duration::from_millis(random.u64(..3000));
            add_after(&mut world, kind, after);
        }
        (world, random)
    };
    let history = |world: &mut Run<World>, random: &mut Rng| {
        let count = world.nodes.len();
        let longest = [100, 3_000, 20_000, 60_000][random.usize(..4)];
        for _ in 0..random.usize(1..6) {
            world.take(Act::RunFor(Duration::from_millis(random.u64(..30_000))));
            let time = Duration::from_millis(random.u64(..=longest));
            let is_silent = random.bool();
            let cut = |node| Act::Command(Duration::ZERO, node, Command::Cut { time, is_silent });
            let node = random.usize(..count);
            match random.u8(..10) {
                0..3 => world.take(cut(node)),
                3 | 4 => world.take(cut(world.holder().unwrap_or(node))),
                5 => (0..count).for_each(|node| world.take(cut(node))),
                6 | 7 => world.take(Act::RestartStore(time, false)),
                _ => world.take(Act::RestartStore(time, true)),
            }
        }
        world.take(Act::RunFor(Duration::from_millis(longest)));
    };
    run(start, history, |world, _| settle(world));
}

/// docs/spec/rendezvous.md, OUTAGE 1 to 5.
#[test]
fn nodes_come_back_from_outages_of_the_store() {
    Seeds::fixed(200).for_each(outages);
}

/// Nodes of PyTorch among the nodes of a group. They have no faults, because they do not return once the other nodes
/// have dropped them. One node of the group survives, because nodes of PyTorch do not notice a lost node.
fn history_with_torch(seed: u64) {
    let start = || {
        let mut random = Rng::with_seed(seed ^ 0xbeef);
        let min = random.usize(3..=6);
        (World::new(seed, settings(min, 12)), random)
    };
    let history = |world: &mut Run<World>, random: &mut Rng| {
        let of_torch = random.usize(1..=2);
        for index in 0..world.settings.min_nodes {
            let kind = if index < of_torch {
                Kind::Torch
            } else {
                Kind::Group
            };
            let after = Duration::from_millis(random.u64(..3000));
            world.take(Act::Add(kind, after));
        }
        let messages = c10d_sim::Faults {
            twice: [0.0, 0.1, 0.5][random.usize(..3)],
            ..c10d_sim::Faults::NONE
        };
        world.take(Act::SetFaults(Faults {
            messages,
            ..Faults::CALM
        }));
        for _ in 0..random.usize(..8) {
            world.take(Act::RunFor(Duration::from_millis(random.u64(..6000))));
            if random.u8(..3) == 0 && world.nodes.len() < 12 {
                world.take(Act::Add(Kind::Group, Duration::ZERO));
                continue;
            }
            let victim = if random.bool() {
                world.holder()
            } else {
                Some(random.usize(of_torch..world.nodes.len().max(of_torch + 1)))
            };
            let Some(victim) = victim.filter(|victim| *victim < world.nodes.len()) else {
                continue;
            };
            let fault = if random.bool() && victim > of_torch {
                Command::Crash
            } else {
                Command::Pause(Duration::from_millis(random.u64(..8000)))
            };
            world.take(Act::Command(Duration::ZERO, victim, fault));
        }
    };
    run(start, history, |world, _| settle(world));
}

/// A holder with a conflicting write repeated the request of a dead member that another node had dropped, or of a spare
/// that had left in the meantime, or a late copy of such a request. A paused holder listed a node that had left. A
/// member kept running in an earlier world, because all nodes that polled the lease often had died with the holder.
#[test]
fn histories_that_once_failed_keep_the_laws() {
    for seed in [
        2092228126802799850,
        2760148108338217341,
        8983992895652460591,
        11098961044721898891,
        11282766184615328927,
        6223205352866204095,
        11846622587005629718,
        11809595545550642439,
        12509058112431823195,
        14940278290052929778,
    ] {
        history(seed);
    }
}

/// docs/spec/rendezvous.md, GROUP 3 and 6.
#[test]
fn random_histories_keep_the_laws() {
    Seeds::fixed(300).for_each(history);
}

#[test]
fn random_histories_with_torch_keep_the_laws() {
    Seeds::fixed(100).for_each(history_with_torch);
}
