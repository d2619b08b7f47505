//! Keys that are waited for and that no other finding is about.

use std::collections::BTreeSet;

use super::draft::{DRAFTS_MAX, Draft};
use super::nccl::waiters;
use crate::job::{Job, WAIT_GRACE, Waiting};
use crate::keys::{Family, family};
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    for (key, waiting) in unexplained(job) {
        if drafts.len() > DRAFTS_MAX {
            return;
        }
        let family = job.family(key);
        let ranks: BTreeSet<usize> = waiting
            .slots
            .iter()
            .filter_map(|&slot| job.who.rank(slot))
            .collect();
        let who = match waiting.slots[..] {
            [slot] => text::capitalized(&job.who.name(job.index, slot)),
            _ => waiters(&ranks, &waiting.slots),
        };
        let mut text = format!(
            "{who} {} for {} for {}.",
            text::verb(waiting.slots.len(), "has waited", "have waited"),
            job.meaning(key),
            text::age(job.ago(waiting.since)),
        );
        text.push_str(advice(&family));
        let mut draft = Draft::new(FindingKind::Key, text, waiting.since)
            .caused_by(culprit(job, &family))
            .waited_by(ranks);
        // PyTorch's own front end asks for all debug servers; the job does not wait for it.
        draft.is_stall = !matches!(family, Family::DebugServer { .. });
        drafts.push(draft);
    }
}

/// The keys that are waited for and that no other finding is about, the longest wait first.
pub(super) fn unexplained<'j>(job: &'j Job<'_>) -> Vec<(&'j [u8], &'j Waiting)> {
    let mut waits: Vec<(&[u8], &Waiting)> =
        job.waits.iter().map(|(key, wait)| (*key, wait)).collect();
    waits.retain(|(key, waiting)| {
        let is_due = job.ago(waiting.since) >= WAIT_GRACE;
        is_due && waiting.barrier.is_none() && !has_finding_of_its_own(job, key)
    });
    waits.sort_by_key(|(_, waiting)| waiting.since);
    waits
}

fn has_finding_of_its_own(job: &Job<'_>, key: &[u8]) -> bool {
    // The rank of a member may be too high because ranks disagree about the world size.
    match family(key) {
        Family::Member(member) => job.index.has_group(member.stem),
        Family::NcclId { .. } | Family::NcclPair { .. } => true,
        Family::InitBarrier { is_last, .. } | Family::Barrier { is_last, .. } => is_last,
        Family::InProcessBarrier { is_last, .. } => is_last,
        // Launchers wait for each other's end, for changes of the rendezvous, and ranks for a restart, as long as the job
        // runs.
        Family::ElasticExit { .. }
        | Family::Rendezvous { .. }
        | Family::NcclTimeout
        | Family::InProcessEvent => true,
        _ => key.is_empty(),
    }
}

/// The rank that alone writes the key.
fn culprit(job: &Job<'_>, family: &Family<'_>) -> Option<usize> {
    match *family {
        Family::DebugServer { rank } => Some(rank),
        Family::RpcName { rank } if !job.has_default_group() => Some(rank),
        _ => None,
    }
}

fn advice(family: &Family<'_>) -> &'static str {
    match family {
        Family::Unknown => {
            " It has not been written. PyTorch's own keys have other names: the script or a library waits for it."
        }
        Family::ElasticRole { .. } => " That launcher has not reached this round, or is lost.",
        Family::ElasticRanks { .. } => " Launcher 0 assigns them when all launchers are there.",
        Family::RpcName { .. } | Family::RpcAddress { .. } => {
            " That worker has not called init_rpc, or is lost."
        }
        Family::RpcShutdown => {
            " A worker has not called rpc.shutdown, or still has calls to answer."
        }
        Family::DebugServer { .. } => " That rank has not started its debug server.",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
