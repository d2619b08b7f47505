//! Finds how to reach the ranks of a job from this host.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, resolve};

use super::process;
use super::route::{Here, Route, Subject};
use crate::http::Target;
use crate::report::{RankReport, Report, Sureness};
use crate::stacks::Stacks;

/// How long a rank has to answer. A debug server answers in a few milliseconds, unless its rank is blocked.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// How many ranks are asked at a time.
pub(super) const AT_ONCE: usize = 128;

/// A rank whose debug server or process can be reached from this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    pub(super) rank: usize,
    pub(super) targets: Vec<Target>,
    pub(super) pid: Option<u32>,
    /// The stacks that its launcher has read, or the reason why it has none; `None` if it has not tried.
    pub(super) stacks: Option<Result<Stacks, String>>,
    /// The command line that its launcher has read with the stacks.
    pub(super) command_line: Option<String>,
}

impl Worker {
    /// A rank with its debug servers, in the order in which they are tried, and its process, if that is one of this
    /// host.
    #[must_use]
    pub const fn new(rank: usize, targets: Vec<Target>, pid: Option<u32>) -> Self {
        Self {
            rank,
            targets,
            pid,
            stacks: None,
            command_line: None,
        }
    }

    /// Sets the stacks that its launcher has read from its memory, or the reason why it could not read them, in a
    /// clause, and its command line if it is not Python. Its debug servers are asked for its stacks only if the launcher
    /// could not read them.
    #[must_use]
    pub fn with_stacks(
        mut self,
        stacks: Result<Stacks, String>,
        command_line: Option<String>,
    ) -> Self {
        self.stacks = Some(stacks);
        self.command_line = command_line;
        self
    }
}

/// How long looking up the names of all hosts may take.
const NAMES_TIMEOUT: Duration = Duration::from_secs(3);

/// The routes to ranks.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Ranks whose debug servers or processes are asked from here.
    pub(super) workers: Vec<Worker>,
    /// Ranks for which the launcher of their node answers.
    pub(super) by_launcher: Vec<(usize, SocketAddr)>,
}

impl Reach {
    /// Looks up host names, and which of the ranks have a socket on this host. Blocks for up to 3 s.
    pub(super) fn of(
        report: &Report,
        ranks: &BTreeSet<usize>,
        here: &Here<'_>,
        subject: Subject,
    ) -> Self {
        let mut names = Names::new(Deadline::after(Instant::now(), NAMES_TIMEOUT));
        let mut reach = Self::default();
        for rank in report.ranks.iter().filter(|it| ranks.contains(&it.rank)) {
            let socket = rank.debug_socket.clone().filter(|path| path.exists());
            let targets = match here.route(rank, &report.nodes, socket.is_some(), subject) {
                Route::Launcher(address) => {
                    reach.by_launcher.push((rank.rank, address));
                    continue;
                }
                Route::Published { server, peers } => names.targets(&server, peers),
                Route::Here => socket.clone().map(Target::Unix).into_iter().collect(),
                Route::None => Vec::new(),
            };
            let is_here = socket.is_some() || here.is_home_of(rank);
            let pid = rank.pid.filter(|pid| is_here && is_process_of(*pid, rank));
            reach.workers.push(Worker::new(rank.rank, targets, pid));
        }
        reach
    }
}

/// Whether a process of this host can be the rank: numbers of processes in containers mean others.
fn is_process_of(pid: u32, report: &RankReport) -> bool {
    let is_sure = report.sureness >= Sureness::Launched;
    process::exists(pid) && process::has_rank(pid, report.rank).unwrap_or(is_sure)
}

/// Addresses of hosts.
struct Names {
    known: HashMap<HostPort, Vec<SocketAddr>>,
    deadline: Deadline,
}

impl Names {
    fn new(deadline: Deadline) -> Self {
        Self {
            known: HashMap::new(),
            deadline,
        }
    }

    /// The addresses of a published server: the addresses of its name, or otherwise the addresses of the
    /// rank's connections.
    fn targets(&mut self, server: &HostPort, peers: Vec<IpAddr>) -> Vec<Target> {
        let deadline = self.deadline;
        let lookup = || -> io::Result<Vec<SocketAddr>> {
            if deadline.has_passed(Instant::now()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            resolve(server, deadline, &Cancel::NEVER)
        };
        let known = self.known.entry(server.clone());
        let mut addresses = known
            .or_insert_with(|| lookup().unwrap_or_default())
            .clone();
        for peer in peers {
            let address = SocketAddr::new(peer, server.port());
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses.into_iter().map(Target::Tcp).collect()
    }
}
