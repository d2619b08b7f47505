//! Two nodes in every order of what can happen to them, and more nodes at random.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::{Event, World};

/// Far more steps than any history needs until all nodes are over.
const STEPS_MAX: usize = 2000;

const DEPTH: usize = 8;

/// Runs a history from the start, and returns the world after it; two nodes run by then.
fn replay(history: &[Event], nodes_min: usize, restarts: usize) -> World {
    let mut world = World::new(2, nodes_min, restarts);
    for event in [
        Event::CompleteRound,
        Event::EndPreparation(0),
        Event::EndPreparation(1),
    ] {
        world.apply(event);
    }
    for event in history {
        world.apply(*event);
    }
    world
}

/// Ends a history: nothing else goes wrong, and all nodes must come to an end.
fn end(world: &mut World) {
    for _ in 0..STEPS_MAX {
        if world.is_over() {
            world.check_end();
            return;
        }
        world.settle();
    }
    panic!("the job does not end");
}

#[derive(Debug)]
struct Explorer {
    nodes_min: usize,
    restarts: usize,
    /// The states that they led to.
    seen: HashSet<String>,
    /// How many histories were tried.
    tried: usize,
}

impl Explorer {
    fn explore(&mut self, history: &mut Vec<Event>) {
        self.tried += 1;
        let mut world = replay(history, self.nodes_min, self.restarts);
        // Two histories with one state have the same future.
        if !self.seen.insert(world.fingerprint()) {
            return;
        }
        let events = world.events();
        let is_leaf = history.len() == DEPTH || world.is_over();
        end(&mut world);
        if is_leaf {
            return;
        }
        for event in events {
            history.push(event);
            self.explore(history);
            history.pop();
        }
    }
}

#[test]
fn two_nodes_in_every_order() {
    let mut tried = 0;
    for (nodes_min, restarts) in [(1, 0), (1, 1), (2, 1)] {
        let mut explorer = Explorer {
            nodes_min,
            restarts,
            seen: HashSet::new(),
            tried: 0,
        };
        let mut history = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| explorer.explore(&mut history)));
        assert!(
            outcome.is_ok(),
            "at least {nodes_min} nodes, {restarts} restarts: {history:?}"
        );
        tried += explorer.tried;
    }
    assert!(tried >= 20_000, "{tried}");
}

/// `SEED=n` repeats a history, `ROUNDS=n` runs n new ones.
#[test]
fn more_nodes_at_random() {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("SEED and ROUNDS are numbers"))
    };
    let seeds = match (number("SEED"), number("ROUNDS")) {
        (Some(seed), _) => seed..=seed,
        (None, Some(rounds)) => {
            let first = fastrand::u64(..u64::MAX / 2);
            first..=first + rounds
        }
        (None, None) => 0..=2000,
    };
    for seed in seeds {
        let outcome = catch_unwind(|| random_history(seed));
        assert!(outcome.is_ok(), "to repeat this history: SEED={seed}");
    }
}

fn random_history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let nodes = random.usize(3..=6);
    let mut world = World::new(nodes, random.usize(1..=nodes), random.usize(0..3));
    for _ in 0..random.usize(1..60) {
        let events = world.events();
        world.apply(events[random.usize(..events.len())]);
    }
    end(&mut world);
}
