//! The content of `/status.json`: a report that is small enough to be sent every second for 16,384 ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_store::{Counters, Snapshot};
use serde_json::{Value, json};

use super::counters::StoreCounters;
use super::rows::millis;
use super::timeline::Event;
use crate::report_text::membership_text;
use crate::{RankReport, RankState, Report};

/// A snapshot and its explanation.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) snapshot: Snapshot,
    pub(super) report: Arc<Report>,
    /// The report with the ranks that matter.
    pub(super) brief: Report,
    /// When the snapshot was complete.
    pub(super) at: Instant,
    /// The time that the store's thread spent on the snapshot, and this thread on its explanation.
    pub(super) store_time: Duration,
    pub(super) explain_time: Duration,
    /// How long this look is the newest look, if there are requests.
    pub(super) interval: Duration,
}

/// The most cells of the grid. A rank's number can be what a stranger claims, so it must not choose the size of the answer.
const CELLS_MAX: usize = 1 << 17;

/// The most entries of each list: more than fits a screen.
const ENTRIES_MAX: usize = 100;

/// The report with one character in `cells` for each rank instead of the ranks themselves, with ranks in lists as text,
/// and with the server's own data. `interval_ms` is the longest time until the next snapshot may be taken;
/// `snapshot_ms` is the time that this snapshot took on the store's thread, and `explain_ms` the CPU time of its
/// explanation.
pub(super) fn status(
    look: &Look,
    title: &str,
    now_unix_ms: u64,
    timeline: &[Event],
    counters: &Counters,
) -> Value {
    let report = &*look.report;
    let (cells, cells_left_out) = cells(report);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "title": title,
        "now_unix_ms": now_unix_ms,
        "taken_unix_ms": report.taken_unix_ms,
        "uptime_ms": report.uptime_ms,
        "interval_ms": millis(look.interval),
        "snapshot_ms": look.store_time.as_secs_f64() * 1000.0,
        "explain_ms": look.explain_time.as_secs_f64() * 1000.0,
        "headline": report.headline,
        "is_stuck": report.is_stuck,
        "state": report.state,
        "findings": limited(&report.findings, |finding| json!({
            "kind": finding.kind,
            "text": finding.text,
            "culprits": finding.culprits.to_string(),
            "first_culprit": finding.culprits.0.first(),
            "waiting": finding.waiting.to_string(),
            "age_ms": finding.age_ms,
            "is_consequence": finding.is_consequence,
        })),
        "world_size": report.world_size,
        "cells": cells,
        "cells_left_out": cells_left_out,
        "waits": limited(&report.waits, |wait| json!({
            "key": wait.key,
            "meaning": wait.meaning,
            "connections": wait.connections,
            "ranks": wait.ranks.to_string(),
            "age_ms": wait.age_ms,
        })),
        "nodes": limited(&report.nodes, |node| json!(node)),
        "groups": limited(&report.groups, |group| json!(group)),
        "memberships": limited(&report.memberships, |group| json!(membership_text(group))),
        "unknown_processes": limited(&report.unknown_processes, |process| json!(process)),
        "workers_stores": report.workers_stores,
        "timeline": timeline,
        "counters": StoreCounters::new(counters),
    })
}

/// The first entries of a list, and how many are omitted.
fn limited<T>(entries: &[T], value_of: impl Fn(&T) -> Value) -> Value {
    let shown: Vec<Value> = entries.iter().take(ENTRIES_MAX).map(value_of).collect();
    let left_out = entries.len() - shown.len();
    json!({ "entries": shown, "left_out": left_out })
}

/// A character for each rank from 0 on, `-` for a rank that is not in the report; and the number of ranks beyond the
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
            Some(place) => *place = letter(rank),
            None => left_out += 1,
        }
    }
    (cells.into_iter().map(char::from).collect(), left_out)
}

/// The letter of a rank's state, in upper case if a finding names the rank as a cause.
const fn letter(rank: &RankReport) -> u8 {
    let letter = match rank.state {
        RankState::NotSeen => b'n',
        RankState::Starting => b's',
        RankState::Connecting => b'c',
        RankState::Waiting => b'w',
        RankState::Idle => b'i',
        RankState::Ended => b'e',
        RankState::Lost => b'l',
    };
    match rank.is_suspect {
        true => letter.to_ascii_uppercase(),
        false => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
