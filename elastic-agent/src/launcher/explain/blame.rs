//! Names the root cause of a failure: the rank that the others waited for. Pure.

use crate::failure::Failures;
use c10d_inspect::{Finding, FindingKind, Report, translate};

use super::failure_reports::FailureReports;

/// The report that explains a failure, if any does. Makes the rank that it names the root cause, if that is
/// certain: the rank was still running when this launcher stopped it. Translates the addresses in the workers'
/// last lines.
pub(in crate::launcher) fn explain(
    reports: &FailureReports,
    mut failures: Option<&mut Failures>,
) -> Option<Report> {
    if let (Some(failures), Some(snapshot)) = (&mut failures, &reports.snapshot) {
        failures.explain_stderr(|text| translate(text, snapshot));
    }
    // By the time a rank has timed out, others may have given up too, so the report of shortly before can
    // know more.
    let candidates = || [&reports.at_failure, &reports.before].into_iter().flatten();
    for report in candidates() {
        let Some((cause, why)) = cause(report) else {
            continue;
        };
        let is_certain = failures.as_deref_mut().is_none_or(|failures| {
            let ranks = || cause.culprits.0.iter();
            let is_here = |rank: &usize| failures.all().iter().any(|it| it.rank == *rank);
            !ranks().any(is_here) || ranks().any(|rank| failures.blame(*rank, why))
        });
        if is_certain {
            return Some(led_by(report, cause));
        }
    }
    let report = candidates().next().filter(|report| report.is_stuck);
    report.cloned()
}

/// The first cause that is a rank which has not ended by itself, and a clause about the rank.
fn cause(report: &Report) -> Option<(&Finding, &'static str)> {
    let causes = || {
        report
            .findings
            .iter()
            .filter(|finding| !finding.is_consequence)
    };
    causes().enumerate().find_map(|(index, cause)| {
        let why = clause(cause.kind)?;
        let is_first = causes().take(index).all(|other| follows_from(other, cause));
        (is_first && !cause.culprits.0.is_empty()).then_some((cause, why))
    })
}

const fn clause(kind: FindingKind) -> Option<&'static str> {
    match kind {
        FindingKind::NeverConnected => Some("alive, but never reached init_process_group"),
        FindingKind::NotPublished => {
            Some("alive, but stopped in init_process_group before it published its address")
        }
        FindingKind::Frozen => {
            Some("alive, but stopped in init_process_group before it read the others' addresses")
        }
        FindingKind::StaleAddresses => Some("alive; addresses of an earlier group were read"),
        FindingKind::WorkerStopped => Some("alive, but stopped by a signal"),
        FindingKind::GroupIncomplete => Some("alive, but did not call new_group as the others did"),
        _ => None,
    }
}

/// Whether a finding is only about ranks that ended because they had waited for those of `cause`.
fn follows_from(finding: &Finding, cause: &Finding) -> bool {
    let is_end = matches!(
        finding.kind,
        FindingKind::WorkerEnded
            | FindingKind::LostInInit
            | FindingKind::LostLater
            | FindingKind::GaveUp
    );
    is_end && finding.culprits.0.is_subset(&cause.waiting.0)
}

/// The same report with this cause in front.
fn led_by(report: &Report, cause: &Finding) -> Report {
    let mut led = report.clone();
    led.headline.clone_from(&cause.text);
    for finding in &mut led.findings {
        finding.is_consequence |= finding != cause && follows_from(finding, cause);
    }
    led.findings
        .sort_by_key(|finding| (finding != cause, finding.is_consequence));
    led
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use crate::failure::ProcessFailure;
    use crate::worker::{ExitKind, WorkerOutcome};
    use c10d_inspect::Finding;

    use super::*;

    /// Rank 1 has timed out, rank 2 was stopped, and rank 3 has ended by itself.
    fn failures() -> Failures {
        let outcome = |rank: usize, seconds: u64, was_stopped| WorkerOutcome {
            local_rank: rank,
            rank,
            pid: 100,
            exit: ExitKind::Code(1),
            ended_at: UNIX_EPOCH + Duration::from_secs(seconds),
            was_stopped,
            error_file: None,
            stderr_tail: Vec::new(),
        };
        let outcomes = [
            outcome(1, 50, false),
            outcome(2, 51, true),
            outcome(3, 52, false),
        ];
        Failures::new(outcomes.iter().map(ProcessFailure::of).collect()).unwrap()
    }

    fn report(causes: &[(FindingKind, &[usize])]) -> Report {
        let mut report = Report::default();
        report.is_stuck = true;
        for (kind, culprits) in causes {
            let mut cause = Finding::new(*kind, format!("{kind:?}"));
            cause.culprits.0.extend(*culprits);
            report.findings.push(cause);
        }
        report
    }

    fn reports(at_failure: Report, before: Option<Report>) -> FailureReports {
        FailureReports {
            at_failure: Some(at_failure),
            before,
            snapshot: None,
        }
    }

    /// The root cause, and the kind of the first finding of the report that is shown.
    fn blamed(reports: &FailureReports) -> (usize, Option<FindingKind>) {
        let mut failures = failures();
        let shown = explain(reports, Some(&mut failures));
        let kind = shown.map(|report| report.findings[0].kind);
        (failures.first().rank, kind)
    }

    #[test]
    fn the_rank_that_others_waited_for_is_the_root_cause() {
        for kind in [
            FindingKind::NeverConnected,
            FindingKind::NotPublished,
            FindingKind::Frozen,
            FindingKind::GroupIncomplete,
            FindingKind::StaleAddresses,
            FindingKind::WorkerStopped,
        ] {
            assert_eq!(
                blamed(&reports(report(&[(kind, &[2])]), None)),
                (2, Some(kind))
            );
            // Rank 1 had waited for rank 2 and has given up.
            let mut now = report(&[(FindingKind::WorkerEnded, &[1]), (kind, &[2])]);
            now.findings[1].waiting.0.insert(1);
            let shown = explain(&reports(now.clone(), None), None).unwrap();
            assert_eq!(shown.headline, now.findings[1].text);
            assert!(shown.findings[1].is_consequence);
            assert_eq!(blamed(&reports(now.clone(), None)), (2, Some(kind)));
            // Rank 1 had not waited for it.
            now.findings[1].waiting.0.clear();
            assert_eq!(
                blamed(&reports(now, None)),
                (1, Some(FindingKind::WorkerEnded))
            );
        }
    }

    #[test]
    fn a_report_of_shortly_before_helps_when_the_others_have_given_up() {
        let now = report(&[(FindingKind::WorkerEnded, &[1])]);
        let before = report(&[(FindingKind::NeverConnected, &[2])]);
        let shown = Some(FindingKind::NeverConnected);
        assert_eq!(blamed(&reports(now, Some(before))), (2, shown));
    }

    #[test]
    fn a_rank_that_ended_by_itself_or_a_consequence_is_not_blamed() {
        let ended = report(&[(FindingKind::NeverConnected, &[3])]);
        let shown = Some(FindingKind::NeverConnected);
        assert_eq!(blamed(&reports(ended, None)), (1, shown));
        let lost = report(&[(FindingKind::LostInInit, &[2])]);
        assert_eq!(
            blamed(&reports(lost, None)),
            (1, Some(FindingKind::LostInInit))
        );
        let mut consequence = report(&[(FindingKind::NeverConnected, &[2])]);
        consequence.findings[0].is_consequence = true;
        assert_eq!(blamed(&reports(consequence, None)), (1, shown));
        assert_eq!(blamed(&FailureReports::default()), (1, None));
    }

    #[test]
    fn a_rank_on_another_node_is_explained_but_not_blamed() {
        let now = report(&[(FindingKind::NeverConnected, &[7])]);
        let shown = Some(FindingKind::NeverConnected);
        assert_eq!(blamed(&reports(now, None)), (1, shown));
    }

    #[test]
    fn a_job_that_did_not_stand_still_is_not_explained() {
        let mut now = report(&[(FindingKind::WorkerEnded, &[1])]);
        now.is_stuck = false;
        assert_eq!(blamed(&reports(now, None)), (1, None));
    }
}
