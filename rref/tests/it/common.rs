//! Groups of agents with references in this process, over a shared store.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use c10d_store::{HashStore, Store};
use rpc_agent::{Agent, AgentOptions, Destination, HandlerError, Registry, RetryOptions};
use rref::{Functions, LeakReport, RRef, RRefError, RRefOptions, RRefs};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Timeout of all waits in the tests; far longer than any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Timeout of a wait for a message that may be lost.
pub(crate) const SHORT: Duration = Duration::from_millis(400);

/// The value type of the test functions.
pub(crate) type List = Mutex<Vec<i64>>;

/// A worker of a test group.
pub(crate) struct Worker {
    pub(crate) rrefs: RRefs,
    pub(crate) agent: Agent,
}

/// Number of living [`Counted`] values.
pub(crate) type Alive = Arc<AtomicUsize>;

/// A value that counts its living instances.
pub(crate) struct Counted {
    alive: Alive,
}

impl Counted {
    pub(crate) fn new(alive: &Alive) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self {
            alive: Arc::clone(alive),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Registers a function `counted`, which creates a [`Counted`] value.
pub(crate) fn register_counted(functions: &mut Functions, alive: &Alive) {
    let alive = Arc::clone(alive);
    let counted = move |_: &_, ()| Ok(Counted::new(&alive));
    functions.register_opaque("counted", counted).unwrap();
}

/// The functions of all workers, and those that `fill` adds.
pub(crate) fn functions(fill: impl FnOnce(&mut Functions)) -> Functions {
    let mut functions = Functions::new();
    functions
        .register("list", |_, items: Vec<i64>| Ok(Mutex::new(items)))
        .unwrap();
    functions
        .register("number", |_, number: i64| Ok(number))
        .unwrap();
    functions
        .register("fail", |_, text: String| {
            Err::<i64, _>(HandlerError::new(text))
        })
        .unwrap();
    functions
        .register_method("push", |_, list: &List, item: i64| {
            let mut list = list.lock().unwrap();
            list.push(item);
            Ok(list.len())
        })
        .unwrap();
    functions
        .register_method("sum", |_, list: &List, ()| {
            Ok(list.lock().unwrap().iter().sum::<i64>())
        })
        .unwrap();
    // Uses the reference that it receives as an argument.
    functions
        .register("read", |_, number: RRef<i64>| {
            assert!(
                number.is_confirmed(),
                "the function runs only after the confirmation"
            );
            Ok(number.to_here(Some(PATIENCE))?)
        })
        .unwrap();
    functions
        .register("read soon", |_, number: RRef<i64>| {
            assert!(
                number.is_confirmed(),
                "the function runs only after the confirmation"
            );
            Ok(number.to_here(Some(SHORT))?)
        })
        .unwrap();
    functions
        .register("echo", |_, number: RRef<i64>| Ok(number))
        .unwrap();
    fill(&mut functions);
    functions
}

/// Options with short retries, for tests that lose messages.
pub(crate) fn quick() -> RRefOptions {
    let retries = RetryOptions::default()
        .with_max_retries(40)
        .with_retry_duration(Duration::from_millis(20))
        .with_backoff(1.2)
        .with_max_delay(Duration::from_millis(200));
    RRefOptions::default()
        .with_retries(retries)
        .with_attempt_timeout(Some(Duration::from_millis(200)))
}

/// Starts a group of fixed size.
pub(crate) fn group(world_size: u32) -> Vec<Worker> {
    group_with(world_size, |_, options| options, |_, _| {})
}

/// Starts a group of fixed size. `adjust` and `fill` change the options and the functions of each rank.
pub(crate) fn group_with(
    world_size: u32,
    adjust: impl Fn(u32, AgentOptions) -> AgentOptions,
    fill: impl Fn(u32, &mut Functions),
) -> Vec<Worker> {
    group_of(world_size, &quick(), adjust, fill)
}

/// Starts a group of fixed size whose workers also have the functions of `fill`.
pub(crate) fn group_that_has(world_size: u32, fill: impl Fn(&mut Functions)) -> Vec<Worker> {
    let fill = |_, functions: &mut Functions| fill(functions);
    group_with(world_size, |_, options| options, fill)
}

/// [`group_with`] with `options` for the references.
pub(crate) fn group_of(
    world_size: u32,
    rref_options: &RRefOptions,
    adjust: impl Fn(u32, AgentOptions) -> AgentOptions,
    fill: impl Fn(u32, &mut Functions),
) -> Vec<Worker> {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    thread::scope(|scope| {
        let starting: Vec<_> = (0..world_size)
            .map(|rank| {
                let functions = functions(|functions| fill(rank, functions));
                let options = options(&format!("worker{rank}"), rank).with_world_size(world_size);
                let (options, store) = (adjust(rank, options), &store);
                scope.spawn(move || start(store, options, functions, rref_options))
            })
            .collect();
        let starting = starting.into_iter().map(ScopedJoinHandle::join);
        starting
            .map(|worker| worker.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// The options of a worker on loopback, in a dynamic group.
pub(crate) fn options(name: &str, rank: u32) -> AgentOptions {
    AgentOptions::new(name, rank)
        .with_host("127.0.0.1")
        .with_start_timeout(PATIENCE)
}

/// Starts a worker.
pub(crate) fn start(
    store: &Arc<dyn Store>,
    options: AgentOptions,
    functions: Functions,
    rref_options: &RRefOptions,
) -> Worker {
    let mut registry = Registry::new();
    let rrefs = RRefs::register_with(&mut registry, functions, rref_options.clone()).unwrap();
    let agent = Agent::start(options, registry, store.clone_store().unwrap()).unwrap();
    rrefs.attach(agent.handle()).unwrap();
    Worker { rrefs, agent }
}

/// Starts a group of two workers, and an agent without references that has the functions of `registry`.
pub(crate) fn group_with_stranger(
    registry: Registry,
    fill: impl Fn(&mut Functions),
) -> (Vec<Worker>, Agent) {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let options = |name: &str, rank| options(name, rank).with_world_size(3);
    thread::scope(|scope| {
        let starting = [0, 1].map(|rank| {
            let functions = functions(&fill);
            let (options, store) = (options(&format!("worker{rank}"), rank), &store);
            scope.spawn(move || start(store, options, functions, &quick()))
        });
        let store = store.clone_store().unwrap();
        let stranger = Agent::start(options("stranger", 2), registry, store).unwrap();
        (
            starting.map(|worker| worker.join().unwrap()).into(),
            stranger,
        )
    })
}

/// Has a worker create a value, and returns a reference to it.
pub(crate) fn make<'a, R: Send + Sync + 'static>(
    from: &'a Worker,
    to: impl Into<Destination<'a>>,
    function: &'a str,
    arguments: impl Serialize,
) -> RRef<R> {
    from.rrefs.call(to, function).remote(arguments).unwrap()
}

/// A number that `worker1` owns and worker 0 refers to.
pub(crate) fn remote_number(workers: &[Worker], number: i64) -> RRef<i64> {
    make(&workers[0], "worker1", "number", number)
}

/// Calls a function, and waits for its result.
pub(crate) fn ask<'a, R: DeserializeOwned>(
    from: &'a Worker,
    to: impl Into<Destination<'a>>,
    function: &'a str,
    arguments: impl Serialize,
) -> Result<R, RRefError> {
    from.rrefs.call(to, function).run(arguments)
}

/// Stops all agents at once.
pub(crate) fn stop(workers: &[Worker]) {
    for worker in workers {
        worker.agent.shutdown_now();
    }
}

/// Waits until nothing refers to a value, and shuts down all workers.
#[track_caller]
pub(crate) fn end(workers: &[Worker]) {
    until_empty(workers);
    shut_down(workers);
}

/// Shuts down all workers, and returns their leak reports.
#[track_caller]
pub(crate) fn shut_down(workers: &[Worker]) -> Vec<LeakReport> {
    thread::scope(|scope| {
        let ending: Vec<_> = workers
            .iter()
            .map(|worker| {
                scope.spawn(|| {
                    let report = worker
                        .rrefs
                        .shutdown(&worker.agent, Some(PATIENCE))
                        .unwrap();
                    assert!(is_empty(worker), "{:?}", worker.rrefs.sizes().unwrap());
                    worker.agent.shutdown(PATIENCE).unwrap();
                    report
                })
            })
            .collect();
        ending
            .into_iter()
            .map(|report| report.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// Whether a worker's tables are empty except for tombstones.
pub(crate) fn is_empty(worker: &Worker) -> bool {
    let sizes = worker.rrefs.sizes().unwrap();
    sizes.owners + sizes.pending_owners + sizes.forks + sizes.pending_users == 0
        && sizes.confirmed_users + sizes.failed_users + sizes.pending_children == 0
        && sizes.deletes_queued + sizes.pending_futures + sizes.parked_fetches == 0
}

/// Waits until all tables of all workers are empty.
#[track_caller]
pub(crate) fn until_empty(workers: &[Worker]) {
    until_empty_within(PATIENCE, workers);
}

/// [`until_empty`] with a shorter patience. [`PATIENCE`] equals the default timeout of a call, which may empty the tables
/// as well.
#[track_caller]
pub(crate) fn until_empty_within(patience: Duration, workers: &[Worker]) {
    let began = Instant::now();
    while !workers.iter().all(is_empty) {
        if began.elapsed() > patience {
            let sizes = workers.iter().map(|worker| worker.rrefs.sizes().unwrap());
            let sizes: Vec<_> = sizes.collect();
            panic!("timed out waiting for empty tables: {sizes:#?}");
        }
        thread::sleep(Duration::from_micros(200));
    }
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
    /// Whether the gate is open, and how many functions have arrived.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Registers a function that waits at the gate, and then returns 1.
    pub(crate) fn register(self: &Arc<Self>, functions: &mut Functions, name: &str) {
        let gate = Arc::clone(self);
        let slow = move |_: &_, ()| {
            gate.pass();
            Ok(1_i64)
        };
        functions.register(name, slow).unwrap();
    }

    /// Waits until the gate is open.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        self.changed.notify_all();
        while !state.0 {
            let (next, timeout) = self.changed.wait_timeout(state, PATIENCE).unwrap();
            assert!(!timeout.timed_out(), "the gate stays closed");
            state = next;
        }
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = true;
        self.changed.notify_all();
    }

    /// Number of functions that have arrived.
    pub(crate) fn arrived(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}
