//! Nobody waits on the store: a hang would be elsewhere.

use crate::job::Job;
use crate::report::{Finding, FindingKind};
use crate::text;

/// The finding that all ranks are connected and none waits; `None` while some are not.
pub(crate) fn nothing_waits(job: &Job<'_>) -> Option<Finding> {
    let size = job.world_size?;
    let waits = |slot: usize| job.index.connections[slot].wait.is_some();
    let open = 0..job.index.snapshot.connections.len();
    let connected = job
        .who
        .seen()
        .filter(|&rank| rank < size && job.is_connected(rank))
        .count();
    let is_joining = job.mains().any(|state| !state.is_complete());
    if size == 0 || connected < size || is_joining || open.clone().any(waits) {
        return None;
    }
    Some(Finding::new(
        FindingKind::NotInTheStore,
        format!(
            "All {} are connected and idle; none waits on the store. If the job hangs it is not in \
             the store.",
            text::count(size, "rank")
        ),
    ))
}
