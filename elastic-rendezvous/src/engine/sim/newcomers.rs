//! Nodes that join shortly before a member is lost or leaves: which of both it was, they have to tell without having
//! seen the member write.

use std::time::Duration;

use c10d_sim::Seeds;

use super::World;
use super::node::{Command, Watching};
use crate::values::settings::RendezvousSettings;

const SECOND: Duration = Duration::from_secs(1);

/// The largest error of a wall clock, in seconds.
const SKEW_MAX: i64 = 900;

/// The same for members that are not to look lost in their first interval with a newcomer (SPARE 3); and beside PyTorch's
/// nodes, which drop those whose heartbeat is 15 s old by their own clock. Theirs can be 11 s old when they have joined: an
/// interval until the round is complete, a poll, and an interval until the first one as a member.
const SMALL_SKEW_MAX: i64 = 1;

/// A complete round of three nodes, which have had time to see each other write, and the number of a node that has not
/// started. `torch`: how many of the members are PyTorch's; `skew_max`: the largest error of the members' clocks.
fn full_round(random: &mut fastrand::Rng, torch: usize, skew_max: i64) -> (World, usize) {
    let mut world = World::new(random.u64(..), RendezvousSettings::for_test(3, 3));
    for number in 0..4 {
        let node = if (1..=torch).contains(&number) {
            world.add_torch(&format!("torch{number}"))
        } else {
            world.add(&format!("node{}", random.u32(..)))
        };
        let ways = [Watching::Members, Watching::Round, Watching::Polls];
        world.nodes[node].watching = ways[random.usize(..3)];
        let is_any = number == 3 && torch == 0;
        let skew_max = if is_any { SKEW_MAX } else { skew_max };
        world.nodes[node].skew = random.i64(-skew_max..=skew_max);
        if number < 3 {
            world.command_in(random.u64(0..5_000), node, Command::Start);
        }
    }
    let end = world.now() + 60 * SECOND;
    assert!(
        world.run_until(end, World::is_settled),
        "{}",
        world.describe()
    );
    world.run_for(Duration::from_millis(random.u64(11_000..16_000)));
    assert_eq!(world.store.state().participants.len(), 3);
    (world, 3)
}

/// Whether a round of three has begun without this member.
fn is_replaced(world: &World, node: usize) -> bool {
    let state = world.store.state();
    let is_full = state.complete && state.participants.len() == 3;
    is_full && !state.participants.contains_key(&world.nodes[node].me)
}

/// docs/spec/rendezvous.md, SPARE 3.
#[test]
fn a_newcomer_replaces_a_lost_member_soon_whenever_it_comes() {
    Seeds::fixed(100).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut world, newcomer) = full_round(&mut random, 0, SKEW_MAX);
        let lost = random.usize(..3);
        world.command(lost, Command::Crash);
        let came = random.u64(0..22_000);
        world.command_in(came, newcomer, Command::Start);
        let came_at = world.now() + Duration::from_millis(came);
        let me = world.nodes[lost].me.clone();
        let dropped = |world: &World| !world.store.state().participants.contains_key(&me);
        let end = world.now() + 60 * SECOND;
        assert!(world.run_until(end, dropped));
        let since = came_at.max(world.now());
        assert!(world.run_until(end, |world| is_replaced(world, lost)));
        // The other nodes stop their workers for 2 s at most, the newcomer waits for 2 s after the drop, and nodes that
        // poll notice each change within 1 s.
        let took = world.now().saturating_sub(since);
        assert!(
            took < 7 * SECOND,
            "came {came} ms after the crash, took {took:?}"
        );
    });
}

/// docs/spec/rendezvous.md, SPARE 1 and 3.
#[test]
fn a_newcomer_replaces_no_member_that_is_away_for_its_health_check() {
    Seeds::fixed(100).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut world, newcomer) = full_round(&mut random, 0, SMALL_SKEW_MAX);
        world.command(newcomer, Command::Start);
        world.run_for(Duration::from_millis(random.u64(0..8_000)));
        let away = random.usize(..3);
        world.command(away, Command::Exit);
        world.run_for(14 * SECOND);
        assert!(!world.store.state().complete, "{:#?}", world.store.state());
        world.command(away, Command::Rejoin);
        let end = world.now() + 5 * SECOND;
        assert!(world.run_until(end, World::is_settled));
        let me = &world.nodes[newcomer].me;
        assert!(world.store.state().redundancy_list.contains(me));
    });
}

/// docs/spec/rendezvous.md, SPARE 3. The simulator's law: a node that remembers the last round takes no place of a
/// member that restarts. With PyTorch's nodes and a spare, rounds follow each other without end, and the newcomer may
/// miss one.
#[test]
fn a_newcomer_replaces_no_member_that_restarts_whatever_the_clocks() {
    Seeds::fixed(100).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let torch = random.usize(..=2);
        let skew_max = if torch == 0 { SKEW_MAX } else { SMALL_SKEW_MAX };
        let (mut world, newcomer) = full_round(&mut random, torch, skew_max);
        world.command(newcomer, Command::Start);
        world.run_for(Duration::from_millis(random.u64(0..8_000)));
        world.command(random.usize(..3), Command::Rejoin);
        world.run_for(10 * SECOND);
        if torch == 0 {
            assert!(world.is_settled(), "{}", world.describe());
            let me = &world.nodes[newcomer].me;
            assert!(world.store.state().redundancy_list.contains(me));
        }
    });
}
