//! When other launchers are asked to observe their workers, and the report about ranks that only wait for a busy rank.
//! Pure: times are counted from any moment.

use std::time::Duration;

use c10d_inspect::{Finding, FindingKind, NodeReport, RankSet, Report, ReportState};

/// How often the other launchers are asked to observe their workers while a rank of the job is quiet. They then observe
/// them for 15 s.
const ASK_INTERVAL: Duration = Duration::from_secs(10);

/// How often a report is made while a rank of the job is quiet.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The requests and reports of one round.
#[derive(Debug)]
pub(super) struct Observed {
    after: Duration,
    /// Only the launcher of the first node sends requests to the other launchers, and prints more than a sentence.
    is_first_node: bool,
    asked: Option<Duration>,
    /// The busy ranks that were reported.
    told: Option<RankSet>,
}

impl Observed {
    pub(super) const fn new(after: Duration, is_first_node: bool) -> Self {
        Self {
            after,
            is_first_node,
            asked: None,
            told: None,
        }
    }

    pub(super) const fn is_first_node(&self) -> bool {
        self.is_first_node
    }

    /// Returns whether launchers are to be asked now to observe their workers. A launcher needs no request while its
    /// own workers include a quiet worker.
    pub(super) fn is_asking_due(&mut self, now: Duration, report: &Report) -> bool {
        let is_due = self.is_first_node
            && report.nodes.iter().any(|node| node.is_quiet)
            && report.nodes.iter().any(is_asked)
            && self.asked.is_none_or(|at| now >= at + ASK_INTERVAL);
        if is_due {
            self.asked = Some(now);
        }
        is_due
    }

    /// Returns the longest time until the next report. `is_own_quiet` is whether a worker of this node is quiet.
    pub(super) fn next_look(&self, report: &Report, is_own_quiet: bool) -> Option<Duration> {
        let is_quiet = is_own_quiet || report.nodes.iter().any(|node| node.is_quiet);
        (self.is_first_node && is_quiet).then(|| {
            let share = self.after / 5;
            share.clamp(LOOK_INTERVAL_MIN, LOOK_INTERVAL)
        })
    }

    /// Returns the text to print about a job that waits for a busy rank, once for each such rank.
    pub(super) fn busy(&mut self, report: &Report) -> Option<String> {
        if report.state != ReportState::WaitingForBusyRank {
            // One report can be made while a waiting rank uses the CPU for a moment.
            let is_quiet = report.nodes.iter().any(|node| node.is_quiet);
            if report.state == ReportState::Running && !is_quiet {
                self.told = None;
            }
            return None;
        }
        let cause = report.findings.first()?;
        let age = Duration::from_millis(cause.age_ms.unwrap_or(0));
        if !self.is_first_node || age < self.after || self.told.as_ref() == Some(&cause.culprits) {
            return None;
        }
        self.told = Some(cause.culprits.clone());
        Some(format!("{}\n", cause.text))
    }
}

/// Returns whether a node's launcher would not observe its workers without a request.
pub(super) const fn is_asked(node: &NodeReport) -> bool {
    node.is_connected && !node.is_quiet
}

/// Returns the finding of observed ranks that explains why the job makes no progress, if there is one.
pub(super) fn alarm(report: &Report) -> Option<&Finding> {
    let cause = report.findings.first()?;
    let stands_still = matches!(
        report.state,
        ReportState::NoProgress | ReportState::PartlyObserved
    );
    (stands_still && is_observed(cause.kind)).then_some(cause)
}

/// Returns whether findings of this kind are made from the observations of launchers.
pub(super) const fn is_observed(kind: FindingKind) -> bool {
    use FindingKind as Kind;
    matches!(
        kind,
        Kind::RankBlocked
            | Kind::CallsDiffer
            | Kind::TransportStalled
            | Kind::AllBlocked
            | Kind::PartlyObserved
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    fn node(is_quiet: bool) -> NodeReport {
        let mut node = NodeReport::default();
        node.is_connected = true;
        node.is_quiet = is_quiet;
        node
    }

    fn waits_for(rank: usize, seconds: u64) -> Report {
        let mut finding = Finding::new(FindingKind::WaitsForBusyRank, format!("rank {rank}"));
        finding.culprits.0.insert(rank);
        finding.age_ms = Some(seconds * 1000);
        let mut report = Report::default();
        report.state = ReportState::WaitingForBusyRank;
        report.findings = vec![finding];
        report
    }

    #[test]
    fn the_first_node_asks_the_others_while_a_rank_is_quiet() {
        let mut report = Report::default();
        report.nodes = vec![node(false), node(false)];
        let seconds = Duration::from_secs;
        let mut first = Observed::new(AFTER, true);
        assert!(!first.is_asking_due(seconds(0), &report));
        assert_eq!(first.next_look(&report, false), None);
        report.nodes[1].is_quiet = true;
        let asked = (0..30).filter(|s| first.is_asking_due(seconds(*s), &report));
        assert_eq!(asked.collect::<Vec<_>>(), [0, 10, 20]);
        assert_eq!(first.next_look(&report, false), Some(LOOK_INTERVAL));
        let mut other = Observed::new(AFTER, false);
        assert!(!other.is_asking_due(seconds(0), &report));
        assert_eq!(other.next_look(&report, true), None);
        // All launchers observe their workers without a request.
        report.nodes[0].is_quiet = true;
        assert!(!first.is_asking_due(seconds(60), &report));
    }

    #[test]
    fn a_busy_rank_is_reported_once_when_others_have_waited_for_it() {
        let mut first = Observed::new(AFTER, true);
        assert_eq!(first.busy(&waits_for(2, 29)), None);
        assert_eq!(first.busy(&waits_for(2, 30)).as_deref(), Some("rank 2\n"));
        assert_eq!(first.busy(&waits_for(2, 35)), None);
        assert_eq!(first.busy(&waits_for(1, 35)).as_deref(), Some("rank 1\n"));
        let mut running = Report::default();
        running.nodes = vec![node(true)];
        assert_eq!(first.busy(&running), None);
        assert_eq!(first.busy(&waits_for(1, 35)), None);
        assert_eq!(first.busy(&Report::default()), None);
        assert_eq!(first.busy(&waits_for(1, 35)).as_deref(), Some("rank 1\n"));
        assert_eq!(Observed::new(AFTER, false).busy(&waits_for(2, 90)), None);
    }
}
