//! Random jobs: hosts, containers, address translation, launchers, kills, restarts, reused process ids. Knows the
//! truth about each connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use c10d_store::ConnectionId;
use fastrand::Rng;

use super::script::DEFAULT;
use super::store::Store;
use crate::announced::{AnnouncedNode, AnnouncedProcess, AnnouncedWorker, WorkerEnd};
use crate::keys::encoded;

const TICK: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct World {
    pub(super) store: Store,
    /// The rank of each connection's process; `None` for processes that have none in this job.
    pub(super) truth: BTreeMap<ConnectionId, Option<usize>>,
    pub(super) size: usize,
    pub(super) has_launchers: bool,
    /// Whether each rank had one process at most, and all belong to one job.
    pub(super) is_simple: bool,
    /// Ranks that were never started, or killed, or stopped, or ended with a neighbour before they published.
    pub(super) faulty: BTreeSet<usize>,
    hosts: Vec<Host>,
    processes: Vec<Process>,
    next_port: u16,
    is_all_at_once: bool,
}

#[derive(Debug)]
struct Host {
    name: String,
    /// The address from the server's side, and the address from the side of the host's processes.
    public: IpAddr,
    private: IpAddr,
    launcher: Option<Launcher>,
    /// Whether a launcher without announcements stops all its workers when one of them has exited.
    ends_together: bool,
    /// A process id that is handed out again.
    reused_pid: u32,
}

#[derive(Debug)]
struct Launcher {
    connection: ConnectionId,
    /// Whether it reads /proc.
    resolves: bool,
    /// Whether each worker is behind a shell.
    is_wrapped: bool,
}

#[derive(Debug)]
struct Process {
    rank: usize,
    host: usize,
    host_pid: u32,
    /// The process id that it sends as its nonce.
    inner_pid: u32,
    address: IpAddr,
    size: usize,
    starts: usize,
    stage: Stage,
    is_stopped: bool,
    ended: Option<Duration>,
    has_published: bool,
    connections: Vec<(ConnectionId, SocketAddr)>,
    /// The worker of the launcher that it belongs to; a worker can start several processes.
    worker: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Waits,
    Connected,
    Joined,
    Reads(usize),
    Done,
    Ended,
}

impl World {
    /// A job that has run for some time.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut store = Store::default();
        store.pass(Duration::from_secs(100));
        let mut world = Self {
            store,
            truth: BTreeMap::new(),
            size: random.usize(2..=8),
            has_launchers: random.bool(),
            is_simple: true,
            faulty: BTreeSet::new(),
            hosts: Vec::new(),
            processes: Vec::new(),
            next_port: 20_000,
            is_all_at_once: random.u8(..4) == 0,
        };
        world.add_hosts(&mut random);
        world.add_ranks(&mut random);
        if random.u8(..5) == 0 {
            world.add_second_job(&mut random);
        }
        world
    }

    fn add_hosts(&mut self, random: &mut Rng) {
        let count = random.usize(1..=3);
        // Two hosts or more behind one address.
        let is_shared = count > 1 && random.u8(..3) == 0;
        for place in 0..count {
            let private = IpAddr::from([192, 168, 1, 10 + place as u8]);
            let public = if is_shared {
                IpAddr::from([203, 0, 113, 1])
            } else if place == 0 && random.bool() {
                IpAddr::from([127, 0, 0, 1])
            } else {
                private
            };
            let private = if public.is_loopback() {
                public
            } else {
                private
            };
            let mut host = Host {
                name: format!("node-{place}"),
                public,
                private,
                launcher: None,
                ends_together: random.bool(),
                reused_pid: 1000 + random.u32(..3),
            };
            if self.has_launchers && random.u8(..6) > 0 {
                let peer = self.peer(&host, private).1;
                let connection = self.store.connect(peer, 0xC10D_0000);
                self.truth.insert(connection, None);
                host.launcher = Some(Launcher {
                    connection,
                    resolves: random.u8(..5) > 0,
                    is_wrapped: random.u8(..4) == 0,
                });
            }
            self.hosts.push(host);
        }
    }

    fn add_ranks(&mut self, random: &mut Rng) {
        // All ranks are in separate containers, behind the host's address or with it.
        let containers = random.u8(..4);
        let is_spawned = random.u8(..8) == 0;
        for rank in 0..self.size {
            let host = rank % self.hosts.len();
            let host_pid = if random.u8(..4) == 0 {
                self.hosts[host].reused_pid
            } else {
                2000 + random.u32(..40)
            };
            let (inner_pid, address) = match containers {
                0 => (1, IpAddr::from([172, 17, 0, 2 + rank as u8])),
                1 => (1 + random.u32(..3), self.hosts[host].private),
                _ => (host_pid, self.hosts[host].private),
            };
            let host_pid = if containers < 2 {
                5000 + rank as u32
            } else {
                host_pid
            };
            let starts = if random.u8(..8) == 0 {
                self.faulty.insert(rank);
                usize::MAX
            } else {
                random.usize(..30)
            };
            let is_taken = self
                .processes
                .iter()
                .any(|other| other.host == host && other.host_pid == host_pid);
            let host_pid = if is_taken {
                6000 + rank as u32
            } else {
                host_pid
            };
            let inner_pid = if is_taken && containers > 1 {
                host_pid
            } else {
                inner_pid
            };
            let worker = if is_spawned { host } else { rank };
            let process = Process {
                rank,
                host,
                host_pid,
                inner_pid,
                address,
                size: self.size,
                starts,
                stage: Stage::Waits,
                is_stopped: false,
                ended: None,
                has_published: false,
                connections: Vec::new(),
                worker: self.hosts[host].launcher.is_some().then_some(worker),
            };
            self.processes.push(process);
        }
    }

    /// Adds processes of another job, started manually on the same hosts, with the same keys.
    fn add_second_job(&mut self, random: &mut Rng) {
        self.is_simple = false;
        for rank in 0..random.usize(1..=self.size) {
            let host = random.usize(..self.hosts.len());
            let address = self.hosts[host].private;
            let pid = 7000 + rank as u32;
            self.processes.push(Process {
                rank,
                host,
                host_pid: pid,
                inner_pid: pid,
                address,
                size: self.size,
                starts: random.usize(..60),
                stage: Stage::Waits,
                is_stopped: false,
                ended: None,
                has_published: false,
                connections: Vec::new(),
                worker: None,
            });
        }
    }

    /// Returns the address on the host, and the address from the server's side.
    fn peer(&mut self, host: &Host, address: IpAddr) -> (SocketAddr, SocketAddr) {
        self.next_port += 1;
        let local = SocketAddr::new(address, self.next_port);
        if address == host.public {
            return (local, local);
        }
        self.next_port += 1;
        (local, SocketAddr::new(host.public, self.next_port))
    }

    fn connect(&mut self, place: usize) -> ConnectionId {
        let process = &self.processes[place];
        let (host, address, pid, rank) = (
            process.host,
            process.address,
            process.inner_pid,
            process.rank,
        );
        let host = self.hosts.remove(host);
        let (local, peer) = self.peer(&host, address);
        self.hosts.insert(self.processes[place].host, host);
        let connection = self.store.connect(peer, pid);
        self.truth.insert(connection, Some(rank));
        self.processes[place].connections.push((connection, local));
        connection
    }

    /// Half a second: some processes take steps, some things happen to them.
    pub(super) fn tick(&mut self, tick: usize, random: &mut Rng) {
        self.store.pass(TICK);
        self.end_neighbours();
        for place in 0..self.processes.len() {
            if random.u8(..4) > 0 {
                self.step(place, tick, random);
            }
        }
        if random.u8(..10) == 0 {
            self.disturb(random);
        }
        if random.bool() {
            self.announce();
        }
    }

    /// Lets all processes run until they wait, without disturbing them.
    pub(super) fn settle(&mut self, ticks: usize, random: &mut Rng) {
        for tick in 0..ticks {
            self.store.pass(TICK);
            for place in 0..self.processes.len() {
                for _ in 0..4 {
                    self.step(place, 100 + tick, random);
                }
            }
        }
        self.announce();
    }

    fn step(&mut self, place: usize, tick: usize, random: &mut Rng) {
        let process = &self.processes[place];
        if process.is_stopped || process.ended.is_some() {
            return;
        }
        let (rank, size) = (process.rank, process.size);
        let key = |member: usize| format!("{DEFAULT}{member}");
        let main = process
            .connections
            .first()
            .map(|&(connection, _)| connection);
        let next = match (process.stage, main) {
            (Stage::Waits, _) if process.starts <= tick => {
                self.connect(place);
                Stage::Connected
            }
            (Stage::Connected, Some(connection)) => {
                self.store.add(connection, "init/", 1);
                Stage::Joined
            }
            (Stage::Joined, Some(connection)) => {
                let listening = SocketAddr::new(process.address, 30_000 + rank as u16);
                let host = self.host_name(place);
                let value = encoded(&host, listening, size);
                self.store.set(connection, &key(rank), &value);
                self.processes[place].has_published = true;
                Stage::Reads(0)
            }
            (Stage::Reads(member), Some(connection)) if !self.store.is_waiting(connection) => {
                if self.is_all_at_once {
                    let keys: Vec<String> = (0..size).map(key).collect();
                    if self.store.wait(connection, &keys) {
                        self.store.get(connection, &keys);
                        Stage::Done
                    } else {
                        Stage::Reads(member)
                    }
                } else if self.store.wait(connection, &[key(member)]) {
                    self.store.get(connection, &[key(member)]);
                    if member + 1 == size {
                        Stage::Done
                    } else {
                        Stage::Reads(member + 1)
                    }
                } else {
                    Stage::Reads(member)
                }
            }
            (Stage::Done, Some(_)) if random.u8(..30) == 0 => {
                self.further_connection(place, random);
                Stage::Done
            }
            (stage, _) => stage,
        };
        self.processes[place].stage = next;
    }

    /// A clone for a split group, or a debug server's short connection.
    fn further_connection(&mut self, place: usize, random: &mut Rng) {
        let rank = self.processes[place].rank;
        let listening = SocketAddr::new(self.processes[place].address, 31_000);
        let connection = self.connect(place);
        if random.bool() {
            let key = format!("/debug_server/rank{rank}");
            self.store.set(connection, &key, b"http://node:1234");
            self.store.close(connection);
        } else {
            // A group of one member on a separate connection.
            let key = format!("/default_pg/0//{:040x}//0/0", u128::from(random.u64(..)));
            let value = encoded(&self.host_name(place), listening, 1);
            self.store.set(connection, &key, &value);
            if self.store.wait(connection, std::slice::from_ref(&key)) {
                self.store.get(connection, &[key]);
            }
        }
    }

    fn host_name(&self, place: usize) -> String {
        let process = &self.processes[place];
        let host = &self.hosts[process.host];
        if process.address == host.private {
            host.name.clone()
        } else {
            format!("container-{}", process.rank)
        }
    }

    fn disturb(&mut self, random: &mut Rng) {
        let place = random.usize(..self.processes.len());
        if self.processes[place].ended.is_some() || self.processes[place].stage == Stage::Waits {
            return;
        }
        match random.u8(..6) {
            0 => {
                self.faulty.insert(self.processes[place].rank);
                self.processes[place].is_stopped = true;
            }
            1 => self.kill(place),
            2 => {
                // The process is killed and restarted, with the same process id or a different id.
                self.kill(place);
                self.is_simple = false;
                let before = &self.processes[place];
                let is_reused = random.bool();
                let pid = |pid: u32| if is_reused { pid } else { pid + 3000 };
                let again = Process {
                    host_pid: pid(before.host_pid),
                    inner_pid: pid(before.inner_pid),
                    stage: Stage::Waits,
                    starts: 0,
                    is_stopped: false,
                    ended: None,
                    has_published: false,
                    connections: Vec::new(),
                    ..*before
                };
                self.processes.push(again);
            }
            3 => {
                // A tool with its own connection, which may have the process id of a rank in another container.
                let process = &self.processes[place];
                let (host, pid) = (process.host, process.inner_pid);
                let is_container = process.inner_pid < 100;
                let pid = if is_container {
                    pid
                } else {
                    9000 + random.u32(..100)
                };
                let host = self.hosts.remove(host);
                let peer = self.peer(&host, host.private).1;
                self.hosts.insert(self.processes[place].host, host);
                let connection = self.store.connect(peer, pid);
                self.truth.insert(connection, None);
                match random.u8(..3) {
                    0 => drop(self.store.add(connection, "init/", 1)),
                    1 => drop(self.store.wait(connection, &["/mine".to_owned()])),
                    _ => {}
                }
            }
            // The same process makes its default group once more, on a new connection; an object of Python still
            // holds the old connection.
            4 if self.processes[place].stage == Stage::Done => {
                self.is_simple = false;
                self.processes[place].connections.clear();
                self.connect(place);
                self.processes[place].stage = Stage::Connected;
            }
            _ => {}
        }
    }

    fn kill(&mut self, place: usize) {
        self.faulty.insert(self.processes[place].rank);
        self.end(place);
    }

    /// Does the same as torchrun: stops the other workers of the node, whose addresses may then be missing as
    /// well.
    fn end_neighbours(&mut self) {
        let killed = self.processes.iter().filter(|other| other.ended.is_some());
        let hosts: BTreeSet<usize> = killed.map(|process| process.host).collect();
        for place in 0..self.processes.len() {
            let process = &self.processes[place];
            let host = &self.hosts[process.host];
            let is_together = host.launcher.is_none() && host.ends_together;
            if is_together && hosts.contains(&process.host) && process.ended.is_none() {
                if !process.has_published {
                    self.faulty.insert(process.rank);
                }
                self.end(place);
            }
        }
    }

    fn end(&mut self, place: usize) {
        let process = &mut self.processes[place];
        process.ended = Some(self.store.now);
        process.stage = Stage::Ended;
        for &(connection, _) in &process.connections {
            self.store.close(connection);
        }
    }

    /// Each launcher announces its host's workers.
    fn announce(&mut self) {
        for place in 0..self.hosts.len() {
            if let Some(launcher) = &self.hosts[place].launcher {
                let node = self.node(place, launcher);
                let connection = launcher.connection;
                self.store.announce(connection, &node);
            }
        }
    }

    fn node(&self, host: usize, launcher: &Launcher) -> AnnouncedNode {
        let mut workers: BTreeMap<usize, AnnouncedWorker> = BTreeMap::new();
        for process in self.processes.iter().filter(|process| process.host == host) {
            let Some(rank) = process.worker else { continue };
            let open = process.connections.iter();
            let addresses = open
                .filter(|(connection, _)| self.store.is_open(*connection))
                .map(|&(_, local)| local);
            let announced = AnnouncedProcess {
                pid: process.host_pid,
                inner_pid: launcher.resolves.then_some(process.inner_pid),
                parent: Some(900 + rank as u32),
                command: Some("python3".to_owned()),
                state: Some(if process.is_stopped { 'T' } else { 'S' }),
                store_connections: addresses.filter(|_| launcher.resolves).collect(),
                ..AnnouncedProcess::default()
            };
            let is_shared = self.processes.iter().any(|other| {
                other.host == host && other.worker == Some(rank) && other.rank != process.rank
            });
            let pid = if is_shared || launcher.is_wrapped {
                900 + rank as u32
            } else {
                process.host_pid
            };
            let worker = workers.entry(rank).or_default();
            // A worker that was started again replaces the one before.
            if !is_shared {
                *worker = AnnouncedWorker::default();
            }
            worker.rank = rank;
            worker.pid = pid;
            worker.started_ago_ms = 120_000;
            if pid != process.host_pid && worker.processes.is_empty() {
                let command = if is_shared { "python3" } else { "bash" };
                worker.processes.push(AnnouncedProcess {
                    pid,
                    command: Some(command.to_owned()),
                    ..AnnouncedProcess::default()
                });
            }
            match process.ended {
                Some(at) if !is_shared => {
                    worker.end = Some(WorkerEnd {
                        signal: Some(9),
                        ago_ms: (self.store.now - at).as_millis() as u64,
                        ..WorkerEnd::default()
                    });
                }
                Some(_) => {}
                None => worker.processes.push(announced),
            }
        }
        AnnouncedNode {
            host: self.hosts[host].name.clone(),
            node_rank: Some(host),
            world_size: Some(self.size),
            pid: 899,
            workers: workers.into_values().collect(),
            ..AnnouncedNode::default()
        }
    }

    /// The ranks whose address is missing, if a rank that runs waits for one of them.
    pub(super) fn missing(&self) -> BTreeSet<usize> {
        let published: BTreeSet<usize> = self
            .processes
            .iter()
            .filter(|process| process.has_published)
            .map(|process| process.rank)
            .collect();
        let waits = self.processes.iter().any(|process| {
            matches!(process.stage, Stage::Reads(_))
                && process
                    .connections
                    .iter()
                    .any(|&(one, _)| self.store.is_waiting(one))
        });
        if waits {
            (0..self.size)
                .filter(|rank| !published.contains(rank))
                .collect()
        } else {
            BTreeSet::new()
        }
    }
}
