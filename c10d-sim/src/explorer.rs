//! Everything that can happen to a world, in every order.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use crate::Simulation;
use crate::simulation::{print_shorter, replay};

/// A world that can be explored.
pub trait Explored: Simulation + Sized {
    /// What can happen now.
    fn steps(&self) -> Vec<Self::Step>;

    /// A copy. `past` has the steps since the start, for a world that can only be made again.
    fn copy(&self, past: &[Self::Step]) -> Self;

    /// Equal for worlds that have the same future, which is explored once. `None`: no two worlds have.
    fn fingerprint(&self) -> Option<u64>;
}

/// A fingerprint of the parts of a world that determine its future.
pub fn fingerprint(of: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The counts of an exploration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exploration {
    /// The number of different states.
    pub states: usize,
    /// The number of histories that led to them.
    pub histories: usize,
    /// The number of ends: states without a next step, or with a history of `depth` steps.
    pub ends: usize,
}

/// Visits the states that a world reaches by up to `depth` steps. `visit` gets each state, its history, and whether it is an
/// end, and returns whether to explore the states after it. It may change the state if [`Explored::copy`] needs only the
/// history. If a law is broken, a shorter history that breaks a law is printed.
pub fn explore<W: Explored>(
    start: W,
    depth: usize,
    mut visit: impl FnMut(&mut W, &[W::Step], bool) -> bool,
) -> Exploration {
    let again = start.copy(&[]);
    let mut past = Vec::new();
    let mut visits = |world: &mut W, past: &[W::Step], steps: &[W::Step]| {
        let is_end = past.len() == depth || steps.is_empty();
        (visit(world, past, is_end), is_end)
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        visit_all(start, &mut past, &mut visits)
    }));
    outcome.unwrap_or_else(|panic| {
        let visits = RefCell::new(visits);
        let start = || again.copy(&[]);
        print_shorter(start, past, |mut world, steps| {
            replay(&mut world, steps);
            let possible = world.steps();
            visits.borrow_mut()(&mut world, steps, &possible);
        });
        resume_unwind(panic)
    })
}

/// `visit` returns whether to explore the states after this state, and whether it is an end.
fn visit_all<W: Explored>(
    start: W,
    past: &mut Vec<W::Step>,
    visit: &mut impl FnMut(&mut W, &[W::Step], &[W::Step]) -> (bool, bool),
) -> Exploration {
    let mut found = Exploration::default();
    let mut seen = HashSet::new();
    // Steps to take, each with the world before it and the length of that world's history.
    let mut open: Vec<(Rc<W>, usize, W::Step)> = Vec::new();
    let mut world = start;
    loop {
        found.histories += 1;
        if world.fingerprint().is_none_or(|it| seen.insert(it)) {
            found.states += 1;
            let steps = world.steps();
            let (continues, is_end) = visit(&mut world, past, &steps);
            if is_end {
                found.ends += 1;
            } else if continues {
                let world = Rc::new(world);
                let next = steps.into_iter().rev();
                open.extend(next.map(|step| (Rc::clone(&world), past.len(), step)));
            }
        }
        let Some((before, length, step)) = open.pop() else {
            return found;
        };
        past.truncate(length);
        world = before.copy(past);
        past.push(step);
        world.take(step);
    }
}

#[cfg(test)]
mod tests {
    use super::{Exploration, Explored, explore};
    use crate::{Simulation, panics};

    /// A walk on the numbers from 0 to 3.
    #[derive(Debug, Clone)]
    struct Walk {
        place: i32,
        has_memory: bool,
    }

    impl Simulation for Walk {
        type Step = i32;

        fn take(&mut self, step: i32) {
            self.place += step;
        }

        fn is_possible(&self, step: &i32) -> bool {
            (0..=3).contains(&(self.place + step))
        }
    }

    impl Explored for Walk {
        fn steps(&self) -> Vec<i32> {
            let mut steps = vec![-1, 1];
            steps.retain(|step| self.is_possible(step) && self.place < 3);
            steps
        }

        fn copy(&self, _: &[i32]) -> Self {
            self.clone()
        }

        fn fingerprint(&self) -> Option<u64> {
            (!self.has_memory).then_some(self.place as u64)
        }
    }

    fn walk(has_memory: bool, depth: usize) -> (Exploration, Vec<Vec<i32>>) {
        let start = Walk {
            place: 0,
            has_memory,
        };
        let mut ends = Vec::new();
        let found = explore(start, depth, |walk, past, is_end| {
            assert_eq!(walk.place, past.iter().sum());
            ends.extend(is_end.then(|| past.to_vec()));
            true
        });
        (found, ends)
    }

    #[test]
    fn every_order_is_visited_once() {
        let (found, ends) = walk(true, 3);
        assert_eq!(ends, [[1, -1, 1], [1, 1, -1], [1, 1, 1]]);
        let (states, histories) = (7, 7);
        let ends = 3;
        assert_eq!(
            found,
            Exploration {
                states,
                histories,
                ends
            }
        );
    }

    #[test]
    fn equal_states_have_one_future() {
        let (found, ends) = walk(false, usize::MAX);
        assert_eq!(ends, [[1, 1, 1]]);
        assert_eq!((found.states, found.histories, found.ends), (4, 6, 1));
    }

    #[test]
    fn a_broken_law_ends_the_exploration() {
        let start = Walk {
            place: 0,
            has_memory: true,
        };
        let visited = std::cell::Cell::new(0);
        let is_broken = panics(|| {
            explore(start, 9, |walk, _, _| {
                visited.set(visited.get().max(walk.place));
                assert!(walk.place < 2, "too far");
                true
            });
        });
        assert!(is_broken && visited.get() == 2);
    }
}
