//! A job of gloo ranks that a test moves step by step, in PyTorch's order of requests.

use std::net::SocketAddr;
use std::time::Duration;

use c10d_store::{ConnectionId, Snapshot};

use super::store::Store;
use crate::announced::{AnnouncedNode, AnnouncedProcess, AnnouncedWorker};
use crate::keys::encoded;
use crate::{Finding, Report, explain};

/// The default group's stem.
pub(crate) const DEFAULT: &str = "/default_pg/0//cpu//0/";

/// A rank's process. Its host is `vm`, its address 127.0.0.1, its pid 4100 + rank unless a test says otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) pid: u32,
    pub(crate) host: String,
    pub(crate) peer: SocketAddr,
    pub(crate) connection: Option<ConnectionId>,
}

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) store: Store,
    next_port: u16,
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

impl Script {
    /// The server has run for 100 s.
    pub(crate) fn new() -> Self {
        let mut store = Store::default();
        store.pass(seconds(100.0));
        Self {
            store,
            next_port: 40_000,
        }
    }

    pub(crate) fn process(&mut self, rank: usize, size: usize) -> Process {
        Process {
            rank,
            size,
            pid: 4100 + rank as u32,
            host: "vm".to_owned(),
            peer: self.address(),
            connection: None,
        }
    }

    /// An address of 127.0.0.1 that no connection has had.
    pub(crate) fn address(&mut self) -> SocketAddr {
        self.next_port += 1;
        SocketAddr::from(([127, 0, 0, 1], self.next_port))
    }

    /// Ranks 0 to `size` - 1.
    pub(crate) fn processes(&mut self, size: usize) -> Vec<Process> {
        (0..size).map(|rank| self.process(rank, size)).collect()
    }

    pub(crate) fn pass(&mut self, time: f64) {
        self.store.pass(seconds(time));
    }

    /// Connects and joins.
    pub(crate) fn join(&mut self, process: &mut Process) {
        let connection = self.store.connect(process.peer, process.pid);
        process.connection = Some(connection);
        self.store.add(connection, "init/", 1);
    }

    /// Publishes the address in a group.
    pub(crate) fn publish(&mut self, process: &Process, stem: &str, rank: usize, size: usize) {
        let listening = SocketAddr::new(process.peer.ip(), 26_000 + process.pid as u16);
        let value = encoded(&process.host, listening, size);
        let connection = process.connection.expect("a rank that has joined");
        self.store.set(connection, &format!("{stem}{rank}"), &value);
    }

    /// Waits for and reads the addresses from `first` on until one is missing; whether all are read.
    pub(crate) fn read(
        &mut self,
        process: &Process,
        stem: &str,
        first: usize,
        size: usize,
    ) -> bool {
        let connection = process.connection.expect("a rank that has joined");
        for member in first..size {
            let key = [format!("{stem}{member}")];
            if !self.store.wait(connection, &key) {
                return false;
            }
            self.store.get(connection, &key);
        }
        true
    }

    /// Connects, joins and publishes in the default group.
    pub(crate) fn start(&mut self, process: &mut Process) {
        self.join(process);
        self.publish(process, DEFAULT, process.rank, process.size);
    }

    /// All ranks but `absent` start, and read as far as they can.
    pub(crate) fn run_without(&mut self, processes: &mut [Process], absent: &[usize]) {
        for process in processes
            .iter_mut()
            .filter(|process| !absent.contains(&process.rank))
        {
            self.start(process);
        }
        for process in processes
            .iter()
            .filter(|process| !absent.contains(&process.rank))
        {
            self.read(process, DEFAULT, 0, process.size);
        }
    }

    /// All ranks have made the default group and are idle.
    pub(crate) fn run_all(&mut self, size: usize) -> Vec<Process> {
        let mut processes = self.processes(size);
        self.run_without(&mut processes, &[]);
        for process in &processes {
            self.read(process, DEFAULT, 0, size);
        }
        processes
    }

    /// A further connection of the process, as split_group makes one.
    pub(crate) fn cloned(&mut self, process: &Process) -> Process {
        let peer = self.address();
        let connection = self.store.connect(peer, process.pid);
        Process {
            peer,
            connection: Some(connection),
            ..process.clone()
        }
    }

    pub(crate) fn close(&mut self, process: &Process) {
        self.store
            .close(process.connection.expect("a rank that has joined"));
    }

    pub(crate) fn give_up(&mut self, process: &Process) {
        self.store
            .cancel_wait(process.connection.expect("a rank that has joined"));
    }

    /// The processes' launcher: connects and announces them.
    pub(crate) fn launch(&mut self, processes: &[Process]) -> (ConnectionId, AnnouncedNode) {
        let node = Self::launched(processes);
        let address = self.address();
        let connection = self.store.connect(address, 0xC10D_0000);
        self.store.announce(connection, &node);
        (connection, node)
    }

    fn launched(processes: &[Process]) -> AnnouncedNode {
        AnnouncedNode {
            host: "vm".to_owned(),
            node_rank: Some(0),
            nodes: Some(1),
            world_size: Some(processes.len()),
            pid: 50,
            run_id: "run".to_owned(),
            workers: processes.iter().map(worker).collect(),
            ..AnnouncedNode::default()
        }
    }

    /// A launcher at this address. All hosts have one name.
    pub(crate) fn launch_at(&mut self, peer: SocketAddr, node_rank: usize, processes: &[Process]) {
        let node = AnnouncedNode {
            node_rank: Some(node_rank),
            ..Self::launched(processes)
        };
        let connection = self.store.connect(peer, 0xC10D_0000);
        self.store.announce(connection, &node);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.store.snapshot()
    }

    pub(crate) fn report(&self) -> Report {
        explain(&self.snapshot(), None)
    }

    /// The finding that ranks first.
    pub(crate) fn cause(&self) -> Finding {
        let report = self.report();
        let cause = report.findings.first();
        cause
            .unwrap_or_else(|| panic!("no finding: {}", report.headline))
            .clone()
    }
}

fn worker(process: &Process) -> AnnouncedWorker {
    AnnouncedWorker {
        rank: process.rank,
        local_rank: process.rank,
        pid: process.pid,
        started_ago_ms: 10_000,
        processes: vec![AnnouncedProcess {
            pid: process.pid,
            state: Some('S'),
            store_connections: process.connection.iter().map(|_| process.peer).collect(),
            ..AnnouncedProcess::default()
        }],
        ..AnnouncedWorker::default()
    }
}
