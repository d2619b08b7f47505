//! The ranks of a job, and this host.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, host_name};
use c10d_store::{PrefixStore, Store, StoreError};

use super::reach::Reach;
use super::route::{Here, Subject};
use super::{flights, launcher, probe};
use crate::flight::FlightReport;
use crate::http::{HttpRequest, StatusError, StatusPages, Target, fetch_all};
use crate::report::{NodeReport, RankReport, Report};
use crate::stacks::RankAnswer;

/// Reads the stacks and collectives of the ranks of a job.
///
/// ```no_run
/// use std::time::Duration;
///
/// use c10d_inspect::http::StatusPages;
/// use c10d_inspect::stacks::answers_text;
/// use c10d_inspect::workers::Job;
///
/// let server: c10d_socket::HostPort = "node0:29500".parse()?;
/// let pages = StatusPages::open(server, None, Duration::from_secs(5))?;
/// let job = Job::open(&pages)?;
/// print!("{}", answers_text(&job.stacks(&job.ranks())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Job {
    report: Report,
    host: String,
    store: Option<IpAddr>,
    token: Option<String>,
}

impl Job {
    /// Opens the job whose workers use the store with these pages. If the store has no pages, the job has the ranks
    /// whose debug servers have published their addresses in it.
    ///
    /// Blocks for up to the timeout of the pages; without status pages for up to 5 s for each request about a rank.
    ///
    /// # Errors
    /// [`JobError`] if the store does not answer, or no rank is known.
    pub fn open(pages: &StatusPages) -> Result<Self, JobError> {
        let (report, nobody) = match pages.get::<Report>("/why.json?ranks=all") {
            Ok(report) => (report, JobError::NoRank),
            Err(StatusError::PyTorchs { .. } | StatusError::TurnedOff { .. }) => {
                (report_from_keys(pages)?, JobError::NoneHasPublished)
            }
            Err(error) => return Err(error.into()),
        };
        if report.ranks.is_empty() {
            return Err(nobody);
        }
        Ok(Self::of(report, pages))
    }

    /// Creates the job of a report with all ranks, which these pages have returned.
    #[must_use]
    pub fn of(report: Report, pages: &StatusPages) -> Self {
        let store = pages.address().as_ref().map(SocketAddr::ip);
        Self::new(report, store, pages.token())
    }

    /// Creates the job of a report with all ranks, from the store at this address, if known. Launchers require the
    /// token, the [password of the job's pages](crate::http::StatusOptions::with_token).
    #[must_use]
    pub fn new(report: Report, store: Option<IpAddr>, token: Option<String>) -> Self {
        Self {
            report,
            host: host_name(),
            store,
            token,
        }
    }

    /// Returns the report on the job.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the [`report`](Self::report) by value.
    #[must_use]
    pub fn into_report(self) -> Report {
        self.report
    }

    /// The numbers of all ranks.
    #[must_use]
    pub fn ranks(&self) -> BTreeSet<usize> {
        self.report.ranks.iter().map(|rank| rank.rank).collect()
    }

    /// Asks these ranks for their Python stacks, 128 at a time. The answers are in the order of ranks, and safe to
    /// print. Answers without stacks have the reason.
    ///
    /// Blocks for up to 3 s for looking up host names, and 2 s more if a rank does not answer, 4 s if it then may still
    /// have a flight recorder. Blocks for up to 11 s for ranks that a launcher answers for.
    #[must_use]
    pub fn stacks(&self, ranks: &BTreeSet<usize>) -> Vec<RankAnswer> {
        let reach = self.reach(ranks, Subject::Stacks);
        let mut answers = thread::scope(|scope| {
            let (ranks, token) = (&reach.by_launcher, self.token.as_deref());
            let by_launcher = scope.spawn(move || launcher::ask_for_stacks(ranks, token));
            let mut answers = probe::ask(&reach.workers);
            // A panic has been reported by its thread.
            answers.extend(by_launcher.join().unwrap_or_default());
            answers
        });
        answers.sort_by_key(|answer| answer.rank);
        for answer in &mut answers {
            if answer.host.is_none() {
                answer.host = self.rank(answer.rank).and_then(|rank| rank.host.clone());
            }
        }
        answers.into_iter().map(RankAnswer::cleaned).collect()
    }

    /// Asks these ranks for their flight recorders, 64 at a time, and compares them. `clock` makes a text of a time in
    /// nanoseconds since 1970.
    ///
    /// Blocks for up to 3 s for looking up host names, and 2 s or more for every 64 ranks if one of them does not answer.
    #[must_use]
    pub fn compare_flights(
        &self,
        ranks: &BTreeSet<usize>,
        clock: &dyn Fn(u64) -> String,
    ) -> FlightReport {
        let token = self.token.as_deref();
        flights::compare(
            &self.reach(ranks, Subject::Flights),
            &self.report,
            token,
            clock,
        )
    }

    /// Asks the launchers of nodes for which `is_wanted` holds to observe their workers now, and for the next 15 s, so that a
    /// later report includes the activity of the workers. Returns how many launchers have announced their observations.
    ///
    /// Blocks for at most 1.5 s, or until `cancel` ends it. A launcher that has never read the stacks of a worker needs some 40 ms for it.
    pub fn ask_for_samples(
        &self,
        is_wanted: impl Fn(&NodeReport) -> bool,
        cancel: &Cancel,
    ) -> usize {
        let nodes = self.report.nodes.iter().filter(|node| is_wanted(node));
        ask(nodes, &self.here(), self.token.as_deref(), cancel)
    }

    fn here(&self) -> Here<'_> {
        Here {
            host: &self.host,
            store: self.store,
        }
    }

    fn reach(&self, ranks: &BTreeSet<usize>, subject: Subject) -> Reach {
        Reach::of(&self.report, ranks, &self.here(), subject)
    }

    fn rank(&self, rank: usize) -> Option<&RankReport> {
        self.report.ranks.iter().find(|report| report.rank == rank)
    }
}

/// The reason why the ranks of a job are unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The status pages cannot be read.
    #[error(transparent)]
    Status(#[from] StatusError),

    /// The store has no status pages, and its keys cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// The store has not seen any rank yet.
    #[error("no rank has used this store yet")]
    NoRank,

    /// The store has no status pages, and no rank has published the address of a debug server.
    #[error(
        "the store has no status pages, and no debug server has published its address in it: start the ranks with \
         `c10d run --debug-server`, or call torch.distributed.debug.start_debug_server() in them"
    )]
    NoneHasPublished,
}

/// The path of the request at a launcher's port for questions.
pub const SAMPLE_PATH: &str = "/sample";

/// How many launchers are asked at a time. A launcher answers when it has read the stacks of its workers, which takes
/// some milliseconds for each worker.
const AT_ONCE: usize = 256;

/// How long all launchers may take together, so that `c10d why` can answer within 2 s.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 10;

/// Asks the launchers of these nodes. Returns how many have announced samples. Blocks for at most 1.5 s, or until `cancel`
/// ends it.
pub(super) fn ask<'n>(
    nodes: impl Iterator<Item = &'n NodeReport>,
    here: &Here<'_>,
    token: Option<&str>,
    cancel: &Cancel,
) -> usize {
    let end = Instant::now() + TIMEOUT;
    let addresses: BTreeSet<SocketAddr> = nodes
        .filter(|node| node.is_connected)
        .filter_map(|node| here.launcher(node))
        .collect();
    let requests: Vec<HttpRequest> = addresses
        .into_iter()
        .map(|address| {
            HttpRequest::get(Target::Tcp(address), SAMPLE_PATH)
                .with_token(token)
                .with_limit(ANSWER_BYTES_MAX)
                .with_cancel(cancel.clone())
        })
        .collect();
    let mut answered = 0;
    for requests in requests.chunks(AT_ONCE) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let answers = fetch_all(requests, left, AT_ONCE);
        answered += answers
            .iter()
            .filter(|answer| answer.as_ref().is_ok_and(|it| it.is_success()))
            .count();
    }
    answered
}

/// How long a store without status pages has to answer.
const KEYS_TIMEOUT: Duration = Duration::from_secs(5);

/// The prefix of the keys that PyTorch's debug servers use to publish their addresses.
const KEYS_PREFIX: &str = "debug_server";

/// After this many ranks without an address, no later ranks are looked up.
const GAP_MAX: usize = 64;

/// The most ranks that are looked for in a store without status pages.
const RANKS_MAX: usize = 1 << 16;

/// The most bytes of a published address.
const URL_BYTES_MAX: usize = 512;

/// The ranks whose debug servers have published an address, in a store that does not know more. Blocks for up to 5 s for
/// each request.
fn report_from_keys(pages: &StatusPages) -> Result<Report, StoreError> {
    let store = PrefixStore::new(KEYS_PREFIX, Arc::new(pages.open_store(KEYS_TIMEOUT)?));
    let mut report = Report::default();
    let mut gap = 0;
    for rank in 0..RANKS_MAX {
        let key = format!("rank{rank}");
        let Some(value) = store.try_get(&key)? else {
            gap += 1;
            if gap >= GAP_MAX {
                break;
            }
            continue;
        };
        gap = 0;
        let url = String::from_utf8_lossy(&value[..value.len().min(URL_BYTES_MAX)]);
        report.ranks.push(RankReport {
            rank,
            debug_url: Some(url.into_owned()),
            ..RankReport::default()
        });
    }
    Ok(report)
}
