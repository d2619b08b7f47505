//! Asks NCCL's RAS service on this node what is wrong, from time to time, for the announcements of the workers.
//!
//! Each answer is about the whole job, and costs a message to each of its processes. Therefore the first nodes take turns,
//! and the job is asked once in five seconds however many nodes it has.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use c10d_inspect::AnnouncedNode;
use c10d_inspect::nccl::{
    ANSWER_BYTES_MAX, AnnouncedNccl, GREETING, NcclReport, NcclWatch, RAS_ADDRESS, question,
};
use c10d_socket::{
    Cancel, ConnectOptions, Deadline, Dialer, HostPort, resolve, sleep, wait_for_input,
};

use super::processes::Scanner;
use crate::threads::JoinedThread;

const THREAD: &str = "nccl-ras";

/// Asks until it is dropped, which joins its thread at once.
#[derive(Debug)]
pub(super) struct NcclAsker {
    cancel: Cancel,
    _thread: JoinedThread,
}

/// The address of the service for workers with this environment; `None` if they have none.
pub(super) fn service(environment: &[(OsString, OsString)]) -> Option<HostPort> {
    let variable = |name: &str| {
        let mut variables = environment.iter().rev();
        let (_, value) = variables.find(|(known, _)| *known == name)?;
        value.to_str()
    };
    if variable("NCCL_RAS_ENABLE").is_some_and(|value| value.trim() == "0") {
        return None;
    }
    // NCCL does not start the service at an address that it cannot read.
    let address = variable("NCCL_RAS_ADDR").unwrap_or(RAS_ADDRESS);
    address.parse().ok().filter(|it: &HostPort| it.port() != 0)
}

impl NcclAsker {
    /// Starts the thread. `node` returns the announced workers of this launcher, `note` takes the answer of their NCCL;
    /// `None` if it does not report anything.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(super) fn start(
        service: HostPort,
        node: impl Fn() -> AnnouncedNode + Send + 'static,
        note: impl Fn(Option<AnnouncedNccl>) + Send + 'static,
    ) -> io::Result<Self> {
        let cancel = Cancel::new();
        let thread = Thread {
            service,
            cancel: cancel.clone(),
            scanner: Scanner::new(PathBuf::from("/proc")),
            watch: NcclWatch::default(),
            epoch: Instant::now(),
            reads_json: true,
            had_answer: false,
        };
        Ok(Self {
            cancel,
            _thread: JoinedThread::start(THREAD, move || thread.run(&node, &note))?,
        })
    }
}

impl Drop for NcclAsker {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

struct Thread {
    service: HostPort,
    cancel: Cancel,
    scanner: Scanner,
    watch: NcclWatch,
    epoch: Instant,
    /// Whether an answer in JSON is short enough.
    reads_json: bool,
    had_answer: bool,
}

impl Thread {
    fn run(mut self, node: &impl Fn() -> AnnouncedNode, note: &impl Fn(Option<AnnouncedNccl>)) {
        let mut outcome = Outcome::NoAnswer;
        loop {
            let known = node();
            let pause = pause(&known, &outcome);
            if sleep(pause, [&self.cancel]).is_err() {
                return;
            }
            let known = node();
            if !is_asking(&known) {
                outcome = Outcome::NoAnswer;
                continue;
            }
            let answer = self.ask(&known);
            outcome = match &answer {
                Some(nccl) => Outcome::of(nccl),
                None => Outcome::NoAnswer,
            };
            if answer.is_some() || self.had_answer {
                self.had_answer = answer.is_some();
                note(answer);
            }
        }
    }

    fn ask(&mut self, node: &AnnouncedNode) -> Option<AnnouncedNccl> {
        let workers = node.workers.iter().filter(|worker| worker.end.is_none());
        let pids: Vec<u32> = workers
            .flat_map(|worker| &worker.processes)
            .map(|process| process.pid)
            .collect();
        let is_ours = |local, remote| self.scanner.holds(&pids, local, remote);
        let bytes = ask(&self.service, self.reads_json, &is_ours, &self.cancel);
        let bytes = match bytes {
            Ok(bytes) => bytes?,
            Err(error) => {
                log::debug!("NCCL's RAS service at {}: {error}", self.service);
                return None;
            }
        };
        // A text is shorter by far.
        self.reads_json &= bytes.len() < ANSWER_BYTES_MAX;
        match NcclReport::parse(&bytes) {
            Ok(report) => Some(self.watch.note(&report, self.epoch.elapsed())),
            Err(error) => {
                log::debug!("NCCL's RAS service at {}: {error}", self.service);
                None
            }
        }
    }
}

/// How often the job is asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// The number of nodes that query NCCL.
const ASKERS: usize = 8;

/// A problem that is younger may be one of a moment: the next answer follows soon.
const YOUNG_MS: u64 = 10_000;

/// The outcome of the last question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    NoAnswer,
    Settled,
    /// A problem that the next answer confirms, or not.
    Young,
}

impl Outcome {
    fn of(nccl: &AnnouncedNccl) -> Self {
        let mut problems = nccl.problems.iter();
        match problems.any(|problem| problem.for_ms < YOUNG_MS) {
            true => Self::Young,
            false => Self::Settled,
        }
    }
}

/// Whether this launcher queries NCCL: its node is one of the first nodes, and a worker runs.
fn is_asking(node: &AnnouncedNode) -> bool {
    let is_first = node.node_rank.is_some_and(|rank| rank < ASKERS);
    is_first && node.workers.iter().any(|worker| worker.end.is_none())
}

/// The time until the next question.
fn pause(node: &AnnouncedNode, outcome: &Outcome) -> Duration {
    match outcome {
        // A connection that this machine refuses costs nothing.
        Outcome::NoAnswer | Outcome::Young => INTERVAL,
        Outcome::Settled => {
            let askers = node.nodes.unwrap_or(1).clamp(1, ASKERS);
            INTERVAL * u32::try_from(askers).unwrap_or(1)
        }
    }
}

/// How long a question may take. The service waits for silent processes for a second, but only for those that it does not
/// know to be silent: the next question has an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long a worker may take to accept a connection.
const PATIENCE: Duration = Duration::from_millis(125);

/// The interval of checks whether it has: the socket gives no event.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// How often a connection is retried that another program has taken: several can listen at the port.
const ATTEMPTS: u32 = 4;

/// The bytes of the answer; `None` if no worker listens there. Other programs receive no bytes. `is_ours` returns whether
/// a worker holds the end of a connection with these addresses, its own first.
fn ask(
    service: &HostPort,
    as_json: bool,
    is_ours: &dyn Fn(SocketAddr, SocketAddr) -> bool,
    cancel: &Cancel,
) -> io::Result<Option<Vec<u8>>> {
    let deadline = Deadline::after(Instant::now(), TIMEOUT);
    let options = ConnectOptions::default().with_rounds_max(1);
    let addresses = resolve(service, deadline, cancel)?;
    for _ in 0..ATTEMPTS {
        let mut is_refused = true;
        for address in &addresses {
            let target = HostPort::new(address.ip().to_string(), address.port());
            let dialer = Dialer::new(&target, &options, deadline);
            let Ok(stream) = dialer.with_cancel(cancel.clone()).connect() else {
                continue;
            };
            is_refused = false;
            let until = Deadline::after(Instant::now(), PATIENCE).min(deadline);
            if is_taken_by_worker(&stream, is_ours, until, cancel)? {
                return exchange(stream, as_json, deadline, cancel).map(Some);
            }
        }
        if is_refused {
            break;
        }
    }
    Ok(None)
}

/// Whether a worker has accepted the connection. Its process has it a moment after the system has.
fn is_taken_by_worker(
    stream: &TcpStream,
    is_ours: &dyn Fn(SocketAddr, SocketAddr) -> bool,
    until: Deadline,
    cancel: &Cancel,
) -> io::Result<bool> {
    let (theirs, own) = (stream.peer_addr()?, stream.local_addr()?);
    loop {
        if is_ours(theirs, own) {
            return Ok(true);
        }
        if until.has_passed(Instant::now()) {
            return Ok(false);
        }
        sleep(LOOK_INTERVAL, [cancel])?;
    }
}

fn exchange(
    mut stream: TcpStream,
    as_json: bool,
    deadline: Deadline,
    cancel: &Cancel,
) -> io::Result<Vec<u8>> {
    // A new connection takes so little at once.
    stream.write_all(format!("{GREETING}{}", question(as_json)).as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    while answer.len() < ANSWER_BYTES_MAX {
        let left = deadline.remaining(Instant::now());
        if !wait_for_input(&stream, left, cancel)? {
            return Err(ErrorKind::TimedOut.into());
        }
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if deadline.has_passed(Instant::now()) {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod pace_tests {
    use c10d_inspect::AnnouncedWorker;
    use c10d_inspect::nccl::NcclProblem;

    use super::*;

    fn node(rank: usize, nodes: usize, workers: usize) -> AnnouncedNode {
        let mut node = AnnouncedNode::default();
        node.node_rank = Some(rank);
        node.nodes = Some(nodes);
        node.workers = vec![AnnouncedWorker::default(); workers];
        node
    }

    #[test]
    fn the_first_nodes_take_turns() {
        let turns = |nodes| pause(&node(0, nodes, 1), &Outcome::Settled).as_secs();
        assert_eq!([1, 2, 8, 2000].map(turns), [5, 10, 40, 40]);
        let asks = |rank| is_asking(&node(rank, 2000, 8));
        assert_eq!([0, 7, 8, 1999].map(asks), [true, true, false, false]);
        assert!(!is_asking(&node(0, 1, 0)) && !is_asking(&AnnouncedNode::default()));
    }

    #[test]
    fn a_young_problem_is_confirmed_soon() {
        let outcome = |for_ms: &[u64]| {
            let mut nccl = AnnouncedNccl::default();
            let problems = for_ms.iter().map(|for_ms| {
                let mut problem = NcclProblem::default();
                problem.for_ms = *for_ms;
                problem
            });
            nccl.problems = problems.collect();
            Outcome::of(&nccl)
        };
        assert_eq!(outcome(&[]), Outcome::Settled);
        assert_eq!(outcome(&[10_000]), Outcome::Settled);
        assert_eq!(outcome(&[10_000, 9_999]), Outcome::Young);
        let many = node(3, 2000, 8);
        assert_eq!(pause(&many, &Outcome::Young).as_secs(), 5);
        assert_eq!(pause(&many, &Outcome::NoAnswer).as_secs(), 5);
    }
}

#[cfg(test)]
mod tests;
