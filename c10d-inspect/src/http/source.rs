//! The sources of a store's state for a status server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_store::{Counters, Snapshot, SnapshotError, StoreObserver};

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
