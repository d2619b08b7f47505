//! The metrics of a store, of its job, of its launcher and of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use c10d_socket::ProcessStat;
use c10d_store::Counters;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::counters::command_name;
use super::exposition::{Format, Text};
use super::timeline::{EventKind, Timeline};
use crate::{FindingKind, RankState, Report};

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

/// The whole text. `report` is the newest report, with its age; without a report, the job's metrics are omitted.
pub(super) fn text(
    format: Format,
    counters: &Counters,
    report: Option<(&Report, Duration)>,
    conflicts: &Conflicts,
    timeline: &Timeline,
) -> String {
    let mut text = Text::new(format);
    // A gauge, as the kind "info" is not known to all readers of metrics.
    let version = [(env!("CARGO_PKG_VERSION"), 1)];
    let help = "The version of the server";
    text.metric("c10d_build_info", help, "gauge", Some("version"), version);
    process_values(&mut text, &ProcessUse::read());
    store_values(&mut text, counters);
    if let Some((report, age)) = report {
        job_values(&mut text, report, age);
    }
    text.counters(
        "c10d_job_conflicts",
        "Conflicts between ranks that have been found, by kind",
        "kind",
        conflicts.totals(),
    );
    launcher_values(&mut text, timeline);
    text.finish()
}

fn store_values(text: &mut Text, counters: &Counters) {
    let requests = counters.requests.iter();
    let requests: Vec<_> = requests
        .map(|(command, count)| (command_name(*command).to_lowercase(), *count))
        .collect();
    let closed = [
        ("peer", counters.closed_by_peer),
        ("failure", counters.closed_by_failure),
        ("refusal", counters.closed_by_refusal),
    ];
    text.gauge(
        "c10d_store_connections",
        "Open connections",
        counters.connections,
    );
    text.counter(
        "c10d_store_connections_opened",
        "Connections accepted",
        counters.opened,
    );
    text.counters(
        "c10d_store_connections_closed",
        "Connections closed: by the peer, by a failure of the network, or refused by the server",
        "reason",
        closed,
    );
    text.counter(
        "c10d_store_connections_rejected",
        "Connections turned away because a limit was reached",
        counters.rejected,
    );
    text.counter(
        "c10d_store_http_connections",
        "Connections that speak HTTP",
        counters.handed_over,
    );
    text.counters(
        "c10d_store_requests",
        "Requests by command",
        "op",
        requests.iter().map(|(name, count)| (name.as_str(), *count)),
    );
    text.gauge("c10d_store_keys", "Keys that have a value", counters.keys);
    text.gauge(
        "c10d_store_stored_bytes",
        "Bytes of all keys and values",
        counters.stored_bytes,
    );
    text.gauge(
        "c10d_store_waits",
        "Connections that wait for a key",
        counters.waits,
    );
    text.counter(
        "c10d_store_waits_cancelled",
        "Waits that their clients cancelled, usually after their timeout",
        counters.waits_cancelled,
    );
    text.counter(
        "c10d_store_received_bytes",
        "Bytes received from clients",
        counters.received_bytes,
    );
    text.counter(
        "c10d_store_sent_bytes",
        "Bytes sent to clients",
        counters.sent_bytes,
    );
}

fn job_values(text: &mut Text, report: &Report, age: Duration) {
    use RankState::{Connecting, Idle, Lost, NotSeen, Starting, Waiting};
    let count = |states: &[RankState]| {
        let ranks = report.ranks.iter();
        ranks.filter(|rank| states.contains(&rank.state)).count()
    };
    let missing = report
        .ranks
        .iter()
        .filter(|rank| rank.is_suspect || matches!(rank.state, NotSeen | Starting | Lost));
    let oldest_wait = report.waits.iter().map(|wait| wait.age_ms).max();
    text.gauge(
        "c10d_store_oldest_wait_seconds",
        "How long the longest pending wait has lasted",
        Duration::from_millis(oldest_wait.unwrap_or(0)).as_secs_f64(),
    );
    text.gauge(
        "c10d_job_ranks_connected",
        "Ranks with an open connection",
        count(&[Connecting, Waiting, Idle]),
    );
    text.gauge(
        "c10d_job_ranks_missing",
        "Ranks that have not connected, are lost, or are stuck while other ranks wait for them",
        missing.count(),
    );
    text.gauge(
        "c10d_job_ranks_waiting",
        "Ranks that wait on the store",
        count(&[Waiting]),
    );
    text.gauge(
        "c10d_job_stuck",
        "1 if ranks wait for a missing or stuck rank, otherwise 0",
        usize::from(report.is_stuck),
    );
    text.gauge(
        "c10d_job_report_age_seconds",
        "The age of the report behind the c10d_job_ metrics",
        age.as_secs_f64(),
    );
    if let Some(expected) = report.world_size {
        let help = "The number of ranks of the job";
        text.gauge("c10d_job_ranks_expected", help, expected);
    }
}

/// Writes the metrics of the launcher that serves this store, if one does.
fn launcher_values(text: &mut Text, timeline: &Timeline) {
    let Some((counts, round)) = timeline.of_launcher() else {
        return;
    };
    let count = |kind| counts.get(&kind).copied().unwrap_or(0);
    text.counter(
        "c10d_rendezvous_rounds",
        "Completed rounds",
        count(EventKind::Round),
    );
    text.gauge(
        "c10d_rendezvous_nodes",
        "Nodes of the current round",
        round.nodes,
    );
    text.counter(
        "c10d_rendezvous_nodes_lost",
        "Nodes that were dropped because they wrote no heartbeat",
        count(EventKind::NodeLost),
    );
    text.gauge(
        "c10d_run_workers",
        "Workers of the current round",
        round.workers,
    );
    text.counter(
        "c10d_run_worker_failures",
        "Failures that ended a round on this node",
        count(EventKind::Failure),
    );
    text.counter(
        "c10d_run_restarts",
        "Restarts of this node's workers",
        count(EventKind::Restart),
    );
}

fn process_values(text: &mut Text, process: &ProcessUse) {
    if let Some(value) = process.start_unix_seconds {
        let help = "Start of the process, in seconds since 1970";
        text.gauge("process_start_time_seconds", help, value);
    }
    if let Some(value) = process.cpu_seconds {
        let help = "CPU time of the process, user and system";
        text.counter("process_cpu_seconds", help, value);
    }
    if let Some(value) = process.resident_bytes {
        let help = "Resident memory of the process";
        text.gauge("process_resident_memory_bytes", help, value);
    }
    if let Some(value) = process.open_files {
        text.gauge("process_open_fds", "Open file descriptors", value);
    }
    if let Some(value) = process.open_files_max {
        let help = "The limit of open file descriptors";
        text.gauge("process_max_fds", help, value);
    }
}

/// The figures of the system about this process; `None` for a figure that it does not have.
#[derive(Debug, Default)]
struct ProcessUse {
    start_unix_seconds: Option<f64>,
    cpu_seconds: Option<f64>,
    resident_bytes: Option<u64>,
    open_files: Option<u64>,
    open_files_max: Option<u64>,
}

impl ProcessUse {
    pub(super) fn read() -> Self {
        let text = |path| fs::read_to_string(path).ok();
        let stat = ProcessStat::of(std::process::id());
        let boot = text("/proc/stat").and_then(|stat| boot_seconds(&stat));
        #[expect(clippy::cast_precision_loss, reason = "seconds with fractions")]
        let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
        Self {
            start_unix_seconds: stat
                .as_ref()
                .zip(boot)
                .map(|(stat, boot)| boot + seconds(stat.start_ticks)),
            cpu_seconds: stat.as_ref().map(|stat| seconds(stat.cpu_ticks)),
            resident_bytes: stat
                .as_ref()
                .map(|stat| stat.resident_pages.saturating_mul(page_size() as u64)),
            open_files: open_files(),
            open_files_max: getrlimit(Resource::Nofile).current,
        }
    }
}

fn boot_seconds(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn open_files() -> Option<u64> {
    let folder = "/proc/self/fd";
    // From Linux 6.2 on, the folder's size is the number of its entries. Listing 16,384 of them takes milliseconds.
    let by_size = fs::metadata(folder).ok()?.len();
    if by_size > 0 {
        return Some(by_size);
    }
    let entries = fs::read_dir(folder).ok()?;
    u64::try_from(entries.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_known() {
        let process = ProcessUse::read();
        assert!(process.resident_bytes > Some(1 << 20));
        assert!(process.open_files > Some(2));
        assert!(process.start_unix_seconds > Some(1.7e9));
        assert!(process.cpu_seconds.is_some());
    }
}
