//! The facts that a machine reports about itself, and its measurements of the other machines.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, host_name, resolve};
use elastic_rendezvous::{CheckServer, RendezvousParameters};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::ephemeral_ports::EphemeralPorts;

/// The limit for looking up a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The most addresses of a name that are reported.
const ADDRESSES_MAX: usize = 8;

/// The facts that a node reports about itself before the measurements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeFacts {
    /// The node's host name.
    pub(super) host: String,
    /// The node's rank, if the rendezvous is static.
    pub(super) node_rank: Option<i64>,
    /// The node's --nnodes: the least and the greatest number of nodes.
    pub(super) nodes: (usize, usize),
    /// The version of `c10d`.
    pub(super) version: String,
    /// The address that it advertises, and the port of its store for this check.
    pub(super) address: Address,
    /// The name in its certificate, if it has one.
    pub(super) name: String,
    /// The addresses of its host name on this node itself.
    pub(super) name_leads_to: Vec<IpAddr>,
    /// How many files a process may open: the hard limit, which `c10d run` uses.
    pub(super) open_files: Option<u64>,
    /// The size of /dev/shm in bytes.
    pub(super) shared_memory: Option<u64>,
    /// The ports that the system gives to outgoing connections.
    pub(super) ephemeral_ports: Option<(u16, u16)>,
    /// The ports given by options that are in this range, each with its option.
    pub(super) ports_at_risk: Vec<(String, u16)>,
}

/// A host and a port in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The measurements of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The median round trip to the store of the check, in microseconds.
    pub(super) round_trip_us: Option<u64>,
    /// How far the node's clock is ahead of the clock of the serving node.
    pub(super) clock: Option<Clock>,
    pub(super) links: Vec<Link>,
}

/// A difference between two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Clock {
    pub(super) ahead_ms: i64,
    /// The difference is exact within this time.
    pub(super) within_ms: u64,
}

/// An attempt to reach another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    /// The number of the other node.
    pub(super) to: usize,
    /// The time from the attempt to the answer in microseconds, or why there was none.
    pub(super) took_us: Result<u64, String>,
    /// The addresses of the other node's host name here; `None` if the lookup fails.
    pub(super) name_leads_to: Option<Vec<IpAddr>>,
}

impl NodeFacts {
    /// Reads the facts about this machine. May block for some seconds to look up its name.
    pub(super) fn of_this_machine(
        parameters: &RendezvousParameters,
        served_port: Option<u16>,
        server: &CheckServer,
    ) -> Self {
        let host = host_name();
        let ephemeral = EphemeralPorts::of_this_system();
        let workers = parameters.workers_port();
        let workers = workers.and_then(|ports| ephemeral.of_range(ports));
        // A job of one node shows at once that its port is taken, and --standalone lets the system choose it.
        let served_port = served_port.filter(|_| parameters.max_nodes() > 1);
        let given = [
            ("--rdzv-endpoint", served_port),
            ("--workers-port", workers),
        ];
        let at_risk = given.into_iter().filter_map(|(option, port)| {
            let port = port.filter(|port| ephemeral.range_with(*port).is_some())?;
            Some((option.to_owned(), port))
        });
        Self {
            name_leads_to: addresses_of(&host).unwrap_or_default(),
            host,
            node_rank: parameters.get_as_int("rank").ok().flatten(),
            nodes: (parameters.min_nodes(), parameters.max_nodes()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: server.name.clone(),
            address: Address {
                host: server.store.host().to_owned(),
                port: server.store.port(),
            },
            open_files: getrlimit(Resource::Nofile).maximum,
            shared_memory: shared_memory_bytes(),
            ephemeral_ports: ephemeral.range(),
            ports_at_risk: at_risk.collect(),
        }
    }
}

/// Returns the addresses of a host name on this machine; `None` if the lookup fails. Blocks for at most 2 s.
pub(super) fn addresses_of(host: &str) -> Option<Vec<IpAddr>> {
    let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
    let found = resolve(&HostPort::new(host, 0), deadline, &Cancel::NEVER).ok()?;
    let mut addresses: Vec<IpAddr> = found.iter().map(SocketAddr::ip).collect();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    Some(addresses)
}

fn shared_memory_bytes() -> Option<u64> {
    // If nothing is mounted there, the path is a directory of the file system below.
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let is_mounted = mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some("/dev/shm"));
    let memory = is_mounted.then(|| rustix::fs::statvfs("/dev/shm").ok())??;
    Some(memory.f_blocks.saturating_mul(memory.f_frsize))
}
