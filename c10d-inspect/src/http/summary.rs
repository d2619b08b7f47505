//! What the page shows, small enough to be sent every second for 16,384 ranks.

use c10d_store::Counters;
use serde::Serialize;

use super::cell::RankCell;
use super::counters::StoreCounters;
use super::rows::millis;
use super::source::Look;
use super::timeline::Event;
use crate::report_text::membership_text;
use crate::text;
use crate::{FindingKind, Group, NodeReport, Process, RankSet, Report, WaitFor, WorkersStore};

/// The most cells of the grid. A rank's number can be what a stranger claims, so it must not choose the size of the answer.
const CELLS_MAX: usize = 1 << 17;

/// The most entries of each list: more than fits a screen.
const ENTRIES_MAX: usize = 100;

/// The content of `/status.json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary<'a> {
    version: &'static str,
    title: &'a str,
    now_unix_ms: u64,
    taken_unix_ms: u64,
    uptime_ms: u64,
    /// How long until the next snapshot may be taken, at most.
    interval_ms: u64,
    /// What the snapshot cost the store's thread, in milliseconds.
    snapshot_ms: f64,
    /// The CPU time of its explanation, in milliseconds.
    explain_ms: f64,
    headline: &'a str,
    is_stuck: bool,
    findings: Limited<FindingLine<'a>>,
    world_size: Option<usize>,
    /// One character for each rank, from rank 0 on; see [`RankCell`].
    cells: String,
    cells_left_out: usize,
    waits: Limited<WaitLine<'a>>,
    nodes: Limited<&'a NodeReport>,
    groups: Limited<&'a Group>,
    memberships: Limited<String>,
    unknown_processes: Limited<&'a Process>,
    workers_stores: &'a [WorkersStore],
    timeline: Vec<Event>,
    counters: StoreCounters,
}

/// The first entries of a list.
#[derive(Debug, Serialize)]
struct Limited<T> {
    entries: Vec<T>,
    left_out: usize,
}

#[derive(Debug, Serialize)]
struct FindingLine<'a> {
    kind: FindingKind,
    text: &'a str,
    culprits: String,
    first_culprit: Option<usize>,
    waiting: String,
    age_ms: Option<u64>,
    is_consequence: bool,
}

#[derive(Debug, Serialize)]
struct WaitLine<'a> {
    key: &'a str,
    meaning: &'a str,
    connections: usize,
    ranks: String,
    age_ms: u64,
}

impl<'a> Summary<'a> {
    pub(super) fn new(
        look: &'a Look,
        title: &'a str,
        now_unix_ms: u64,
        timeline: Vec<Event>,
        counters: &Counters,
    ) -> Self {
        let report = &*look.report;
        let (cells, cells_left_out) = cells(report);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            title,
            now_unix_ms,
            taken_unix_ms: report.taken_unix_ms,
            uptime_ms: report.uptime_ms,
            interval_ms: millis(look.interval),
            snapshot_ms: look.store_time.as_secs_f64() * 1000.0,
            explain_ms: look.explain_time.as_secs_f64() * 1000.0,
            headline: &report.headline,
            is_stuck: report.is_stuck,
            findings: limited(report.findings.iter().map(|finding| FindingLine {
                kind: finding.kind,
                text: &finding.text,
                culprits: ranks_or_empty(&finding.culprits),
                first_culprit: finding.culprits.0.first().copied(),
                waiting: ranks_or_empty(&finding.waiting),
                age_ms: finding.age_ms,
                is_consequence: finding.is_consequence,
            })),
            world_size: report.world_size,
            cells,
            cells_left_out,
            waits: limited(report.waits.iter().map(|wait: &WaitFor| WaitLine {
                key: &wait.key,
                meaning: &wait.meaning,
                connections: wait.connections,
                ranks: ranks_or_empty(&wait.ranks),
                age_ms: wait.age_ms,
            })),
            nodes: limited(report.nodes.iter()),
            groups: limited(report.groups.iter()),
            memberships: limited(report.memberships.iter().map(membership_text)),
            unknown_processes: limited(report.unknown_processes.iter()),
            workers_stores: &report.workers_stores,
            timeline,
            counters: StoreCounters::new(counters),
        }
    }
}

fn limited<T>(entries: impl ExactSizeIterator<Item = T>) -> Limited<T> {
    let left_out = entries.len().saturating_sub(ENTRIES_MAX);
    Limited {
        entries: entries.take(ENTRIES_MAX).collect(),
        left_out,
    }
}

/// "rank 2", "ranks 0-4095 and 4100", or nothing.
fn ranks_or_empty(ranks: &RankSet) -> String {
    if ranks.0.is_empty() {
        return String::new();
    }
    text::ranks(&ranks.0)
}

/// A character for each rank from 0 on, `-` for a rank of which the report knows nothing; and the number of ranks beyond the
/// limit.
fn cells(report: &Report) -> (String, usize) {
    let beyond_last = report
        .ranks
        .last()
        .map_or(0, |last| last.rank.saturating_add(1));
    let count = report
        .world_size
        .unwrap_or(0)
        .max(beyond_last)
        .min(CELLS_MAX);
    let mut cells = vec![b'-'; count];
    let mut left_out = 0;
    for rank in &report.ranks {
        match cells.get_mut(rank.rank) {
            Some(place) => *place = RankCell::of(rank).letter(),
            None => left_out += 1,
        }
    }
    (cells.into_iter().map(char::from).collect(), left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RankReport, RankState};

    fn rank(rank: usize, state: RankState, is_suspect: bool) -> RankReport {
        RankReport {
            rank,
            state,
            is_suspect,
            ..RankReport::default()
        }
    }

    #[test]
    fn each_rank_is_one_character() {
        let report = Report {
            world_size: Some(6),
            ranks: vec![
                rank(0, RankState::Waiting, false),
                rank(1, RankState::Idle, false),
                rank(2, RankState::NotSeen, true),
                rank(4, RankState::Lost, true),
            ],
            ..Report::default()
        };
        assert_eq!(cells(&report), ("wiN-L-".to_owned(), 0));
    }

    #[test]
    fn a_claimed_rank_does_not_choose_the_size() {
        let report = Report {
            ranks: vec![
                rank(0, RankState::Idle, false),
                rank(usize::MAX, RankState::Idle, false),
            ],
            ..Report::default()
        };
        let (cells, left_out) = cells(&report);
        assert_eq!((cells.len(), left_out), (CELLS_MAX, 1));
    }
}
