//! The metrics of a store, of its job and of this process, and those that a launcher adds, as OpenMetrics text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use c10d_store::Counters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::command::command_name;
use super::process::ProcessUse;
use crate::{FindingKind, RankState, Report};

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;

/// The media type of the text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics that a launcher adds to those of the store: rounds, restarts, workers.
#[derive(Debug, Default)]
pub struct LauncherMetrics {
    registry: Mutex<Registry>,
}

impl LauncherMetrics {
    /// Adds a counter. `name` starts with `c10d_run_` or `c10d_rendezvous_` and has no `_total`, which the text adds.
    /// `help` is one sentence without its period. Each name may be added once.
    #[must_use]
    pub fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        let counter = Counter::default();
        self.with(|registry| registry.register(name, help, counter.clone()));
        counter
    }

    /// Adds a gauge: a value that goes up and down. For `name` and `help` see [`counter`](Self::counter).
    #[must_use]
    pub fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        let gauge = Gauge::default();
        self.with(|registry| registry.register(name, help, gauge.clone()));
        gauge
    }

    fn with<R>(&self, work: impl FnOnce(&mut Registry) -> R) -> R {
        work(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Counts conflicts: findings of these kinds that the report before did not have.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    current: BTreeSet<&'static str>,
    totals: BTreeMap<&'static str, u64>,
}

impl Conflicts {
    const KINDS: [(FindingKind, &'static str); 5] = [
        (FindingKind::SameRank, "same_rank"),
        (FindingKind::TwoJobs, "two_jobs"),
        (FindingKind::StaleAddresses, "stale_addresses"),
        (FindingKind::WorldSizeDiffers, "world_size_differs"),
        (FindingKind::GroupNamesDiffer, "group_names_differ"),
    ];

    pub(super) fn observe(&mut self, report: &Report) {
        let kinds = Self::KINDS
            .iter()
            .filter(|(kind, _)| report.findings.iter().any(|finding| finding.kind == *kind));
        let current: BTreeSet<_> = kinds.map(|(_, name)| *name).collect();
        for new in current.difference(&self.current) {
            *self.totals.entry(new).or_default() += 1;
        }
        self.current = current;
    }

    fn totals(&self) -> Vec<(&'static str, u64)> {
        let total = |name| self.totals.get(name).copied().unwrap_or(0);
        Self::KINDS
            .iter()
            .map(|(_, name)| (*name, total(name)))
            .collect()
    }
}

/// The whole text. `report` is the newest one, and its age; without one the job's metrics are left out.
pub(super) fn text(
    counters: &Counters,
    report: Option<(&Report, Duration)>,
    conflicts: &Conflicts,
    launcher: &LauncherMetrics,
) -> Result<String, fmt::Error> {
    let mut own = Registry::default();
    own.register_collector(Box::new(Values(values(counters, report, conflicts))));
    let mut text = String::new();
    encode_registry(&mut text, &own)?;
    launcher.with(|registry| encode_registry(&mut text, registry))?;
    encode_eof(&mut text)?;
    Ok(text)
}

/// One metric: its name, its help, and its values by label.
#[derive(Debug)]
struct Metric {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
    label: Option<&'static str>,
    values: Vec<(String, f64)>,
}

impl Metric {
    fn gauge(name: &'static str, help: &'static str, value: impl Into<Number>) -> Self {
        Self {
            name,
            help,
            is_counter: false,
            label: None,
            values: vec![(String::new(), value.into().0)],
        }
    }

    fn counter(name: &'static str, help: &'static str, value: impl Into<Number>) -> Self {
        Self {
            is_counter: true,
            ..Self::gauge(name, help, value)
        }
    }

    fn counters<'a>(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Self {
        Self {
            name,
            help,
            is_counter: true,
            label: Some(label),
            values: values
                .into_iter()
                .map(|(value, count)| (value.to_owned(), Number::from(count).0))
                .collect(),
        }
    }
}

impl Metric {
    fn encode_value(&self, encoder: &mut MetricEncoder<'_>, value: f64) -> fmt::Result {
        if self.is_counter {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        } else {
            encoder.encode_gauge(&value)
        }
    }
}

/// Every value of Prometheus is a double.
struct Number(f64);

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 are rounded")]
        Self(value as f64)
    }
}

impl From<usize> for Number {
    fn from(value: usize) -> Self {
        Self::from(value as u64)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl From<Duration> for Number {
    fn from(value: Duration) -> Self {
        Self(value.as_secs_f64())
    }
}

fn values(
    counters: &Counters,
    report: Option<(&Report, Duration)>,
    conflicts: &Conflicts,
) -> Vec<Metric> {
    // A gauge, as the kind "info" is not known to all readers of metrics.
    let build = Metric {
        label: Some("version"),
        values: vec![(env!("CARGO_PKG_VERSION").to_owned(), 1.0)],
        ..Metric::gauge("c10d_build_info", "The version of the server", 1.0)
    };
    let mut metrics = vec![build];
    metrics.extend(process_values(&ProcessUse::read()));
    metrics.extend(store_values(counters));
    if let Some((report, age)) = report {
        metrics.extend(job_values(report, age));
    }
    metrics.push(Metric::counters(
        "c10d_job_conflicts",
        "Conflicts between ranks that have been found, by kind",
        "kind",
        conflicts.totals(),
    ));
    metrics
}

fn store_values(counters: &Counters) -> Vec<Metric> {
    let requests: Vec<_> = counters
        .requests
        .iter()
        .map(|(command, count)| (command_name(*command).to_lowercase(), *count))
        .collect();
    let closed = [
        ("peer", counters.closed_by_peer),
        ("failure", counters.closed_by_failure),
        ("refusal", counters.closed_by_refusal),
    ];
    vec![
        Metric::gauge(
            "c10d_store_connections",
            "Open connections",
            counters.connections,
        ),
        Metric::counter(
            "c10d_store_connections_opened",
            "Connections accepted",
            counters.opened,
        ),
        Metric::counters(
            "c10d_store_connections_closed",
            "Connections closed: by the peer, by a failure of the network, or refused by the server",
            "reason",
            closed,
        ),
        Metric::counter(
            "c10d_store_connections_rejected",
            "Connections turned away because a limit was reached",
            counters.rejected,
        ),
        Metric::counter(
            "c10d_store_http_connections",
            "Connections that speak HTTP",
            counters.handed_over,
        ),
        Metric::counters(
            "c10d_store_requests",
            "Requests by command",
            "op",
            requests.iter().map(|(name, count)| (name.as_str(), *count)),
        ),
        Metric::gauge("c10d_store_keys", "Keys that have a value", counters.keys),
        Metric::gauge(
            "c10d_store_stored_bytes",
            "Bytes of all keys and values",
            counters.stored_bytes,
        ),
        Metric::gauge(
            "c10d_store_waits",
            "Connections that wait for a key",
            counters.waits,
        ),
        Metric::counter(
            "c10d_store_waits_cancelled",
            "Waits that their clients cancelled, usually after their timeout",
            counters.waits_cancelled,
        ),
        Metric::counter(
            "c10d_store_received_bytes",
            "Bytes received from clients",
            counters.received_bytes,
        ),
        Metric::counter(
            "c10d_store_sent_bytes",
            "Bytes sent to clients",
            counters.sent_bytes,
        ),
    ]
}

fn job_values(report: &Report, age: Duration) -> Vec<Metric> {
    let count = |wanted: fn(RankState) -> bool| {
        report
            .ranks
            .iter()
            .filter(|rank| wanted(rank.state))
            .count()
    };
    let connected = |state| {
        matches!(
            state,
            RankState::Connecting | RankState::Waiting | RankState::Idle
        )
    };
    let is_missing = |state| {
        matches!(
            state,
            RankState::NotSeen | RankState::Starting | RankState::Lost
        )
    };
    let missing = report
        .ranks
        .iter()
        .filter(|rank| rank.is_suspect || is_missing(rank.state));
    let oldest_wait = report
        .waits
        .iter()
        .map(|wait| wait.age_ms)
        .max()
        .unwrap_or(0);
    let mut metrics = vec![
        Metric::gauge(
            "c10d_store_oldest_wait_seconds",
            "How long the longest pending wait has lasted",
            Duration::from_millis(oldest_wait),
        ),
        Metric::gauge(
            "c10d_job_ranks_connected",
            "Ranks with an open connection",
            count(connected),
        ),
        Metric::gauge(
            "c10d_job_ranks_missing",
            "Ranks that have not connected, are lost, or stand still while others wait for them",
            missing.count(),
        ),
        Metric::gauge(
            "c10d_job_ranks_waiting",
            "Ranks that wait on the store",
            count(|state| state == RankState::Waiting),
        ),
        Metric::gauge(
            "c10d_job_stuck",
            "1 if ranks wait for a rank that is missing or stands still, else 0",
            usize::from(report.is_stuck),
        ),
        Metric::gauge(
            "c10d_job_report_age_seconds",
            "The age of the report from which c10d_job_ metrics are taken",
            age,
        ),
    ];
    if let Some(expected) = report.world_size {
        metrics.push(Metric::gauge(
            "c10d_job_ranks_expected",
            "The number of ranks of the job",
            expected,
        ));
    }
    metrics
}

fn process_values(process: &ProcessUse) -> Vec<Metric> {
    let bytes = |value: u64| Number::from(value);
    let metrics = [
        process.start_unix_seconds.map(|value| {
            let help = "Start of the process, in seconds since 1970";
            Metric::gauge("process_start_time_seconds", help, value)
        }),
        process.cpu_seconds.map(|value| {
            let help = "CPU time of the process, user and system";
            Metric::counter("process_cpu_seconds", help, value)
        }),
        process.resident_bytes.map(|value| {
            let help = "Resident memory of the process";
            Metric::gauge("process_resident_memory_bytes", help, bytes(value))
        }),
        process
            .open_files
            .map(|value| Metric::gauge("process_open_fds", "Open file descriptors", bytes(value))),
        process.open_files_max.map(|value| {
            let help = "The limit of open file descriptors";
            Metric::gauge("process_max_fds", help, bytes(value))
        }),
    ];
    metrics.into_iter().flatten().collect()
}

/// Values that are already known, for one text.
#[derive(Debug)]
struct Values(Vec<Metric>);

impl Collector for Values {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in &self.0 {
            let kind = if metric.is_counter {
                MetricType::Counter
            } else {
                MetricType::Gauge
            };
            let mut encoder = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (label, value) in &metric.values {
                match metric.label {
                    None => metric.encode_value(&mut encoder, *value)?,
                    Some(name) => {
                        let labels = [(name, label.as_str())];
                        metric.encode_value(&mut encoder.encode_family(&labels)?, *value)?;
                    }
                }
            }
        }
        Ok(())
    }
}
