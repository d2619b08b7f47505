//! Takes snapshots on request, and builds answers from them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use c10d_store::{Counters, Snapshot, SnapshotError, StoreObserver};
use hyper::StatusCode;
use rustix::time::{ClockId, clock_gettime};

use super::answer::{Answer, page};
use super::counters::StoreCounters;
use super::exposition::Format;
use super::guard::Token;
use super::metrics::{self, Conflicts};
use super::routes::Wanted;
use super::rows::{self, Rows};
use super::summary::{self, Look};
use super::timeline::{Timeline, unix_ms};
use crate::{Report, explain};

/// Reads the state of a store. The status server calls it on its own thread, one call at a time.
pub trait StatusSource: Send + 'static {
    /// Takes a snapshot. Blocks for up to `timeout`.
    ///
    /// # Errors
    /// The store's thread has ended or does not answer in time.
    fn snapshot(&self, timeout: Duration) -> Result<Snapshot, SnapshotError>;

    /// Reads the totals only. Blocks for up to `timeout`.
    ///
    /// # Errors
    /// The store's thread has ended or does not answer in time.
    fn counters(&self, timeout: Duration) -> Result<Counters, SnapshotError>;

    /// Explains a snapshot; [`explain`], unless a test knows the answer beforehand.
    fn explain(&self, snapshot: &Snapshot, world_size: Option<usize>) -> Report {
        explain(snapshot, world_size)
    }
}

impl StatusSource for StoreObserver {
    fn snapshot(&self, timeout: Duration) -> Result<Snapshot, SnapshotError> {
        Self::snapshot(self, timeout)
    }

    fn counters(&self, timeout: Duration) -> Result<Counters, SnapshotError> {
        Self::counters(self, timeout)
    }
}

/// Settings of a status server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[must_use]
pub struct StatusOptions {
    title: String,
    host_names: Vec<String>,
    world_size: Option<usize>,
    token: Option<Token>,
}

impl StatusOptions {
    /// Sets the name of the job, which the page shows. The default is none.
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Adds names that browsers use for this server, for example the name of a reverse proxy. IP addresses, `localhost`
    /// and this machine's own name are always accepted; requests for other names are refused, because a stranger's page
    /// could send them (DNS rebinding).
    pub fn with_host_names(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.host_names.extend(names);
        self
    }

    /// Sets the number of ranks of the job, if it is known beforehand. The default is unknown.
    pub fn with_world_size(mut self, world_size: impl Into<Option<usize>>) -> Self {
        self.world_size = world_size.into();
        self
    }

    /// Answers only requests with this token, as a bearer token or as the password of any user. The token is sent
    /// unencrypted. Therefore do not use it for anything else.
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token::new(token.into()));
        self
    }

    pub(super) const fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The name of the job.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The additional names of this server.
    #[must_use]
    pub fn host_names(&self) -> &[String] {
        &self.host_names
    }

    /// The number of ranks of the job, if it is known beforehand.
    #[must_use]
    pub const fn world_size(&self) -> Option<usize> {
        self.world_size
    }
}

/// How long to wait for a snapshot. A server that is busy with other connections needs milliseconds.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait for the counters.
const COUNTERS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the counters are kept, so that requests for them cost the store's thread almost nothing however many
/// there are.
const COUNTERS_INTERVAL: Duration = Duration::from_millis(200);

/// How long an error is kept, so that requests do not queue up behind a store that does not answer.
const ERROR_INTERVAL: Duration = Duration::from_secs(1);

/// The only user of the source: no lock, and never two snapshots at a time.
pub(super) struct Looker {
    source: Box<dyn StatusSource>,
    options: StatusOptions,
    timeline: Arc<Timeline>,
    conflicts: Conflicts,
    look: Kept<Arc<Look>>,
    /// The time that the previous snapshot took on the store's thread.
    store_time_before: Option<Duration>,
    counters: Kept<Counters>,
}

/// A result, and until when it is used.
struct Kept<T> {
    until: Option<Instant>,
    result: Result<T, SnapshotError>,
}

impl<T: Clone> Kept<T> {
    const EMPTY: Self = Self {
        until: None,
        result: Err(SnapshotError::Stopped),
    };

    fn get(&self, now: Instant) -> Option<Result<T, SnapshotError>> {
        let is_fresh = self.until.is_some_and(|until| now < until);
        is_fresh.then(|| self.result.clone())
    }

    fn keep(&mut self, result: &Result<T, SnapshotError>, until: Instant) {
        *self = Self {
            until: Some(until),
            result: result.clone(),
        };
    }
}

impl Looker {
    pub(super) fn new(
        source: Box<dyn StatusSource>,
        options: StatusOptions,
        timeline: Arc<Timeline>,
    ) -> Self {
        Self {
            source,
            options,
            timeline,
            conflicts: Conflicts::default(),
            look: Kept::EMPTY,
            store_time_before: None,
            counters: Kept::EMPTY,
        }
    }

    /// The newest look, or a new one if that is due. Blocks for as long as the snapshot and its explanation take.
    pub(super) fn look(&mut self) -> Result<Arc<Look>, SnapshotError> {
        if let Some(kept) = self.look.get(Instant::now()) {
            return kept;
        }
        let result = self.source.snapshot(SNAPSHOT_TIMEOUT).map(|snapshot| {
            let at = Instant::now();
            let (mut report, explain_time) =
                with_cpu_time(|| self.source.explain(&snapshot, self.options.world_size()));
            let brief = rows::without_bystanders(&mut report);
            let store_time = snapshot.server_time;
            // The system may have run something else in the middle of it, which makes a single one seem expensive.
            let usual = store_time.min(self.store_time_before.unwrap_or(store_time));
            self.store_time_before = Some(store_time);
            let mut connected = report.nodes.iter().filter(|node| node.is_connected);
            let interval = match connected.all(|node| node.is_observed) {
                true => interval(usual, explain_time),
                false => unobserved_interval(usual, explain_time),
            };
            self.timeline.observe(&report);
            self.conflicts.observe(&report);
            Arc::new(Look {
                snapshot,
                report: Arc::new(report),
                brief,
                at,
                store_time,
                explain_time,
                interval,
            })
        });
        let until = match &result {
            Ok(look) => look.at + look.interval,
            Err(_) => Instant::now() + ERROR_INTERVAL,
        };
        self.look.keep(&result, until);
        result
    }

    fn counters(&mut self) -> Result<Counters, SnapshotError> {
        let now = Instant::now();
        if let Some(kept) = self.counters.get(now) {
            return kept;
        }
        let result = self.source.counters(COUNTERS_TIMEOUT);
        let interval = match &result {
            Ok(_) => COUNTERS_INTERVAL,
            Err(_) => ERROR_INTERVAL,
        };
        self.counters.keep(&result, Instant::now() + interval);
        result
    }

    pub(super) fn answer(&mut self, wanted: &Wanted) -> Answer {
        let answer = match wanted {
            Wanted::Page => Ok(page()),
            Wanted::Status => self.status(),
            Wanted::Stats => self
                .counters()
                .map(|counters| Answer::json(&StoreCounters::new(&counters))),
            Wanted::Metrics(format) => self.metrics(*format),
            Wanted::Health => self.counters().map(|_| Answer::text(StatusCode::OK, "ok")),
            _ => self.look().map(|look| part(&look, wanted)),
        };
        answer.unwrap_or_else(|error| {
            Answer::text(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
        })
    }

    fn status(&mut self) -> Result<Answer, SnapshotError> {
        let look = self.look()?;
        let counters = self.counters()?;
        let events = self.timeline.events();
        let now = unix_ms(SystemTime::now());
        let title = self.options.title();
        Ok(Answer::json(&summary::status(
            &look, title, now, &events, &counters,
        )))
    }

    /// A scrape takes a snapshot too if one is due, so that alerts work when no page is open.
    fn metrics(&mut self, format: Format) -> Result<Answer, SnapshotError> {
        let counters = self.counters()?;
        let look = self.look().ok();
        let report = look.as_ref().map(|look| (&*look.report, look.at.elapsed()));
        let text = metrics::text(format, &counters, report, &self.conflicts, &self.timeline);
        Ok(Answer::new(format.media_type(), text))
    }
}

/// The result of `work`, and the CPU time that it took: on a busy machine, much less than the time until it ended.
fn with_cpu_time<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let start = now();
    let result = work();
    (result, now().saturating_sub(start))
}

fn part(look: &Look, wanted: &Wanted) -> Answer {
    let Look {
        snapshot,
        report,
        brief,
        ..
    } = look;
    match wanted {
        Wanted::Why { all_ranks: true } => Answer::json(&**report),
        Wanted::Why { all_ranks: false } => Answer::json(brief),
        Wanted::Rank(number) => {
            let found: Vec<_> = rows::rank(report, *number).into_iter().collect();
            Answer::json(&found)
        }
        Wanted::FindRanks(text) => Answer::json(&rows::find(report, text)),
        Wanted::Ranks { from, count } => {
            let first = report.ranks.partition_point(|rank| rank.rank < *from);
            let left = &report.ranks[first..];
            Answer::json(&left[..left.len().min(*count).min(rows::ROWS_MAX)])
        }
        Wanted::Clients { from, count } => {
            Answer::json(&rows::clients(snapshot, report, *from, *count))
        }
        Wanted::Keys {
            prefix,
            from,
            count,
        } => {
            let rows: Rows<_> = rows::keys(snapshot, prefix, *from, *count);
            Answer::json(&rows)
        }
        Wanted::Page | Wanted::Status | Wanted::Stats | Wanted::Metrics(_) | Wanted::Health => {
            unreachable!("needs more than a look")
        }
    }
}

/// The shortest time between two snapshots: the page shows ages in seconds.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The shortest time until a snapshot is replaced to which the launchers have not added the activity of their workers. A
/// command may have asked them for it.
const INTERVAL_MIN_UNOBSERVED: Duration = Duration::from_millis(100);

/// The longest, so that the page stays useful however expensive a snapshot is.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The store's thread may spend 1/333 of its time on snapshots: 3 ms a second. Two more are left for counters and for
/// handing over connections.
const STORE_SHARE: u32 = 333;

/// The status server's own thread may spend 1/4 of its time on explanations.
const EXPLAIN_SHARE: u32 = 4;

/// How long to keep a snapshot that took the store's thread at most `store` and whose explanation took `explain`.
pub(super) fn interval(store: Duration, explain: Duration) -> Duration {
    unobserved_interval(store, explain).max(INTERVAL_MIN)
}

/// Returns the interval for a snapshot without the activity of all workers.
fn unobserved_interval(store: Duration, explain: Duration) -> Duration {
    let by_store = store.saturating_mul(STORE_SHARE);
    let by_explain = explain.saturating_mul(EXPLAIN_SHARE);
    let interval = by_store.max(by_explain);
    interval.clamp(INTERVAL_MIN_UNOBSERVED, INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expensive_snapshot_is_kept_longer() {
        let ms = Duration::from_millis;
        let table = [
            (ms(0), ms(0), ms(1000)),
            (ms(3), ms(50), ms(1000)),
            (ms(20), ms(50), ms(6660)),
            (ms(1), ms(300), ms(1200)),
            (ms(1000), ms(0), ms(60_000)),
        ];
        for (store, explain, expected) in table {
            assert_eq!(interval(store, explain), expected, "{store:?} {explain:?}");
        }
        assert_eq!(unobserved_interval(ms(0), ms(5)), ms(100));
        assert_eq!(unobserved_interval(ms(1), ms(5)), ms(333));
    }
}
