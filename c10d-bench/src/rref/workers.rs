//! Two workers, of which the second owns the values that the first creates.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::{HashStore, ServerOptions, Store, TcpStoreServer};
use rpc_agent::{Agent, Registry, WorkerInfo};
use rref::{Functions, RRef, RRefFuture, RRefs, TableSizes};

use super::super::affinity::{Cores, on_server_core};
use super::super::child::ServerChild;
use super::super::error::BenchError;
use super::super::pair::PATIENCE;
use super::super::rpc::agents::{CLIENT, SERVER, open, start};
use super::super::rpc::error::RpcBenchError;
use super::error::RRefBenchError;

/// The function that creates a value equal to its argument.
const MAKE: &str = "make";

/// The function of the plain call: returns its argument.
const ECHO: &str = "echo";

/// The number of concurrent creations when time does not matter.
const CREATING: usize = 256;

/// The pause between checks whether everything is freed: much shorter than every figure.
const CHECK_PAUSE: Duration = Duration::from_micros(50);

/// The worker that creates values, and the worker that owns them.
#[derive(Debug)]
pub(super) struct WorkerPair {
    rrefs: RRefs,
    client: Worker,
    /// Looked up once, so that no request does it.
    server: WorkerInfo,
    /// Dropped after the client, which would otherwise report a lost worker.
    host: Host,
    next: u64,
}

#[derive(Debug)]
struct Worker {
    agent: Agent,
    /// Serves references while it is alive.
    rrefs: RRefs,
}

/// Keeps the server running.
#[derive(Debug)]
enum Host {
    Worker(Worker),
    Process(ServerChild),
}

impl WorkerPair {
    /// Both in this process. Threads inherit their core from the one that starts them.
    pub(super) fn in_process(cores: Option<Cores>) -> Result<Self, RRefBenchError> {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let its_store = Arc::clone(&store);
        // On another thread, as a start returns only when both workers have joined.
        let starting = on_server_core(cores, || {
            thread::Builder::new()
                .name("bench-rref-start".to_owned())
                .spawn(move || Worker::start(SERVER, 0, its_store))
                .map_err(BenchError::system("cannot start a thread"))
        })?;
        let client = Worker::start(CLIENT, 1, store);
        let server = starting.join().map_err(|_| RpcBenchError::Panic)?;
        Self::new(client?, Host::Worker(server?))
    }

    /// The server in a process of its own, which also serves the store.
    pub(super) fn two_processes(cores: Option<Cores>) -> Result<Self, RRefBenchError> {
        let arguments = ["rref-peer"].map(str::to_owned);
        let child = ServerChild::start(&arguments, cores)?;
        let client = Worker::start(CLIENT, 1, open(child.address())?)?;
        Self::new(client, Host::Process(child))
    }

    fn new(client: Worker, host: Host) -> Result<Self, RRefBenchError> {
        Ok(Self {
            rrefs: client.rrefs.clone(),
            server: client.agent.handle().worker(SERVER)?,
            client,
            host,
            next: 0,
        })
    }

    /// The owner's memory; `None` if it is in this process, or without /proc.
    pub(super) fn owner_bytes(&self) -> Option<u64> {
        match &self.host {
            Host::Worker(_) => None,
            Host::Process(child) => child.process().anonymous_bytes(),
        }
    }

    /// The number of the owner's values; 0 if it is another process.
    pub(super) fn owned(&self) -> Result<usize, RRefBenchError> {
        Ok(match &self.host {
            Host::Worker(worker) => worker.rrefs.sizes()?.owners,
            Host::Process(_) => 0,
        })
    }

    fn create(&mut self) -> Result<Created, RRefBenchError> {
        let value = self.next;
        self.next += 1;
        let rref = self.rrefs.call(&self.server, MAKE).remote(value)?;
        Ok(Created { rref, value })
    }

    /// Makes plain calls one after the other for `time`, at least one; returns their times.
    pub(super) fn plain_calls(&self, time: Duration) -> Result<Vec<Duration>, RRefBenchError> {
        let payload = Bytes::from_static(&[7; 8]);
        one_at_a_time(time, || {
            let agent = self.client.agent.handle();
            let answer = agent.call(&self.server, ECHO).send_bytes(payload.clone());
            let bytes = answer.wait()?.len();
            if bytes == payload.len() {
                Ok(())
            } else {
                let sent = payload.len();
                Err(RpcBenchError::WrongAnswer { bytes: sent }.into())
            }
        })
    }

    /// Creates and fetches values one after the other for `time`, at least one; returns the times. The drop
    /// of a reference overlaps the next creation.
    pub(super) fn create_and_fetch(
        &mut self,
        time: Duration,
    ) -> Result<Vec<Duration>, RRefBenchError> {
        let times = one_at_a_time(time, || {
            let created = self.create()?;
            created.check(created.rref.to_here(Some(PATIENCE))?)
        })?;
        self.wait_until_freed()?;
        Ok(times)
    }

    /// Keeps `in_flight` references alive, each created, fetched and dropped, for `time`, then waits until
    /// all are freed; returns their number.
    pub(super) fn lives(
        &mut self,
        in_flight: usize,
        time: Duration,
    ) -> Result<u64, RRefBenchError> {
        let end = Instant::now() + time;
        self.lives_while(in_flight, || Instant::now() < end)
    }

    /// Creates, fetches and drops `count` references, all concurrently.
    pub(super) fn some_lives(&mut self, count: usize) -> Result<u64, RRefBenchError> {
        self.lives_while(count, || false)
    }

    fn lives_while(
        &mut self,
        in_flight: usize,
        keep_going: impl Fn() -> bool,
    ) -> Result<u64, RRefBenchError> {
        let mut alive = VecDeque::with_capacity(in_flight);
        for _ in 0..in_flight {
            alive.push_back(self.create_and_ask()?);
        }
        let mut lived = 0;
        while let Some((created, fetched)) = alive.pop_front() {
            created.check(fetched.wait()?)?;
            drop(created);
            lived += 1;
            if keep_going() {
                alive.push_back(self.create_and_ask()?);
            }
        }
        self.wait_until_freed()?;
        Ok(lived)
    }

    fn create_and_ask(&mut self) -> Result<(Created, RRefFuture<u64>), RRefBenchError> {
        let created = self.create()?;
        let fetched = created.rref.fetch(Some(PATIENCE))?;
        Ok((created, fetched))
    }

    /// As [`WorkerPair::lives`] without the fetch: drops each reference once its owner has confirmed it.
    pub(super) fn lives_unread(
        &mut self,
        in_flight: usize,
        time: Duration,
    ) -> Result<u64, RRefBenchError> {
        let end = Instant::now() + time;
        let mut alive = VecDeque::with_capacity(in_flight);
        for _ in 0..in_flight {
            alive.push_back(self.create()?);
        }
        let mut lived = 0;
        while let Some(created) = alive.pop_front() {
            created.rref.wait_confirmed(Some(PATIENCE))?;
            drop(created);
            lived += 1;
            if Instant::now() < end {
                alive.push_back(self.create()?);
            }
        }
        self.wait_until_freed()?;
        Ok(lived)
    }

    /// Creates `count` references whose values exist.
    pub(super) fn create_and_keep(
        &mut self,
        count: usize,
    ) -> Result<Vec<RRef<u64>>, RRefBenchError> {
        let mut alive = Vec::with_capacity(count);
        let mut creating = VecDeque::with_capacity(CREATING);
        while alive.len() < count {
            while creating.len() < CREATING && alive.len() + creating.len() < count {
                creating.push_back(self.create_and_ask()?);
            }
            if let Some((created, fetched)) = creating.pop_front() {
                created.check(fetched.wait()?)?;
                alive.push(created.rref);
            }
        }
        Ok(alive)
    }

    /// Waits until no reference is alive and the owner has freed all values.
    pub(super) fn wait_until_freed(&self) -> Result<(), RRefBenchError> {
        let began = Instant::now();
        loop {
            let left = self.rrefs.sizes()?;
            if is_empty(&left) && self.owned()? == 0 {
                return Ok(());
            }
            let after = began.elapsed();
            if after > PATIENCE {
                return Err(RRefBenchError::NotFreed { after, left });
            }
            thread::sleep(CHECK_PAUSE);
        }
    }
}

/// A deletion is queued until the owner has confirmed it.
fn is_empty(sizes: &TableSizes) -> bool {
    sizes.pending_users + sizes.confirmed_users + sizes.failed_users == 0
        && sizes.deletes_queued + sizes.pending_futures == 0
}

/// A reference and its expected value.
#[derive(Debug)]
struct Created {
    rref: RRef<u64>,
    value: u64,
}

impl Created {
    fn check(&self, found: u64) -> Result<(), RRefBenchError> {
        let wanted = self.value;
        if found == wanted {
            return Ok(());
        }
        Err(RRefBenchError::WrongValue { wanted, found })
    }
}

fn one_at_a_time(
    time: Duration,
    mut step: impl FnMut() -> Result<(), RRefBenchError>,
) -> Result<Vec<Duration>, RRefBenchError> {
    let mut times = Vec::new();
    let mut began = Instant::now();
    let end = began + time;
    while times.is_empty() || began < end {
        step()?;
        let done = Instant::now();
        times.push(done - began);
        began = done;
    }
    Ok(times)
}

impl Worker {
    fn start(name: &str, rank: u32, store: Arc<dyn Store>) -> Result<Self, RRefBenchError> {
        let mut functions = Functions::new();
        functions.register(MAKE, |_, value: u64| Ok(value))?;
        let mut registry = Registry::new();
        registry.register_bytes(ECHO, |_, payload| Ok(payload))?;
        let rrefs = RRefs::register(&mut registry, functions)?;
        let agent = start(name, rank, registry, store)?;
        rrefs.attach(agent.handle())?;
        Ok(Self { agent, rrefs })
    }
}

/// The server process. Its threads serve until it is killed.
pub(super) fn serve(
    announce: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> Result<(), RRefBenchError> {
    let server = TcpStoreServer::bind((Ipv4Addr::LOCALHOST, 0), ServerOptions::default())
        .map_err(RpcBenchError::from)?;
    announce(server.local_addr()).map_err(BenchError::system("cannot write to standard output"))?;
    let _worker = Worker::start(SERVER, 0, open(server.local_addr())?)?;
    loop {
        thread::park();
    }
}
