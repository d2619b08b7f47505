//! Groups of workers with RPC agents and references: one member is the test, the others are processes
//! (`src/bin/rpc-worker.rs`) that it kills, stops and restarts.

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

/// What references refer to here.
pub type List = Mutex<Vec<i64>>;

/// The name of the member that is the test; its rank is 0.
pub const DRIVER: &str = "driver";

/// How long a member waits for others, at the start and in the shutdown.
const PATIENCE: Duration = Duration::from_secs(30);

/// The function whose arrival tells the driver that [`BLOCK`] runs.
const ARRIVED: &str = "arrived";

/// A function that tells the driver of its call, gives the number of the worker's life, and blocks in the
/// life given.
pub const BLOCK: &str = "block in life";

/// One worker: its agent and its references.
#[derive(Debug)]
pub struct Member {
    /// The agent.
    pub agent: Agent,
    /// The references.
    pub rrefs: RRefs,
    is_fixed: bool,
}

/// The driver and its worker processes, with a store in a process of its own.
#[derive(Debug)]
pub struct Group {
    /// The driver.
    pub driver: Member,
    store: ChildProcess,
    address: SocketAddr,
    program: PathBuf,
    processes: BTreeMap<&'static str, ChildProcess>,
    ranks: BTreeMap<&'static str, u32>,
    lives: BTreeMap<&'static str, u32>,
    arrivals: Arc<Mutex<Vec<(String, u32)>>>,
    is_fixed: bool,
}

/// The programs of this package, which only its tests are told.
#[derive(Debug, Clone, Copy)]
pub struct Programs {
    /// `store-process`.
    pub store: &'static str,
    /// `rpc-worker`.
    pub worker: &'static str,
}

impl Member {
    /// Starts a member; a `world_size` of 0 means a group whose members come and go.
    ///
    /// # Errors
    /// What the store, the agent or the references say.
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

    /// Ends the references and then the agent, each within `timeout`, together with the others if the group
    /// is of fixed size. What came of it, as JSON:
    /// `references` and `agent` are null or the error, `held` is how many values were still held by
    /// somebody, `left` is what is in the tables afterwards.
    #[must_use]
    pub fn end(&self, timeout: Duration) -> Value {
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

/// What [`Member::end`] gives when all went well and nobody held anything.
#[must_use]
pub fn clean_end() -> Value {
    json!({"references": null, "held": 0, "left": 0, "agent": null})
}

impl Group {
    /// Starts a group of fixed size of the driver and `workers`.
    ///
    /// # Panics
    /// When one does not start.
    #[must_use]
    pub fn of_fixed_size(programs: Programs, workers: &[&'static str]) -> Self {
        Self::start(programs, workers, true)
    }

    /// Starts a group whose members come and go.
    ///
    /// # Panics
    /// When one does not start.
    #[must_use]
    pub fn of_changing_size(programs: Programs, workers: &[&'static str]) -> Self {
        Self::start(programs, workers, false)
    }

    fn start(programs: Programs, workers: &[&'static str], is_fixed: bool) -> Self {
        let mut store = ChildProcess::start("the store", Command::new(programs.store).arg("serve"));
        let address: SocketAddr = store.read_line().parse().expect("it prints its address");
        let program = PathBuf::from(programs.worker);
        let size = u32::try_from(workers.len() + 1).expect("a few");
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
        let told = Arc::clone(&arrivals);
        let note = move |arrival| {
            lock(&told).push(arrival);
            Ok(())
        };
        let mut functions = WorkerFunctions::new(1, |_| ()).expect("the names are different");
        let again = note.clone();
        functions
            .registry
            .register_typed(ARRIVED, move |_, arrival: (String, u32)| note(arrival))
            .expect("the name is new");
        functions
            .functions
            .register(ARRIVED, move |_, arrival: (String, u32)| again(arrival))
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
            lives: ranks.keys().map(|name| (*name, 1)).collect(),
            ranks,
            processes,
            arrivals,
            is_fixed,
        }
    }

    /// One more member of a group whose members come and go, in the test's process: an agent without
    /// references.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_agent(&self, name: &str, rank: u32) -> Agent {
        let store = TcpStore::connect("127.0.0.1", self.address.port()).expect("the store runs");
        Agent::start(agent_options(name, rank), Registry::new(), Arc::new(store))
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"))
    }

    /// The process of a worker.
    ///
    /// # Panics
    /// When it was killed.
    #[must_use]
    pub fn process(&self, worker: &str) -> &ChildProcess {
        self.processes.get(worker).expect("it runs")
    }

    /// Kills the store's server (SIGKILL), and gives the address that it had.
    pub fn kill_store(&mut self) -> SocketAddr {
        self.store.kill();
        self.store.wait(PATIENCE);
        self.address
    }

    /// The names of the workers that run.
    #[must_use]
    pub fn workers(&self) -> Vec<&'static str> {
        self.processes.keys().copied().collect()
    }

    /// Kills a worker (SIGKILL), and waits for its end.
    ///
    /// # Panics
    /// When it was killed before.
    pub fn kill(&mut self, worker: &str) {
        let mut process = self.processes.remove(worker).expect("it runs");
        process.kill();
        process.wait(PATIENCE);
    }

    /// Starts the next life of a worker that was killed, under its name and rank.
    ///
    /// # Panics
    /// When it does not start, or was not killed.
    pub fn restart(&mut self, worker: &'static str) {
        assert!(!self.processes.contains_key(worker), "{worker} runs");
        assert!(
            !self.is_fixed,
            "nobody comes back into a group of fixed size"
        );
        let life = self.lives.get_mut(worker).expect("a worker of the group");
        *life += 1;
        let rank = self.ranks[worker];
        let mut process = start_worker(&self.program, worker, rank, 0, self.address, *life);
        assert_eq!(process.read_line(), "started");
        self.processes.insert(worker, process);
    }

    /// Waits until [`BLOCK`] runs on a worker in the given life.
    ///
    /// # Panics
    /// When it does not.
    pub fn await_arrival(&self, worker: &str, life: u32) {
        eventually("the function runs", || {
            let mut arrivals = lock(&self.arrivals);
            let found = arrivals
                .iter()
                .position(|it| *it == (worker.to_owned(), life));
            found.map(|index| arrivals.swap_remove(index)).is_some()
        });
    }

    /// Calls a worker's function, as the driver.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn ask<A, R>(&self, worker: &str, function: &str, arguments: A) -> R
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        self.driver
            .rrefs
            .call(worker, function, arguments)
            .unwrap_or_else(|error| panic!("{function} on {worker}: {error}"))
    }

    /// How many entries the tables of a worker have.
    #[must_use]
    pub fn in_use(&self, worker: &str) -> usize {
        if worker == DRIVER {
            return in_use(&self.driver.rrefs).expect("it is attached");
        }
        self.ask(worker, "in use", ())
    }

    /// Waits until the tables of all workers are empty.
    ///
    /// # Panics
    /// When they stay in use.
    pub fn until_empty(&self) {
        for worker in self.workers().into_iter().chain([DRIVER]) {
            eventually("the tables are empty", || self.in_use(worker) == 0);
        }
    }

    /// Has all members end, see [`Member::end`], and waits for the ends of the processes; what each said, by name.
    ///
    /// # Panics
    /// When one does not end.
    pub fn end(mut self, timeout: Duration) -> BTreeMap<&'static str, Value> {
        for worker in self.workers() {
            let () = self.ask(worker, "end", timeout);
        }
        let mut endings = BTreeMap::from([(DRIVER, self.driver.end(timeout))]);
        for (worker, process) in &mut self.processes {
            let line = process.read_line();
            endings.insert(*worker, serde_json::from_str(&line).expect("JSON"));
            assert!(process.wait(PATIENCE).success(), "{worker}: {line}");
        }
        endings
    }

    /// [`end`](Self::end) of a group of which nobody holds anything.
    ///
    /// # Panics
    /// When something is left, or somebody has anything to complain of.
    #[track_caller]
    pub fn end_clean(self) {
        for (name, ending) in self.end(PATIENCE) {
            assert_eq!(ending, clean_end(), "{name}");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if thread::panicking() {
            for process in self.processes.values() {
                let text = process.stderr();
                let _ = writeln!(io::stderr(), "{} said:\n{text}", process.what());
            }
        }
    }
}

fn agent_options(name: &str, rank: u32) -> AgentOptions {
    AgentOptions::new(name, rank)
        .with_host("127.0.0.1")
        .with_start_timeout(PATIENCE)
        // How long a worker that cannot be found or reached is looked for.
        .with_connect_timeout(Duration::from_secs(2))
}

fn start_worker(
    program: &PathBuf,
    name: &str,
    rank: u32,
    world_size: u32,
    store: SocketAddr,
    life: u32,
) -> ChildProcess {
    let mut command = Command::new(program);
    command
        .arg(name)
        .args([rank, world_size].map(|number| number.to_string()));
    command.args([store.port().to_string(), life.to_string()]);
    ChildProcess::start(format!("{name}, life {life}"), &mut command)
}

/// The functions of a worker.
#[derive(Debug)]
pub struct WorkerFunctions {
    registry: Registry,
    functions: Functions,
}

impl WorkerFunctions {
    /// What all members can be asked for. `life` is how often the worker was started; `end` is what
    /// the function of this name does.
    ///
    /// # Errors
    /// When two have one name.
    pub fn new(
        life: u32,
        end: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Result<Self, Box<dyn Error>> {
        let mut registry = Registry::new();
        registry.register_typed(BLOCK, move |context, in_life: u32| {
            let arrival = (context.agent().me().name.to_string(), life);
            context.agent().call::<_, ()>(DRIVER, ARRIVED, arrival)?;
            block_in(in_life, life);
            Ok(life)
        })?;
        let mut functions = Functions::new();
        register_values(&mut functions, life)?;
        register_keeping(&mut functions)?;
        functions.register("in use", |context, ()| Ok(in_use(context.rrefs())?))?;
        functions.register("users", |context, ()| Ok(context.rrefs().sizes()?.forks))?;
        functions.register("end", move |_, timeout: Duration| {
            end(timeout);
            Ok(())
        })?;
        Ok(Self {
            registry,
            functions,
        })
    }
}

/// Values, and what runs on them.
fn register_values(functions: &mut Functions, life: u32) -> Result<(), FunctionError> {
    functions.register("list", |_, items: Vec<i64>| Ok(Mutex::new(items)))?;
    functions.register("list unless in life", move |context, in_life: u32| {
        let arrival = (context.rrefs().me()?.name.to_string(), life);
        context.rrefs().call::<_, ()>(DRIVER, ARRIVED, arrival)?;
        block_in(in_life, life);
        Ok(Mutex::new(vec![i64::from(life)]))
    })?;
    functions.register_method("push", |_, list: &List, item: i64| {
        let mut list = lock(list);
        list.push(item);
        Ok(list.len())
    })?;
    functions.register_method("sum", |_, list: &List, ()| {
        Ok(lock(list).iter().sum::<i64>())
    })
}

/// References that a worker keeps under a name, passes on, and uses.
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
        Ok(context.rrefs().call::<_, ()>(&*to, "keep", (name, list))?)
    })?;
    let by_name = Arc::clone(&kept);
    functions.register("push through", move |_, (name, item): (String, i64)| {
        Ok(find(&by_name, &name)?.rpc_sync::<_, usize>("push", item)?)
    })?;
    functions.register("wait for", move |_, name: String| {
        Ok(find(&kept, &name)?.wait_ready(Some(PATIENCE))?)
    })
}

/// Waits for the process to be killed, if this is the life in which to.
fn block_in(in_life: u32, life: u32) {
    if in_life == life {
        loop {
            thread::park();
        }
    }
}

/// How many entries the tables of a worker have, without those that only remember what is gone.
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
