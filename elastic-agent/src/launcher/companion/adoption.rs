//! The thread that finds the workers of another agent, and notices their exits.
//!
//! It reaps no process: torchrun needs the exit codes of its children.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use c10d_socket::HostPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use crate::agent::{AgentEvent, AgentListener, StartedWorker, StartedWorkers};
use crate::threads::{JoinedThread, lock};
use crate::worker::{ExitKind, WorkerExit};

const THREAD: &str = "adoption";

/// How often children are looked for: while the agent starts workers, and later, if it has not.
const SEARCH_INTERVAL: Duration = Duration::from_millis(50);
const LATE_SEARCH_INTERVAL: Duration = Duration::from_secs(1);
const LATE_AFTER: Duration = Duration::from_secs(10);

/// How long all workers of this node may take to appear after the first. A worker that exits at once never does.
const GATHERING_MAX: Duration = Duration::from_secs(1);

/// Looks for workers and their exits until it is dropped, which joins the thread.
#[derive(Debug)]
pub(super) struct Adoption {
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: JoinedThread,
}

#[derive(Debug, Default)]
struct Shared {
    /// The round whose workers the agent starts, until the thread has begun to look for them.
    expected: Mutex<Option<i64>>,
    /// Whether workers exit because the agent stops them.
    is_stopping: AtomicBool,
    /// The exit of the first worker of the round that has failed.
    failure: Mutex<Option<WorkerExit>>,
    has_ended: AtomicBool,
}

impl Adoption {
    /// # Errors
    /// An error of the operating system if it has no thread or no socket left.
    pub(super) fn start(run_id: String, listeners: Vec<AgentListener>) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let shared = Arc::<Shared>::default();
        let thread = Thread {
            run_id,
            listeners,
            shared: Arc::clone(&shared),
            woken,
            search: None,
            workers: Vec::new(),
            has_lost_exit: false,
        };
        Ok(Self {
            shared,
            wake,
            thread: JoinedThread::start(THREAD, move || thread.run())?,
        })
    }

    /// The agent starts the workers of this round.
    pub(super) fn expect(&self, round: i64) {
        self.shared.is_stopping.store(false, Ordering::Release);
        *lock(&self.shared.failure) = None;
        *lock(&self.shared.expected) = Some(round);
        self.wake();
    }

    /// The agent stops the workers.
    pub(super) fn stop(&self) {
        if !self.shared.is_stopping.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Ends the thread. Returns the exit of the first worker of the last round that has failed. Blocks while a listener is
    /// called.
    pub(super) fn end(mut self) -> Option<WorkerExit> {
        self.shared.has_ended.store(true, Ordering::Release);
        self.wake();
        self.thread.join();
        lock(&self.shared.failure).take()
    }

    fn wake(&self) {
        // If the socket is full, the thread wakes anyway.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Release);
        self.wake();
    }
}

/// A search for the workers of a round.
#[derive(Debug)]
struct Search {
    round: i64,
    since: Instant,
    /// When the first worker was found.
    first_at: Option<Instant>,
    /// The processes of the round before, which are not looked for.
    before: Vec<u32>,
}

/// A worker that runs.
#[derive(Debug)]
struct Running {
    worker: StartedWorker,
    /// Readable when the process has exited.
    process: OwnedFd,
}

struct Thread {
    run_id: String,
    listeners: Vec<AgentListener>,
    shared: Arc<Shared>,
    woken: UnixStream,
    search: Option<Search>,
    workers: Vec<Running>,
    /// Whether the agent has reaped a worker of the round before this thread saw its exit.
    has_lost_exit: bool,
}

impl Thread {
    fn run(mut self) {
        let mut was_stopping = false;
        while !self.shared.has_ended.load(Ordering::Acquire) {
            let expected = lock(&self.shared.expected).take();
            if let Some(round) = expected {
                self.begin(round);
            }
            let is_stopping = self.shared.is_stopping.load(Ordering::Acquire);
            if is_stopping && !was_stopping {
                self.notify(&AgentEvent::Stopping);
            }
            was_stopping = is_stopping;
            self.look_for_workers();
            let ready = self.wait();
            let mut place = 0..;
            let is_ready = |_: &mut Running| place.next().is_some_and(|at| ready.contains(&at));
            let exited: Vec<Running> = self.workers.extract_if(.., is_ready).collect();
            for exited in exited {
                self.note_exit(&exited);
            }
        }
    }

    fn begin(&mut self, round: i64) {
        self.has_lost_exit = false;
        self.search = Some(Search {
            round,
            since: Instant::now(),
            first_at: None,
            before: self.workers.iter().map(|it| it.worker.pid).collect(),
        });
    }

    fn look_for_workers(&mut self) {
        let Some(search) = &mut self.search else {
            return;
        };
        let now = Instant::now();
        let mut found = workers(&self.run_id);
        found.retain(|child| !search.before.contains(&child.worker.pid));
        let Some(first) = found.first() else {
            return;
        };
        let first_at = *search.first_at.get_or_insert(now);
        if found.len() < first.local_world_size && now < first_at + GATHERING_MAX {
            return;
        }
        let round = search.round;
        self.search = None;
        self.adopt(round, &found);
    }

    fn adopt(&mut self, round: i64, found: &[Child]) {
        self.workers = found
            .iter()
            .filter_map(|it| Running::open(it.worker))
            .collect();
        if let Some(started) = started(round, found) {
            self.notify(&AgentEvent::WorkersStarted(&started));
        }
    }

    /// Waits until there is something to do. Returns the positions of workers that have exited, in their order.
    fn wait(&self) -> Vec<usize> {
        let pause = self.search.as_ref().map(|search| {
            let is_late = search.since.elapsed() >= LATE_AFTER;
            if is_late {
                LATE_SEARCH_INTERVAL
            } else {
                SEARCH_INTERVAL
            }
        });
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let processes = self.workers.iter().map(|it| it.process.as_fd());
        let mut files: Vec<PollFd<'_>> = [self.woken.as_fd()]
            .into_iter()
            .chain(processes)
            .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN))
            .collect();
        if poll(&mut files, pause.as_ref()).is_err() {
            // Interrupted: the loop looks again.
            return Vec::new();
        }
        let ready: Vec<bool> = files.iter().map(|it| !it.revents().is_empty()).collect();
        if ready[0] {
            let mut orders = [0; 64];
            // A failure leaves bytes that only wake the thread again.
            let _ = (&self.woken).read(&mut orders);
        }
        let exited = ready[1..].iter().enumerate();
        exited
            .filter_map(|(at, is_ready)| is_ready.then_some(at))
            .collect()
    }

    fn note_exit(&mut self, exited: &Running) {
        let exit = WorkerExit {
            local_rank: exited.worker.local_rank,
            rank: exited.worker.rank,
            pid: exited.worker.pid,
            exit: exited.exit(),
            ended_at: SystemTime::now(),
        };
        // The agent was faster to reap it. It may have failed, and the agent then stops the other workers.
        self.has_lost_exit |= exit.exit == ExitKind::Unknown;
        let is_failure = is_failure(exit.exit, self.has_lost_exit);
        // The agent has stopped the other workers of an earlier round.
        let is_over = self.search.is_some() || lock(&self.shared.expected).is_some();
        let is_first =
            is_failure && !is_over && !self.shared.is_stopping.swap(true, Ordering::AcqRel);
        if is_first {
            *lock(&self.shared.failure) = Some(exit);
        }
        self.notify(&AgentEvent::WorkerExited(&exit));
        if is_first {
            self.notify(&AgentEvent::WorkerFailed(&exit));
        }
    }

    fn notify(&self, event: &AgentEvent<'_>) {
        for listener in &self.listeners {
            listener(event);
        }
    }
}

/// Returns whether an exit is a failure of the worker itself. After an exit that the agent has reaped first, SIGTERM and
/// SIGKILL are how the agent stops the other workers.
pub(super) const fn is_failure(exit: ExitKind, has_lost_exit: bool) -> bool {
    match exit {
        ExitKind::Unknown => false,
        ExitKind::Signal { number: 9 | 15, .. } => !has_lost_exit,
        exit => !exit.is_success(),
    }
}

impl Running {
    /// `None` if the process has been reaped.
    fn open(worker: StartedWorker) -> Option<Self> {
        let pid = Pid::from_raw(worker.pid.try_into().ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { worker, process })
    }

    /// Returns how the process has exited. It stays for the agent to reap.
    fn exit(&self) -> ExitKind {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(self.process.as_fd()), options) {
            Ok(Some(status)) => ExitKind::of(&status),
            Ok(None) | Err(_) => ExitKind::Unknown,
        }
    }
}

/// The longest environment that is read, in bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// A worker, with the facts about the round in its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) worker: StartedWorker,
    /// The number of workers on this node.
    pub(super) local_world_size: usize,
    node_rank: usize,
    nodes: usize,
    world_size: usize,
    role_rank: usize,
    role_world_size: usize,
    restarts: usize,
    master: HostPort,
    is_agent_store: bool,
}

/// Returns the workers among the children of this process. A child that has not yet executed its program is not found.
pub(super) fn workers(run_id: &str) -> Vec<Child> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let mut found: Vec<Child> = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|text| pids(&text))
        .filter_map(|pid| worker_of(pid, &environment(pid)?, run_id))
        .collect();
    found.sort_unstable_by_key(|child| child.worker.local_rank);
    found
}

fn pids(text: &str) -> Vec<u32> {
    let words = text.split_ascii_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

fn environment(pid: u32) -> Option<Vec<u8>> {
    let file = File::open(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let mut bytes = Vec::new();
    file.take(ENVIRONMENT_BYTES_MAX)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// The worker with this environment, as `/proc` has it; `None` if it is not a worker of this run.
fn worker_of(pid: u32, environment: &[u8], run_id: &str) -> Option<Child> {
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        let found = variables.find_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        std::str::from_utf8(found?).ok()
    };
    let number = |name: &str| value(name)?.parse::<usize>().ok();
    if value("TORCHELASTIC_RUN_ID")? != run_id {
        return None;
    }
    let (rank, local_rank) = (number("RANK")?, number("LOCAL_RANK")?);
    let world_size = number("WORLD_SIZE")?;
    Some(Child {
        worker: StartedWorker::new(rank, local_rank, pid),
        local_world_size: number("LOCAL_WORLD_SIZE")?,
        node_rank: number("GROUP_RANK")?,
        nodes: number("GROUP_WORLD_SIZE")?,
        world_size,
        role_rank: number("ROLE_RANK").unwrap_or(rank),
        role_world_size: number("ROLE_WORLD_SIZE").unwrap_or(world_size),
        restarts: number("TORCHELASTIC_RESTART_COUNT").unwrap_or(0),
        master: HostPort::new(value("MASTER_ADDR")?, value("MASTER_PORT")?.parse().ok()?),
        is_agent_store: value("TORCHELASTIC_USE_AGENT_STORE") == Some("True"),
    })
}

/// Returns these workers of a round as an agent reports them; `None` for no workers.
pub(super) fn started(round: i64, children: &[Child]) -> Option<StartedWorkers> {
    let first = children.first()?;
    let workers = children.iter().map(|child| child.worker).collect();
    let mut started = StartedWorkers::alone(first.master.clone(), workers);
    started.round = round;
    started.node_rank = first.node_rank;
    started.nodes = first.nodes;
    started.world_size = first.world_size;
    started.first_role_rank = first.role_rank.saturating_sub(first.worker.local_rank);
    started.role_world_size = first.role_world_size;
    started.restarts = first.restarts;
    started.restarts_used = first.restarts;
    started.is_agent_store = first.is_agent_store;
    Some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_TORCHRUN: &str = "PATH=/bin\0RANK=5\0LOCAL_RANK=1\0GROUP_RANK=1\0ROLE_RANK=5\0LOCAL_WORLD_SIZE=4\0\
        WORLD_SIZE=8\0GROUP_WORLD_SIZE=2\0ROLE_WORLD_SIZE=8\0MASTER_ADDR=node0\0MASTER_PORT=29500\0\
        TORCHELASTIC_RESTART_COUNT=2\0TORCHELASTIC_RUN_ID=17\0TORCHELASTIC_USE_AGENT_STORE=True\0";

    #[test]
    fn the_environment_of_torchrun_tells_the_round() {
        let child = worker_of(4711, OF_TORCHRUN.as_bytes(), "17").expect("a worker");
        assert_eq!(child.worker, StartedWorker::new(5, 1, 4711));
        assert_eq!(child.local_world_size, 4);
        let started = started(3, &[child]).expect("workers");
        assert_eq!((started.round, started.node_rank, started.nodes), (3, 1, 2));
        assert_eq!((started.world_size, started.restarts), (8, 2));
        assert_eq!(started.first_role_rank, 4);
        assert_eq!(started.master.to_string(), "node0:29500");
        assert!(started.is_agent_store);
    }

    #[test]
    fn other_children_are_no_workers() {
        for (environment, run_id) in [
            (OF_TORCHRUN, "18"),
            ("", "17"),
            ("TORCHELASTIC_RUN_ID=17\0", "17"),
            (&OF_TORCHRUN.replace("\0RANK=5", "\0RANK=-5"), "17"),
            (&OF_TORCHRUN.replace("\0RANK=5", "\0RANK_=5"), "17"),
            (&OF_TORCHRUN.replace("=29500", "=295000"), "17"),
        ] {
            let child = worker_of(1, environment.as_bytes(), run_id);
            assert_eq!(child, None, "{environment}");
        }
    }

    #[test]
    fn a_list_of_children_has_numbers() {
        assert_eq!(pids("17 4711 \n"), [17, 4711]);
        assert_eq!(pids(""), [0; 0]);
    }
}
