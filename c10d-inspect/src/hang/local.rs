//! The report that a launcher makes from the samples of the workers on its node.

use super::evidence::{Evidence, RankEvidence, Seen};
use super::judge::judge;
use crate::announced::AnnouncedNode;
use crate::keys::GROUP_SIZE_MAX;
use crate::report::{RankReport, RankState, Report, ReportState, Sureness};

/// Explains what the workers of a node wait for, by the samples of their launcher. It is for a launcher that cannot
/// reach the workers' store, or whose workers use another store. The report then names the ranks on other nodes as not
/// observed.
///
/// Returns `None` if no worker has a recent sample, or if the workers make progress.
#[must_use]
pub fn local_hang_report(node: &AnnouncedNode) -> Option<Report> {
    let mut evidence = Evidence::default();
    evidence.add(node, 0, |rank| rank < GROUP_SIZE_MAX);
    for rank in 0..node.world_size.unwrap_or(0).min(GROUP_SIZE_MAX) {
        let other = || RankEvidence::new(Seen::OutOfReach, None);
        evidence.ranks.entry(rank).or_insert_with(other);
    }
    let verdict = judge(&evidence)?;
    let finding = verdict.finding?;
    let workers = node.workers.iter();
    let ranks = workers.map(|worker| RankReport {
        rank: worker.rank,
        state: RankState::Idle,
        is_suspect: verdict.state != ReportState::WaitingForBusyRank
            && finding.culprits.0.contains(&worker.rank),
        doing: verdict.doing.get(&worker.rank).cloned().unwrap_or_default(),
        pid: Some(worker.pid),
        node_rank: node.node_rank,
        sureness: Sureness::Launched,
        ..RankReport::default()
    });
    Some(Report {
        headline: finding.text.clone(),
        is_stuck: verdict.state == ReportState::NoProgress,
        state: verdict.state,
        world_size: node.world_size,
        ranks: ranks.collect(),
        findings: vec![finding],
        ..Report::default()
    })
}
