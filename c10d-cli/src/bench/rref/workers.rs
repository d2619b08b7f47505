//! Two workers, the second of which owns what the first one creates.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::{HashStore, ServerOptions, Store, TcpStoreServer};
use rpc_agent::{Agent, CallOptions, Registry, WorkerInfo};
use rref::{Functions, RRef, RRefFuture, RRefs, TableSizes};

use super::super::affinity::{Cores, on_server_core};
use super::super::child::ServerChild;
use super::super::error::BenchError;
use super::super::pair::PATIENCE;
use super::super::rpc::agents::{CLIENT, SERVER, open, start};
use super::super::rpc::error::RpcBenchError;
use super::error::RRefBenchError;

/// Makes the value that it is given.
const MAKE: &str = "make";

/// The plain call beside it: returns the bytes that it is given.
const ECHO: &str = "echo";

/// How many creations are under way where it does not matter.
const CREATING: usize = 256;

/// How often it is looked whether all is freed. No figure is as small as to be much of it.
const LOOK_PAUSE: Duration = Duration::from_micros(50);

/// Who creates, and whom it has own the values.
#[derive(Debug)]
pub(super) struct WorkerPair {
    rrefs: RRefs,
    client: Worker,
    /// Known beforehand, so that no request looks it up.
    server: WorkerInfo,
    /// After the client: to it, a server that goes first is a loss.
    host: Host,
    next: u64,
}

#[derive(Debug)]
struct Worker {
    agent: Agent,
    /// References are served as long as these are kept.
    rrefs: RRefs,
}

/// What keeps the server running.
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
        // On another thread, as neither start returns before the other worker is there.
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
        let arguments = ["bench", "rref-peer"].map(str::to_owned);
        let child = ServerChild::start(&arguments, cores)?;
        let client = Worker::start(CLIENT, 1, open(child.address())?)?;
        Self::new(client, Host::Process(child))
    }

    fn new(client: Worker, host: Host) -> Result<Self, RRefBenchError> {
        Ok(Self {
            rrefs: client.rrefs.clone(),
            server: client.agent.worker(SERVER)?,
            client,
            host,
            next: 0,
        })
    }

    /// The owner's own memory, where it is a process of its own and the system tells.
    pub(super) fn owner_bytes(&self) -> Option<u64> {
        match &self.host {
            Host::Worker(_) => None,
            Host::Process(child) => child.process().anonymous_bytes(),
        }
    }

    /// How many values the owner has, where it is in this process.
    pub(super) fn owned(&self) -> Result<usize, RRefBenchError> {
        Ok(match &self.host {
            Host::Worker(worker) => worker.rrefs.sizes()?.owners,
            Host::Process(_) => 0,
        })
    }

    fn create(&mut self) -> Result<Created, RRefBenchError> {
        let value = self.next;
        self.next += 1;
        let rref = self.rrefs.remote(&self.server, MAKE, value)?;
        Ok(Created { rref, value })
    }

    /// Plain calls one after the other until `time` is up, at least one; how long each took.
    pub(super) fn plain_calls(&self, time: Duration) -> Result<Vec<Duration>, RRefBenchError> {
        let payload = Bytes::from_static(&[7; 8]);
        one_at_a_time(time, || {
            let options = CallOptions::default();
            let agent = &self.client.agent;
            let answer = agent.call_bytes_async(&self.server, ECHO, payload.clone(), options);
            let bytes = answer.wait()?.len();
            if bytes == payload.len() {
                Ok(())
            } else {
                let sent = payload.len();
                Err(RpcBenchError::WrongAnswer { bytes: sent }.into())
            }
        })
    }

    /// Creations, each with its fetch, one after the other until `time` is up, at least one; how long
    /// each took. The drop of one is not waited for, and is part of the time of the next.
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

    /// Keeps `in_flight` references alive, each created, fetched and dropped, until `time` is up, then
    /// lets the last ones be freed; how many there were.
    pub(super) fn lives(
        &mut self,
        in_flight: usize,
        time: Duration,
    ) -> Result<u64, RRefBenchError> {
        let end = Instant::now() + time;
        self.lives_while(in_flight, || Instant::now() < end)
    }

    /// As many lives as these, all at a time.
    pub(super) fn some_lives(&mut self, count: usize) -> Result<u64, RRefBenchError> {
        self.lives_while(count, || false)
    }

    fn lives_while(
        &mut self,
        in_flight: usize,
        goes_on: impl Fn() -> bool,
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
            if goes_on() {
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

    /// As [`WorkerPair::lives`], without the fetch: each is dropped when its owner has confirmed it.
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

    /// So many references that live until they are dropped, each with its value there.
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

    /// Waits until nothing is alive here, and the owner has been told of all that was.
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
            thread::sleep(LOOK_PAUSE);
        }
    }
}

/// A deletion is a message under way until the owner has answered it.
fn is_empty(sizes: &TableSizes) -> bool {
    sizes.pending_users + sizes.confirmed_users + sizes.failed_users == 0
        && sizes.deletes_queued + sizes.pending_futures == 0
}

/// A reference, and what its value should be.
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
        rrefs.attach(&agent)?;
        Ok(Self { agent, rrefs })
    }
}

/// The server's process. Its threads serve until it is killed.
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
