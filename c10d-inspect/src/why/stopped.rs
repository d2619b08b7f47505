//! Workers that a launcher sees stopped, wherever in the job that is. The store alone cannot know it.

use std::collections::BTreeSet;

use super::draft::Draft;
use crate::identity::shown_name;
use crate::job::Job;
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let reported: BTreeSet<usize> = drafts
        .iter()
        .filter(|draft| tells_the_state(draft.finding.kind))
        .flat_map(|draft| draft.finding.culprits.0.iter().copied())
        .collect();
    let stopped: Vec<_> = job
        .workers()
        .filter(|worker| worker.end().is_none() && !worker.is_node_lost())
        .filter(|worker| !reported.contains(&worker.worker.rank))
        .filter_map(|worker| Some((worker.worker.rank, worker.stopped_rank_pid()?, worker)))
        .collect();
    let ranks: BTreeSet<usize> = stopped.iter().map(|&(rank, ..)| rank).collect();
    let Some((rank, pid, worker)) = stopped.first() else {
        return;
    };
    let mut text = format!(
        "Rank {rank} is stopped: pid {pid} on {} is in state T{}. Continue it with kill -CONT {pid}.",
        shown_name(&worker.node.announced.host),
        text::seen(job.ago(worker.seen())),
    );
    if ranks.len() > 1 {
        text.push_str(&format!(" In all, {} are stopped.", text::ranks(&ranks)));
    }
    let mut waiting = BTreeSet::new();
    for draft in drafts.iter_mut() {
        let culprits = &draft.finding.culprits.0;
        if !culprits.is_empty() && culprits.is_subset(&ranks) {
            draft.is_explained = true;
            waiting.extend(&draft.finding.waiting.0);
        }
    }
    let draft = Draft::new(FindingKind::WorkerStopped, text, job.index.snapshot.now);
    drafts.push(draft.caused_by(ranks).waited_by(waiting));
}

/// Whether findings of this kind say themselves that a rank's process is stopped.
const fn tells_the_state(kind: FindingKind) -> bool {
    use FindingKind as Kind;
    matches!(
        kind,
        Kind::NeverConnected | Kind::NotPublished | Kind::Frozen
    )
}
