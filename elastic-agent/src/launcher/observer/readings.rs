//! The counters of a worker's processes in /proc.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::stacks::Stacks;
use c10d_inspect::{AnnouncedProcess, UnacknowledgedData};
use c10d_socket::{Moment, ProcessStat};
use c10d_stacks::ProcessActivity;

use crate::launcher::observer::activity::{ProcessCounters, Reading, milliseconds};
use crate::launcher::processes::TcpSocket;
use crate::launcher::stacks::{NoStacks, StackThread, has_python_name};

/// The name of a DataLoader's worker process since PyTorch 2.6. Before, it has the name of its parent.
const LOADER_NAME: &str = "pt_data_worker";

/// Reads counters from /proc, or from a folder like it.
#[derive(Debug)]
pub(super) struct Counters {
    root: PathBuf,
    ticks_per_second: u64,
}

impl Counters {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
        }
    }

    /// Returns the counters of a worker with these processes, and the state of the main thread of the observed process;
    /// `None` if that process has exited.
    pub(super) fn read(
        &self,
        observed: u32,
        processes: impl IntoIterator<Item = u32>,
    ) -> Option<(Reading, char)> {
        let folder = self.root.join(observed.to_string());
        let main_folder = folder.join("task").join(observed.to_string());
        let main = self.stat(&main_folder)?;
        let run = fs::read_to_string(main_folder.join("schedstat"));
        let mut reading = Reading {
            main_cpu_ms: self.ms(main.cpu_ticks),
            main_run_us: run.ok().and_then(|text| run_us(&text)),
            // The clock in which the system counts the starts of processes.
            at_ms: milliseconds(Moment::now().parts().0),
            ..Reading::default()
        };
        for pid in processes {
            let folder = self.root.join(pid.to_string());
            let Some(stat) = self.stat(&folder) else {
                continue;
            };
            let io = fs::read_to_string(folder.join("io"));
            let counters = ProcessCounters {
                started_ms: self.ms(stat.start_ticks),
                cpu_ms: self.ms(stat.cpu_ticks),
                io_bytes: io.map_or(0, |text| io_bytes(&text)),
            };
            reading.processes.insert(pid, counters);
        }
        Some((reading, main.state))
    }

    fn stat(&self, folder: &Path) -> Option<ProcessStat> {
        ProcessStat::parse(&fs::read(folder.join("stat")).ok()?)
    }

    const fn ms(&self, ticks: u64) -> u64 {
        ticks.saturating_mul(1000) / self.ticks_per_second
    }
}

/// Returns the children of a process that ran Python, and that have exited and were not collected. Other children may be
/// programs for whose end nothing waits.
pub(super) fn dead_children(parent: u32, processes: &[AnnouncedProcess]) -> Vec<u32> {
    let dead = processes
        .iter()
        .filter(|it| it.parent == Some(parent) && it.state == Some('Z'))
        .filter(|it| has_python_name(it) || it.command.as_deref() == Some(LOADER_NAME));
    dead.map(|process| process.pid).collect()
}

/// The time that a thread has run, by its file `schedstat`: nanoseconds, and two more numbers.
fn run_us(text: &str) -> Option<u64> {
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1000)
}

/// Returns the bytes that a process has read and written according to its file `io`, which counts pipes and files but
/// not most sockets. Calls count when they return, disks also during a call and for mapped files.
fn io_bytes(text: &str) -> u64 {
    let value = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name))?;
        value.trim().parse::<u64>().ok()
    };
    let names = ["rchar:", "wchar:", "read_bytes:", "write_bytes:"];
    let bytes = names.into_iter().filter_map(value);
    bytes.fold(0, u64::saturating_add)
}

/// How long the stacks of all workers of a node may take.
const STACKS_TIMEOUT: Duration = Duration::from_secs(4);

/// Reads what processes do.
pub(in crate::launcher) trait ReadProcesses: Send {
    /// Returns the Python stacks of these processes in their order, or the reason why a process has none. May block for
    /// some seconds.
    fn stacks(&self, pids: &[u32]) -> Vec<Result<Stacks, NoStacks>>;

    /// Returns the activity of a process; the default if it has exited.
    fn activity(&self, pid: u32) -> ProcessActivity;
}

/// The processes of this host.
#[derive(Debug)]
pub(in crate::launcher) struct Processes(Arc<StackThread>);

impl Processes {
    /// The given thread reads their stacks.
    pub(in crate::launcher) const fn new(stacks: Arc<StackThread>) -> Self {
        Self(stacks)
    }
}

impl ReadProcesses for Processes {
    fn stacks(&self, pids: &[u32]) -> Vec<Result<Stacks, NoStacks>> {
        self.0.read(pids, STACKS_TIMEOUT)
    }

    fn activity(&self, pid: u32) -> ProcessActivity {
        ProcessActivity::of(pid).unwrap_or_default()
    }
}

/// The most connections of a worker that are announced.
const CONNECTIONS_MAX: usize = 4;

/// Returns the connections whose data is unacknowledged now and was some seconds before, the largest queues first. After
/// a lost packet alone, the data is sent again and acknowledged within a second.
pub(super) fn still_unacknowledged(
    now: &[TcpSocket],
    before: &[TcpSocket],
) -> Vec<UnacknowledgedData> {
    // The inode of a closed socket can be used again.
    let is_same = |a: &TcpSocket, b: &TcpSocket| (a.inode, a.remote) == (b.inode, b.remote);
    let was_seen = |socket: &&TcpSocket| before.iter().any(|it| is_same(it, socket));
    let mut still: Vec<&TcpSocket> = now.iter().filter(was_seen).collect();
    still.sort_by_key(|socket| (Reverse(socket.repeated_bytes), socket.remote));
    still.truncate(CONNECTIONS_MAX);
    let announced = still.into_iter().map(|socket| UnacknowledgedData {
        remote: socket.remote,
        bytes: socket.repeated_bytes.into(),
    });
    announced.collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::launcher::observer::readings::*;

    fn process(pid: u32, parent: u32, state: char) -> AnnouncedProcess {
        let mut process = AnnouncedProcess::default();
        process.pid = pid;
        process.parent = Some(parent);
        process.state = Some(state);
        process
    }

    #[test]
    fn children_that_ran_python_and_were_not_collected_are_found() {
        let all = |command: &str| {
            let mut all = [
                process(10, 1, 'S'),
                process(11, 10, 'S'),
                process(12, 11, 'Z'),
            ];
            all[2].command = Some(command.to_owned());
            all
        };
        for python in ["python3", "pt_data_worker", "pt_main_thread"] {
            assert_eq!(dead_children(11, &all(python)), [12]);
        }
        assert!(dead_children(10, &all("python3")).is_empty());
        assert!(dead_children(11, &all("git")).is_empty());
    }

    #[test]
    fn bytes_of_reads_and_writes_are_added() {
        assert_eq!(io_bytes("rchar: 10\nwchar: 5\nsyscr: 3\n"), 15);
        // One call writes a large file, and another file is mapped.
        let disks =
            "rchar: 10\nwchar: 5\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 7\n";
        assert_eq!(io_bytes(disks), 12_303);
        assert_eq!(io_bytes("rchar: x\n"), 0);
        assert_eq!(run_us("1234567 89 2\n"), Some(1234));
        assert_eq!((run_us(""), run_us("x 1 2")), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_counters_of_this_process_grow() {
        let own = std::process::id();
        let counters = Counters::new("/proc");
        let (before, _) = counters.read(own, [own]).unwrap();
        let mut bytes = 0;
        for _ in 0..20 {
            bytes += fs::read("/proc/self/maps").unwrap().len() as u64;
        }
        let (after, state) = counters.read(own, [own]).unwrap();
        assert!(matches!(state, 'R' | 'S' | 'D'), "{state}");
        let (now, then) = (after.processes[&own], before.processes[&own]);
        assert!(now.io_bytes >= then.io_bytes + bytes);
        assert!(now.started_ms == then.started_ms && now.started_ms < before.at_ms);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (with_child, _) = counters.read(own, [child.id()]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // The system counts starts in ticks of 10 ms.
        assert!(with_child.processes[&child.id()].started_ms + 10 >= before.at_ms);
        assert_eq!(counters.read(u32::MAX, [own]), None);
    }

    fn socket(inode: u64, port: u16, repeated_bytes: u32) -> TcpSocket {
        TcpSocket::established(([10, 0, 0, 2], port).into(), repeated_bytes, inode)
    }

    #[test]
    fn only_the_same_connection_in_both_samples_counts() {
        let before: Vec<_> = (1..9).map(|port| socket(port.into(), port, 10)).collect();
        let now = [
            socket(1, 1, 10),
            socket(2, 2, 30),
            // Another connection with the inode of a closed one, and a new one.
            socket(3, 99, 50),
            socket(77, 4, 50),
        ];
        let found = still_unacknowledged(&now, &before);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.remote.port(), it.bytes))
            .collect();
        assert_eq!(found, [(2, 30), (1, 10)]);
        assert_eq!(still_unacknowledged(&now, &[]), []);
        assert_eq!(
            still_unacknowledged(&before, &before).len(),
            CONNECTIONS_MAX
        );
    }
}
