//! The event loop's part for observers: snapshots, and log lines about long waits.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::EventLoop;
use crate::server::observer::SnapshotError;
use crate::server::stall::{Stall, Workers};
use crate::state::SNAPSHOT_SLICE;

/// The most keys named in a report of long waits.
const KEYS_REPORTED_MAX: usize = 3;

impl EventLoop {
    /// Copies a slice of a snapshot. What happens between two slices does not change it.
    pub(super) fn answer_observers(&mut self) {
        let position = self.newest_undurable();
        let is_due = self.is_snapshot_due();
        let refusal = || match &self.keeping {
            _ if self.standby.is_some() => Some(SnapshotError::StandsBy),
            Some(keeping) if !keeping.may_send() => Some(SnapshotError::MayBeDeposed),
            _ => None,
        };
        let (state, traffic) = (&self.state, &self.traffic);
        let refused = self.acceptor.refused();
        self.observed.receive(position, refusal, || {
            traffic.added_to(state.counters(), refused)
        });
        if !state.is_in_snapshot() && is_due {
            let counters = traffic.added_to(state.counters(), refused);
            self.state.start_snapshot(counters);
            self.observed.snapshot_started(position);
        }
        if let Some(image) = self.state.continue_snapshot(SNAPSHOT_SLICE) {
            self.observed.snapshot_done(image);
        }
    }

    /// Logs once that announcements are ignored.
    pub(super) fn watch_announcements(&mut self) {
        if self.state.announcements_ignored() > 0 && !self.traffic.announcements_warned {
            self.traffic.announcements_warned = true;
            log::warn!(
                "announcements are ignored from now on: the open connections' fill the limit of 64 MiB"
            );
        }
    }

    /// Publishes the number of waits, and logs a report of long ones.
    pub(super) fn watch_waits(&mut self, now: Instant) {
        let waiting = self.state.waiting();
        self.counts.waiting.store(waiting, Ordering::Release);
        self.stall.observe(waiting > 0, || now);
        if self.stall.due().is_none_or(|due| due > now) {
            return;
        }
        let summary = self.state.summary_of_waits(KEYS_REPORTED_MAX);
        let oldest = summary.oldest.and_then(|(conn, since)| {
            let peer = self.state.peer(conn)?;
            Some((peer, self.started + since.since_start()))
        });
        let Some((oldest_peer, since)) = oldest else {
            // Every wait has a start and a connection. If not, log nothing rather than spin.
            return self.stall.observe(false, || now);
        };
        if !self.stall.is_report_due(since, now) {
            return;
        }
        let stall = Stall {
            waiting: summary.waiting,
            oldest_since: since,
            oldest_peer,
            keys: summary.keys,
            more_keys: summary.more_keys,
            workers: Workers {
                world_size: self.options.world_size(),
                joined: self.state.joined_workers(),
                connections: self.connections.len(),
            },
        };
        let (level, line) = stall.line(now);
        log::log!(level, "{line}");
    }
}
