//! Explores every state that a small pool can reach: threads step in every order, and wake-ups arrive late.
//!
//! [`World::check`] asserts the invariants. A failure shows the steps that lead to the state.

use std::collections::HashMap;

use super::super::*;

/// How many external events may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Budget {
    are_slow: bool,
    requests: u32,
    callbacks: u32,
    dials: u32,
    waits: u32,
    stops: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    /// The thread is about to ask for its next step.
    Ready,
    Looks,
    Polls,
    Runs(Task),
    Waits(Task),
    Sleeps(SleepOrder),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum SleepOrder {
    Idle,
    Tick,
    Standby,
}

/// A pool, and the wake-ups in flight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    scheduler: Scheduler<(), ()>,
    threads: Vec<(At, Thread)>,
    wakes: Effects,
    budget: Budget,
    epoch: Instant,
}

impl World {
    fn new(handlers_max: usize, threads_max: usize, budget: Budget) -> Self {
        let epoch = Instant::now();
        let mut scheduler = Scheduler::new(handlers_max, threads_max, 1, epoch);
        scheduler.start();
        let mut world = Self {
            scheduler,
            threads: Vec::new(),
            wakes: Effects::default(),
            budget,
            epoch,
        };
        world.collect_effects();
        world
    }

    /// Adds the scheduler's effects to the wake-ups in flight.
    fn collect_effects(&mut self) {
        let effects = self.scheduler.take_effects();
        let spawned = effects.spawn.clone().count() as u64;
        if spawned > 0 {
            let limit = self.scheduler.threads_limit();
            assert!(
                self.scheduler.threads <= limit,
                "more threads than allowed: {self:?}"
            );
        }
        self.wakes.wake_idle += effects.wake_idle;
        self.wakes.wake_standby |= effects.wake_standby;
        self.wakes.wake_poller |= effects.wake_poller;
        self.wakes.spawn.end += spawned;
        // Normalize the state: thread numbers and more wake-ups than sleepers make no difference.
        self.scheduler.threads_begun = 0;
        self.wakes.wake_idle = self.wakes.wake_idle.min(self.threads.len());
        self.threads.sort();
    }

    fn request(&self) -> QueuedRequest<()> {
        QueuedRequest {
            request: (),
            arrived_at: self.epoch,
            is_slow: self.budget.are_slow,
        }
    }

    /// All states that are one step away, with the name of the step.
    fn successors(&self) -> Vec<(String, Self)> {
        let mut successors = Vec::new();
        let mut step = |name: String, change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            world.collect_effects();
            successors.push((name, world));
        };
        for (index, (at, _)) in self.threads.iter().enumerate() {
            if index > 0 && self.threads[index] == self.threads[index - 1] {
                continue;
            }
            match at {
                At::Ready => step(format!("next of {index}"), &|world| world.advance(index)),
                At::Looks => {
                    for is_late in [false, true] {
                        step(format!("{index} has looked, late: {is_late}"), &|world| {
                            let after = if is_late { STALE } else { Duration::ZERO };
                            let now = world.epoch + after;
                            let (at, thread) = &mut world.threads[index];
                            *at = At::Ready;
                            world.scheduler.looked(thread, Look::default(), now);
                        });
                    }
                }
                At::Polls => {
                    for found in 0..=self.budget.requests.min(2) {
                        if found > 0 || self.wakes.wake_poller {
                            step(format!("{index} has found {found}"), &|world| {
                                let batch = (0..found).map(|_| world.request());
                                let batch: Vec<_> = batch.collect();
                                world.budget.requests -= found;
                                world.wakes.wake_poller = false;
                                let (at, thread) = &mut world.threads[index];
                                *at = At::Ready;
                                world.scheduler.polled(thread, batch, world.epoch);
                            });
                        }
                    }
                }
                At::Runs(task) => {
                    step(format!("{index} has run its {task:?}"), &|world| {
                        let (at, thread) = &mut world.threads[index];
                        *at = At::Ready;
                        world.scheduler.returned(thread);
                    });
                    if self.budget.waits > 0 {
                        step(format!("{index} waits in its {task:?}"), &|world| {
                            world.budget.waits -= 1;
                            world.threads[index].0 = At::Waits(*task);
                            world.scheduler.enter_wait(*task);
                        });
                    }
                }
                At::Waits(task) => step(format!("the wait of {index} ends"), &|world| {
                    world.threads[index].0 = At::Runs(*task);
                    world.scheduler.leave_wait(*task);
                }),
                At::Sleeps(SleepOrder::Idle) => {
                    step(format!("the sleep of {index} times out"), &|world| {
                        world.wake(index, true);
                    });
                }
                At::Sleeps(SleepOrder::Tick) => {
                    step(format!("a tick of {index}"), &|world| {
                        world.wake(index, true)
                    });
                }
                At::Sleeps(SleepOrder::Standby) => {}
            }
        }
        self.wake_ups(&mut step);
        if self.budget.callbacks > 0 {
            step("a callback".to_owned(), &|world| {
                world.budget.callbacks -= 1;
                let queued = world.scheduler.queue_callback((), world.epoch, false);
                queued.expect("not stopped");
            });
        }
        if self.budget.dials > 0 {
            step("a dial".to_owned(), &|world| {
                world.budget.dials -= 1;
                let _ = world.scheduler.queue_dial((), world.epoch);
            });
        }
        if self.budget.requests > 0 {
            step("a submission".to_owned(), &|world| {
                world.budget.requests -= 1;
                let batch = vec![world.request()];
                let _ = world.scheduler.submit(batch, false);
            });
        }
        if self.budget.stops > 0 {
            step("a stop".to_owned(), &|world| {
                world.budget.stops -= 1;
                world.scheduler.stop();
                // Like the pool, wake all threads.
                for index in 0..world.threads.len() {
                    if matches!(world.threads[index].0, At::Sleeps(_)) {
                        world.wake(index, false);
                    }
                }
                world.wakes.wake_poller = true;
            });
        }
        successors
    }

    /// Adds the arrivals of the wake-ups in flight to the steps.
    fn wake_ups(&self, step: &mut impl FnMut(String, &dyn Fn(&mut Self))) {
        let sleeper = |world: &Self, is_meant: fn(SleepOrder) -> bool| {
            world
                .threads
                .iter()
                .position(|(at, _)| matches!(at, At::Sleeps(order) if is_meant(*order)))
        };
        if self.wakes.wake_idle > 0 {
            step("an idle thread is woken".to_owned(), &|world| {
                world.wakes.wake_idle -= 1;
                if let Some(index) = sleeper(world, |order| order == SleepOrder::Idle) {
                    world.wake(index, false);
                }
            });
        }
        if self.wakes.wake_standby {
            step("the standby thread is woken".to_owned(), &|world| {
                world.wakes.wake_standby = false;
                if let Some(index) = sleeper(world, |order| order != SleepOrder::Idle) {
                    world.wake(index, false);
                }
            });
        }
        if !self.wakes.spawn.is_empty() {
            step("a thread starts".to_owned(), &|world| {
                world.wakes.spawn.end -= 1;
                world.threads.push((At::Ready, Thread::new()));
            });
        }
    }

    fn wake(&mut self, index: usize, has_timed_out: bool) {
        let (at, thread) = &mut self.threads[index];
        *at = At::Ready;
        thread.woke(has_timed_out);
    }

    fn advance(&mut self, index: usize) {
        let (at, thread) = &mut self.threads[index];
        let next = self.scheduler.next(thread);
        if matches!(next, Next::Sleep(_)) && self.scheduler.has_effects() {
            // The thread carries out the effects first, then requests the next step again.
            return;
        }
        *at = match next {
            Next::CallBack(()) => At::Runs(Task::Callback),
            Next::Dial(()) => At::Runs(Task::Dial),
            Next::Run(()) => At::Runs(Task::Handler),
            Next::Refuse(()) | Next::Flush => At::Ready,
            Next::Poll => At::Polls,
            Next::Look => At::Looks,
            Next::Sleep(Sleep::Idle) => At::Sleeps(SleepOrder::Idle),
            Next::Sleep(Sleep::Tick) => At::Sleeps(SleepOrder::Tick),
            Next::Sleep(Sleep::Standby) => At::Sleeps(SleepOrder::Standby),
            Next::End { .. } => {
                self.threads.remove(index);
                return;
            }
        };
        let began_request = matches!(at, At::Runs(Task::Handler));
        if began_request {
            let scheduler = &self.scheduler;
            assert!(
                scheduler.handlers <= scheduler.handlers_max
                    && scheduler.busy() <= scheduler.threads_max,
                "a request began beyond the limits"
            );
        }
    }

    fn count(&self, is_meant: impl Fn(&At) -> bool) -> usize {
        self.threads.iter().filter(|(at, _)| is_meant(at)).count()
    }

    fn check(&self) {
        let scheduler = &self.scheduler;
        let count = |at: &At| self.count(|other| other == at);
        assert_eq!(scheduler.handlers, count(&At::Runs(Task::Handler)));
        assert_eq!(scheduler.callers_back, count(&At::Runs(Task::Callback)));
        assert_eq!(scheduler.dialers, count(&At::Runs(Task::Dial)));
        assert_eq!(
            scheduler.waiting,
            self.count(|at| matches!(at, At::Waits(_)))
        );
        let starting = self.wakes.spawn.clone().count();
        assert_eq!(scheduler.threads, self.threads.len() + starting);
        assert!(count(&At::Polls) <= 1, "two threads poll");
        assert_eq!(
            scheduler.poller_free_since.is_none(),
            count(&At::Polls) == 1
        );
        let standby =
            self.count(|at| matches!(at, At::Sleeps(SleepOrder::Tick | SleepOrder::Standby)));
        assert!(standby <= 1, "two standby threads");
        assert!(scheduler.wanted <= scheduler.idle);
        let sleeping = self.count(|at| matches!(at, At::Sleeps(_)));
        assert!(sleeping <= scheduler.idle);
        let slow = scheduler.requests.iter().filter(|queued| queued.is_slow);
        assert_eq!(scheduler.slow_queued, slow.count());
        if scheduler.stage == Stage::Stopping {
            assert_eq!(sleeping, 0, "a thread sleeps during the stop");
        }
        if scheduler.has_task() || scheduler.holds_back() {
            assert!(self.is_any_awake(), "no thread is available for a task");
        }
        if scheduler.is_watched() {
            let ticking = Standby::Watching;
            assert_eq!(scheduler.standby, ticking);
            assert!(scheduler.idle > 0, "no idle thread can watch");
        }
    }

    /// Whether a thread is awake and free, or will become so without external events.
    fn is_any_awake(&self) -> bool {
        let wakes = &self.wakes;
        let idle = self.count(|at| *at == At::Sleeps(SleepOrder::Idle));
        let asleep = self.count(|at| *at == At::Sleeps(SleepOrder::Standby));
        self.count(|at| matches!(at, At::Ready | At::Looks)) > 0
            || self.count(|at| *at == At::Sleeps(SleepOrder::Tick)) > 0
            || wakes.wake_idle > 0 && idle > 0
            || wakes.wake_standby && asleep > 0
            || wakes.wake_poller && self.count(|at| *at == At::Polls) > 0
            || !wakes.spawn.is_empty()
    }
}

/// Visits all states. Returns the number of states, and the number of states in which all threads have ended.
fn explore(start: World) -> (usize, usize) {
    let mut seen = HashMap::from([(start.clone(), 0)]);
    let mut states = vec![(start, 0, "the start".to_owned())];
    let (mut visited, mut ended) = (0, 0);
    while visited < states.len() {
        let world = states[visited].0.clone();
        let result = std::panic::catch_unwind(|| {
            world.check();
            world.successors()
        });
        let Ok(successors) = result else {
            let mut path = Vec::new();
            let mut index = visited;
            while index > 0 {
                path.push(states[index].2.clone());
                index = states[index].1;
            }
            path.reverse();
            panic!("an invariant is broken after {path:#?}: {world:#?}");
        };
        let has_stopped = world.scheduler.stage == Stage::Stopping;
        if has_stopped && world.threads.is_empty() && world.wakes.spawn.is_empty() {
            ended += 1;
        } else {
            let is_done = !world.scheduler.has_task();
            assert!(is_done || !successors.is_empty(), "deadlock: {world:#?}");
        }
        for (name, successor) in successors {
            if !seen.contains_key(&successor) {
                seen.insert(successor.clone(), states.len());
                states.push((successor, visited, name));
            }
        }
        visited += 1;
    }
    (visited, ended)
}

#[test]
fn every_state_of_a_small_pool_keeps_the_invariants() {
    for (handlers_max, threads_max, [requests, callbacks, dials, waits, stops], are_slow) in [
        (1, 1, [2, 2, 0, 1, 0], false),
        (1, 1, [1, 1, 0, 1, 1], false),
        (1, 2, [2, 0, 0, 1, 0], false),
        (2, 2, [2, 1, 0, 0, 0], true),
        (1, 1, [1, 1, 2, 0, 0], false),
        (1, 1, [1, 0, 1, 1, 1], false),
    ] {
        let budget = Budget {
            are_slow,
            requests,
            callbacks,
            dials,
            waits,
            stops,
        };
        let world = World::new(handlers_max, threads_max, budget);
        let (visited, ended) = explore(world);
        assert!(visited > 1000, "{visited} states");
        assert_eq!(ended > 0, stops > 0);
    }
}
