//! The course of a check: nodes arrive at a store, measure, and exchange what they have found.
//!
//! All values are JSON below the prefix of the check. The node with number 0 serves the store, and writes when the
//! check begins.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use c10d_socket::{Cancel, Deadline, HostPort, sleep};
use c10d_store::{PrefixStore, Store, StoreError, StoreExt};
use elastic_rendezvous::{
    BoardError, CheckServer, CheckStore, ReachOptions, RendezvousParameters, RoundBoard, Wait,
    find_reachable,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::facts::{Clock, Link, Measured, NodeFacts, addresses_of};
use super::findings::{Node, targets};

/// How often the host counts the nodes.
const COUNT_INTERVAL: Duration = Duration::from_millis(50);

/// How long a node waits for values that other nodes write at once.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a node tries to reach another node.
const REACH_TIMEOUT: Duration = Duration::from_secs(4);

/// How many nodes are tried at a time.
const THREADS_MAX: usize = 8;

/// How many round trips are measured.
const PINGS: usize = 9;

/// The error that ends a check early.
pub(super) type Failed = Box<dyn Error + Send + Sync>;

/// The most nodes of a check.
const NODES_MAX: usize = 65_536;

/// A check in which this node takes part.
pub(super) struct Exchange<'a> {
    check: &'a CheckStore,
    board: RoundBoard,
    store: Arc<dyn Store>,
    parameters: &'a RendezvousParameters,
    /// Serves the attempts of other nodes; later on the node that serves the check.
    server: Option<CheckServer>,
    /// The number of this node: the node that serves has 0, and the other nodes count in the order of arrival.
    pub(super) number: usize,
}

/// The reports of all nodes.
pub(super) struct Reported {
    pub(super) nodes: Vec<Node>,
    /// The check began without this node.
    pub(super) left_out: bool,
}

impl<'a> Exchange<'a> {
    /// Arrives: serves a store for the attempts of other nodes, and takes a number.
    pub(super) fn arrive(
        check: &'a CheckStore,
        parameters: &'a RendezvousParameters,
    ) -> Result<Self, Failed> {
        let server = (!check.is_host).then(|| check.serve_workers(parameters));
        let server = server.transpose()?;
        let store: Arc<dyn Store> = Arc::new(PrefixStore::new(
            check.prefix.clone(),
            Arc::new(check.store.with_cancel(&Cancel::NEVER)),
        ));
        let board = RoundBoard::new(Arc::clone(&store));
        // Other nodes may arrive before the serving node.
        let number = match check.is_host {
            true => 0,
            false => board.take_numbers("arrived", 1)?,
        };
        Ok(Self {
            check,
            board,
            store,
            parameters,
            server,
            number: usize::try_from(number).unwrap_or(usize::MAX),
        })
    }

    /// Reports this node, waits until the expected number of nodes has arrived, or until the deadline, and exchanges
    /// the measurements of all nodes.
    pub(super) fn run(&mut self, expected: usize, deadline: Deadline) -> Result<Reported, Failed> {
        let count = if self.check.is_host {
            let count = self.await_nodes(expected, deadline)?;
            // From now on this node can find the address at which other hosts reach it.
            self.server = Some(self.check.serve_workers(self.parameters)?);
            self.put_facts()?;
            self.board.put("begin", count.to_string())?;
            count
        } else {
            self.put_facts()?;
            let left = deadline.remaining(Instant::now()).unwrap_or_default();
            let wait = Wait::new(left + STEP_TIMEOUT);
            let count = self.board.await_one("begin", "start of the check", wait)?;
            let count = String::from_utf8_lossy(&count).parse().unwrap_or(0);
            usize::min(count, NODES_MAX)
        };
        if self.number >= count {
            let facts = self.read_all::<NodeFacts>("facts", 0..count)?;
            let nodes = facts.into_iter().flatten().map(|facts| Node {
                facts,
                measured: None,
            });
            return Ok(Reported {
                nodes: nodes.collect(),
                left_out: true,
            });
        }
        let facts: Vec<NodeFacts> = self.await_all("facts", "report", count)?;
        let measured = thread::scope(|scope| {
            let clocks = self.check.is_host.then(|| {
                let serving = thread::Builder::new().name("doctor-clock".to_owned());
                serving.spawn_scoped(scope, || self.tell_time(count))
            });
            let measured = self.measure(&facts);
            if let Some(Ok(clocks)) = clocks {
                let _ = clocks.join();
            }
            measured
        });
        self.put(&format!("measured/{}", self.number), &measured)?;
        let mut nodes: Vec<Node> = facts
            .into_iter()
            .map(|facts| Node {
                facts,
                measured: None,
            })
            .collect();
        // A node that stops in between is a finding, not the end of the check.
        let all = self.await_some::<Measured>("measured", count)?;
        for (node, measured) in nodes.iter_mut().zip(all) {
            node.measured = measured;
        }
        self.board.count("done", 1)?;
        if self.check.is_host {
            let until = Deadline::after(Instant::now(), STEP_TIMEOUT);
            self.count_until("done", count, until)?;
        }
        Ok(Reported {
            nodes,
            left_out: false,
        })
    }

    fn put_facts(&self) -> Result<(), StoreError> {
        let Some(server) = &self.server else {
            return Ok(());
        };
        let port = self.check.is_host.then(|| self.check.endpoint.port());
        let facts = NodeFacts::of_this_machine(self.parameters, port, server);
        self.put(&format!("facts/{}", self.number), &facts)
    }

    fn await_nodes(&self, expected: usize, deadline: Deadline) -> Result<usize, StoreError> {
        let others = expected.saturating_sub(1);
        let others = (self.count_until("arrived", others, deadline)?).min(others);
        // The nodes write their facts immediately after that.
        let until = Deadline::after(Instant::now(), STEP_TIMEOUT);
        for number in 1..=others {
            let name = format!("facts/{number}");
            while !self.board.has(&name)? && !until.has_passed(Instant::now()) {
                let _ = sleep(COUNT_INTERVAL, [&Cancel::NEVER]);
            }
        }
        Ok(others + 1)
    }

    fn count_until(
        &self,
        name: &str,
        expected: usize,
        deadline: Deadline,
    ) -> Result<usize, StoreError> {
        loop {
            let count = self.board.counted(name)?;
            if count >= expected || deadline.has_passed(Instant::now()) {
                return Ok(count);
            }
            let _ = sleep(COUNT_INTERVAL, [&Cancel::NEVER]);
        }
    }

    fn put(&self, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
        // These types have no keys that are not text.
        self.board
            .put(name, serde_json::to_vec(value).unwrap_or_default())
    }

    fn read_all<T: DeserializeOwned>(
        &self,
        name: &str,
        numbers: std::ops::Range<usize>,
    ) -> Result<Vec<Option<T>>, StoreError> {
        let values = numbers.map(|number| self.board.read(&format!("{name}/{number}")));
        let values =
            values.map(|value| Ok(serde_json::from_slice(&value?.unwrap_or_default()).ok()));
        values.collect()
    }

    fn await_all<T: DeserializeOwned>(
        &self,
        name: &str,
        what: &'static str,
        count: usize,
    ) -> Result<Vec<T>, BoardError> {
        let names: Vec<String> = (0..count)
            .map(|number| format!("{name}/{number}"))
            .collect();
        let values = self
            .board
            .await_all(&names, what, Wait::new(STEP_TIMEOUT))?;
        let values = values.iter().zip(&names).map(|(value, name)| {
            let parse = |value: &[u8]| serde_json::from_slice(value).ok();
            self.board
                .parsed(name, value, "a report of this release", parse)
        });
        values.collect()
    }

    /// Returns the values as soon as all of them exist, or those that exist after some time.
    fn await_some<T: DeserializeOwned>(
        &self,
        name: &str,
        count: usize,
    ) -> Result<Vec<Option<T>>, BoardError> {
        let names: Vec<String> = (0..count)
            .map(|number| format!("{name}/{number}"))
            .collect();
        match self
            .board
            .await_all(&names, "measurement", Wait::new(STEP_TIMEOUT * 2))
        {
            Ok(_) | Err(BoardError::Missing { .. }) => Ok(self.read_all(name, 0..count)?),
            Err(error) => Err(error),
        }
    }

    fn measure(&self, facts: &[NodeFacts]) -> Measured {
        let clock = (!self.check.is_host).then(|| self.ask_time()).flatten();
        let mut pings: Vec<Duration> = (0..PINGS)
            .filter_map(|_| self.check.store.ping().ok())
            .collect();
        pings.sort_unstable();
        let targets = targets(self.number, facts.len());
        let next = Mutex::new(targets.iter());
        let links = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..targets.len().min(THREADS_MAX) {
                let attempts = || {
                    loop {
                        let target = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(&to) = target else {
                            return;
                        };
                        let link = self.link(to, &facts[to]);
                        links
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(link);
                    }
                };
                // Without a thread the other threads try its nodes.
                let thread = thread::Builder::new().name("doctor-reach".to_owned());
                let _ = thread.spawn_scoped(scope, attempts);
            }
        });
        let mut links = links.into_inner().unwrap_or_else(PoisonError::into_inner);
        links.sort_by_key(|link: &Link| link.to);
        Measured {
            round_trip_us: pings.get(pings.len() / 2).map(|it| micros(*it)),
            clock,
            links,
        }
    }

    fn link(&self, to: usize, other: &NodeFacts) -> Link {
        let address = HostPort::new(other.address.host.as_str(), other.address.port);
        let credentials = self.parameters.credentials().cloned();
        let credentials = credentials.map(|known| known.with_server_name(&other.name));
        let options = ReachOptions::new(REACH_TIMEOUT).with_credentials(credentials);
        let reached = find_reachable(&[address], &options);
        let cause = |tried: Vec<(HostPort, Option<String>)>| {
            let cause = tried.into_iter().find_map(|(_, cause)| cause);
            cause.unwrap_or_else(|| "no answer".to_owned())
        };
        Link {
            to,
            took_us: match reached {
                Ok(reached) => Ok(micros(reached.took)),
                Err(error) => Err(cause(error.tried)),
            },
            name_leads_to: addresses_of(&other.host),
        }
    }

    /// Measures how far this node's clock is ahead of the host's clock. The host answers over the store.
    fn ask_time(&self) -> Option<Clock> {
        let asked = (Instant::now(), now_ms());
        self.store
            .queue_push("clock", self.number.to_string())
            .ok()?;
        let key = format!("clock/{}", self.number);
        let told = self.store.get_timeout(&key, STEP_TIMEOUT).ok()?;
        let took = u64::try_from(asked.0.elapsed().as_millis()).ok()?;
        let told: i64 = String::from_utf8_lossy(&told).parse().ok()?;
        let here = asked.1.checked_add_unsigned(took / 2)?;
        Some(Clock {
            ahead_ms: here.checked_sub(told)?,
            within_ms: took / 2 + 1,
        })
    }

    /// Answers each other node once.
    fn tell_time(&self, count: usize) {
        for _ in 1..count {
            // Waits for the store's timeout.
            let Ok(asker) = self.store.queue_pop("clock") else {
                return;
            };
            let asker: usize = String::from_utf8_lossy(&asker)
                .parse()
                .unwrap_or(usize::MAX);
            let told = self
                .store
                .set(&format!("clock/{asker}"), now_ms().to_string().as_bytes());
            if told.is_err() {
                return;
            }
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
