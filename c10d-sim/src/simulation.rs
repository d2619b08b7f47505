//! Simulated systems, and histories of their steps.

use std::fmt::Debug;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;

use crate::quiet::{is_quiet, panics, print};
use crate::shortening::shortened;

/// A core and everything around it, to which steps happen. It panics when a law is broken.
pub trait Simulation {
    /// An event that changes the simulated system.
    type Step: Copy + Debug;

    /// Takes a step that is possible.
    fn take(&mut self, step: Self::Step);

    /// Whether the step can be taken now. A shorter history leaves out the steps that cannot.
    fn is_possible(&self, step: &Self::Step) -> bool;

    /// How it was at the start, for the reader of a failed history.
    fn describe(&self) -> String {
        String::new()
    }
}

/// A world with the steps that it has taken.
#[derive(Debug)]
pub struct Run<W: Simulation> {
    world: W,
    taken: Vec<W::Step>,
}

impl<W: Simulation> Run<W> {
    /// Takes a step, and records it.
    pub fn take(&mut self, step: W::Step) {
        self.taken.push(step);
        self.world.take(step);
    }
}

impl<W: Simulation> Deref for Run<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.world
    }
}

/// Runs a random history: `history` takes steps in a world of `start`, and `end` brings the world to rest. If a law is
/// broken, a shorter history that breaks a law is printed.
///
/// `start` returns the same world and the same generator each time; `history` draws from this generator.
pub fn run<W: Simulation>(
    start: impl Fn() -> (W, Rng),
    history: impl FnOnce(&mut Run<W>, &mut Rng),
    end: impl Fn(&mut W, &[W::Step]),
) -> W {
    let (world, mut random) = start();
    let taken = Vec::new();
    let mut run = Run { world, taken };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        history(&mut run, &mut random);
        end(&mut run.world, &run.taken);
    }));
    if let Err(panic) = outcome {
        let start = || start().0;
        print_shorter(start, run.taken, |mut world, steps| {
            replay(&mut world, steps);
            end(&mut world, steps);
        });
        resume_unwind(panic);
    }
    run.world
}

/// Takes the possible ones of these steps.
pub(crate) fn replay<W: Simulation>(world: &mut W, steps: &[W::Step]) {
    for step in steps {
        if world.is_possible(step) {
            world.take(*step);
        }
    }
}

/// Prints the shortest history that is found to panic, of steps that have. It takes a while, so not if that was expected.
pub(crate) fn print_shorter<W: Simulation>(
    start: impl Fn() -> W,
    taken: Vec<W::Step>,
    history: impl Fn(W, &[W::Step]),
) {
    if is_quiet() {
        return;
    }
    let before = taken.len();
    let steps = shortened(taken, |steps| panics(|| history(start(), steps)));
    let (count, world) = (steps.len(), start().describe());
    print(&format!(
        "{count} of {before} steps break a law: {steps:#?}\n{world}"
    ));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use fastrand::Rng;

    use super::{Simulation, run};

    /// A counter that may not pass 3.
    #[derive(Debug, Default)]
    struct Counter {
        value: i32,
        is_open: bool,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Step {
        Open,
        Add(i32),
    }

    impl Simulation for Counter {
        type Step = Step;

        fn take(&mut self, step: Step) {
            match step {
                Step::Open => self.is_open = true,
                Step::Add(number) => {
                    assert!(self.is_open, "an impossible step is taken");
                    self.value += number;
                }
            }
        }

        fn is_possible(&self, step: &Step) -> bool {
            self.is_open || *step == Step::Open
        }
    }

    #[test]
    fn a_failing_history_ends_with_the_fewest_steps() {
        let fewest = Cell::new(usize::MAX);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run(
                || (Counter::default(), Rng::with_seed(1)),
                |run, random| {
                    run.take(Step::Open);
                    for _ in 0..100 {
                        let number = random.i32(-1..=1);
                        run.take(Step::Add(number));
                    }
                    for _ in 0..100 {
                        run.take(Step::Add(1));
                    }
                    assert!(run.value > 3, "the steps are enough");
                },
                |counter, steps| {
                    if counter.value > 3 {
                        fewest.set(fewest.get().min(steps.len()));
                        panic!("{} is too much", counter.value);
                    }
                },
            );
        }));
        assert!(outcome.is_err());
        assert_eq!(fewest.get(), 5, "it opens, and adds 1 four times");
    }

    #[test]
    fn a_history_that_breaks_no_law_returns_its_world() {
        let world = run(
            || (Counter::default(), Rng::with_seed(1)),
            |run, random| {
                run.take(Step::Open);
                run.take(Step::Add(random.i32(2..3)));
            },
            |counter, steps| counter.value += steps.len() as i32,
        );
        assert_eq!(world.value, 4);
    }
}
