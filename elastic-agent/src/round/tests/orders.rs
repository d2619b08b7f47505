//! Two nodes in every order of what can happen to them, and more nodes at random.

use std::time::Duration;

use c10d_sim::{Explored, Run, Seeds, Simulation, explore, run};
use fastrand::Rng;

use super::super::Replacement;
use super::world::{Doing, Event, Shape, World};

/// Explores jobs of two nodes, otherwise like `shape`. `shapes` has the minimum number of nodes in a round and the
/// number of restarts. Returns the number of histories.
fn explore_all(shapes: &[(usize, usize)], depth: usize, shape: Shape) -> usize {
    let mut tried = 0;
    for &(nodes_min, restarts) in shapes {
        let shape = Shape {
            nodes_min,
            restarts,
            ..shape
        };
        let found = explore(World::running(shape), depth, |world, _, _| {
            world.end();
            true
        });
        tried += found.histories;
    }
    tried
}

const TWO_NODES: Shape = Shape {
    nodes: 2,
    nodes_min: 1,
    restarts: 0,
    workers: 1,
    has_health_checks: false,
    keep: None,
    late: 0,
    nodes_max: 2,
    has_aborts: false,
};

#[test]
fn two_nodes_in_every_order() {
    let tried = explore_all(&[(1, 0), (1, 1), (2, 1)], 8, TWO_NODES);
    assert!(tried >= 20_000, "{tried}");
}

/// A lost node costs no restart, however often another node joins in its place.
#[test]
fn twenty_lost_nodes_use_up_no_restart() {
    for restarts in [0, 1] {
        let mut world = World::new(Shape {
            nodes: 22,
            late: 20,
            restarts,
            ..TWO_NODES
        });
        world.take(Event::CompleteRound);
        for lost in 1..21 {
            world.take(Event::EndPreparation(0));
            world.take(Event::EndPreparation(lost));
            world.take(Event::Lose(lost));
            world.take(Event::Exit(0, 1));
            world.take(Event::EndStop(0));
            assert_eq!(world.nodes[0].doing, Doing::Joining, "after {lost} nodes");
            world.nodes[lost + 1].doing = Doing::Joining;
            world.take(Event::CompleteRound);
            assert_eq!(world.nodes[0].round.policy.used(), 0, "after {lost} nodes");
        }
        world.end();
    }
}

/// One worker can fail while the other worker has succeeded, runs, or also fails.
#[test]
fn two_nodes_with_two_workers_in_every_order() {
    let workers = 2;
    let tried = explore_all(
        &[(1, 1)],
        5,
        Shape {
            workers,
            ..TWO_NODES
        },
    );
    assert!(tried >= 5_000, "{tried}");
}

/// Workers survive others, before they are a group, while they are one, and after it.
#[test]
fn two_nodes_that_keep_their_workers_in_every_order() {
    let mut tried = 0;
    let second = Duration::from_secs(1);
    for (replacement, replace_after, shapes) in [
        (Replacement::Fork, Duration::ZERO, &[(1, 1), (2, 2)][..]),
        (Replacement::Fork, second, &[(1, 1)]),
        (Replacement::None, Duration::ZERO, &[(2, 1)]),
    ] {
        let shape = Shape {
            workers: 2,
            keep: Some((replacement, replace_after)),
            ..TWO_NODES
        };
        tried += explore_all(shapes, 5, shape);
    }
    assert!(tried >= 20_000, "{tried}");
}

/// The remaining nodes wait in the exit barrier for each other, and not for the lost node.
#[test]
fn nodes_that_survive_another_one_end_together() {
    let mut world = World::new(Shape {
        nodes: 3,
        nodes_min: 3,
        nodes_max: 3,
        keep: Some((Replacement::Fork, Duration::ZERO)),
        ..TWO_NODES
    });
    world.take(Event::CompleteRound);
    for node in 0..3 {
        world.take(Event::EndPreparation(node));
    }
    world.take(Event::Lose(2));
    world.end();
    assert_eq!(world.now, Duration::ZERO);
}

/// A third node enters a round that has a place, or is a spare; the other nodes keep running.
#[test]
fn nodes_enter_and_leave_a_running_round_in_every_order() {
    let mut tried = 0;
    for nodes_max in [3, 2] {
        let shape = Shape {
            nodes: 3,
            late: 1,
            nodes_max,
            keep: Some((Replacement::Fork, Duration::ZERO)),
            ..TWO_NODES
        };
        tried += explore_all(&[(1, 1), (2, 2)], 5, shape);
    }
    assert!(tried >= 20_000, "{tried}");
}

/// The other nodes drop a node again and again, and it enters the round each time: `numbers.rs` has the law.
#[test]
fn a_node_returns_to_a_running_round_any_number_of_times() {
    let mut world = World::new(Shape {
        workers: 2,
        keep: Some((Replacement::Fork, Duration::ZERO)),
        restarts: 20,
        ..TWO_NODES
    });
    world.take(Event::CompleteRound);
    world.take(Event::EndPreparation(0));
    world.take(Event::EndPreparation(1));
    world.take(Event::AdvanceGroup);
    for turn in 0..20 {
        world.take(Event::CutOff(1));
        world.take(Event::TellMembers(1));
        world.take(Event::EndStop(1));
        world.take(Event::Enter(1));
        world.take(Event::EndPreparation(1));
        assert_eq!(world.nodes[1].doing, Doing::Running, "turn {turn}");
        // A worker is replaced in between.
        world.take(Event::Exit(1, 1));
        assert_eq!(world.nodes[0].round.policy.used(), 0, "turn {turn}");
    }
    world.end();
}

/// All nodes wait for all nodes in the exit barrier, including a node that has entered.
#[test]
fn a_node_that_enters_is_waited_for_at_the_end() {
    let mut world = World::new(Shape {
        nodes: 3,
        late: 1,
        nodes_max: 3,
        keep: Some((Replacement::Fork, Duration::ZERO)),
        ..TWO_NODES
    });
    world.take(Event::CompleteRound);
    for event in [
        Event::EndPreparation(0),
        Event::EndPreparation(1),
        Event::Arrive(2),
        Event::Enter(2),
        Event::EndPreparation(2),
        Event::TellMembers(0),
        Event::TellMembers(1),
        Event::Exit(0, 0),
        Event::EndStop(0),
        Event::Exit(1, 0),
        Event::EndStop(1),
    ] {
        world.take(event);
    }
    let doing: Vec<Doing> = world.nodes.iter().map(|node| node.doing).collect();
    assert_eq!(doing, [Doing::AtBarrier, Doing::AtBarrier, Doing::Running]);
    world.end();
    assert_eq!(world.now, Duration::ZERO);
}

/// A launcher whose workers run, or are about to, when it learns that the job has failed exits with 1: `laws.rs`.
#[test]
fn three_nodes_learn_of_a_failure_in_every_order() {
    let shape = Shape {
        nodes: 3,
        nodes_max: 3,
        ..TWO_NODES
    };
    let tried = explore_all(&[(3, 0), (3, 1), (1, 0)], 5, shape);
    assert!(tried >= 20_000, "{tried}");
}

/// A worker that fails at the end of its program does not make any node stop its workers.
#[test]
fn workers_that_fail_at_the_end_of_their_program_in_every_order() {
    let mut tried = 0;
    for workers in [1, 2] {
        let shape = Shape {
            workers,
            has_aborts: true,
            ..TWO_NODES
        };
        tried += explore_all(&[(2, 0), (2, 1), (1, 1)], 5, shape);
    }
    assert!(tried >= 20_000, "{tried}");
}

/// A node does not join the next round, comes back into it or after it, or is stopped in the meantime.
#[test]
fn two_nodes_with_health_checks_in_every_order() {
    let shape = Shape {
        has_health_checks: true,
        ..TWO_NODES
    };
    let tried = explore_all(&[(1, 1), (2, 1)], 6, shape);
    assert!(tried >= 5_000, "{tried}");
}

#[test]
fn more_nodes_at_random() {
    for seed in Seeds::fixed(5000) {
        run(|| start(seed), history, |world, _| world.end());
    }
}

fn history(world: &mut Run<World>, random: &mut Rng) {
    for _ in 0..random.usize(1..60) {
        let events = world.steps();
        if events.is_empty() {
            break;
        }
        world.take(events[random.usize(..events.len())]);
    }
}

fn start(seed: u64) -> (World, Rng) {
    let mut random = Rng::with_seed(seed);
    let nodes = random.usize(3..=6);
    let replacements = [Replacement::Fork, Replacement::None];
    let keep = random.bool().then(|| {
        let pause = Duration::from_secs(random.u64(..2));
        (replacements[random.usize(..2)], pause)
    });
    let late = keep.map_or(0, |_| random.usize(..nodes - 1));
    let nodes_max = match keep {
        Some(_) => random.usize(1..=nodes - late),
        None => nodes,
    };
    let world = World::new(Shape {
        nodes,
        nodes_min: random.usize(1..=nodes_max),
        nodes_max,
        late,
        restarts: random.usize(0..3),
        workers: random.usize(1..=3),
        has_health_checks: random.bool(),
        keep,
        has_aborts: keep.is_none() && random.bool(),
    });
    (world, random)
}
