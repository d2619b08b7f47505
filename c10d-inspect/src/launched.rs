//! The workers that launchers have announced.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::announced::{AnnouncedNode, AnnouncedProcess, AnnouncedWorker, WorkerEnd};
use crate::index::{Index, Slot, is_container_pid};
use crate::keys::GROUP_SIZE_MAX;
use crate::stacks::Stacks;

/// The most bytes of an announcement that are read.
const ANNOUNCEMENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The most stacks of a node. A launcher announces at most 64 KiB of stacks.
const STACKS_MAX: usize = 1024;

/// The most processes or connections in a list of a sample.
const LISTED_MAX: usize = 16;

/// All announced nodes and workers.
#[derive(Debug, Default)]
pub(crate) struct Launched {
    pub(crate) nodes: Vec<Node>,
    /// The node and the worker's place in it, by rank.
    by_rank: BTreeMap<usize, (usize, usize)>,
    /// Ranks that two launchers announce, both connected.
    pub(crate) announced_twice: BTreeSet<usize>,
}

/// A node whose launcher announced itself.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) announced: AnnouncedNode,
    /// The launcher's connection; `None` if it closed long ago.
    pub(crate) connection: Option<Slot>,
    /// When it was announced, since the server's start.
    pub(crate) at: Duration,
    /// When the launcher's connection closed.
    pub(crate) closed: Option<Duration>,
}

/// An announced worker and its node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worker<'l> {
    pub(crate) node: &'l Node,
    pub(crate) worker: &'l AnnouncedWorker,
}

impl Launched {
    pub(crate) fn new(index: &Index<'_>) -> Self {
        let mut nodes: Vec<Node> = index
            .snapshot
            .announcements
            .iter()
            .filter(|announcement| announcement.bytes.len() <= ANNOUNCEMENT_BYTES_MAX)
            .filter_map(|announcement| {
                let mut announced: AnnouncedNode =
                    serde_json::from_slice(&announcement.bytes).ok()?;
                announced
                    .workers
                    .retain(|worker| worker.rank < GROUP_SIZE_MAX);
                limit_samples(&mut announced);
                let connection = index.slot(announcement.connection);
                let closed = match connection {
                    Some(slot) => index.connections[slot].closed.map(|closed| closed.at),
                    None => Some(announcement.at),
                };
                Some(Node {
                    announced,
                    connection,
                    at: announcement.at,
                    closed,
                })
            })
            .collect();
        tell_hosts_apart(&mut nodes, index);
        // Later announcements replace earlier announcements, and announcements of connected launchers replace all
        // other announcements.
        nodes.sort_by_key(|node| (node.closed.is_none(), node.at));
        let mut launched = Self {
            nodes,
            ..Self::default()
        };
        for (node_place, node) in launched.nodes.iter().enumerate() {
            for (place, worker) in node.announced.workers.iter().enumerate() {
                let before = launched.by_rank.insert(worker.rank, (node_place, place));
                let is_of_both = before.is_some_and(|(other, _)| {
                    other != node_place
                        && launched.nodes[other].closed.is_none()
                        && node.closed.is_none()
                });
                if is_of_both {
                    launched.announced_twice.insert(worker.rank);
                }
            }
        }
        launched
    }

    pub(crate) fn worker(&self, rank: usize) -> Option<Worker<'_>> {
        self.by_rank.get(&rank).map(|&(node, worker)| {
            let node = &self.nodes[node];
            Worker {
                node,
                worker: &node.announced.workers[worker],
            }
        })
    }

    /// The workers that are in force, in the order of their ranks.
    pub(crate) fn workers(&self) -> impl Iterator<Item = Worker<'_>> {
        self.by_rank.keys().filter_map(|&rank| self.worker(rank))
    }

    /// The number of ranks that launchers say, if any does.
    pub(crate) fn world_size(&self) -> Option<usize> {
        let said = |node: &Node| {
            node.announced
                .world_size
                .filter(|&size| size <= GROUP_SIZE_MAX)
        };
        self.nodes.iter().rev().find_map(said)
    }

    /// The ranks of connections by the addresses and process ids that launchers announced.
    pub(crate) fn identified(&self, index: &Index<'_>) -> Vec<(Slot, usize)> {
        let tables = Tables::new(self, index);
        (0..index.connections.len())
            .filter_map(|slot| Some((slot, tables.rank(self, index, slot)?)))
            .filter(|(_, rank)| !self.announced_twice.contains(rank))
            .collect()
    }
}

/// Limits what a launcher announces in its samples: not every announcement is made by a launcher.
fn limit_samples(announced: &mut AnnouncedNode) {
    announced.stacks.truncate(STACKS_MAX);
    let stacks = std::mem::take(&mut announced.stacks).into_iter();
    announced.stacks = stacks.map(Stacks::cleaned).collect();
    let workers = announced.workers.iter_mut();
    for sample in workers.filter_map(|worker| worker.sample.as_mut()) {
        sample.dead_children.truncate(LISTED_MAX);
        sample.unacknowledged.truncate(LISTED_MAX);
    }
}

/// A process of a worker: the node, the worker and the process, by their places.
type Place = (usize, usize, usize);

/// The announced processes, by the properties that are visible on a connection. The value is `None` if two processes
/// share the property.
struct Tables {
    /// The key contains the process id that connections send, because a forked child also holds its parent's
    /// connection.
    by_address: HashMap<(SocketAddr, u32), Option<Place>>,
    by_process: HashMap<(IpAddr, u32), Option<Place>>,
    /// Programs that are not Python, for example `c10d store barrier` in a shell script: this crate's clients send no
    /// process id.
    by_program: HashMap<SocketAddr, Option<Place>>,
    /// Nodes whose launchers see the same addresses as the server: no address translation is between.
    is_seen_alike: Vec<bool>,
}

impl Tables {
    fn new(launched: &Launched, index: &Index<'_>) -> Self {
        let peers: HashMap<SocketAddr, Slot> = index
            .connections
            .iter()
            .enumerate()
            .rev()
            .map(|(slot, connection)| (canonical(connection.peer), slot))
            .collect();
        let mut tables = Self {
            by_address: HashMap::new(),
            by_process: HashMap::new(),
            by_program: HashMap::new(),
            is_seen_alike: vec![false; launched.nodes.len()],
        };
        for &(node_place, worker_place) in launched.by_rank.values() {
            let node = &launched.nodes[node_place];
            let worker = &node.announced.workers[worker_place];
            let node_ip = node
                .connection
                .map(|slot| index.connections[slot].peer.ip().to_canonical());
            for (place, process) in worker.processes.iter().enumerate() {
                let place = (node_place, worker_place, place);
                for &address in &process.store_connections {
                    let address = canonical(address);
                    insert(&mut tables.by_address, (address, inner_pid(process)), place);
                    // From the launcher's own address, or on the server's host.
                    let is_own = node_ip.is_some_and(|ip| ip == address.ip() || ip.is_loopback());
                    if !is_python(process) && is_own {
                        insert(&mut tables.by_program, address, place);
                    }
                    let is_same_process = peers.get(&address).is_some_and(|&slot| {
                        index.connections[slot].nonce == Some(inner_pid(process))
                    });
                    if is_same_process {
                        tables.is_seen_alike[node_place] = true;
                    }
                }
                if let Some(ip) = node_ip {
                    insert(&mut tables.by_process, (ip, inner_pid(process)), place);
                }
            }
        }
        tables
    }

    /// The rank of the worker that a connection belongs to, where the announcement leaves no doubt.
    fn rank(&self, launched: &Launched, index: &Index<'_>, slot: Slot) -> Option<usize> {
        let connection = index.connections[slot];
        let peer = canonical(connection.peer);
        let process = index.process(slot);
        let by_address = match process {
            // The process id guards against the same private address on another network.
            Some((_, nonce)) => self.by_address.get(&(peer, nonce)),
            None => self.by_program.get(&peer),
        };
        let by_address = by_address.copied().flatten().filter(|&(node, ..)| {
            let announced = launched.nodes[node].at;
            connection.opened <= announced
                && connection
                    .closed
                    .is_none_or(|closed| closed.at >= announced)
        });
        let place = match by_address {
            Some(place) => place,
            None => self.by_process_id(launched, index, slot, process?)?,
        };
        let worker = &launched.nodes[place.0].announced.workers[place.1];
        let process = &worker.processes[place.2];
        speaks_for(worker, process).then_some(worker.rank)
    }

    /// The announced process with this address and id. The announcement must not contradict: a launcher that lists
    /// the process' connections has to list this one, unless it is newer than the list.
    fn by_process_id(
        &self,
        launched: &Launched,
        index: &Index<'_>,
        slot: Slot,
        process: (IpAddr, u32),
    ) -> Option<Place> {
        let connection = index.connections[slot];
        let place = self.by_process.get(&process).copied().flatten()?;
        let node = &launched.nodes[place.0];
        let worker = &node.announced.workers[place.1];
        let started = node
            .at
            .saturating_sub(Duration::from_millis(worker.started_ago_ms));
        let is_of_its_time = connection.opened.saturating_add(CLOCK_STEP) >= started
            && node.closed.is_none_or(|closed| connection.opened <= closed);
        let is_unlisted =
            connection.opened.saturating_add(CLOCK_STEP) < node.at && connection.closed.is_none();
        let is_trusted = self.is_seen_alike[place.0] || process.0.is_loopback();
        // The same id in another namespace is another process.
        let announced = &worker.processes[place.2];
        let is_host_id = announced
            .inner_pid
            .is_none_or(|inner| inner == announced.pid)
            && !is_container_pid(announced.pid);
        (is_of_its_time && is_trusted && is_host_id && !(is_unlisted && lists_connections(node)))
            .then_some(place)
    }
}

/// Adds the address to the names of hosts that have one name, as containers and hosts that are called localhost.
fn tell_hosts_apart(nodes: &mut [Node], index: &Index<'_>) {
    let ip_of = |node: &Node| Some(index.connections[node.connection?].peer.ip().to_canonical());
    let mut ips: HashMap<String, BTreeSet<IpAddr>> = HashMap::new();
    for node in nodes.iter().filter(|node| node.closed.is_none()) {
        let of_name = ips.entry(node.announced.host.clone()).or_default();
        of_name.extend(ip_of(node));
    }
    ips.retain(|_, ips| ips.len() > 1);
    for node in nodes {
        if ips.contains_key(&node.announced.host)
            && let Some(ip) = ip_of(node)
        {
            node.announced.host = format!("{} ({ip})", node.announced.host);
        }
    }
}

/// The error of the ages in an announcement.
const CLOCK_STEP: Duration = Duration::from_millis(1500);

fn insert<K: std::hash::Hash + Eq>(table: &mut HashMap<K, Option<Place>>, key: K, place: Place) {
    table
        .entry(key)
        .and_modify(|other| {
            if *other != Some(place) {
                *other = None;
            }
        })
        .or_insert(Some(place));
}

/// Whether a process has the rank of its worker: it is the worker itself, or the only Python that shells around it
/// started. A Python that starts other Pythons, or a shell that starts several, may have given each of them its own
/// rank.
pub(crate) fn speaks_for(worker: &AnnouncedWorker, process: &AnnouncedProcess) -> bool {
    if process.pid == worker.pid {
        return true;
    }
    let is_wrapped = |process: &AnnouncedProcess| {
        let mut parent = process.parent;
        for _ in 0..PARENTS_MAX {
            let above = worker
                .processes
                .iter()
                .find(|above| Some(above.pid) == parent);
            match above {
                Some(above) if is_python(above) => return false,
                Some(above) if above.pid == worker.pid => return true,
                Some(above) => parent = above.parent,
                None => return false,
            }
        }
        false
    };
    let others = worker
        .processes
        .iter()
        .filter(|other| other.pid != process.pid && is_python(other));
    is_wrapped(process) && !others.into_iter().any(is_wrapped)
}

/// How many shells are around a worker at most.
const PARENTS_MAX: usize = 8;

/// Whether a process seems to run Python. PyTorch renames its main thread.
fn is_python(process: &AnnouncedProcess) -> bool {
    let Some(command) = &process.command else {
        return true;
    };
    command.starts_with("python") || command.starts_with("pt_")
}

fn lists_connections(node: &Node) -> bool {
    let mut processes = node
        .announced
        .workers
        .iter()
        .flat_map(|worker| &worker.processes);
    processes.any(|process| !process.store_connections.is_empty())
}

fn inner_pid(process: &AnnouncedProcess) -> u32 {
    process.inner_pid.unwrap_or(process.pid)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Worker<'_> {
    /// The end of the worker and when it was, since the server's start.
    pub(crate) fn end(&self) -> Option<(WorkerEnd, Duration)> {
        let end = self.worker.end?;
        Some((
            end,
            self.node
                .at
                .saturating_sub(Duration::from_millis(end.ago_ms)),
        ))
    }

    /// When it was started, since the server's start.
    pub(crate) fn started(&self) -> Duration {
        self.node
            .at
            .saturating_sub(Duration::from_millis(self.worker.started_ago_ms))
    }

    /// When its launcher looked at its processes, since the server's start.
    pub(crate) fn seen(&self) -> Duration {
        let announced = &self.node.announced;
        self.node
            .at
            .saturating_sub(Duration::from_millis(announced.looked_ago_ms))
    }

    /// A stopped process of this worker, for example after SIGSTOP.
    pub(crate) fn stopped_pid(&self) -> Option<u32> {
        let mut stopped = self.stopped();
        stopped.next().map(|process| process.pid)
    }

    /// Returns a stopped process of this worker if it is certain that the process has this worker's rank.
    pub(crate) fn stopped_rank_pid(&self) -> Option<u32> {
        let mut stopped = self.stopped();
        let ranks = stopped.find(|process| speaks_for(self.worker, process));
        ranks.map(|process| process.pid)
    }

    fn stopped(&self) -> impl Iterator<Item = &AnnouncedProcess> {
        let processes = self.worker.processes.iter();
        processes.filter(|process| matches!(process.state, Some('T' | 't')))
    }

    /// An address that does not answer when it tries to connect.
    pub(crate) fn connecting_to(&self) -> Option<SocketAddr> {
        self.worker
            .processes
            .iter()
            .flat_map(|process| &process.connecting_to)
            .next()
            .copied()
    }

    /// Whether the launcher's connection closed while the worker ran.
    pub(crate) fn is_node_lost(&self) -> bool {
        self.node.closed.is_some() && self.worker.end.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use crate::announced::AnnouncedSample;
    use crate::sim::Script;
    use crate::stacks::{Frame, Stacks, ThreadStack};

    use super::limit_samples;

    /// An empty frame has 3 bytes in JSON, and each rank refers to all of them.
    #[test]
    fn an_announcement_of_many_frames_is_limited() {
        let mut script = Script::new();
        let processes = script.processes(1500);
        let (launcher, mut node) = script.launch(&processes);
        let frame = |line| Frame {
            line,
            ..Frame::default()
        };
        let thread = ThreadStack {
            name: None,
            frames: (0..40_000).map(frame).collect(),
        };
        node.stacks = vec![
            Stacks {
                threads: vec![thread],
                is_cut: false,
            };
            2
        ];
        for worker in &mut node.workers {
            worker.sample = Some(AnnouncedSample {
                stacks: Some(0),
                stacks_before: Some(1),
                quiet_ms: 60_000,
                idle_ms: 60_000,
                system_call: Some(format!("futex{}", worker.rank)),
                dead_children: (0..100).collect(),
                ..AnnouncedSample::default()
            });
        }
        let mut limited = node.clone();
        limit_samples(&mut limited);
        let frames = &limited.stacks[0].threads[0].frames;
        let innermost = frames.last().map(|frame| frame.line);
        assert!(frames.len() < 200, "{} frames", frames.len());
        assert_eq!((innermost, limited.stacks[0].is_cut), (Some(39_999), true));
        let sample = limited.workers[0].sample.as_ref();
        assert!(sample.is_some_and(|it| it.dead_children.len() < 20));
        script.store.announce(launcher, &node);
        assert_eq!(script.report().ranks.len(), 1500);
    }

    #[test]
    fn hosts_with_one_name_are_shown_with_their_addresses() {
        let hosts_of = |ips: [[u8; 4]; 2]| {
            let mut script = Script::new();
            let processes = script.processes(2);
            for (rank, ip) in ips.into_iter().enumerate() {
                script.launch_at(
                    SocketAddr::from((ip, 40_000)),
                    rank,
                    &processes[rank..=rank],
                );
            }
            let nodes = script.report().nodes.into_iter();
            nodes.map(|node| node.host).collect::<Vec<_>>()
        };
        let (one, other) = ([10, 8, 8, 1], [10, 8, 8, 2]);
        assert_eq!(hosts_of([one, other]), ["vm (10.8.8.1)", "vm (10.8.8.2)"]);
        assert_eq!(hosts_of([one, one]), ["vm", "vm"]);
    }
}
