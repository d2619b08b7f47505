//! Ranks that do not outlive the process that serves a store that does.

use std::collections::BTreeSet;

use crate::job::Job;
use crate::report::{Finding, FindingKind};
use crate::text;

/// Names the ranks with connections that no other server can continue; `None` if the store ends with its process, too.
pub(crate) fn connected_directly(job: &Job<'_>) -> Option<Finding> {
    if !job.index.snapshot.is_kept {
        return None;
    }
    let is_direct = |rank: &usize| {
        let mut slots = job.who.connections(*rank).iter();
        slots.any(|&slot| job.index.is_open(slot) && !job.index.connections[slot].resumes)
    };
    let direct: BTreeSet<usize> = job.who.seen().filter(is_direct).collect();
    if direct.is_empty() {
        return None;
    }
    let text = format!(
        "{} {} connected to this store directly: {} would not survive a restart of its server, or that another one takes \
         over, as ranks behind relays do (c10d run --relay).",
        text::ranks_start(&direct),
        text::verb(direct.len(), "is", "are"),
        text::verb(direct.len(), "it", "they"),
    );
    Some(Finding::new(FindingKind::ConnectedDirectly, text))
}
