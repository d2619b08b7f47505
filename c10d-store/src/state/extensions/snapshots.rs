//! Snapshots for observers, in slices.

use super::image::{Image, SnapshotInProgress};
use crate::snapshot::Counters;
use crate::state::StoreState;

/// The most keys of a snapshot, and the most queues. A job of 100,000 ranks has fewer.
const SNAPSHOT_KEYS_MAX: usize = 262_144;

/// A budget of [`StoreState::continue_snapshot`] that takes less than a millisecond.
pub(crate) const SNAPSHOT_SLICE: usize = 4096;

impl StoreState {
    /// The totals, except those of bytes and of connections that were turned away.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        self.extensions.directory.count(&mut counters);
        counters.keys = self.slots.value_count();
        counters.stored_bytes = self.slots.stored_bytes();
        counters.waits = self.waiters.waiting();
        counters.waits_cancelled = self.waits_cancelled;
        counters
    }

    /// The number of announcements that there was no room for.
    pub(crate) const fn announcements_ignored(&self) -> u64 {
        self.extensions.announcements.ignored()
    }

    /// Starts a snapshot of the current moment, with these totals. A snapshot in progress is dropped.
    pub(crate) fn start_snapshot(&mut self, counters: Counters) {
        self.slots.start_copy(SNAPSHOT_KEYS_MAX);
        self.extensions.directory.start_copy(&self.waiters);
        self.extensions.snapshot = Some(Box::new(SnapshotInProgress {
            now: self.now,
            counters,
            announcements: self.extensions.announcements.to_vec(),
            groups: self.extensions.groups.records(self.now),
            connections: None,
            keys: None,
        }));
    }

    /// Whether a snapshot is in progress.
    pub(crate) const fn is_in_snapshot(&self) -> bool {
        self.extensions.snapshot.is_some()
    }

    /// Continues the snapshot in progress by about `budget` records. Returns it once it is complete.
    pub(crate) fn continue_snapshot(&mut self, mut budget: usize) -> Option<Image> {
        let mut snapshot = self.extensions.snapshot.take()?;
        if snapshot.connections.is_none() {
            snapshot.connections = self
                .extensions
                .directory
                .copy_slice(&mut budget, &self.waiters);
        }
        if snapshot.connections.is_some() {
            snapshot.keys = self.slots.copy_slice(&mut budget);
        }
        match *snapshot {
            SnapshotInProgress {
                now,
                counters,
                announcements,
                groups,
                connections: Some(connections),
                keys: Some(keys),
            } => Some(Image {
                now,
                is_kept: self.slots.recorder.is_some(),
                counters,
                announcements,
                groups,
                connections,
                keys,
            }),
            unfinished => {
                self.extensions.snapshot = Some(Box::new(unfinished));
                None
            }
        }
    }
}
