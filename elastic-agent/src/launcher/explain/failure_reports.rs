//! What was known about a job when a worker failed.

use c10d_inspect::{RankSet, Report};
use c10d_store::Snapshot;

/// What was known when a worker failed, before the launcher stopped the others.
#[derive(Debug, Clone, Default)]
pub(in crate::launcher) struct FailureReports {
    /// At that moment.
    pub(super) at_failure: Option<Report>,
    /// Shortly before, if the job made no progress.
    pub(super) before: Option<Report>,
    /// The missing ranks in the last collective, if flight recorders or stacks showed them shortly before.
    pub(super) absent: Option<Absent>,
    /// The state of the store at that moment, if this process hosts it.
    pub(super) snapshot: Option<Snapshot>,
}

/// Ranks that did not take part in a collective while other ranks waited in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::launcher) struct Absent {
    pub(super) ranks: RankSet,
    /// The evidence about these ranks, in sentences without the last full stop.
    pub(super) text: String,
}
