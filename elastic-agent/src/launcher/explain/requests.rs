//! When other launchers are asked to observe their workers, and the report about ranks that only wait for a busy rank.
//! Pure: times are counted from any moment.

use std::time::Duration;

use c10d_inspect::{Finding, FindingKind, NodeReport, RankSet, Report, ReportState};
use c10d_socket::printable;

/// How often the other launchers are asked to observe their workers while a rank of the job is quiet. They then observe
/// them for 15 s.
const ASK_INTERVAL: Duration = Duration::from_secs(10);

/// How often a report is made while a rank of the job is quiet.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The requests and reports of one round.
#[derive(Debug)]
pub(super) struct NodeRequests {
    after: Duration,
    node_rank: usize,
    asked: Option<Duration>,
    /// The busy ranks that were reported.
    reported: Option<RankSet>,
}

impl NodeRequests {
    pub(super) const fn new(after: Duration, node_rank: usize) -> Self {
        Self {
            after,
            node_rank,
            asked: None,
            reported: None,
        }
    }

    /// Returns whether this launcher sends requests to the other launchers, and prints more than a sentence. That is the
    /// first connected launcher, because the first node may run torchrun, or a launcher without a connection to the store.
    pub(super) fn leads(&self, report: &Report) -> bool {
        let connected = report.nodes.iter().filter(|node| node.is_connected);
        let first = connected.filter_map(|node| node.node_rank).min();
        first.is_none_or(|first| first == self.node_rank)
    }

    /// Returns whether launchers are to be asked now to observe their workers. A launcher needs no request while its
    /// own workers include a quiet worker.
    pub(super) fn is_asking_due(&mut self, now: Duration, report: &Report) -> bool {
        let is_due = self.leads(report)
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
        (self.leads(report) && is_quiet).then(|| {
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
                self.reported = None;
            }
            return None;
        }
        // The first finding may be no reason for the state. If there is no other, the store shows for whom ranks wait.
        let mut findings = report.findings.iter();
        let busy = findings.find(|it| it.kind == FindingKind::WaitsForBusyRank);
        let cause = busy.or(report.findings.first())?;
        let age = Duration::from_millis(cause.age_ms.unwrap_or(0));
        if !self.leads(report)
            || age < self.after
            || self.reported.as_ref() == Some(&cause.culprits)
        {
            return None;
        }
        self.reported = Some(cause.culprits.clone());
        // The text may come from another host.
        Some(format!("{}\n", printable(&cause.text, usize::MAX)))
    }
}

/// Returns whether a node's launcher would not observe its workers without a request.
pub(super) const fn is_asked(node: &NodeReport) -> bool {
    node.is_connected && !node.is_quiet
}

/// Returns the finding of observed ranks that explains why the job makes no progress, if there is one.
pub(super) fn alarm(report: &Report) -> Option<&Finding> {
    let stands_still = matches!(
        report.state,
        ReportState::NoProgress | ReportState::PartlyObserved
    );
    let mut causes = report.findings.iter().filter(|it| !it.is_consequence);
    causes.find(|it| stands_still && is_observed(it.kind))
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
    use crate::launcher::explain::requests::*;

    const AFTER: Duration = Duration::from_secs(30);

    fn node(node_rank: usize, is_quiet: bool) -> NodeReport {
        let mut node = NodeReport::default();
        node.node_rank = Some(node_rank);
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
        report.nodes = vec![node(0, false), node(1, false)];
        let seconds = Duration::from_secs;
        let mut first = NodeRequests::new(AFTER, 0);
        assert!(!first.is_asking_due(seconds(0), &report));
        assert_eq!(first.next_look(&report, false), None);
        report.nodes[1].is_quiet = true;
        let asked = (0..30).filter(|s| first.is_asking_due(seconds(*s), &report));
        assert_eq!(asked.collect::<Vec<_>>(), [0, 10, 20]);
        assert_eq!(first.next_look(&report, false), Some(LOOK_INTERVAL));
        let mut other = NodeRequests::new(AFTER, 1);
        assert!(!other.is_asking_due(seconds(0), &report));
        assert_eq!(other.next_look(&report, true), None);
        // All launchers observe their workers without a request.
        report.nodes[0].is_quiet = true;
        assert!(!first.is_asking_due(seconds(60), &report));
    }

    #[test]
    fn a_busy_rank_is_reported_once_when_others_have_waited_for_it() {
        let mut first = NodeRequests::new(AFTER, 0);
        assert_eq!(first.busy(&waits_for(2, 29)), None);
        assert_eq!(first.busy(&waits_for(2, 30)).as_deref(), Some("rank 2\n"));
        assert_eq!(first.busy(&waits_for(2, 35)), None);
        assert_eq!(first.busy(&waits_for(1, 35)).as_deref(), Some("rank 1\n"));
        let mut running = Report::default();
        running.nodes = vec![node(0, true)];
        assert_eq!(first.busy(&running), None);
        assert_eq!(first.busy(&waits_for(1, 35)), None);
        assert_eq!(first.busy(&Report::default()), None);
        assert_eq!(first.busy(&waits_for(1, 35)).as_deref(), Some("rank 1\n"));
        let mut of_two = waits_for(2, 90);
        of_two.nodes = vec![node(0, true), node(1, true)];
        assert_eq!(NodeRequests::new(AFTER, 1).busy(&of_two), None);
    }

    #[test]
    fn the_first_connected_launcher_leads() {
        let mut report = Report::default();
        // The first node runs torchrun, and the second is lost.
        report.nodes = vec![node(1, true), node(3, true), node(2, true)];
        report.nodes[0].is_connected = false;
        let leads = |report: &Report| {
            let leads = |rank: &usize| NodeRequests::new(AFTER, *rank).leads(report);
            (1..4).filter(leads).collect::<Vec<_>>()
        };
        assert_eq!(leads(&report), [2]);
        // Each launcher is alone.
        assert_eq!(leads(&Report::default()), [1, 2, 3]);
    }

    #[test]
    fn the_finding_of_the_state_is_reported_whichever_is_first() {
        let mut report = waits_for(2, 30);
        report.findings[0].text = "rank 2\u{1b}[2J".to_owned();
        let other = Finding::new(FindingKind::Key, "a key".to_owned());
        report.findings.insert(0, other.clone());
        let busy = NodeRequests::new(AFTER, 0).busy(&report);
        assert_eq!(busy.as_deref(), Some("rank 2\\u{1b}[2J\n"));
        let partly = Finding::new(FindingKind::PartlyObserved, "some".to_owned());
        report.findings = vec![other, partly.clone()];
        report.state = ReportState::PartlyObserved;
        assert_eq!(alarm(&report), Some(&partly));
    }
}
