//! The job behind a store: its ranks, and how each one's debug server is reached.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use c10d_inspect::http::Target;
use c10d_inspect::{RankReport, Report, Sureness};
use c10d_socket::{Deadline, HostPort, resolve};
use c10d_store::{PrefixStore, Store, TcpStore};

use super::probe::Worker;
use super::process;
use super::route::{Here, Route};
use crate::failure::Failure;
use crate::status::{StatusArgs, StatusPages};
use crate::status_error::StatusError;

/// How long looking up the names of all hosts may take.
const NAMES_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a store without status pages has to answer.
const KEYS_TIMEOUT: Duration = Duration::from_secs(5);

/// The prefix of the keys under which PyTorch's debug servers publish their addresses.
const KEYS_PREFIX: &str = "debug_server";

/// After this many ranks without an address, no later ones are looked for.
const GAP_MAX: usize = 64;

/// The most ranks that are looked for in a store without status pages.
const RANKS_MAX: usize = 1 << 16;

/// The most bytes of a published address.
const URL_BYTES_MAX: usize = 512;

/// The ranks of a job, and this host.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) report: Report,
    /// Whether the store has no status pages, so that only published addresses are known.
    pub(crate) is_from_keys: bool,
    host: String,
    store: Option<IpAddr>,
    token: Option<String>,
}

/// How the ranks that are asked are reached.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// Ranks whose debug servers or processes are asked from here.
    pub(crate) workers: Vec<Worker>,
    /// Ranks for which the launcher of their node answers.
    pub(crate) by_launcher: Vec<(usize, SocketAddr)>,
    /// What launchers ask for.
    pub(crate) token: Option<String>,
}

impl Job {
    /// Reads the ranks from the status pages of the store, or their addresses from the keys of a store without
    /// them.
    pub(crate) fn load(args: &StatusArgs) -> Result<Self, Failure> {
        let pages = args.open_job()?;
        let server = pages.server();
        let deadline = Deadline::after(Instant::now(), NAMES_TIMEOUT);
        let addresses = resolve(server, deadline).unwrap_or_default();
        let (report, is_from_keys) = match pages.get("/why.json?ranks=all") {
            Ok(report) => (report, false),
            Err(StatusError::PyTorchs { .. } | StatusError::TurnedOff { .. }) => {
                (report_from_keys(&pages)?, true)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            is_from_keys,
            ..Self::of(report, addresses.first().map(SocketAddr::ip), pages.token())
        })
    }

    /// The job of a report with all ranks, from the store at this address. Launchers ask for the token.
    pub(crate) fn of(report: Report, store: Option<IpAddr>, token: Option<String>) -> Self {
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Self {
            report,
            is_from_keys: false,
            host,
            store,
            token,
        }
    }

    pub(crate) fn rank(&self, rank: usize) -> Option<&RankReport> {
        self.report.ranks.iter().find(|report| report.rank == rank)
    }

    /// Looks up host names, and which ranks have a socket on this host.
    pub(crate) fn reach(&self, ranks: &BTreeSet<usize>) -> Reach {
        let here = Here {
            host: &self.host,
            store: self.store,
        };
        let mut names = Names::new(Deadline::after(Instant::now(), NAMES_TIMEOUT));
        let mut reach = Reach {
            token: self.token.clone(),
            ..Reach::default()
        };
        for report in self
            .report
            .ranks
            .iter()
            .filter(|it| ranks.contains(&it.rank))
        {
            let socket = report.debug_socket.clone().filter(|path| path.exists());
            let targets = match here.route(report, &self.report.nodes, socket.is_some()) {
                Route::Launcher(address) => {
                    reach.by_launcher.push((report.rank, address));
                    continue;
                }
                Route::Published { server, peers } => names.targets(&server, peers),
                Route::Here => socket.clone().map(Target::Unix).into_iter().collect(),
                Route::None => Vec::new(),
            };
            let is_here = socket.is_some() || here.is_home_of(report);
            let pid = report
                .pid
                .filter(|pid| is_here && is_process_of(*pid, report));
            reach.workers.push(Worker {
                rank: report.rank,
                targets,
                pid,
            });
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

    /// The addresses of a published server: those of its name, or else those that the rank's connections have.
    fn targets(&mut self, server: &HostPort, peers: Vec<IpAddr>) -> Vec<Target> {
        let deadline = self.deadline;
        let lookup = || -> io::Result<Vec<SocketAddr>> {
            if deadline.has_passed(Instant::now()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            resolve(server, deadline)
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

/// The ranks whose debug servers have published an address, in a store that does not know more.
fn report_from_keys(pages: &StatusPages) -> Result<Report, Failure> {
    let server = pages.server();
    let options = pages.client_options().with_timeout(KEYS_TIMEOUT);
    let store = TcpStore::open(server.host(), server.port(), options)?;
    let store = PrefixStore::new(KEYS_PREFIX, store);
    let mut report = Report::default();
    let mut gap = 0;
    for rank in 0..RANKS_MAX {
        let key = format!("rank{rank}");
        // A GET of a missing key would wait.
        if !store.check(&[key.as_str()])? {
            gap += 1;
            if gap >= GAP_MAX {
                break;
            }
            continue;
        }
        gap = 0;
        let value = store.get(&key)?;
        let mut found = RankReport::default();
        found.rank = rank;
        let url = String::from_utf8_lossy(&value[..value.len().min(URL_BYTES_MAX)]);
        found.debug_url = Some(url.into_owned());
        report.ranks.push(found);
    }
    Ok(report)
}
