//! Nobody waits on the store: a hang would be elsewhere.

use std::collections::BTreeSet;

use crate::job::Job;
use crate::keys::Family;
use crate::report::{Finding, FindingKind};
use crate::text;

/// The finding that all ranks are connected and none waits; `None` while some are not.
pub(crate) fn nothing_waits(job: &Job<'_>) -> Option<Finding> {
    if !job.waits.is_empty() {
        return None;
    }
    let text = match job.world_size {
        Some(size) => all_are_idle(job, size)?,
        None => nccl_readers(job)?,
    };
    Some(Finding::new(FindingKind::NotInTheStore, text))
}

fn all_are_idle(job: &Job<'_>, size: usize) -> Option<String> {
    let connected = job
        .who
        .seen()
        .filter(|&rank| rank < size && job.is_connected(rank))
        .count();
    let is_joining = job.mains().any(|state| !state.is_complete());
    if size == 0 || connected < size || is_joining {
        return None;
    }
    Some(format!(
        "All {} are connected and idle; none waits on the store. If the job hangs it is not in the store.",
        text::count(size, "rank")
    ))
}

/// A NCCL job without a launcher: neither its size nor its ranks are on the wire.
fn nccl_readers(job: &Job<'_>) -> Option<String> {
    let ids = job
        .index
        .others
        .iter()
        .filter_map(|(family, key)| match family {
            Family::NcclId { group, .. } if group.is_default() => Some(key),
            _ => None,
        });
    let id = ids.max_by_key(|key| key.version)?;
    let readers: BTreeSet<_> = (0..job.index.connections.len())
        .filter(|&slot| job.index.connections[slot].reads.contains(&id.version))
        .collect();
    let have = text::verb(readers.len(), "has", "have");
    Some(format!(
        "{} {have} read the NCCL id of the default group; none waits on the store. How many ranks a NCCL \
         job has, and which, is not visible in the store: start it with c10d run to see who is missing.",
        text::capitalized(&text::count(readers.len(), "process")),
    ))
}
