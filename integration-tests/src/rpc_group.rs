//! Groups of workers with RPC agents and references.
//!
//! The test process is one member, the driver. The other members are processes (`src/bin/rpc-worker.rs`) that the
//! test kills, stops and restarts.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use c10d_store::{Store, TcpStore};
use rpc_agent::{Agent, AgentOptions, HandlerError, Registry};
use rref::{FunctionError, Functions, RRef, RRefError, RRefs};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::process::ChildProcess;

/// The type of the referenced values.
pub type List = Mutex<Vec<i64>>;

/// The name of the test's own member, which has rank 0.
pub const DRIVER: &str = "driver";

/// The timeout for the start and the shutdown of members.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The driver's function that a worker calls when [`BLOCK`] starts.
const ARRIVED: &str = "arrived";

/// A worker's function that reports its start to the driver and returns the worker's incarnation. It blocks
/// forever if its argument equals the incarnation.
pub const BLOCK: &str = "block in incarnation";

/// One worker: its agent and its references.
#[derive(Debug)]
pub struct Member {
    /// Calls, and serves the calls of, the other members.
    pub agent: Agent,
    /// The references.
    pub rrefs: RRefs,
    is_fixed: bool,
}

/// The driver, its worker processes and the store's process.
#[derive(Debug)]
pub struct Group {
    /// The test's own member.
    pub driver: Member,
    store: ChildProcess,
    address: SocketAddr,
    program: PathBuf,
    processes: BTreeMap<&'static str, ChildProcess>,
    ranks: BTreeMap<&'static str, u32>,
    incarnations: BTreeMap<&'static str, u32>,
    arrivals: Arc<Mutex<Vec<(String, u32)>>>,
    is_fixed: bool,
}

/// The paths of this package's programs. Cargo gives them to integration tests only.
#[derive(Debug, Clone, Copy)]
pub struct Programs {
    /// `store-process`.
    pub store: &'static str,
    /// `rpc-worker`.
    pub worker: &'static str,
}

impl Member {
    /// Starts a member. A `world_size` of 0 means a dynamic group: members join and leave at any time.
    ///
    /// # Errors
    /// When the store, the agent or the references cannot be started.
    pub fn start(
        name: &str,
        rank: u32,
        world_size: u32,
        store_port: u16,
        functions: WorkerFunctions,
    ) -> Result<Self, Box<dyn Error>> {
        let store: Arc<dyn Store> = Arc::new(TcpStore::connect("127.0.0.1", store_port)?);
        let WorkerFunctions {
            mut registry,
            functions,
        } = functions;
        let rrefs = RRefs::register(&mut registry, functions)?;
        let mut options = agent_options(name, rank);
        if world_size > 0 {
            options = options.with_world_size(world_size);
        }
        let agent = Agent::start(options, registry, store)?;
        rrefs.attach(agent.handle())?;
        Ok(Self {
            agent,
            rrefs,
            is_fixed: world_size > 0,
        })
    }

    /// Shuts down the references, then the agent, each within `timeout`. In a group of fixed size all members take
    /// part.
    ///
    /// Returns a JSON object: `references` and `agent` are null or the error, `held` is the number of values that
    /// still had users, and `left` is the number of table entries after the shutdown.
    #[must_use]
    pub fn shutdown(&self, timeout: Duration) -> Value {
        let report = if self.is_fixed {
            self.rrefs.shutdown(&self.agent, Some(timeout))
        } else {
            self.rrefs.leave(Some(timeout))
        };
        let held = report.as_ref().map_or(0, |report| report.values.len());
        let left = in_use(&self.rrefs).unwrap_or(usize::MAX);
        let agent = self.agent.shutdown(timeout);
        json!({
            "references": report.err().map(|error| error.to_string()),
            "held": held,
            "left": left,
            "agent": agent.err().map(|error| error.to_string()),
        })
    }
}

/// The report of [`Member::shutdown`] without errors and remaining values.
#[must_use]
pub fn clean_report() -> Value {
    json!({"references": null, "held": 0, "left": 0, "agent": null})
}

impl Group {
    /// Starts a group of fixed size: the driver and `workers`.
    ///
    /// # Panics
    /// When a member does not start.
    #[must_use]
    pub fn of_fixed_size(programs: Programs, workers: &[&'static str]) -> Self {
        Self::start(programs, workers, true)
    }

    /// Starts a group whose members join and leave at any time.
    ///
    /// # Panics
    /// When a member does not start.
    #[must_use]
    pub fn dynamic(programs: Programs, workers: &[&'static str]) -> Self {
        Self::start(programs, workers, false)
    }

    fn start(programs: Programs, workers: &[&'static str], is_fixed: bool) -> Self {
        let mut store = ChildProcess::start("the store", Command::new(programs.store).arg("serve"));
        let address: SocketAddr = store
            .read_line()
            .parse()
            .expect("the server prints its address");
        let program = PathBuf::from(programs.worker);
        let size = u32::try_from(workers.len() + 1).expect("the group is small");
        let world_size = if is_fixed { size } else { 0 };
        let ranks: BTreeMap<&'static str, u32> = workers.iter().copied().zip(1..).collect();
        let mut processes: BTreeMap<&'static str, ChildProcess> = ranks
            .iter()
            .map(|(name, rank)| {
                (
                    *name,
                    start_worker(&program, name, *rank, world_size, address, 1),
                )
            })
            .collect();
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&arrivals);
        let record = move |arrival| {
            lock(&recorded).push(arrival);
            Ok(())
        };
        let mut functions = WorkerFunctions::new(1, |_| ()).expect("the names are different");
        let record_too = record.clone();
        functions
            .registry
            .register_typed(ARRIVED, move |_, arrival: (String, u32)| record(arrival))
            .expect("the name is new");
        functions
            .functions
            .register(ARRIVED, move |_, arrival: (String, u32)| {
                record_too(arrival)
            })
            .expect("the name is new");
        let driver = Member::start(DRIVER, 0, world_size, address.port(), functions)
            .unwrap_or_else(|error| panic!("the driver does not start: {error}"));
        for process in processes.values_mut() {
            assert_eq!(process.read_line(), "started");
        }
        Self {
            driver,
            store,
            address,
            program,
            incarnations: ranks.keys().map(|name| (*name, 1)).collect(),
            ranks,
            processes,
            arrivals,
            is_fixed,
        }
    }

    /// Starts another member of a dynamic group in the test's process: an agent without references.
    ///
    /// # Panics
    /// When the agent does not start.
    #[must_use]
    pub fn start_agent(&self, name: &str, rank: u32) -> Agent {
        let store = TcpStore::connect("127.0.0.1", self.address.port()).expect("the store runs");
        Agent::start(agent_options(name, rank), Registry::new(), Arc::new(store))
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"))
    }

    /// Starts a process that joins the group by this name and rank, which another worker may have.
    #[must_use]
    pub fn start_double(&self, name: &str, rank: u32) -> ChildProcess {
        start_worker(&self.program, name, rank, 0, self.address, 1)
    }

    /// The process of a worker.
    ///
    /// # Panics
    /// When the worker was killed.
    #[must_use]
    pub fn process(&self, worker: &str) -> &ChildProcess {
        self.processes.get(worker).expect("the worker runs")
    }

    /// Kills the store's server (SIGKILL); returns its address.
    pub fn kill_store(&mut self) -> SocketAddr {
        self.store.kill();
        self.store.wait(TIMEOUT);
        self.address
    }

    /// The names of the running workers.
    #[must_use]
    pub fn workers(&self) -> Vec<&'static str> {
        self.processes.keys().copied().collect()
    }

    /// Kills a worker (SIGKILL), and waits until it has exited.
    ///
    /// # Panics
    /// When the worker was killed before.
    pub fn kill(&mut self, worker: &str) {
        let mut process = self.processes.remove(worker).expect("the worker runs");
        process.kill();
        process.wait(TIMEOUT);
    }

    /// Restarts a killed worker with the same name and rank: its next incarnation.
    ///
    /// # Panics
    /// When the worker does not start, or was not killed.
    pub fn restart(&mut self, worker: &'static str) {
        assert!(!self.processes.contains_key(worker), "{worker} runs");
        assert!(
            !self.is_fixed,
            "a group of fixed size accepts no restarted worker"
        );
        let incarnation = self
            .incarnations
            .get_mut(worker)
            .expect("a worker of the group");
        *incarnation += 1;
        let rank = self.ranks[worker];
        let mut process = start_worker(&self.program, worker, rank, 0, self.address, *incarnation);
        assert_eq!(process.read_line(), "started");
        self.processes.insert(worker, process);
    }

    /// Waits until [`BLOCK`] runs on a worker in this incarnation.
    ///
    /// # Panics
    /// When the function does not start in time.
    pub fn wait_for_start(&self, worker: &str, incarnation: u32) {
        eventually("the function runs", || {
            let mut arrivals = lock(&self.arrivals);
            let found = arrivals
                .iter()
                .position(|it| *it == (worker.to_owned(), incarnation));
            found.map(|index| arrivals.swap_remove(index)).is_some()
        });
    }

    /// Calls a worker's function from the driver.
    ///
    /// # Panics
    /// When the call fails.
    #[track_caller]
    pub fn ask<A, R>(&self, worker: &str, function: &str, arguments: A) -> R
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        self.driver
            .rrefs
            .call(worker, function)
            .run(arguments)
            .unwrap_or_else(|error| panic!("{function} on {worker}: {error}"))
    }

    /// The number of entries in a worker's reference tables.
    #[must_use]
    pub fn in_use(&self, worker: &str) -> usize {
        if worker == DRIVER {
            return in_use(&self.driver.rrefs).expect("the references are attached");
        }
        self.ask(worker, "in use", ())
    }

    /// Waits until the tables of all workers are empty.
    ///
    /// # Panics
    /// When entries remain.
    pub fn until_empty(&self) {
        for worker in self.workers().into_iter().chain([DRIVER]) {
            eventually("the tables are empty", || self.in_use(worker) == 0);
        }
    }

    /// Shuts down all members and waits for the processes. Returns the report of each member by name, see
    /// [`Member::shutdown`].
    ///
    /// # Panics
    /// When a process does not exit, or fails.
    pub fn shutdown(mut self, timeout: Duration) -> BTreeMap<&'static str, Value> {
        for worker in self.workers() {
            let () = self.ask(worker, "shutdown", timeout);
        }
        let mut reports = BTreeMap::from([(DRIVER, self.driver.shutdown(timeout))]);
        for (worker, process) in &mut self.processes {
            let line = process.read_line();
            reports.insert(*worker, serde_json::from_str(&line).expect("JSON"));
            assert!(process.wait(TIMEOUT).success(), "{worker}: {line}");
        }
        reports
    }

    /// Shuts down a group without remaining references.
    ///
    /// # Panics
    /// When a member reports an error or remaining values.
    #[track_caller]
    pub fn shutdown_clean(self) {
        for (name, report) in self.shutdown(TIMEOUT) {
            assert_eq!(report, clean_report(), "{name}");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if thread::panicking() {
            for process in self.processes.values() {
                let text = process.stderr();
                let _ = writeln!(io::stderr(), "stderr of {}:\n{text}", process.what());
            }
        }
    }
}

fn agent_options(name: &str, rank: u32) -> AgentOptions {
    AgentOptions::new(name, rank)
        .with_host("127.0.0.1")
        .with_start_timeout(TIMEOUT)
        // Short, so that calls to killed workers fail soon.
        .with_connect_timeout(Duration::from_secs(2))
}

fn start_worker(
    program: &PathBuf,
    name: &str,
    rank: u32,
    world_size: u32,
    store: SocketAddr,
    incarnation: u32,
) -> ChildProcess {
    let mut command = Command::new(program);
    command
        .arg(name)
        .args([rank, world_size].map(|number| number.to_string()));
    command.args([store.port().to_string(), incarnation.to_string()]);
    ChildProcess::start(format!("{name}, incarnation {incarnation}"), &mut command)
}

/// What a test's worker process serves by name.
#[derive(Debug)]
pub struct WorkerFunctions {
    registry: Registry,
    functions: Functions,
}

impl WorkerFunctions {
    /// Creates the functions of all members. `incarnation` counts the starts of the worker from 1; `shutdown` runs
    /// when the function of this name is called.
    ///
    /// # Errors
    /// When two functions have the same name.
    pub fn new(
        incarnation: u32,
        shutdown: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Result<Self, Box<dyn Error>> {
        let mut registry = Registry::new();
        registry.register_typed(BLOCK, move |context, blocked_incarnation: u32| {
            let arrival = (context.agent().me().name.to_string(), incarnation);
            context
                .agent()
                .call(DRIVER, ARRIVED)
                .run::<_, ()>(arrival)?;
            block_if(blocked_incarnation, incarnation);
            Ok(incarnation)
        })?;
        let mut functions = Functions::new();
        register_values(&mut functions, incarnation)?;
        register_keeping(&mut functions)?;
        functions.register("in use", |context, ()| Ok(in_use(context.rrefs())?))?;
        functions.register("users", |context, ()| Ok(context.rrefs().sizes()?.forks))?;
        functions.register("shutdown", move |_, timeout: Duration| {
            shutdown(timeout);
            Ok(())
        })?;
        Ok(Self {
            registry,
            functions,
        })
    }
}

/// Registers constructors of values, and methods that run on them.
fn register_values(functions: &mut Functions, incarnation: u32) -> Result<(), FunctionError> {
    functions.register("list", |_, items: Vec<i64>| Ok(Mutex::new(items)))?;
    functions.register(
        "list unless in incarnation",
        move |context, blocked_incarnation: u32| {
            let arrival = (context.rrefs().me()?.name.to_string(), incarnation);
            context
                .rrefs()
                .call(DRIVER, ARRIVED)
                .run::<_, ()>(arrival)?;
            block_if(blocked_incarnation, incarnation);
            Ok(Mutex::new(vec![i64::from(incarnation)]))
        },
    )?;
    functions.register_method("push", |_, list: &List, item: i64| {
        let mut list = lock(list);
        list.push(item);
        Ok(list.len())
    })?;
    functions.register_method("sum", |_, list: &List, ()| {
        Ok(lock(list).iter().sum::<i64>())
    })
}

/// Registers functions that keep references under a name, pass them to other workers and use them.
fn register_keeping(functions: &mut Functions) -> Result<(), FunctionError> {
    let kept: Arc<Mutex<HashMap<String, RRef<List>>>> = Arc::default();
    let find = move |kept: &Mutex<HashMap<String, RRef<List>>>, name: &str| {
        let found = lock(kept).get(name).cloned();
        found.ok_or_else(|| HandlerError::new(format!("nothing is kept as {name:?}")))
    };
    let by_name = Arc::clone(&kept);
    functions.register("keep", move |_, (name, list): (String, RRef<List>)| {
        lock(&by_name).insert(name, list);
        Ok(())
    })?;
    let by_name = Arc::clone(&kept);
    functions.register("forget", move |_, name: String| {
        let forgotten = lock(&by_name).remove(&name);
        Ok(forgotten.is_some())
    })?;
    let by_name = Arc::clone(&kept);
    functions.register("pass", move |context, (name, to): (String, String)| {
        let list = find(&by_name, &name)?;
        Ok(context
            .rrefs()
            .call(&*to, "keep")
            .run::<_, ()>((name, list))?)
    })?;
    let by_name = Arc::clone(&kept);
    functions.register("push through", move |_, (name, item): (String, i64)| {
        Ok(find(&by_name, &name)?.call("push").run::<_, usize>(item)?)
    })?;
    functions.register("wait for", move |_, name: String| {
        Ok(find(&kept, &name)?.wait_ready(Some(TIMEOUT))?)
    })
}

/// Blocks forever if this is the incarnation to block.
fn block_if(blocked_incarnation: u32, incarnation: u32) {
    if blocked_incarnation == incarnation {
        loop {
            thread::park();
        }
    }
}

/// The number of entries in the reference tables, without those that only record removed references.
fn in_use(rrefs: &RRefs) -> Result<usize, RRefError> {
    let sizes = rrefs.sizes()?;
    Ok(sizes.owners
        + sizes.pending_owners
        + sizes.forks
        + sizes.pending_users
        + sizes.confirmed_users
        + sizes.failed_users
        + sizes.pending_children
        + sizes.deletes_queued
        + sizes.pending_futures
        + sizes.parked_fetches)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
