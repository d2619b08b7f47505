//! `c10d bench rendezvous`: how long many nodes take to agree on their ranks.
//!
//! All nodes are handlers in this process, each with connections of its own to one server, also in this
//! process. This measures the protocol in its worst case, when all nodes arrive at once, not a network. It
//! starts no workers.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{ServerOptions, Store, StoreError, TcpStore, TcpStoreOptions, TcpStoreServer};
use clap::Args;
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousError, RendezvousHandler,
    RendezvousInfo, RendezvousSettings, Traffic, WRITE_LEASE_NODES_MIN,
};
use serde_json::{Value, json};

use super::report::Samples;
use crate::failure::Failure;
use crate::open_files;
use crate::output::{print, print_line};
use crate::quantity::at_least_one;

const RUN_ID: &str = "bench";

/// The timeout of each step: far above every plausible figure.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node's thread only waits for its handler. A thousand times the default of 2 MiB exceeds the limits of
/// some systems.
const STACK_BYTES: usize = 256 << 10;

/// Both ends of up to four connections: the state, the watch, the write lease, and a spare one.
const FILES_PER_NODE: u64 = 8;

/// The server's sockets, the workers' store, standard streams.
const OTHER_FILES: u64 = 64;

/// Measures how long nodes that arrive at the same time take to get their ranks, with all nodes and the
/// store in one process.
#[derive(Debug, Args)]
pub(crate) struct RendezvousBenchArgs {
    /// The numbers of nodes, measured one after the other.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [2, 8, 32, 128], value_parser = at_least_one)]
    nodes: Vec<usize>,

    /// The number of rounds; figures are their medians.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, thiserror::Error)]
enum RendezvousBenchError {
    #[error(
        "{nodes} nodes need {needed} open files, but the limit allows only {left} more (ulimit -Hn)"
    )]
    TooFewFiles {
        nodes: usize,
        needed: u64,
        left: u64,
    },

    #[error(transparent)]
    Store(#[from] StoreError),

    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),

    #[error("cannot start a thread for node {node}: {source}")]
    Thread { node: usize, source: io::Error },

    #[error("the thread of a node panicked")]
    Panic,

    /// A figure without agreement would be worthless.
    #[error("{nodes} nodes do not agree: {detail}")]
    Disagreement { nodes: usize, detail: String },
}

/// The figures of one rendezvous.
#[derive(Debug)]
struct Measured {
    /// Until all nodes were connected, one after the other.
    connecting: Duration,
    /// From the first join until the last node knew its rank and the workers' store.
    agreeing: Duration,
    writes_tried: u64,
    writes_done: u64,
    bytes: u64,
    /// `None` without /proc.
    connections: Option<usize>,
}

pub(super) fn run(args: &RendezvousBenchArgs) -> Result<(), Failure> {
    let files_left = open_files::raise_limit();
    let mut rows = Vec::new();
    for &nodes in &args.nodes {
        let row = Row::measure(nodes, args.rounds, files_left)
            .map_err(io::Error::other)
            .map_err(Failure::system("cannot measure the rendezvous"))?;
        rows.push(row);
    }
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        print_line(json!({ "rows": rows }))
    } else {
        print(table(&rows).as_bytes())
    }
}

/// The figures for one number of nodes.
#[derive(Debug)]
struct Row {
    nodes: usize,
    rounds: Vec<Measured>,
}

impl Row {
    fn measure(
        nodes: usize,
        rounds: usize,
        files_left: Option<u64>,
    ) -> Result<Self, RendezvousBenchError> {
        let needed = FILES_PER_NODE
            .saturating_mul(nodes as u64)
            .saturating_add(OTHER_FILES);
        if let Some(left) = files_left.filter(|left| *left < needed) {
            return Err(RendezvousBenchError::TooFewFiles {
                nodes,
                needed,
                left,
            });
        }
        let rounds = (0..rounds)
            .map(|_| measure(nodes))
            .collect::<Result<_, _>>()?;
        Ok(Self { nodes, rounds })
    }

    fn median(&self, figure: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        let mut samples = Samples::default();
        samples.extend(self.rounds.iter().filter_map(figure));
        samples.median()
    }

    /// Name, median and decimals of each figure, in the order in which they are shown.
    fn figures(&self) -> [(&'static str, Option<f64>, usize); 6] {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        [
            (
                "agree_ms",
                self.median(|round| Some(milliseconds(round.agreeing))),
                1,
            ),
            (
                "connect_ms",
                self.median(|round| Some(milliseconds(round.connecting))),
                1,
            ),
            (
                "writes_tried",
                self.median(|round| Some(round.writes_tried as f64)),
                0,
            ),
            (
                "writes_done",
                self.median(|round| Some(round.writes_done as f64)),
                0,
            ),
            (
                "state_bytes",
                self.median(|round| Some(round.bytes as f64)),
                0,
            ),
            (
                "connections",
                self.median(|round| round.connections.map(|count| count as f64)),
                0,
            ),
        ]
    }

    fn json(&self) -> Value {
        let mut row = json!({ "nodes": self.nodes });
        for (name, value, _) in self.figures() {
            row[name] = json!(value);
        }
        let each = |round: &Measured| round.agreeing.as_secs_f64() * 1e3;
        row["agree_ms_rounds"] = self.rounds.iter().map(each).collect();
        row
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = String::new();
    for (index, row) in rows.iter().enumerate() {
        let figures = row.figures();
        // Writing to a string cannot fail.
        if index == 0 {
            let _ = write!(table, "{:>8}", "nodes");
            for (name, _, _) in &figures {
                let _ = write!(table, "  {name:>12}");
            }
            table.push('\n');
        }
        let _ = write!(table, "{:>8}", row.nodes);
        for (_, value, decimals) in figures {
            let text = value.map_or_else(String::new, |value| format!("{value:.decimals$}"));
            let _ = write!(table, "  {text:>12}");
        }
        table.push('\n');
    }
    table
}

/// Measures one rendezvous of `nodes` nodes on a new server.
fn measure(nodes: usize) -> Result<Measured, RendezvousBenchError> {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
    let start = Instant::now();
    let handlers = (0..nodes)
        .map(|node| Node::connect(&server, node, nodes))
        .collect::<Result<Vec<_>, _>>()?;
    let connecting = start.elapsed();
    let start = Instant::now();
    let rounds = join(&handlers)?;
    let agreeing = start.elapsed();
    // Later writes are heartbeats, which are not counted.
    let sum = |count: fn(&Traffic) -> u64| handlers.iter().map(|node| count(&node.traffic)).sum();
    let measured = Measured {
        connecting,
        agreeing,
        writes_tried: sum(Traffic::writes_tried),
        writes_done: sum(Traffic::writes_done),
        bytes: sum(Traffic::bytes),
        connections: connections_to(server.local_addr().port()),
    };
    check(&rounds)?;
    Ok(measured)
}

/// A node before it has joined.
#[derive(Debug)]
struct Node {
    handler: DynamicRendezvous,
    traffic: Arc<Traffic>,
}

impl Node {
    fn connect(
        server: &TcpStoreServer,
        node: usize,
        nodes: usize,
    ) -> Result<Self, RendezvousBenchError> {
        let address = server.local_addr();
        let options = TcpStoreOptions::default().with_timeout(PATIENCE);
        let store = TcpStore::open(&address.ip().to_string(), address.port(), options)?;
        let store: Arc<dyn Store> = Arc::new(store);
        let mut backend = C10dBackend::new(Arc::clone(&store), RUN_ID)?;
        if nodes >= WRITE_LEASE_NODES_MIN {
            backend = backend.with_write_lease()?;
        }
        let traffic = backend.traffic();
        let settings = RendezvousSettings::new(RUN_ID, nodes, nodes)
            .map_err(RendezvousError::from)?
            .with_join_timeout(PATIENCE);
        // Names of a realistic length, as they are most of the state.
        let options = DynamicRendezvousOptions::new()
            .with_local_addr(format!("node-{node:05}.cluster.example"))
            .with_workers_host("127.0.0.1");
        let handler = DynamicRendezvous::new(Arc::new(backend), store, settings, options)?;
        Ok(Self { handler, traffic })
    }
}

/// Joins all nodes at once, each on a thread of its own.
fn join(nodes: &[Node]) -> Result<Vec<RendezvousInfo>, RendezvousBenchError> {
    thread::scope(|scope| {
        let mut failure = None;
        let mut threads = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            let started = thread::Builder::new()
                .name(format!("bench-node-{index}"))
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || node.handler.next_rendezvous());
            match started {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    failure = Some(RendezvousBenchError::Thread {
                        node: index,
                        source,
                    });
                    break;
                }
            }
        }
        if failure.is_some() {
            // The other nodes would wait for the missing ones.
            for node in nodes {
                node.handler.interrupt();
            }
        }
        let mut rounds = Vec::with_capacity(threads.len());
        for thread in threads {
            match thread.join() {
                Ok(Ok(round)) => rounds.push(round),
                Ok(Err(error)) => {
                    failure.get_or_insert(error.into());
                }
                Err(_) => {
                    failure.get_or_insert(RendezvousBenchError::Panic);
                }
            }
        }
        failure.map_or(Ok(rounds), Err)
    })
}

/// Checks that all nodes are in one round, and that each rank exists once.
fn check(rounds: &[RendezvousInfo]) -> Result<(), RendezvousBenchError> {
    let nodes = rounds.len();
    let disagreement = |detail| Err(RendezvousBenchError::Disagreement { nodes, detail });
    let mut ranks: Vec<usize> = rounds.iter().map(|round| round.rank).collect();
    ranks.sort_unstable();
    if let Some((expected, rank)) = ranks
        .iter()
        .enumerate()
        .find(|(index, rank)| index != *rank)
    {
        return disagreement(format!("rank {rank} where {expected} should be"));
    }
    let Some(first) = rounds.first() else {
        return Ok(());
    };
    for round in rounds {
        if round.world_size != nodes {
            return disagreement(format!(
                "rank {} sees {} nodes",
                round.rank, round.world_size
            ));
        }
        if (round.round, &round.bootstrap) != (first.round, &first.bootstrap) {
            return disagreement(format!(
                "rank {} is in round {} with the workers' store at {}, rank {} in round {} at {}",
                round.rank,
                round.round,
                round.bootstrap.master,
                first.rank,
                first.round,
                first.bootstrap.master,
            ));
        }
    }
    Ok(())
}

/// The number of open connections to a server on this machine; `None` without /proc.
fn connections_to(port: u16) -> Option<usize> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(fs::read_to_string);
    let [Ok(ipv4), ipv6] = tables else {
        return None;
    };
    // Columns: number, own address, peer's address, state, all in hex; 01 is an open connection.
    let suffix = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        columns.next().is_some_and(|own| own.ends_with(&suffix)) && columns.nth(1) == Some("01")
    };
    // A system without IPv6 has no second table.
    let lines = ipv4.lines().chain(ipv6.as_deref().unwrap_or("").lines());
    Some(lines.filter(is_one).count())
}

#[cfg(test)]
mod tests {
    use c10d_socket::HostPort;
    use c10d_store::HashStore;
    use elastic_rendezvous::BootstrapInfo;

    use super::*;

    fn round(rank: usize, world_size: usize, port: u16) -> RendezvousInfo {
        let bootstrap = BootstrapInfo::new(HostPort::new("127.0.0.1", port), true, true);
        RendezvousInfo::new(0, Arc::new(HashStore::new()), rank, world_size, bootstrap)
    }

    #[test]
    fn agreement_is_one_world_with_each_rank_once() {
        let agreed = [round(1, 3, 1), round(0, 3, 1), round(2, 3, 1)];
        assert!(check(&agreed).is_ok());
        for (wrong, text) in [
            ([round(0, 2, 1), round(0, 2, 1)], "rank 0 where 1 should be"),
            ([round(0, 2, 1), round(2, 2, 1)], "rank 2 where 1"),
            ([round(0, 2, 1), round(1, 3, 1)], "rank 1 sees 3 nodes"),
            ([round(0, 2, 1), round(1, 2, 9)], "at 127.0.0.1:9"),
        ] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn only_connections_of_one_server_are_counted() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let bind = || TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let connect = |server: &TcpStoreServer| {
            let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
            // The answer proves that the server has accepted.
            store.ping().unwrap();
            store
        };
        let (counted, other) = (bind(), bind());
        let port = counted.local_addr().port();
        assert_eq!(connections_to(port), Some(0));
        let _stores = [&counted, &counted, &other].map(connect);
        assert_eq!(connections_to(port), Some(2));
    }
}
