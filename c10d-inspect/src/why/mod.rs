//! Finds the causes of a hang: findings, causes first.

mod absence;
mod barrier;
mod boundary;
mod conflict;
mod departure;
mod draft;
mod gloo_loopback;
mod groups;
mod hang;
mod meeting;
mod missing_ranks;
mod nccl;
mod nccl_ras;
mod notes;
mod other_keys;
mod silence;
mod stale_addresses;

use std::collections::BTreeSet;

use draft::Draft;
pub(crate) use hang::{combine, observed};
pub(crate) use meeting::meetings;
pub(crate) use notes::{connected_directly, nothing_waits};

use crate::job::Job;
use crate::report::{Finding, FindingKind, RankSet, milliseconds};

/// The findings, causes first, and whether a process waits for a missing or blocked rank.
pub(crate) fn find(job: &Job<'_>) -> (Vec<Finding>, bool) {
    let mut drafts: Vec<Draft> = Vec::new();
    missing_ranks::find(job, &mut drafts);
    silence::find_away(job, &mut drafts);
    silence::find_frozen(job, &mut drafts);
    departure::find(job, &mut drafts);
    departure::find_gave_up(job, &mut drafts);
    groups::find(job, &mut drafts);
    nccl::find(job, &mut drafts);
    barrier::find(job, &mut drafts);
    boundary::find(job, &mut drafts);
    other_keys::find(job, &mut drafts);
    stale_addresses::find(job, &mut drafts);
    conflict::find(job, &mut drafts);
    silence::find_stopped(job, &mut drafts);
    gloo_loopback::find(job, &mut drafts);
    nccl_ras::find(job, &mut drafts);
    meeting::find(job, &mut drafts);
    drafts.retain_mut(|draft| concerns_members(job, draft));
    let is_stuck = drafts.iter().any(|draft| draft.is_stall);
    (ordered(job, drafts), is_stuck)
}

/// Removes ranks without which their group of survivors works. Returns whether the finding is still about others.
fn concerns_members(job: &Job<'_>, draft: &mut Draft) -> bool {
    let Finding {
        culprits, waiting, ..
    } = &mut draft.finding;
    [culprits, waiting].into_iter().all(|RankSet(ranks)| {
        let was_empty = ranks.is_empty();
        ranks.retain(|&rank| !job.is_left_out(rank));
        was_empty || !ranks.is_empty()
    })
}

/// The order of kinds among causes: mistakes in how the job was started explain what comes of them.
fn class(kind: FindingKind) -> u8 {
    use FindingKind as Kind;
    match kind {
        // The workers of the round before have been stopped.
        Kind::NodesMissing | Kind::TwoJobs | Kind::SameRank | Kind::WorldSizeDiffers => 0,
        Kind::StaleAddresses | Kind::GlooLoopback => 1,
        Kind::NodeLost | Kind::Away => 2,
        Kind::WorkerEnded
        | Kind::WorkerStopped
        | Kind::LostInInit
        | Kind::Frozen
        | Kind::NcclDead
        | Kind::NcclSilent
        | Kind::NotPublished => 3,
        Kind::NeverConnected => 4,
        Kind::GroupNamesDiffer => 5,
        Kind::GroupIncomplete
        | Kind::NcclFailed
        | Kind::NcclBehind
        | Kind::RankBlocked
        | Kind::CallsDiffer
        | Kind::TransportStalled
        | Kind::AllBlocked => 6,
        Kind::NcclId | Kind::NcclApart | Kind::Barrier | Kind::Boundary | Kind::Key => 7,
        Kind::LostLater => 8,
        Kind::GaveUp => 9,
        Kind::PartlyObserved
        | Kind::WaitsForBusyRank
        | Kind::NotInTheStore
        | Kind::ConnectedDirectly => 10,
        Kind::Other => 11,
    }
}

/// Marks the consequences and puts causes first, the oldest of each class first.
fn ordered(job: &Job<'_>, mut drafts: Vec<Draft>) -> Vec<Finding> {
    let is_consequence: Vec<bool> = (0..drafts.len())
        .map(|place| {
            let draft = &drafts[place];
            draft.is_explained
                || drafts
                    .iter()
                    .any(|cause| precedes(cause, draft) || drives_away(cause, draft))
                || drafts
                    .iter()
                    .enumerate()
                    .any(|(other, cause)| other != place && explains(cause, draft))
        })
        .collect();
    for (draft, is_consequence) in drafts.iter_mut().zip(is_consequence) {
        draft.finding.is_consequence = is_consequence;
        let age = job.ago(draft.since);
        draft.finding.age_ms = (!age.is_zero()).then(|| milliseconds(age));
    }
    drafts.sort_by_key(|draft| {
        (
            draft.finding.is_consequence,
            class(draft.finding.kind),
            draft.since,
        )
    });
    drafts.into_iter().map(|draft| draft.finding).collect()
}

/// Whether the ranks that `draft` blames only wait because of `cause`. Of two that wait for each other, neither
/// explains the other.
fn explains(cause: &Draft, draft: &Draft) -> bool {
    let of = |set: &RankSet, others: &RankSet| is_within(&set.0, &others.0);
    // An exited, blocked or missing process is not a consequence of another problem.
    let can_follow = class(draft.finding.kind) >= class(FindingKind::GroupNamesDiffer)
        || draft.finding.kind == FindingKind::LostInInit;
    can_follow
        && !cause.is_explained
        && of(&draft.finding.culprits, &cause.finding.waiting)
        && !of(&cause.finding.culprits, &draft.finding.waiting)
        && !of(&draft.finding.culprits, &cause.finding.culprits)
}

/// Whether a rank left the group after another problem began, because it gave up.
fn drives_away(cause: &Draft, draft: &Draft) -> bool {
    draft.finding.kind == FindingKind::LostLater
        && class(cause.finding.kind) < class(FindingKind::LostLater)
        && !cause.is_explained
        && cause.since <= draft.since
}

/// Whether a wait that names no rank began after another problem.
fn precedes(cause: &Draft, draft: &Draft) -> bool {
    let waits = class(FindingKind::NcclId);
    class(draft.finding.kind) == waits
        && draft.finding.culprits.0.is_empty()
        && class(cause.finding.kind) < waits
        && cause.is_stall
        && !cause.is_explained
        && cause.since <= draft.since
}

fn is_within(set: &BTreeSet<usize>, other: &BTreeSet<usize>) -> bool {
    !set.is_empty() && set.is_subset(other)
}

#[cfg(test)]
mod tests;
