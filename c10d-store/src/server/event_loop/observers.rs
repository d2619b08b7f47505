//! The event loop's part for observers: snapshots, and the number of waits.

use super::{EventLoop, Traffic};
use crate::server::observer::{SnapshotError, StoreObserver};
use crate::snapshot::Counters;
use crate::state::SNAPSHOT_SLICE;

impl EventLoop {
    /// The side of other threads.
    pub(in crate::server) fn observer(&self) -> StoreObserver {
        self.extensions.observed.observer()
    }

    /// Copies a slice of a snapshot. Changes of the store between two slices do not affect the snapshot.
    pub(super) fn answer_observers(&mut self) {
        let position = self.newest_undurable();
        let is_due = self.is_snapshot_due();
        let refusal = || match &self.extensions.journal {
            _ if self.extensions.standby.is_some() => Some(SnapshotError::StandsBy),
            Some(journal) if !journal.may_send() => Some(SnapshotError::MayBeDeposed),
            _ => None,
        };
        let (state, traffic) = (&self.state, &self.traffic);
        let refused = self.acceptor.refused();
        self.extensions.observed.receive(position, refusal, || {
            traffic.added_to(state.counters(), refused)
        });
        if !state.is_in_snapshot() && is_due {
            let counters = traffic.added_to(state.counters(), refused);
            self.state.start_snapshot(counters);
            self.extensions.observed.snapshot_started(position);
        }
        if let Some(image) = self.state.continue_snapshot(SNAPSHOT_SLICE) {
            self.extensions.observed.snapshot_done(image);
        }
    }

    /// Logs once that announcements are ignored.
    pub(super) fn watch_announcements(&mut self) {
        if self.state.announcements_ignored() > 0 && !self.extensions.announcements_warned {
            self.extensions.announcements_warned = true;
            log::warn!(
                "ignoring further announcements: the open connections' announcements fill the limit of 64 MiB"
            );
        }
    }
}

impl Traffic {
    const fn added_to(&self, mut counters: Counters, rejected: u64) -> Counters {
        counters.received_bytes = self.received_bytes;
        counters.sent_bytes = self.sent_bytes;
        counters.rejected = rejected;
        counters
    }
}
