//! Two workers; the second worker owns the values that the first worker creates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::Store;
use rpc_agent::{Agent, Registry, WorkerInfo};
use rref::{Functions, RRef, RRefFuture, RRefs, TableSizes};

use crate::affinity::Cores;
use crate::failure::Failure;
use crate::pair::{PATIENCE, Pair, Role, check_length, server_of, start_agent};
use crate::report::repeat;

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
    pair: Pair<Worker>,
    server: WorkerInfo,
    next: u64,
}

#[derive(Debug)]
struct Worker {
    agent: Agent,
    /// Serves references while it is alive.
    rrefs: RRefs,
}

impl WorkerPair {
    pub(super) fn start(cores: Option<Cores>) -> Result<Self, Failure> {
        let pair = Pair::start(cores, "rref-peer", Worker::start)?;
        Ok(Self {
            server: server_of(&pair.client.agent)?,
            pair,
            next: 0,
        })
    }

    /// The owner's memory; `None` without /proc.
    pub(super) fn owner_bytes(&self) -> Option<u64> {
        self.pair.host.process().anonymous_bytes()
    }

    fn create(&mut self) -> Result<Created, Failure> {
        let value = self.next;
        self.next += 1;
        let rref = self
            .pair
            .client
            .rrefs
            .call(&self.server, MAKE)
            .remote(value)?;
        Ok(Created { rref, value })
    }

    /// Makes plain calls one after the other for `time`, at least one; returns their times.
    pub(super) fn plain_calls(&self, time: Duration) -> Result<Vec<Duration>, Failure> {
        let payload = Bytes::from_static(&[7; 8]);
        repeat(time, || {
            let agent = self.pair.client.agent.handle();
            let answer = agent.call(&self.server, ECHO).send_bytes(payload.clone());
            check_length(&payload, answer.wait()?.len())
        })
    }

    /// Creates and fetches values one after the other for `time`, at least one; returns the times. The drop
    /// of a reference overlaps the next creation.
    pub(super) fn create_and_fetch(&mut self, time: Duration) -> Result<Vec<Duration>, Failure> {
        let times = repeat(time, || {
            let created = self.create()?;
            created.check(created.rref.to_here(Some(PATIENCE))?)
        })?;
        self.wait_until_freed()?;
        Ok(times)
    }

    /// Keeps `in_flight` references alive, each created, fetched and dropped, for `time`, then waits until
    /// all are freed; returns their number.
    pub(super) fn lives(&mut self, in_flight: usize, time: Duration) -> Result<u64, Failure> {
        let end = Instant::now() + time;
        let mut alive = VecDeque::with_capacity(in_flight);
        for _ in 0..in_flight {
            alive.push_back(self.create_and_ask()?);
        }
        let mut lived = 0;
        while let Some((created, fetched)) = alive.pop_front() {
            created.check(fetched.wait()?)?;
            drop(created);
            lived += 1;
            if Instant::now() < end {
                alive.push_back(self.create_and_ask()?);
            }
        }
        self.wait_until_freed()?;
        Ok(lived)
    }

    fn create_and_ask(&mut self) -> Result<(Created, RRefFuture<u64>), Failure> {
        let created = self.create()?;
        let fetched = created.rref.fetch(Some(PATIENCE))?;
        Ok((created, fetched))
    }

    /// Creates `count` references whose values exist.
    pub(super) fn create_and_keep(&mut self, count: usize) -> Result<Vec<RRef<u64>>, Failure> {
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

    /// Waits until no reference is alive and the owner has confirmed all deletions.
    pub(super) fn wait_until_freed(&self) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            let left = self.pair.client.rrefs.sizes()?;
            if is_empty(&left) {
                return Ok(());
            }
            let after = began.elapsed();
            if after > PATIENCE {
                return Err(Failure::new(format!(
                    "dropped references are not freed after {after:?}: {left:?}"
                )));
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
    fn check(&self, found: u64) -> Result<(), Failure> {
        let wanted = self.value;
        if found == wanted {
            return Ok(());
        }
        Err(Failure::new(format!(
            "created the value {wanted}, but fetched {found}"
        )))
    }
}

impl Worker {
    fn start(role: Role, store: Arc<dyn Store>) -> Result<Self, Failure> {
        let mut functions = Functions::new();
        functions.register(MAKE, |_, value: u64| Ok(value))?;
        let mut registry = Registry::new();
        registry.register_bytes(ECHO, |_, payload| Ok(payload))?;
        let rrefs = RRefs::register(&mut registry, functions)?;
        let agent = start_agent(role, registry, store)?;
        rrefs.attach(agent.handle())?;
        Ok(Self { agent, rrefs })
    }
}

/// The server process.
pub(super) fn serve() -> Result<(), Failure> {
    crate::pair::serve(Worker::start)
}
