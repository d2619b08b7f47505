//! Helpers: groups of agents in this process, calls, polling for a condition, and functions that a test holds up.

use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::{HashStore, Store};
use rpc_agent::{
    Agent, AgentHandle, AgentOptions, Destination, FutureMessage, Registry, Reply, RetryOptions,
    RpcError, StartError,
};

use crate::raw::RawWorker;

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

/// Starts one agent; its group has no other worker that it waits for.
pub(crate) fn start_one(
    store: &Arc<dyn Store>,
    options: AgentOptions,
    fill: impl FnOnce(&mut Registry),
) -> Agent {
    Agent::start(options, registry(fill), store.clone_store().unwrap()).unwrap()
}

/// An agent with rank 0 in a static group whose other worker, `worker1`, is raw.
pub(crate) fn agent_and_raw(
    adjust: impl FnOnce(AgentOptions) -> AgentOptions,
) -> (Agent, RawWorker, Arc<dyn Store>) {
    let store = shared_store();
    let raw = RawWorker::join(&*store, 1, "worker1", 5);
    let agent = start_one(&store, adjust(options(0).with_world_size(2)), |_| {});
    (agent, raw, store)
}

/// Calls a function with the timeout of the agent, and waits for the answer.
pub(crate) fn ask<'a>(
    agent: &'a AgentHandle,
    to: impl Into<Destination<'a>>,
    function: &'a str,
    payload: impl Into<Bytes>,
) -> Result<Bytes, RpcError> {
    agent.call(to, function).send_bytes(payload).wait()
}

/// Asserts that a worker answers the calls of an agent.
#[track_caller]
pub(crate) fn assert_reaches<'a>(from: &'a Agent, to: impl Into<Destination<'a>>) {
    assert_eq!(ask(from.handle(), to, "echo", "x").unwrap(), "x");
}

/// Makes a call without a timeout.
pub(crate) fn begin<'a>(
    agent: &'a AgentHandle,
    to: impl Into<Destination<'a>>,
    function: &'a str,
    payload: impl Into<Bytes>,
) -> FutureMessage {
    let call = agent.call(to, function).with_timeout(None);
    call.send_bytes(payload)
}

/// Makes a call with retries.
pub(crate) fn retry<'a>(
    agent: &'a AgentHandle,
    to: impl Into<Destination<'a>>,
    function: &'a str,
    retries: &'a RetryOptions,
    payload: impl Into<Bytes>,
) -> FutureMessage {
    let call = agent.call(to, function).with_retries(retries);
    call.send_bytes(payload)
}

/// Waits until a call has ended.
#[track_caller]
pub(crate) fn wait(call: &FutureMessage) -> Result<Bytes, RpcError> {
    call.wait_timeout(PATIENCE).expect("the call completes")
}

/// Asserts that a call was lost with its connection.
#[track_caller]
pub(crate) fn assert_connection_lost(error: &RpcError) {
    let is_lost = matches!(error, RpcError::ConnectionLost { .. });
    assert!(is_lost, "{error:?}");
}

/// Shuts down agents concurrently, because the workers of a static group wait for each other.
pub(crate) fn shut_down_all<'a>(agents: impl IntoIterator<Item = &'a Agent>) {
    thread::scope(|scope| {
        for agent in agents {
            scope.spawn(|| agent.shutdown(PATIENCE).unwrap());
        }
    });
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
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Registers a function that waits at the gate, and then returns its payload.
    pub(crate) fn register(self: &Arc<Self>, registry: &mut Registry, name: &str) {
        let gate = Arc::clone(self);
        let hold = move |_: &_, payload| {
            gate.pass();
            Ok(payload)
        };
        registry.register_bytes(name, hold).unwrap();
    }

    /// Waits until the gate is open.
    #[track_caller]
    pub(crate) fn pass(&self) {
        let mut state = self.lock();
        state.inside += 1;
        self.changed.notify_all();
        let mut state = self.wait(state, "the gate to open", |state| state.is_open);
        state.inside -= 1;
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

/// Two workers. The function `hold` of the second one waits at the gate.
pub(crate) fn held_pair(
    adjust: impl Fn(AgentOptions) -> AgentOptions,
) -> (Agent, Agent, Arc<Gate>, OpenAtEnd) {
    let gate = Gate::new();
    let (agent, other) = pair_with(
        |_, options| adjust(options),
        |registry| gate.register(registry, "hold"),
    );
    let end = OpenAtEnd(Arc::clone(&gate));
    (agent, other, gate, end)
}

/// Calls of a function that the test answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held(Arc<Mutex<Vec<Reply>>>);

impl Held {
    /// Registers the function.
    pub(crate) fn register(&self, registry: &mut Registry, name: &str) {
        let held = self.clone();
        let hold = move |_: &_, _, reply| held.lock().push(reply);
        registry.register_deferred(name, hold).unwrap();
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Waits until this number of calls have arrived.
    #[track_caller]
    pub(crate) fn await_len(&self, count: usize) {
        until("the calls have arrived", || self.len() == count);
    }

    /// Takes all unanswered calls.
    pub(crate) fn take(&self) -> Vec<Reply> {
        std::mem::take(&mut *self.lock())
    }

    pub(crate) fn answer_all(&self) {
        for reply in self.take() {
            reply.send(Ok("answered"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Reply>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
