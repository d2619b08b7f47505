//! A source whose reports are known beforehand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use c10d_inspect::http::StatusSource;
use c10d_inspect::{Finding, FindingKind, RankReport, RankState, Report, Sureness, WaitFor};
use c10d_store::Opcode;
use c10d_store::{Counters, Snapshot, SnapshotError};

/// The answers of the source. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Canned(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) report: Report,
    pub(crate) snapshot: Snapshot,
    pub(crate) counters: Counters,
    pub(crate) error: Option<SnapshotError>,
    /// How often each was asked for.
    pub(crate) snapshots: usize,
    pub(crate) counted: usize,
}

impl Canned {
    pub(crate) fn new(report: Report) -> Self {
        let canned = Self::default();
        canned.answers().report = report;
        canned
    }

    pub(crate) fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatusSource for Canned {
    fn snapshot(&self, _: Duration) -> Result<Snapshot, SnapshotError> {
        let mut answers = self.answers();
        answers.snapshots += 1;
        match answers.error {
            Some(error) => Err(error),
            None => Ok(answers.snapshot.clone()),
        }
    }

    fn counters(&self, _: Duration) -> Result<Counters, SnapshotError> {
        let mut answers = self.answers();
        answers.counted += 1;
        // As of a store under load, so that the page has something to draw.
        let waves = (unix_ms() / 1000 % 7) * 400;
        answers.counters.received_bytes += 40 * (4000 + waves);
        answers.counters.sent_bytes += 20 * (4000 + waves);
        match answers.counters.requests.first_mut() {
            Some((_, count)) => *count += 4000 + waves,
            None => answers.counters.requests.push((Opcode::Set, 1)),
        }
        match answers.error {
            Some(error) => Err(error),
            None => Ok(answers.counters.clone()),
        }
    }

    fn explain(&self, _: &Snapshot, _: Option<usize>) -> Report {
        let mut report = self.answers().report.clone();
        report.taken_unix_ms = unix_ms();
        report
    }
}

pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// A rank that waits for another rank.
pub(crate) fn waiting_rank(rank: usize, for_rank: usize) -> RankReport {
    let mut report = RankReport::default();
    report.rank = rank;
    report.state = RankState::Waiting;
    report.doing = format!("waits for the address of rank {for_rank}");
    report.host = Some(format!("node{:04}", rank / 8));
    report.pid = Some(40_000 + u32::try_from(rank % 8).unwrap_or(0));
    report.sureness = Sureness::Claimed;
    report.connections = vec![([10, 0, u8::try_from(rank / 8 / 250).unwrap_or(0), 7], 5000).into()];
    report.last_request = Some(format!("WAIT /default_pg/0//cpu//0/{for_rank}"));
    report.last_request_ms = Some(31_000);
    report.waits_for = Some(format!("/default_pg/0//cpu//0/{for_rank}"));
    report.waits_ms = Some(31_000);
    report
}

/// A job of this size that waits for these ranks.
pub(crate) fn job_without(size: usize, missing: &[usize]) -> Report {
    let first = *missing.first().expect("one is missing");
    let ranks = (0..size).map(|rank| {
        if missing.contains(&rank) {
            let mut report = RankReport::default();
            report.rank = rank;
            report.is_suspect = true;
            report.doing = "has never connected to this store".to_owned();
            report.host = Some(format!("node{:04}", rank / 8));
            report
        } else {
            waiting_rank(rank, first)
        }
    });
    let names: Vec<String> = missing.iter().map(usize::to_string).collect();
    let mut finding = Finding::new(
        FindingKind::NeverConnected,
        format!(
            "Rank {} has never connected to this store. The {} other ranks wait for it in init_process_group.",
            names.join(", "),
            size - missing.len()
        ),
    );
    finding.culprits.0 = missing.iter().copied().collect();
    finding.waiting.0 = (0..size).filter(|rank| !missing.contains(rank)).collect();
    finding.age_ms = Some(31_000);
    let mut wait = WaitFor::default();
    wait.key = format!("/default_pg/0//cpu//0/{first}");
    wait.meaning = format!("the address of rank {first}, for the default group");
    wait.connections = size - missing.len();
    wait.ranks = finding.waiting.clone();
    wait.age_ms = 31_000;
    let mut report = Report::default();
    report.uptime_ms = 252_000;
    report.headline = format!(
        "Waiting for rank {} ({} of {size}) for 31 s: never connected.",
        names.join(", "),
        missing.len()
    );
    report.is_stuck = true;
    report.findings = vec![finding];
    report.world_size = Some(size);
    report.ranks = ranks.collect();
    report.waits = vec![wait];
    report
}

/// A job of this size in which no rank waits.
pub(crate) fn healthy_job(size: usize) -> Report {
    let ranks = (0..size).map(|rank| {
        let mut report = waiting_rank(rank, 0);
        report.state = RankState::Idle;
        report.doing = "connected; asks the store for nothing".to_owned();
        report.waits_for = None;
        report.waits_ms = None;
        report
    });
    let mut report = Report::default();
    report.uptime_ms = 252_000;
    report.headline = format!("All {size} ranks are connected, and none waits on the store.");
    report.world_size = Some(size);
    report.ranks = ranks.collect();
    report
}
