//! Helpers: groups of agents in this process, polling for a condition, and gates that block functions.

use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::{HashStore, Store};
use rpc_agent::{Agent, AgentOptions, Registry, StartError};

/// Timeout of all waits in the tests; reached only if a test hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The options of a worker named `worker<rank>` on loopback, in a dynamic group.
pub(crate) fn options(rank: u32) -> AgentOptions {
    named(&format!("worker{rank}"), rank)
}

/// [`options`] of a worker named `name`.
pub(crate) fn named(name: &str, rank: u32) -> AgentOptions {
    AgentOptions::new(name, rank)
        .with_host("127.0.0.1")
        .with_start_timeout(PATIENCE)
}

/// A registry with the function `echo` and those that `fill` registers.
pub(crate) fn registry(fill: impl FnOnce(&mut Registry)) -> Registry {
    let mut registry = Registry::new();
    registry
        .register_bytes("echo", |_, payload| Ok(payload))
        .unwrap();
    fill(&mut registry);
    registry
}

/// Starts a static group whose workers have only the function `echo`.
pub(crate) fn group(world_size: u32) -> Vec<Agent> {
    group_with(world_size, |_, options| options, |_, _| {})
}

/// Starts a static group. `adjust` and `fill` change the options and the registry of each rank.
pub(crate) fn group_with(
    world_size: u32,
    adjust: impl Fn(u32, AgentOptions) -> AgentOptions,
    fill: impl Fn(u32, &mut Registry),
) -> Vec<Agent> {
    let workers = (0..world_size).map(|rank| {
        let options = options(rank).with_world_size(world_size);
        (
            adjust(rank, options),
            registry(|registry| fill(rank, registry)),
        )
    });
    start_all(&shared_store(), workers.collect())
        .into_iter()
        .map(|started| started.unwrap())
        .collect()
}

/// [`group_with`] of two workers. Only the second one gets the functions of `fill`.
pub(crate) fn pair(fill: impl Fn(&mut Registry)) -> (Agent, Agent) {
    pair_with(|_, options| options, fill)
}

/// [`pair`] with options.
pub(crate) fn pair_with(
    adjust: impl Fn(u32, AgentOptions) -> AgentOptions,
    fill: impl Fn(&mut Registry),
) -> (Agent, Agent) {
    let mut agents = group_with(2, adjust, |rank, registry| {
        if rank == 1 {
            fill(registry);
        }
    })
    .into_iter();
    (agents.next().unwrap(), agents.next().unwrap())
}

/// Starts agents concurrently, because the workers of a static group wait for each other.
pub(crate) fn start_all(
    store: &Arc<dyn Store>,
    workers: Vec<(AgentOptions, Registry)>,
) -> Vec<Result<Agent, StartError>> {
    thread::scope(|scope| {
        let starting: Vec<_> = workers
            .into_iter()
            .map(|(options, registry)| {
                let store = store.clone_store().unwrap();
                scope.spawn(move || Agent::start(options, registry, store))
            })
            .collect();
        let started = starting.into_iter().map(|agent| agent.join());
        started
            .map(|agent| agent.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// A store in this process.
pub(crate) fn shared_store() -> Arc<dyn Store> {
    Arc::new(HashStore::new())
}

/// Returns pseudo-random bytes, determined by `seed`.
pub(crate) fn noise(seed: u64, bytes: usize) -> Bytes {
    let mut noise = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut noise);
    noise.into()
}

/// Polls until the condition is true; panics after [`PATIENCE`].
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting for: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Blocks functions until the test opens it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    inside: usize,
    inside_peak: usize,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until the gate is open.
    #[track_caller]
    pub(crate) fn pass(&self) {
        self.wait_inside("the gate to open", |state| state.is_open);
    }

    /// Waits until `others` functions have been inside at the same time.
    #[track_caller]
    pub(crate) fn pass_with(&self, others: usize) {
        self.wait_inside("the others to arrive", |state| state.inside_peak >= others);
    }

    /// Lets all functions pass, now and later.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
        self.changed.notify_all();
    }

    /// Waits until `count` functions are blocked at the gate.
    #[track_caller]
    pub(crate) fn await_inside(&self, count: usize) {
        let state = self.lock();
        drop(self.wait(state, "functions at the gate", |state| {
            state.inside >= count
        }));
    }

    /// Number of functions that are blocked at the gate.
    pub(crate) fn inside(&self) -> usize {
        self.lock().inside
    }

    /// Maximum number of functions that were inside at the same time.
    pub(crate) fn inside_peak(&self) -> usize {
        self.lock().inside_peak
    }

    #[track_caller]
    fn wait_inside(&self, what: &str, condition: impl Fn(&GateState) -> bool) {
        let mut state = self.lock();
        state.inside += 1;
        state.inside_peak = state.inside_peak.max(state.inside);
        self.changed.notify_all();
        let mut state = self.wait(state, what, condition);
        state.inside -= 1;
    }

    #[track_caller]
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, GateState>,
        what: &str,
        condition: impl Fn(&GateState) -> bool,
    ) -> MutexGuard<'a, GateState> {
        let began = Instant::now();
        while !condition(&state) {
            let left = PATIENCE.saturating_sub(began.elapsed());
            assert!(!left.is_zero(), "timed out waiting for: {what}");
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a gate when the test ends or panics; otherwise shutdown would wait for the blocked functions.
#[derive(Debug)]
pub(crate) struct OpenAtEnd(pub(crate) Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}
