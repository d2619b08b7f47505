//! The processes of the workers on this host, and their connections to the workers' store.
//!
//! It reads /proc, so it finds processes only on Linux.

mod proc_files;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use c10d_inspect::AnnouncedProcess;
use c10d_socket::ProcessStat;

pub(super) use self::proc_files::TcpSocket;
use self::proc_files::TcpState;

/// How many processes of one worker are listed, and of a node with many workers; at least two of each. Processes with a
/// connection are listed first. An announcement has 256 KiB at most.
const LISTED_MAX: usize = 16;
const LISTED_OF_NODE_MAX: usize = 600;

/// How many open files of one process are read.
const FILES_MAX: usize = 1 << 16;

/// How many network namespaces are read. Normally all workers share one.
const NAMESPACES_MAX: usize = 16;

/// The most bytes of a table of sockets, some 100,000 lines.
const TABLE_BYTES_MAX: u64 = 16 << 20;

/// The most bytes of any other file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The address of the workers' store: connections to one of these addresses are connections to the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StoreAddress {
    pub(super) ips: Vec<IpAddr>,
    pub(super) port: u16,
    /// The IP address that appears in the store instead of a worker's address, if these are a relay's addresses. The
    /// port stays the same.
    pub(super) seen_as: Option<IpAddr>,
}

/// Finds the processes of workers, and remembers what the next look can use again.
#[derive(Debug)]
pub(super) struct Scanner {
    root: PathBuf,
    ticks_per_second: u64,
    /// The processes that hold a socket, by its inode, at the time of the last look.
    holders: HashMap<u64, Vec<u32>>,
}

impl Scanner {
    /// `root` is `/proc`.
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            holders: HashMap::new(),
        }
    }

    /// Returns the processes of each worker, given by its process id. The worker itself is first. Without /proc,
    /// returns only the workers.
    pub(super) fn look(
        &mut self,
        workers: &[u32],
        store: &StoreAddress,
    ) -> Vec<Vec<AnnouncedProcess>> {
        let mut stats = self.stats();
        let mut members = by_worker(&stats, workers);
        let sockets = self.sockets(members.iter().flatten(), store);
        self.holders.retain(|inode, _| sockets.contains_key(inode));
        // Reading the open files is by far the longest part.
        if sockets
            .keys()
            .any(|inode| !self.holders.contains_key(inode))
        {
            // Since they were listed, a process may have started and opened one of the sockets.
            stats = self.stats();
            members = by_worker(&stats, workers);
            self.find_holders(members.iter().flatten(), &sockets);
        }
        let by_holder = self.sockets_by_holder(&sockets);
        let of_worker = |(worker, members): (&u32, Vec<u32>)| {
            let mut listed: Vec<AnnouncedProcess> = members
                .iter()
                .filter_map(|pid| {
                    let sockets = by_holder.get(pid);
                    Some(self.describe(*pid, stats.get(pid)?, sockets, store))
                })
                .collect();
            if listed.is_empty() {
                let mut alone = AnnouncedProcess::default();
                alone.pid = *worker;
                listed.push(alone);
            }
            shorten(&mut listed, LISTED_OF_NODE_MAX / workers.len());
            listed
        };
        workers.iter().zip(members).map(of_worker).collect()
    }

    /// Whether one of these processes holds the end `local` of a connection.
    pub(super) fn holds(&self, pids: &[u32], local: SocketAddr, remote: SocketAddr) -> bool {
        let is_end = |socket: &TcpSocket| {
            socket.state == TcpState::Established
                && (socket.local, socket.remote) == (canonical(local), canonical(remote))
        };
        let sockets = self.tables(pids.iter());
        let ends = sockets.iter().filter(|it| it.inode != 0 && is_end(it));
        let inodes: HashSet<u64> = ends.map(|socket| socket.inode).collect();
        !inodes.is_empty()
            && pids.iter().any(|pid| {
                let mut files = self.socket_files(*pid);
                files.any(|inode| inodes.contains(&inode))
            })
    }

    /// Returns the connections of each of these processes whose data has not been acknowledged, so that the kernel sends it
    /// again.
    pub(super) fn unacknowledged(&self, pids: &[u32]) -> Vec<Vec<TcpSocket>> {
        let mut sockets = self.tables(pids.iter());
        sockets.retain(|it| it.state == TcpState::Established && it.repeated_bytes > 0);
        // Reading the open files is by far the longest part.
        if sockets.is_empty() {
            return vec![Vec::new(); pids.len()];
        }
        let of_process = |pid: &u32| {
            let files: HashSet<u64> = self.socket_files(*pid).collect();
            let mut sockets = sockets.clone();
            sockets.retain(|it| files.contains(&it.inode));
            sockets
        };
        pids.iter().map(of_process).collect()
    }

    /// Returns the processes of each worker, the worker itself first.
    pub(super) fn members(&self, workers: &[u32]) -> Vec<Vec<u32>> {
        by_worker(&self.stats(), workers)
    }

    /// The states of these processes, of those that exist.
    pub(super) fn states(&self, pids: &[u32]) -> HashMap<u32, char> {
        let state = |pid: &u32| Some((*pid, ProcessStat::parse(&self.read(*pid, "stat")?)?.state));
        pids.iter().filter_map(state).collect()
    }

    fn stats(&self) -> HashMap<u32, ProcessStat> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        // A process can end at any time.
        pids.filter_map(|pid| Some((pid, ProcessStat::parse(&self.read(pid, "stat")?)?)))
            .collect()
    }

    /// The sockets of the processes' network namespaces that are connected to the store, or that try to
    /// connect to anything.
    fn sockets<'a>(
        &self,
        pids: impl Iterator<Item = &'a u32>,
        store: &StoreAddress,
    ) -> HashMap<u64, TcpSocket> {
        let sockets = self.tables(pids).into_iter();
        let wanted = sockets.filter(|socket| match socket.state {
            TcpState::SynSent => true,
            TcpState::Established => store.is_of(socket.remote),
        });
        // A socket without a file has the inode 0.
        let wanted = wanted.filter(|socket| socket.inode != 0);
        wanted.map(|socket| (socket.inode, socket)).collect()
    }

    /// All sockets of the processes' network namespaces.
    fn tables<'a>(&self, pids: impl Iterator<Item = &'a u32>) -> Vec<TcpSocket> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for pid in pids {
            let namespace = fs::read_link(self.path(*pid, "ns/net")).ok();
            if seen.len() >= NAMESPACES_MAX || !seen.insert(namespace) {
                continue;
            }
            for name in ["net/tcp", "net/tcp6"] {
                let bytes = read_up_to(&self.path(*pid, name), TABLE_BYTES_MAX).unwrap_or_default();
                let table = String::from_utf8_lossy(&bytes);
                found.extend(proc_files::tcp_sockets(&table));
            }
        }
        found
    }

    /// The inodes of the sockets that a process has open.
    fn socket_files(&self, pid: u32) -> impl Iterator<Item = u64> + use<> {
        let files = fs::read_dir(self.path(pid, "fd")).into_iter().flatten();
        files.flatten().take(FILES_MAX).filter_map(|file| {
            let target = fs::read_link(file.path()).ok()?;
            proc_files::socket_inode(target.as_os_str().as_bytes())
        })
    }

    /// Reads the open files of the processes.
    fn find_holders<'a>(
        &mut self,
        pids: impl Iterator<Item = &'a u32>,
        sockets: &HashMap<u64, TcpSocket>,
    ) {
        // A socket of another program stays without a holder, and is not looked for again.
        self.holders = sockets.keys().map(|inode| (*inode, Vec::new())).collect();
        for pid in pids {
            for inode in self.socket_files(*pid) {
                if let Some(holders) = self.holders.get_mut(&inode)
                    && !holders.contains(pid)
                {
                    holders.push(*pid);
                }
            }
        }
    }

    fn sockets_by_holder(&self, sockets: &HashMap<u64, TcpSocket>) -> HashMap<u32, Vec<TcpSocket>> {
        let mut by_holder: HashMap<u32, Vec<TcpSocket>> = HashMap::new();
        for (inode, holders) in &self.holders {
            for holder in holders {
                let socket = sockets.get(inode);
                by_holder.entry(*holder).or_default().extend(socket);
            }
        }
        by_holder
    }

    fn describe(
        &self,
        pid: u32,
        stat: &ProcessStat,
        sockets: Option<&Vec<TcpSocket>>,
        store: &StoreAddress,
    ) -> AnnouncedProcess {
        let mut process = AnnouncedProcess::default();
        process.pid = pid;
        process.inner_pid = self
            .read(pid, "status")
            .and_then(|status| proc_files::inner_pid(&status));
        process.parent = Some(stat.parent);
        process.command = self
            .read(pid, "comm")
            .map(|name| String::from_utf8_lossy(name.trim_ascii_end()).into_owned());
        process.state = Some(stat.state);
        process.cpu_ms = Some(stat.cpu_ticks.saturating_mul(1000) / self.ticks_per_second);
        for socket in sockets.into_iter().flatten() {
            match socket.state {
                TcpState::Established => process.store_connections.push(store.seen(socket.local)),
                TcpState::SynSent => process.connecting_to.push(socket.remote),
            }
        }
        process.store_connections.sort_unstable();
        process.connecting_to.sort_unstable();
        process.connecting_to.dedup();
        process
    }

    fn path(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    fn read(&self, pid: u32, name: &str) -> Option<Vec<u8>> {
        read_up_to(&self.path(pid, name), FILE_BYTES_MAX)
    }
}

impl StoreAddress {
    /// The address of a worker's socket from the store's side.
    fn seen(&self, local: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.seen_as.unwrap_or(local.ip()), local.port())
    }

    fn is_of(&self, remote: SocketAddr) -> bool {
        remote.port() == self.port && self.ips.contains(&remote.ip())
    }
}

/// Keeps the worker itself, then processes with connections, then the other processes in their order.
fn shorten(listed: &mut Vec<AnnouncedProcess>, share: usize) {
    let count = share.clamp(2, LISTED_MAX);
    if listed.len() <= count {
        return;
    }
    let is_quiet =
        |it: &AnnouncedProcess| it.store_connections.is_empty() && it.connecting_to.is_empty();
    listed[1..].sort_by_key(is_quiet);
    listed.truncate(count);
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn read_up_to(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(bytes_max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the processes that belong to each worker, given by its process id: itself, its descendants, and other
/// processes of its session, which are descendants that lost their parent. The processes are in the order of their ids,
/// the worker first. A process belongs to the nearest worker.
fn by_worker(processes: &HashMap<u32, ProcessStat>, workers: &[u32]) -> Vec<Vec<u32>> {
    let positions = workers.iter().enumerate();
    let positions: HashMap<u32, usize> = positions.map(|(at, worker)| (*worker, at)).collect();
    let mut members = vec![Vec::new(); workers.len()];
    for &pid in processes.keys() {
        if let Some(position) = owner(pid, processes, &positions) {
            members[position].push(pid);
        }
    }
    for (members, worker) in members.iter_mut().zip(workers) {
        members.sort_unstable_by_key(|pid| (pid != worker, *pid));
    }
    members
}

fn owner(
    pid: u32,
    processes: &HashMap<u32, ProcessStat>,
    workers: &HashMap<u32, usize>,
) -> Option<usize> {
    let mut ancestor = pid;
    // The files are read one after the other, so a reused id can make a circle.
    for _ in 0..processes.len() {
        if let Some(&position) = workers.get(&ancestor) {
            return Some(position);
        }
        let Some(stat) = processes.get(&ancestor) else {
            break;
        };
        ancestor = stat.parent;
    }
    workers.get(&processes.get(&pid)?.session).copied()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::thread;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_connection_is_found_with_the_process_that_holds_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let store = StoreAddress {
            ips: vec![address.ip()],
            port: address.port(),
            seen_as: None,
        };
        let own = std::process::id();
        let mut scanner = Scanner::new("/proc");
        let look = |scanner: &mut Scanner| {
            let mut found = scanner.look(&[own], &store).remove(0);
            assert_eq!(found[0].pid, own);
            found.swap_remove(0)
        };
        let before = look(&mut scanner);
        assert_eq!(before.store_connections, []);
        assert_eq!(before.inner_pid, Some(own));
        assert!(before.cpu_ms.is_some() && before.state.is_some());

        let mut connections: Vec<TcpStream> = Vec::new();
        for _ in 0..2 {
            connections.push(TcpStream::connect(address).unwrap());
            let mut expected: Vec<SocketAddr> = connections
                .iter()
                .map(|it| it.local_addr().unwrap())
                .collect();
            expected.sort_unstable();
            assert_eq!(look(&mut scanner).store_connections, expected);
        }
        let relay = StoreAddress {
            seen_as: Some([10, 0, 0, 5].into()),
            ..store.clone()
        };
        let port = connections[0].local_addr().unwrap().port();
        let seen = SocketAddr::from(([10, 0, 0, 5], port));
        let found = scanner.look(&[own], &relay).remove(0);
        assert!(found[0].store_connections.contains(&seen), "{found:?}");
        connections.clear();
        assert_eq!(look(&mut scanner).store_connections, []);
    }

    #[test]
    fn a_process_that_starts_during_a_look_is_found_with_its_connection() {
        let folder = tempfile::tempdir().unwrap();
        let add = |pid: u32, parent: u32| {
            let process = folder.path().join(pid.to_string());
            fs::create_dir_all(process.join("net")).unwrap();
            fs::create_dir_all(process.join("fd")).unwrap();
            let rest = "0 ".repeat(48);
            let stat = format!("{pid} (sh) S {parent} {rest}");
            fs::write(process.join("stat"), stat).unwrap();
            process
        };
        // Reading the worker's table of sockets waits until the child has started and connected.
        let table = add(17, 1).join("net/tcp");
        mknodat(CWD, &table, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let store = StoreAddress {
            ips: vec![[127, 0, 0, 1].into()],
            port: 29500,
            seen_as: None,
        };
        let found = thread::scope(|scope| {
            scope.spawn(|| {
                let mut table = fs::OpenOptions::new().write(true).open(&table).unwrap();
                let link = add(18, 17).join("fd/3");
                std::os::unix::fs::symlink("socket:[4711]", link).unwrap();
                let [local, remote] = [40000u16, 29500].map(|port| {
                    format!("{:08X}:{port:04X}", u32::from(Ipv4Addr::LOCALHOST).to_be())
                });
                let line = format!("0: {local} {remote} 01 0:0 0:0 0 0 0 4711");
                writeln!(table, "header\n{line}").unwrap();
            });
            Scanner::new(folder.path()).look(&[17], &store)
        });
        let connections = found[0].iter().map(|it| it.store_connections.len());
        assert_eq!(connections.collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn without_proc_the_worker_alone_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut scanner = Scanner::new(folder.path());
        let found = scanner.look(&[17, 18], &StoreAddress::default());
        let pids: Vec<Vec<u32>> = found
            .iter()
            .map(|of_worker| of_worker.iter().map(|it| it.pid).collect())
            .collect();
        assert_eq!(pids, [[17], [18]]);
    }

    #[test]
    fn processes_with_connections_are_kept_when_there_are_too_many() {
        let process = |pid: u32| {
            let mut process = AnnouncedProcess::default();
            process.pid = pid;
            process
        };
        let mut listed: Vec<AnnouncedProcess> = (0..1000).map(process).collect();
        listed[999].store_connections = vec!["127.0.0.1:1".parse().unwrap()];
        shorten(&mut listed, 600);
        assert_eq!(listed.len(), LISTED_MAX);
        assert_eq!([listed[0].pid, listed[1].pid, listed[2].pid], [0, 999, 1]);
        shorten(&mut listed, 0);
        assert_eq!(listed.iter().map(|it| it.pid).collect::<Vec<_>>(), [0, 999]);
    }
}

#[cfg(test)]
mod tree_tests {
    use super::*;

    fn process(parent: u32, session: u32) -> ProcessStat {
        let mut stat = ProcessStat::default();
        stat.parent = parent;
        stat.session = session;
        stat
    }

    #[test]
    fn descendants_and_orphans_of_the_session_belong_to_a_worker() {
        let processes = HashMap::from([
            (1, process(0, 1)),
            (100, process(1, 50)),
            // A shell, its Python, that one's loader, which leads its own session.
            (200, process(100, 200)),
            (90, process(200, 200)),
            (91, process(90, 91)),
            // Its parent has ended.
            (92, process(1, 200)),
            (300, process(100, 300)),
            // A daemon that left the session.
            (400, process(1, 400)),
        ]);
        assert_eq!(
            by_worker(&processes, &[200, 300, 500]),
            [vec![200, 90, 91, 92], vec![300], vec![]]
        );
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let processes = HashMap::from([(7, process(8, 7)), (8, process(7, 8))]);
        assert_eq!(by_worker(&processes, &[9]), [Vec::<u32>::new()]);
    }
}
