//! Explores every order of events up to a depth, and runs random histories.

use c10d_sim::{Explored, Seeds, Simulation, explore, run};

use super::world::{Budget, Event, World};

/// Explores every order of up to `depth` events, each continued in a fixed order. Returns the number of histories.
fn every_order(budget: Budget, depth: usize) -> usize {
    let found = explore(World::new(budget), depth, |world, _, is_end| {
        if is_end {
            world.end();
        }
        true
    });
    found.ends
}

fn depth(usual: usize, long: usize) -> usize {
    if std::env::var_os("LONG").is_some() {
        long
    } else {
        usual
    }
}

#[test]
fn crossing_calls_end_in_every_order_without_a_fault() {
    let budget = Budget {
        calls: [1, 1],
        faults: 0,
        twice: false,
    };
    assert!(every_order(budget, depth(9, 14)) > 1_000);
}

#[test]
fn crossing_calls_end_in_every_order_with_one_fault() {
    let budget = Budget {
        calls: [1, 1],
        faults: 1,
        twice: false,
    };
    assert!(every_order(budget, depth(7, 9)) > 1_000);
}

#[test]
fn a_call_sent_twice_ends_in_every_order_with_two_faults() {
    let budget = Budget {
        calls: [1, 0],
        faults: 2,
        twice: true,
    };
    assert!(every_order(budget, depth(7, 9)) > 1_000);
}

#[test]
fn a_call_that_expires_before_there_is_a_connection_is_never_sent() {
    let mut world = World::new(Budget {
        calls: [2, 0],
        faults: 1,
        twice: false,
    });
    let call = Event::Call {
        side: 0,
        twice: false,
    };
    for event in [call, Event::Expire { side: 0 }, call] {
        world.take(event);
    }
    // Each step asserts that no call with the outcome "not executed" was executed.
    world.end();
    assert_eq!(world.executed(), [0, 1]);
}

#[test]
fn random_histories_of_many_calls_and_faults_end() {
    for seed in Seeds::fresh(300) {
        let start = || {
            let mut random = fastrand::Rng::with_seed(seed);
            let budget = Budget {
                calls: [random.u32(0..12), random.u32(0..12)],
                faults: random.u32(0..6),
                twice: random.bool(),
            };
            (World::new(budget), random)
        };
        run(
            start,
            |world, random| {
                for _ in 0..random.usize(0..400) {
                    let events = world.steps();
                    if events.is_empty() {
                        break;
                    }
                    let chosen = events[random.usize(..events.len())];
                    // Mostly prefer events other than faults, so that connections live for a while.
                    if chosen.is_fault() && random.u32(..8) > 0 {
                        world.take(world.next_regular().unwrap_or(chosen));
                    } else {
                        world.take(chosen);
                    }
                }
            },
            |world, _| world.end(),
        );
    }
}
