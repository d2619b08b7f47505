//! Random calls between agents in one process, with random faults, restarts and shutdowns.
//!
//! Invariants: each future completes exactly once, each value is the right one, queues become empty, shutdown
//! takes bounded time, and no thread remains. `SEED=n` repeats a round, `ROUNDS=n` runs n rounds.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_sim::Seeds;

use fastrand::Rng;
use rpc_agent::{
    Agent, AgentHandle, AgentOptions, FutureMessage, HandlerError, Registry, RetryOptions,
    RpcError, join_all,
};

use crate::common::{
    PATIENCE, ask, noise, options, registry, retry, shared_store, start_all, until,
};
use crate::fault_plan::FaultPlan;
use crate::own_process::in_own_process;

/// One seed for each kind of round, and two more.
const SEEDS: [u64; 6] = [0, 1, 2, 3, 5, 7];

/// Calls per calling thread.
const CALLS: usize = 40;
const CALLERS_PER_AGENT: usize = 2;

#[test]
fn every_call_ends_once_and_every_agent_shuts_down() {
    // The test counts agent threads, so agents of other tests must not run in this process.
    if !in_own_process("soak::every_call_ends_once_and_every_agent_shuts_down") {
        return;
    }
    for seed in seeds() {
        run(seed, |options| options);
    }
}

/// With a secret. Without calm rounds, in which an attempt must not take 150 ms: a build for tests needs 8 ms of
/// processor time for a handshake.
#[cfg(feature = "tls")]
#[test]
fn every_call_ends_once_over_tls() {
    if !in_own_process("soak::every_call_ends_once_over_tls") {
        return;
    }
    let secret = rpc_agent::Secret::random().unwrap();
    for seed in seeds().into_iter().filter(|seed| seed % 4 != 0) {
        run(seed, |options| options.with_secret(secret.clone()));
    }
}

/// The seeds of `SEED` and `ROUNDS`, or some of each kind.
fn seeds() -> Vec<u64> {
    Seeds::given().map_or_else(|| SEEDS.to_vec(), Seeds::collect)
}

/// The kind of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No faults: each valid call succeeds.
    Calm,
    /// Faults, in a dynamic group: one worker leaves and rejoins.
    Restart,
    /// Faults, then a coordinated shutdown.
    Faulty,
    /// Faults, and all agents stop while calls are in flight.
    Abrupt,
}

#[expect(clippy::print_stderr, reason = "shown when the test fails")]
fn run(seed: u64, secure: impl Fn(AgentOptions) -> AgentOptions) {
    let kind = [Kind::Calm, Kind::Restart, Kind::Faulty, Kind::Abrupt][(seed % 4) as usize];
    let mut rng = Rng::with_seed(seed);
    let world_size = rng.u32(4..=6);
    let is_dynamic = kind == Kind::Restart || rng.bool();
    eprintln!("to repeat, set SEED={seed}: {kind:?}, {world_size} workers");

    let store = shared_store();
    let plans = RefCell::new(Vec::new());
    let setup = |rank, rng: &mut Rng| {
        let mut options = secure(agent_options(rank, world_size, is_dynamic, kind, rng));
        if kind != Kind::Calm {
            let plan = faults(rng);
            options = options.with_faults(plan.clone());
            plans.borrow_mut().push(plan);
        }
        (options, functions())
    };
    let workers = (0..world_size).map(|rank| setup(rank, &mut rng)).collect();
    let mut agents: Vec<Agent> = start_all(&store, workers)
        .into_iter()
        .map(|started| started.unwrap())
        .collect();
    let ledger = Arc::new(Ledger::new(kind));
    let mut callers: Vec<_> = agents
        .iter()
        .flat_map(|agent| callers(agent.handle(), world_size, &ledger, &mut rng))
        .collect();

    let all_calls = CALLS * callers.len();
    let mut ended = Vec::new();
    match kind {
        Kind::Calm | Kind::Faulty => {}
        Kind::Restart => {
            let rank = rng.u32(..world_size);
            let share = rng.usize(all_calls / 5..all_calls * 4 / 5);
            ledger.await_started(share);
            let old = agents.remove(rank as usize);
            ended.push(old.handle().clone());
            let is_coordinated = rng.bool();
            bounded("one agent shuts down", move || {
                if is_coordinated {
                    // Its calls may outlast the timeout; the agent stops nevertheless.
                    let _ = old.shutdown(Duration::from_millis(200));
                }
                drop(old);
            });
            let (options, registry) = setup(rank, &mut rng);
            let again = Agent::start(options, registry, store.clone_store().unwrap()).unwrap();
            callers.extend(self::callers(again.handle(), world_size, &ledger, &mut rng));
            agents.insert(rank as usize, again);
        }
        Kind::Abrupt => {
            ledger.await_started(rng.usize(all_calls / 5..all_calls));
            ended.extend(agents.iter().map(|agent| agent.handle().clone()));
            shut_down_all(std::mem::take(&mut agents), |agent| agent.shutdown_now());
        }
    }

    bounded("all callers return", move || {
        callers
            .into_iter()
            .for_each(|caller| caller.join().unwrap());
    });
    ledger.check_all();
    for agent in &agents {
        for to in 0..world_size {
            until("every worker is reachable", || {
                ask(agent.handle(), to, "echo", "ping").is_ok_and(|answer| answer == "ping")
            });
        }
    }
    for agent in &agents {
        let began = Instant::now();
        loop {
            let metrics = agent.handle().metrics();
            let under_way = [
                metrics.calls_in_flight,
                metrics.requests_active,
                metrics.requests_deferred,
                metrics.handler_queue_len,
                metrics.retry_queue_len,
                metrics.threads_waiting,
            ];
            if under_way == [0; 6] {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "in flight: {metrics:?}");
            thread::sleep(Duration::from_micros(200));
        }
    }
    ended.extend(agents.iter().map(|agent| agent.handle().clone()));
    shut_down_all(agents, |agent| agent.shutdown(PATIENCE / 2).unwrap());

    for handle in &ended {
        let metrics = handle.metrics();
        assert_eq!(metrics.calls_in_flight, 0, "{metrics:?}");
        assert_eq!(
            (metrics.handler_queue_len, metrics.retry_queue_len),
            (0, 0),
            "{metrics:?}"
        );
        let all_ended = metrics.calls_succeeded + metrics.calls_failed;
        assert_eq!(metrics.calls_started, all_ended, "{metrics:?}");
        assert_eq!(metrics.threads, 0, "{metrics:?}");
        let refused = handle
            .call(0, "echo")
            .send_bytes("late")
            .wait()
            .unwrap_err();
        assert!(matches!(refused, RpcError::Shutdown { .. }), "{refused}");
    }
    until("no thread is left", || threads_alive().is_empty());
    // All callbacks have run exactly once.
    ledger.check_all();

    let injected: u64 = plans
        .take()
        .iter()
        .map(|plan| plan.injected().total())
        .sum();
    let recovered = ledger.recovered.load(Ordering::SeqCst);
    eprintln!("faults: {injected}, calls that succeeded by a retry: {recovered}");
    match kind {
        Kind::Calm => assert_eq!(injected, 0),
        Kind::Restart | Kind::Faulty => assert!(injected > 0 && recovered > 0),
        // The round may end before a retry is due.
        Kind::Abrupt => assert!(injected > 0),
    }
}

/// Names of the agent threads in this process.
fn threads_alive() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.starts_with("rpc-"))
        .collect()
}

/// Shuts down agents concurrently, because the workers of a static group wait for each other.
fn shut_down_all(agents: Vec<Agent>, end: fn(&Agent)) {
    bounded("all agents shut down", move || {
        thread::scope(|scope| {
            for agent in agents {
                scope.spawn(move || end(&agent));
            }
        });
    });
}

/// Panics if `run` does not return within [`PATIENCE`].
#[track_caller]
fn bounded(what: &str, run: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let running = thread::spawn(move || {
        run();
        let _ = ended.send(());
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = end.recv_timeout(PATIENCE) {
        panic!("timed out after {PATIENCE:?} waiting for: {what}");
    }
    running.join().unwrap();
}

fn agent_options(
    rank: u32,
    world_size: u32,
    is_dynamic: bool,
    kind: Kind,
    rng: &mut Rng,
) -> AgentOptions {
    let mut options = options(rank).with_seed(rng.u64(..));
    if !is_dynamic {
        options = options.with_world_size(world_size);
    }
    if kind == Kind::Calm {
        return options
            .with_timeout(PATIENCE)
            .with_handler_threads(rng.usize(1..8));
    }
    options = options
        .with_timeout(Duration::from_millis(400))
        .with_connect_timeout(Duration::from_secs(2))
        .with_handler_threads(rng.usize(1..8))
        .with_threads_max(rng.usize(1..40));
    if rng.bool() {
        options = options.with_backlog_bytes_max(rng.u64(64 << 10..4 << 20));
    }
    if rng.u32(..3) == 0 {
        options = options.with_requests_queued_max(rng.usize(1..30));
    }
    options
}

fn faults(rng: &mut Rng) -> FaultPlan {
    FaultPlan::new(rng.u64(..))
        .fail("relay", rng.u32(..2))
        .fail("retried", 1)
        .lose_requests(0.05 * rng.f64())
        .lose_answers(0.05 * rng.f64())
        .duplicate(0.1 * rng.f64())
        .delay_randomly(0.1 + 0.1 * rng.f64(), Duration::from_millis(30))
        .cut(0.01 * rng.f64())
}

/// The functions of every worker. A request of `relay`, `retried` or `later` begins with the number of
/// further hops, then their ranks.
fn functions() -> Registry {
    registry(|registry| {
        registry
            .register_bytes("relay", |context, payload| {
                let Some((to, payload)) = next_hop(&payload) else {
                    return Ok(reversed(&payload[1..]));
                };
                let answer = ask(context.agent(), to, "relay", payload);
                answer.map_err(|error| HandlerError::new(format!("nested: {error}")))
            })
            .unwrap();
        registry
            .register_bytes("retried", |context, payload| {
                let Some((to, payload)) = next_hop(&payload) else {
                    return Ok(reversed(&payload[1..]));
                };
                let agent = context.agent();
                let answer = retry(agent, to, "retried", &retries(), payload);
                let answer = answer.then(|answer| answer).wait();
                answer.map_err(|error| HandlerError::new(format!("nested: {error}")))
            })
            .unwrap();
        registry
            .register_deferred("later", |context, payload, reply| {
                let Some((to, payload)) = next_hop(&payload) else {
                    return reply.send(Ok(reversed(&payload[1..])));
                };
                let timeout = context.agent().timeout();
                let answer = context
                    .agent()
                    .call(to, "later")
                    .with_timeout(timeout)
                    .send_bytes(payload);
                answer.on_complete(move |answer| {
                    let answer = answer.clone();
                    reply.send(
                        answer.map_err(|error| HandlerError::new(format!("nested: {error}"))),
                    );
                });
            })
            .unwrap();
        registry
            .register("slow", |_, payload| {
                thread::sleep(Duration::from_micros(500));
                Ok(reversed(payload).to_vec())
            })
            .unwrap();
        registry
            .register("fails", |_, payload| -> Result<Vec<u8>, _> {
                Err(HandlerError::new(format!(
                    "no use for {} bytes",
                    payload.len()
                )))
            })
            .unwrap();
        registry
            .register("asks for nothing", |context, _| {
                // The refusal must reach this waiting thread.
                let caller = context.caller().id;
                match ask(context.agent(), caller.get(), "nothing", "") {
                    Err(RpcError::NoSuchFunction { .. }) => Ok(b"as expected".to_vec()),
                    other => Err(HandlerError::new(format!("nested: {other:?}"))),
                }
            })
            .unwrap();
    })
}

/// Splits a request into the next hop and the rest.
fn next_hop(payload: &Bytes) -> Option<(u32, Bytes)> {
    let (&hops, rest) = payload.split_first()?;
    let (&to, rest) = rest.split_first().filter(|_| hops > 0)?;
    Some((u32::from(to), [&[hops - 1], rest].concat().into()))
}

fn reversed(bytes: &[u8]) -> Bytes {
    bytes.iter().rev().copied().collect()
}

fn retries() -> RetryOptions {
    RetryOptions::default()
        .with_max_retries(3)
        .with_retry_duration(Duration::from_millis(5))
        .with_jitter(0.5)
        .with_attempt_timeout(Duration::from_millis(150))
}

/// The calls of a round, and their expected and actual results.
struct Ledger {
    kind: Kind,
    started: AtomicUsize,
    /// Calls that succeeded after their first attempt had failed.
    recovered: AtomicUsize,
    entries: Mutex<Vec<Entry>>,
}

struct Entry {
    what: String,
    expected: Expected,
    future: FutureMessage,
    callbacks: Arc<AtomicU32>,
    callbacks_expected: u32,
}

/// Result of a call if no network fault occurs.
#[derive(Debug, Clone)]
enum Expected {
    Answer(Bytes),
    Failure(String),
    NoSuchFunction,
}

impl Ledger {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            started: AtomicUsize::new(0),
            recovered: AtomicUsize::new(0),
            entries: Mutex::default(),
        }
    }

    /// Records a call, and counts its callbacks.
    fn record(
        &self,
        what: String,
        expected: Expected,
        future: &FutureMessage,
        callbacks_expected: u32,
    ) {
        let callbacks = Arc::new(AtomicU32::new(0));
        for _ in 0..callbacks_expected {
            let callbacks = Arc::clone(&callbacks);
            future.on_complete(move |_| {
                callbacks.fetch_add(1, Ordering::SeqCst);
            });
        }
        let entry = Entry {
            what,
            expected,
            future: future.clone(),
            callbacks,
            callbacks_expected,
        };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
    }

    fn await_started(&self, calls: usize) {
        until("enough calls have started", || {
            self.started.load(Ordering::SeqCst) >= calls
        });
    }

    /// Asserts that every call has an allowed result and that every callback has run once.
    fn check_all(&self) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in &*entries {
            let result = entry.future.wait_timeout(PATIENCE);
            let result = result.unwrap_or_else(|| panic!("never completed: {}", entry.what));
            if let Err(why) = self.check(&entry.expected, &result) {
                panic!("{}: {why}", entry.what);
            }
            until("all callbacks have run", || {
                entry.callbacks.load(Ordering::SeqCst) >= entry.callbacks_expected
            });
            let ran = entry.callbacks.load(Ordering::SeqCst);
            assert_eq!(ran, entry.callbacks_expected, "{}", entry.what);
        }
    }

    fn check(&self, expected: &Expected, result: &Result<Bytes, RpcError>) -> Result<(), String> {
        let error = match (expected, result) {
            (Expected::Answer(answer), Ok(given)) if answer == given => return Ok(()),
            (_, Ok(given)) => return Err(format!("a wrong answer of {} bytes", given.len())),
            (Expected::NoSuchFunction, Err(RpcError::NoSuchFunction { .. })) => return Ok(()),
            (Expected::Failure(text), Err(RpcError::Remote { message, .. }))
                if **message == **text =>
            {
                return Ok(());
            }
            (_, Err(error)) => error,
        };
        let text = error.to_string();
        if text.contains("given up by") {
            return Err(format!("a promise was dropped: {text}"));
        }
        let is_allowed = match error {
            RpcError::Shutdown { .. } | RpcError::NoSuchWorker { .. } => {
                matches!(self.kind, Kind::Restart | Kind::Abrupt)
            }
            RpcError::RetriesExhausted { .. } => true,
            RpcError::Remote {
                message, panicked, ..
            } => !panicked && message.starts_with("nested: "),
            other => other.is_transient(),
        };
        if is_allowed && self.kind != Kind::Calm {
            return Ok(());
        }
        Err(format!("failed: {text}"))
    }
}

/// Threads that make random calls.
fn callers(
    agent: &AgentHandle,
    world_size: u32,
    ledger: &Arc<Ledger>,
    rng: &mut Rng,
) -> Vec<thread::JoinHandle<()>> {
    let begin = |_| {
        let caller = Caller {
            agent: agent.clone(),
            world_size,
            ledger: Arc::clone(ledger),
            rng: rng.fork(),
        };
        thread::spawn(move || caller.run())
    };
    (0..CALLERS_PER_AGENT).map(begin).collect()
}

struct Caller {
    agent: AgentHandle,
    world_size: u32,
    ledger: Arc<Ledger>,
    rng: Rng,
}

impl Caller {
    fn run(mut self) {
        for number in 0..CALLS {
            self.ledger.started.fetch_add(1, Ordering::SeqCst);
            self.make_call(number);
        }
    }

    fn make_call(&mut self, number: usize) {
        let to = self.rng.u32(..self.world_size);
        let (function, payload, expected) = self.choose();
        let what = format!(
            "call {number} of {} of `{function}` on {to}, {} bytes",
            self.agent.me(),
            payload.len()
        );
        let mut timeout = self.agent.timeout();
        if self.ledger.kind != Kind::Calm && self.rng.u32(..8) == 0 {
            timeout = Some(Duration::from_millis(self.rng.u64(1..30)));
        }
        // The fault plan fails the first attempt of each call of `retried`.
        let is_retried = function == "retried";
        let with_retries = self.ledger.kind != Kind::Calm && (is_retried || self.rng.u32(..5) == 0);
        let future = if with_retries {
            retry(&self.agent, to, function, &retries(), payload)
        } else {
            let call = self.agent.call(to, function).with_timeout(timeout);
            call.send_bytes(payload)
        };
        if with_retries && is_retried && to != self.agent.me().id.get() {
            let ledger = Arc::clone(&self.ledger);
            future.on_complete(move |result| {
                ledger
                    .recovered
                    .fetch_add(result.is_ok().into(), Ordering::SeqCst);
            });
        }
        let callbacks_expected = self.rng.u32(..4);
        self.ledger
            .record(what.clone(), expected.clone(), &future, callbacks_expected);
        match self.rng.u32(..9) {
            0..4 => drop(future),
            4 => drop(future.wait()),
            5 => {
                if future.wait_timeout(Duration::from_millis(1)).is_none() {
                    let _ = block_on(future);
                }
            }
            6 => drop(block_on(future)),
            7 => {
                let chained = future
                    .then(|result| result)
                    .and_then(|answer| FutureMessage::ready(Ok(answer)));
                self.ledger
                    .record(format!("then: {what}"), expected, &chained, 1);
            }
            _ => {
                let all = join_all(vec![future.clone(), future]);
                let first = all.then(|answers| answers.map(|mut answers| answers.swap_remove(0)));
                self.ledger
                    .record(format!("join: {what}"), expected, &first, 1);
                drop(first.wait());
            }
        }
    }

    /// Chooses a function, its payload, and the expected result.
    fn choose(&mut self) -> (&'static str, Bytes, Expected) {
        let bytes = match self.rng.u32(..10) {
            0 => 0,
            1 => self.rng.usize(..200 << 10),
            2 => self.rng.usize(..20 << 10),
            _ => self.rng.usize(..300),
        };
        let data = noise(self.rng.u64(..), bytes);
        match self.rng.u32(..12) {
            0..3 => ("echo", data.clone(), Expected::Answer(data)),
            number @ 3..9 => {
                let name = ["relay", "retried", "later"][(number % 3) as usize];
                let hops = self.rng.usize(..4);
                let ranks = (0..hops).map(|_| self.rng.u8(..self.world_size as u8));
                let head: Vec<u8> = std::iter::once(hops as u8).chain(ranks).collect();
                let payload = [&*head, &*data].concat().into();
                (name, payload, Expected::Answer(reversed(&data)))
            }
            9 => ("slow", data.clone(), Expected::Answer(reversed(&data))),
            10 if self.rng.bool() => {
                let text = format!("no use for {bytes} bytes");
                ("fails", data, Expected::Failure(text))
            }
            10 => ("nothing", data, Expected::NoSuchFunction),
            _ => {
                let answer = Bytes::from_static(b"as expected");
                ("asks for nothing", data, Expected::Answer(answer))
            }
        }
    }
}

/// A minimal `block_on`.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
