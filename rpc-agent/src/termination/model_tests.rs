//! Checks the shutdown rule with random histories of workers that call each other and shut down.
//!
//! The model has no clock: each step performs one possible event, chosen at random. Messages, handlers and workers
//! have speeds; without them, a message would hardly ever stay in flight for several rounds.

use std::collections::{BTreeMap, BTreeSet};

use c10d_sim::Seeds;
use fastrand::Rng;

use super::detector::{Detector, Step};

#[derive(Debug)]
struct Message {
    speed: u8,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Request { call: u64, from: usize, to: usize },
    Answer { call: u64, to: usize },
}

#[derive(Debug)]
struct Handler {
    call: u64,
    caller: usize,
    has_answered: bool,
    speed: u8,
}

/// Progress of a worker within [`Step::AwaitIdle`].
#[derive(Debug, Clone, Copy)]
enum IdleWait {
    NotStarted,
    Counted { before: u64 },
    Idle { before: u64 },
}

#[derive(Debug)]
struct Worker {
    /// Speed of the worker's callbacks and its shutdown; changes at random. Each handler has its own speed.
    speed: u8,
    started: u64,
    out: BTreeSet<u64>,
    /// Answered calls whose callbacks have not run yet. `out` contains them as well.
    callbacks: Vec<u64>,
    handlers: Vec<Handler>,
    /// Calls that the program makes before it shuts down.
    own_calls: u32,
    idle_wait: IdleWait,
    core: Detector,
}

impl Worker {
    fn is_idle(&self) -> bool {
        self.out.is_empty() && self.callbacks.is_empty() && self.handlers.is_empty()
    }

    fn has_detected(&self) -> bool {
        use Step::{AwaitDepartures, Depart, Finished};
        matches!(self.core.step(), Depart | AwaitDepartures | Finished)
    }
}

#[derive(Debug, Default)]
struct Round {
    started: u64,
    count: u64,
    ready: Option<u64>,
}

#[derive(Debug)]
struct World {
    rng: Rng,
    workers: Vec<Worker>,
    network: Vec<Message>,
    rounds: BTreeMap<u32, Round>,
    left: u64,
    next_call: u64,
    /// Number of calls that all handlers and callbacks together may still make.
    nested_calls: u32,
}

/// A possible event.
#[derive(Debug, Clone, Copy)]
enum Event {
    Deliver(usize),
    Handler { worker: usize, handler: usize },
    Callback { worker: usize, callback: usize },
    OwnCall(usize),
    Shutdown(usize),
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(1..=7);
        let busy = rng.u32(0..5);
        let workers = (0..count)
            .map(|id| Worker {
                speed: rng.u8(..),
                started: 0,
                out: BTreeSet::new(),
                callbacks: Vec::new(),
                handlers: Vec::new(),
                own_calls: if busy == 0 { 0 } else { rng.u32(0..busy) },
                idle_wait: IdleWait::NotStarted,
                core: Detector::new(count as u64, id == 0),
            })
            .collect();
        let nested_calls = rng.u32(0..60);
        Self {
            rng,
            workers,
            network: Vec::new(),
            rounds: BTreeMap::new(),
            left: 0,
            next_call: 0,
            nested_calls,
        }
    }

    fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = (0..self.network.len()).map(Event::Deliver).collect();
        for (worker, state) in self.workers.iter().enumerate() {
            let handlers = 0..state.handlers.len();
            events.extend(handlers.map(|handler| Event::Handler { worker, handler }));
            let callbacks = 0..state.callbacks.len();
            events.extend(callbacks.map(|callback| Event::Callback { worker, callback }));
            if state.own_calls > 0 {
                events.push(Event::OwnCall(worker));
            } else if self.can_proceed(state) {
                events.push(Event::Shutdown(worker));
            }
        }
        events
    }

    /// Whether the next step of the worker's shutdown would return without blocking.
    fn can_proceed(&self, worker: &Worker) -> bool {
        match worker.core.step() {
            Step::AwaitIdle => {
                !matches!(worker.idle_wait, IdleWait::Counted { .. }) || worker.is_idle()
            }
            Step::AwaitSum => {
                let round = self.rounds.get(&worker.core.round());
                round.is_some_and(|round| round.ready.is_some())
            }
            Step::AwaitDepartures => self.left == self.workers.len() as u64,
            Step::Finished => false,
            Step::AddStarted { .. } | Step::Arrive | Step::Publish | Step::Depart => true,
        }
    }

    /// Chooses mostly the fastest possible event, sometimes any. `None` if no event is possible.
    fn choose(&mut self) -> Option<Event> {
        let events = self.events();
        if self.rng.u32(0..8) == 0 {
            return self.rng.choice(events);
        }
        events.into_iter().max_by_key(|event| match event {
            Event::Deliver(at) => self.network[*at].speed,
            Event::Handler { worker, handler } => self.workers[*worker].handlers[*handler].speed,
            Event::Callback { worker, .. } | Event::OwnCall(worker) | Event::Shutdown(worker) => {
                self.workers[*worker].speed
            }
        })
    }

    fn send(&mut self, content: Content) {
        let speed = self.rng.u8(..);
        self.network.push(Message { speed, content });
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver(at) => match self.network.swap_remove(at).content {
                Content::Request { call, from, to } => self.workers[to].handlers.push(Handler {
                    call,
                    caller: from,
                    has_answered: false,
                    speed: self.rng.u8(..),
                }),
                Content::Answer { call, to } => self.workers[to].callbacks.push(call),
            },
            Event::Handler { worker, handler } => self.handle(worker, handler),
            Event::Callback { worker, callback } => {
                self.maybe_call(worker);
                let call = self.workers[worker].callbacks.swap_remove(callback);
                self.workers[worker].out.remove(&call);
            }
            Event::OwnCall(worker) => {
                self.workers[worker].own_calls -= 1;
                self.call(worker);
            }
            Event::Shutdown(worker) => self.proceed(worker),
        }
    }

    /// Lets a handler call a worker, answer, or return. It may continue after its answer.
    fn handle(&mut self, worker: usize, handler: usize) {
        match self.rng.u32(0..3) {
            0 => self.maybe_call(worker),
            choice => {
                let handlers = &mut self.workers[worker].handlers;
                let (call, to) = (handlers[handler].call, handlers[handler].caller);
                let had_answered = handlers[handler].has_answered;
                handlers[handler].has_answered = true;
                if choice == 2 {
                    handlers.swap_remove(handler);
                }
                if !had_answered {
                    self.send(Content::Answer { call, to });
                }
            }
        }
    }

    fn maybe_call(&mut self, worker: usize) {
        if self.nested_calls > 0 && self.rng.bool() {
            self.nested_calls -= 1;
            self.call(worker);
        }
    }

    fn call(&mut self, from: usize) {
        assert!(
            !self.workers.iter().any(Worker::has_detected),
            "a call is started after a worker has detected termination"
        );
        let call = self.next_call;
        self.next_call += 1;
        self.workers[from].started += 1;
        self.workers[from].out.insert(call);
        let to = self.rng.usize(0..self.workers.len());
        self.send(Content::Request { call, from, to });
    }

    fn proceed(&mut self, at: usize) {
        if self.rng.u32(0..4) == 0 {
            self.workers[at].speed = self.rng.u8(..);
        }
        let worker = &mut self.workers[at];
        let round = self.rounds.entry(worker.core.round()).or_default();
        match worker.core.step() {
            Step::AwaitIdle => match worker.idle_wait {
                IdleWait::NotStarted => {
                    let before = worker.started;
                    worker.idle_wait = IdleWait::Counted { before };
                }
                IdleWait::Counted { before } => worker.idle_wait = IdleWait::Idle { before },
                IdleWait::Idle { before } => {
                    worker.idle_wait = IdleWait::NotStarted;
                    worker.core.was_idle(before, worker.started);
                }
            },
            Step::AddStarted { started } => {
                round.started += started;
                worker.core.added();
            }
            Step::Arrive => {
                round.count += 1;
                worker.core.arrived(round.count);
            }
            Step::Publish => {
                round.ready = Some(round.started);
                worker.core.sum_known(round.started);
            }
            Step::AwaitSum => {
                if let Some(sum) = round.ready {
                    worker.core.sum_known(sum);
                }
            }
            Step::Depart => {
                self.left += 1;
                worker.core.departed();
            }
            Step::AwaitDepartures => worker.core.others_departed(),
            Step::Finished => {}
        }
        if self.workers[at].has_detected() {
            assert!(self.network.is_empty(), "{:?}", self.network);
            assert!(self.workers.iter().all(Worker::is_idle));
        }
    }
}

#[test]
fn no_worker_leaves_before_the_last_call_and_all_leave_eventually() {
    for seed in Seeds::fixed(3000) {
        let mut world = World::new(seed);
        while let Some(event) = world.choose() {
            world.happen(event);
        }
        for worker in &world.workers {
            assert_eq!(worker.core.step(), Step::Finished, "{worker:?}");
        }
    }
}

#[test]
fn an_idle_worker_needs_two_rounds() {
    let mut alone = Detector::new(1, true);
    for round in 1..=2 {
        assert_eq!(alone.round(), round);
        alone.was_idle(5, 5);
        assert_eq!(alone.step(), Step::AddStarted { started: 5 });
        alone.added();
        alone.arrived(1);
        assert_eq!(alone.step(), Step::Publish);
        alone.sum_known(5);
    }
    alone.departed();
    assert_eq!(alone.step(), Step::Finished);
}

#[test]
fn a_call_started_during_the_idle_wait_repeats_it() {
    let mut core = Detector::new(2, false);
    core.was_idle(5, 6);
    assert_eq!(core.step(), Step::AwaitIdle);
    core.was_idle(6, 6);
    assert_eq!(core.step(), Step::AddStarted { started: 6 });
}
