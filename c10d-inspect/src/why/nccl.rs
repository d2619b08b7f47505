//! Ranks that wait for the id of a NCCL communicator, or that have not read it.

use std::collections::BTreeSet;
use std::time::Duration;

use c10d_store::KeyRecord;

use super::draft::{DRAFTS_MAX, Draft};
use crate::index::Slot;
use crate::job::{Job, WAIT_GRACE, Waiting};
use crate::keys::{Family, GroupName};
use crate::report::FindingKind;
use crate::text;

/// How long after a NCCL id was published all launched ranks should have read it, and how long ranks launch no operation of
/// NCCL while others have launched more.
pub(super) const NCCL_GRACE: Duration = Duration::from_secs(10);

/// The length of an id.
const ID_BYTES: usize = 128;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    for (key, waiting) in &job.waits {
        let is_due = job.ago(waiting.since) >= WAIT_GRACE;
        let (what, group, publisher) = match job.family(key) {
            Family::NcclId { group, root } => {
                let publisher = match root {
                    0 => Some(0),
                    root => block_root(job, key, waiting, root).filter(|_| is_of_job(job, &group)),
                };
                let what = match root {
                    0 => format!("the NCCL id of {}", group.words()),
                    root => format!("part {root} of the NCCL id of {}", group.words()),
                };
                (what, group, publisher)
            }
            Family::NcclPair {
                group,
                lower,
                higher,
            } => (
                format!("the NCCL id between ranks {lower} and {higher}"),
                group,
                Some(lower),
            ),
            _ => continue,
        };
        if !is_due {
            continue;
        }
        let ranks: BTreeSet<usize> = waiting
            .slots
            .iter()
            .filter_map(|&slot| job.who.rank(slot))
            .collect();
        let who = waiters(&ranks, &waiting.slots);
        let mut text = format!(
            "{who} {} for {what} for {}",
            text::verb(waiting.slots.len(), "has waited", "have waited"),
            text::age(job.ago(waiting.since)),
        );
        let mut draft = Draft::new(FindingKind::NcclId, String::new(), waiting.since);
        match publisher {
            Some(rank) if is_of_job(job, &group) => {
                text.push_str(&format!(
                    ", which rank {rank} publishes. Rank {rank}: {}.",
                    job.status(rank)
                ));
                draft = draft.caused_by([rank]);
            }
            Some(rank) => {
                text.push_str(&format!(
                    ", which the member with group rank {rank} publishes."
                ));
            }
            None => text.push('.'),
        }
        draft.finding.text = text;
        drafts.push(draft.waited_by(ranks));
        if drafts.len() > DRAFTS_MAX {
            return;
        }
    }
    not_read(job, drafts);
}

/// The rank that publishes one of several parts of an id: the first of its block of ranks. The blocks are as even as they
/// can be, the larger ones first (`nccl2/NCCLBootstrap.hpp`, `getRootIndex`). A rank waits for all parts, so that their
/// number is known.
fn block_root(job: &Job<'_>, key: &[u8], waiting: &Waiting, root: usize) -> Option<usize> {
    let digits = key.iter().rev().take_while(|it| it.is_ascii_digit());
    let stem = &key[..key.len() - digits.count()];
    let is_part = |record: &KeyRecord| {
        let number = record.key.strip_prefix(stem);
        number.is_some_and(|it| text::decimal(it).is_some())
    };
    let others = job.index.others.iter();
    let written = others.filter(|(_, record)| is_part(record)).count();
    let slot = *waiting.slots.first()?;
    let missing = job.index.connections[slot].wait.as_ref()?.missing_count;
    let (ranks, roots) = (job.world_size?, written.checked_add(missing)?);
    if root >= roots || roots > ranks {
        return None;
    }
    let (block, larger) = (ranks / roots, ranks % roots);
    Some(root * block + root.min(larger))
}

fn is_of_job(job: &Job<'_>, group: &GroupName<'_>) -> bool {
    group.is_default() && job.who.is_of_job(group)
}

/// Handles a NCCL id that has not been read: no rank waits in the store, because the readers wait in NCCL. Only the
/// launchers' tables show the absent ranks.
fn not_read(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let ids = job
        .index
        .others
        .iter()
        .filter_map(|(family, key)| match family {
            Family::NcclId { group, .. } if is_of_job(job, group) && key.value_len == ID_BYTES => {
                Some(*key)
            }
            _ => None,
        });
    let Some(key) = ids.max_by_key(|key| key.version) else {
        return;
    };
    if job.ago(key.written) < NCCL_GRACE || drafts.iter().any(|draft| draft.is_stall) {
        return;
    }
    // A connection with a later request may have read the id before that request.
    let may_have_read = |slot: Slot| {
        let connection = job.index.connections[slot];
        connection.id == key.writer
            || connection.reads.contains(&key.version)
            || connection
                .last
                .as_ref()
                .is_some_and(|last| last.at > key.written)
    };
    let has_unknown_reader = (0..job.index.connections.len()).any(|slot| {
        job.who.rank(slot).is_none() && job.index.connections[slot].reads.contains(&key.version)
    });
    let launched: BTreeSet<usize> = job
        .launched
        .workers()
        .map(|worker| worker.worker.rank)
        .collect();
    let absent: BTreeSet<usize> = launched
        .iter()
        .copied()
        .filter(|&rank| {
            !job.who
                .connections(rank)
                .iter()
                .any(|&slot| may_have_read(slot))
        })
        .collect();
    let arrived = launched.len() - absent.len();
    if absent.is_empty() || has_unknown_reader || arrived < 2 {
        return;
    }
    let described: Vec<String> = absent
        .iter()
        .take(3)
        .map(|&rank| format!("rank {rank}: {}", job.status(rank)))
        .collect();
    let text = format!(
        "{arrived} of {} launched ranks have read the NCCL id of the default group, which was published \
         {} ago; {} {} not ({}). The other ranks wait inside NCCL.",
        launched.len(),
        text::age(job.ago(key.written)),
        text::ranks(&absent),
        text::verb(absent.len(), "has", "have"),
        described.join("; "),
    );
    let others: BTreeSet<usize> = launched.difference(&absent).copied().collect();
    let draft = Draft::new(FindingKind::NcclId, text, key.written);
    drafts.push(draft.caused_by(absent).waited_by(others));
}

/// "Ranks 1-3", or "3 processes" if the rank of one is not known.
pub(super) fn waiters(ranks: &BTreeSet<usize>, slots: &[Slot]) -> String {
    if ranks.len() == slots.len() {
        text::ranks_start(ranks)
    } else {
        text::capitalized(&text::count(slots.len(), "process"))
    }
}

#[cfg(test)]
mod tests;
