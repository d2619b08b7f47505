//! Finds the root cause of a failure: the rank that the other ranks waited for. Pure.

use std::collections::BTreeSet;

use c10d_inspect::{Finding, FindingKind, RankSet, Report, published_ranks, translate};
use c10d_store::Snapshot;

use crate::failure::{Decision, Failures, RootExit};

/// The report that explains a failure, if any does. Makes what it names the root cause, if that is certain enough: an exit
/// that explains failures of other ranks, or a rank that was still running when this launcher stopped it. Translates the
/// addresses in the workers' last lines.
pub(in crate::launcher) fn explain(
    reports: &FailureReports,
    mut failures: Option<&mut Failures>,
) -> Option<Report> {
    if let Some(failures) = &mut failures {
        // Only the node that serves the store has a snapshot. Some texts need none.
        let nothing = Snapshot::default();
        let snapshot = reports.snapshot.as_ref().unwrap_or(&nothing);
        failures.explain_stderr(|text| translate(text, snapshot));
    }
    let root = failures
        .as_deref()
        .and_then(|it| RootFinding::of(it, reports));
    if let (Some(failures), Some(root)) = (&mut failures, &root)
        && root.is_telling
    {
        failures.blame_exit(root.exit.clone());
        let report = reports.at_failure.clone().unwrap_or_default();
        return Some(led_by(&report, &root.finding));
    }
    // By the time a rank has timed out, others may have given up too, so the report of shortly before can
    // know more.
    let candidates = || [&reports.at_failure, &reports.before].into_iter().flatten();
    for report in candidates() {
        let Some((cause, why)) = cause(report) else {
            continue;
        };
        let later = reports.at_failure.as_ref();
        if later.is_some_and(|later| has_ended_since(later, cause)) {
            continue;
        }
        let is_certain = failures.as_deref_mut().is_none_or(|failures| {
            let ranks = || cause.culprits.0.iter();
            let is_here = |rank: &usize| failures.all().iter().any(|it| it.rank == *rank);
            !ranks().any(is_here) || ranks().any(|rank| failures.blame(*rank, why))
        });
        if is_certain {
            return Some(led_by(report, cause));
        }
    }
    let stuck = candidates().next().filter(|report| report.is_stuck);
    match (failures, root.filter(|root| root.is_unexplained)) {
        (Some(failures), Some(root)) => {
            failures.blame_exit(root.exit.clone());
            let report = stuck.cloned().unwrap_or_default();
            Some(led_by(&report, &root.finding))
        }
        _ => stuck.cloned(),
    }
}

/// The root cause that the exits tell.
struct RootFinding {
    exit: RootExit,
    finding: Finding,
    /// Whether it names a worker or a cure that the first observed failure alone does not.
    is_telling: bool,
    /// Whether the first worker that failed lost a connection or gave up a wait, and no exit explains that.
    is_unexplained: bool,
}

impl RootFinding {
    fn of(failures: &Failures, reports: &FailureReports) -> Option<Self> {
        let published = reports
            .snapshot
            .as_ref()
            .map(published_ranks)
            .unwrap_or_default();
        let rank_at = |address| published.get(&address).copied();
        let decision = Decision::of(failures.exits(), failures.world_size(), &rank_at)?;
        let mut root = decision.root;
        let first = failures.first_observed();
        let is_first = root.record.rank == first.rank && root.record.pid == first.pid;
        let is_one = decision.culprits.len() == 1;
        let absent = reports.absent.as_ref();
        let absent = absent.filter(|_| decision.unknown.is_some());
        match (&decision.unknown, absent) {
            (_, Some(absent)) => root.text.push_str(&format!(". {}", absent.text)),
            (Some(unknown), None) => root.text.push_str(unknown),
            (None, None) => {}
        }
        let text = [Some(root.text.as_str()), root.cure].into_iter().flatten();
        let text: Vec<String> = text.map(sentence).collect();
        let mut finding = Finding::new(FindingKind::WorkerEnded, text.join(" "));
        finding.waiting.0.extend(decision.failed);
        let named = match decision.unknown {
            Some(_) => &mut finding.waiting,
            None => &mut finding.culprits,
        };
        named.0.extend(decision.culprits);
        if let Some(absent) = absent {
            finding.culprits.clone_from(&absent.ranks);
        }
        let has_victims = decision.has_victims || absent.is_some();
        Some(Self {
            finding,
            is_telling: !is_first || root.cure.is_some() || has_victims || !is_one,
            is_unexplained: is_one && !root.is_certain && !has_victims,
            exit: root,
        })
    }
}

/// The text as a sentence.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).chain(['.']).collect()
}

/// The first cause that is a rank which has not exited on its own, and a clause about the rank.
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
            Some("alive, but stopped in init_process_group before it read the other addresses")
        }
        FindingKind::StaleAddresses => Some("alive; addresses of an earlier group were read"),
        FindingKind::WorkerStopped => Some("alive, but stopped by a signal"),
        FindingKind::GroupIncomplete => {
            Some("alive, but did not call new_group as the other ranks did")
        }
        FindingKind::RankBlocked => Some("absent from the call in which the other ranks waited"),
        _ => None,
    }
}

/// Whether a finding is only about ranks that exited because they had waited for the ranks of `cause`.
fn follows_from(finding: &Finding, cause: &Finding) -> bool {
    is_end(finding) && finding.culprits.0.is_subset(&cause.waiting.0)
}

/// Whether a later report shows that a rank, which others waited for before, has ended. It was killed, or the job had
/// continued.
fn has_ended_since(later: &Report, cause: &Finding) -> bool {
    let mut causes = later.findings.iter().filter(|it| !it.is_consequence);
    causes.any(|it| {
        let ranks = &it.culprits.0;
        it.kind == FindingKind::WorkerEnded
            && !ranks.is_empty()
            && ranks.is_subset(&cause.culprits.0)
    })
}

const fn is_end(finding: &Finding) -> bool {
    matches!(
        finding.kind,
        FindingKind::WorkerEnded
            | FindingKind::LostInInit
            | FindingKind::LostLater
            | FindingKind::GaveUp
    )
}

/// Returns the report with this cause in front.
fn led_by(report: &Report, cause: &Finding) -> Report {
    let mut led = report.clone();
    led.headline.clone_from(&cause.text);
    // The cause has more about the same exit than the store has seen.
    let is_same = |finding: &Finding| finding != cause && finding.culprits == cause.culprits;
    led.findings
        .retain(|finding| !is_end(finding) || !is_same(finding));
    for finding in &mut led.findings {
        finding.is_consequence |= finding != cause && follows_from(finding, cause);
    }
    if !led.findings.contains(cause) {
        led.findings.push(cause.clone());
    }
    led.findings
        .sort_by_key(|finding| (finding != cause, finding.is_consequence));
    let causes = led
        .findings
        .iter()
        .filter(|finding| !finding.is_consequence);
    let suspects: BTreeSet<usize> = causes
        .flat_map(|finding| finding.culprits.0.clone())
        .collect();
    for rank in &mut led.ranks {
        rank.is_suspect = suspects.contains(&rank.rank);
    }
    led
}

/// The reports at the time when a worker failed, before the launcher stopped the other workers.
#[derive(Debug, Clone, Default)]
pub(in crate::launcher) struct FailureReports {
    /// The report at the moment of the failure.
    pub(super) at_failure: Option<Report>,
    /// Shortly before, if the job made no progress.
    pub(super) before: Option<Report>,
    /// The missing ranks in the last collective, if flight recorders or stacks showed them shortly before.
    pub(super) absent: Option<Absent>,
    /// The state of the store at that moment, if this process hosts it.
    pub(super) snapshot: Option<Snapshot>,
}

/// Ranks that did not take part in a collective while other ranks waited in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::launcher) struct Absent {
    pub(super) ranks: RankSet,
    /// The evidence about these ranks, in sentences without the last full stop.
    pub(super) text: String,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use c10d_inspect::flight::{FlightRecording, compare_flights};

    use super::{Absent, *};

    use crate::failure::{ExitRecord, ProcessFailure};
    use crate::worker::{ExitKind, WorkerOutcome};
    use c10d_inspect::Finding;

    /// Rank 1 has timed out, rank 2 was stopped, and rank 3 has exited on its own.
    fn failures() -> Failures {
        let outcome = |rank: usize, seconds: u64, was_stopped| WorkerOutcome {
            was_stopped,
            ..WorkerOutcome::for_test(rank, ExitKind::Code(1), seconds * 1000, "")
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
            ..FailureReports::default()
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
    fn a_rank_that_ended_since_it_was_blocked_is_named_with_its_end() {
        let now = report(&[(FindingKind::WorkerEnded, &[3])]);
        let mut before = report(&[(FindingKind::RankBlocked, &[3])]);
        before.findings[0].waiting.0.insert(1);
        let shown = explain(&reports(now, Some(before)), None).unwrap();
        assert_eq!(shown.findings[0].kind, FindingKind::WorkerEnded);
        assert_eq!(shown.findings.len(), 1);
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

    /// Ranks 0, 1 and 3 wait in their fourth collective, and rank 2 has entered three.
    fn absent() -> Absent {
        let recording = |entered: u64| {
            let entry = serde_json::json!({
                "process_group": ["0", "default_pg"], "collective_seq_id": entered,
                "profiling_name": "gloo:all_reduce", "retired": entered < 4,
            });
            let json = serde_json::json!({ "entries": [entry] }).to_string();
            FlightRecording::parse(json.as_bytes()).unwrap()
        };
        let recordings = [4, 4, 3, 4].map(recording).into_iter().enumerate();
        let report = compare_flights(
            &recordings.collect(),
            &BTreeMap::new(),
            &Report::default(),
            &|_| String::new(),
        );
        let named = report.named().unwrap();
        Absent {
            ranks: named.culprits.clone(),
            text: named.text.clone(),
        }
    }

    #[test]
    fn a_rank_that_gave_up_a_collective_is_not_blamed_for_it() {
        let outcome = |rank: usize, was_stopped| {
            let stderr = match was_stopped {
                true => "",
                false => "RuntimeError: Timed out waiting 8000ms for send operation to complete",
            };
            let ended_at_ms = if rank == 3 { 500 } else { 900 };
            WorkerOutcome {
                was_stopped,
                ..WorkerOutcome::for_test(rank, ExitKind::Code(1), ended_at_ms, stderr)
            }
        };
        let explained = |absent| {
            let outcomes = [3, 0, 1, 2].map(|rank| outcome(rank, rank == 2));
            let exits = outcomes
                .iter()
                .map(|it| ExitRecord::of(it, "node0"))
                .collect();
            let failures = outcomes.iter().map(ProcessFailure::of).collect();
            let failures = Failures::new(failures).unwrap();
            let mut failures = failures.with_exits(vec![exits], 4);
            let reports = FailureReports {
                absent,
                // The store has seen the exits.
                ..reports(report(&[(FindingKind::WorkerEnded, &[3])]), None)
            };
            let shown = explain(&reports, Some(&mut failures)).unwrap();
            let causes = shown.findings.iter().filter(|it| !it.is_consequence);
            let culprits: BTreeSet<usize> = causes.flat_map(|it| it.culprits.0.clone()).collect();
            (shown.headline, culprits)
        };
        let gave_up = "Rank 3 exited with code 1: an operation of several ranks took too long";
        let (headline, culprits) = explained(None);
        assert!(culprits.is_empty(), "{culprits:?}: {headline}");
        assert_eq!(
            headline,
            format!("{gave_up}, and which rank did not take part is not known (rank 2 still ran).")
        );
        let (headline, culprits) = explained(Some(absent()));
        assert_eq!(culprits, BTreeSet::from([2]), "{headline}");
        let known = format!("{gave_up}. Rank 2 is behind: it has entered 3 collectives of group 0");
        assert!(headline.starts_with(&known), "{headline}");
    }

    /// The report of node 0, whose rank 0 lost its connection, with the exits of node 1.
    #[test]
    fn an_exit_on_another_node_is_the_root_cause() {
        let lost = "Error: Connection closed by peer [10.0.0.2]:4711";
        let lost = WorkerOutcome::for_test(0, ExitKind::Code(1), 50_400, lost);
        let failed = WorkerOutcome::for_test(1, ExitKind::Code(3), 50_000, "bad shard 17");
        let own = vec![ExitRecord::of(&lost, "node0")];
        let other = vec![ExitRecord::of(&failed, "node1")];
        let all = vec![ProcessFailure::of(&lost)];
        let mut failures = Failures::new(all).unwrap().with_exits(vec![own, other], 2);
        // The store has seen the same exit, and the exit of its victim.
        let now = report(&[
            (FindingKind::LostLater, &[1]),
            (FindingKind::WorkerEnded, &[0]),
        ]);
        let shown = explain(&reports(now, None), Some(&mut failures)).unwrap();
        let text =
            "rank 1 on node1 exited with code 3, 0.4 s before rank 0 lost its connection to it";
        assert_eq!(shown.headline, format!("R{}.", &text[1..]));
        assert_eq!(shown.findings.len(), 2, "{:#?}", shown.findings);
        assert!(shown.findings[1].is_consequence);
        let root = failures.root_exit().unwrap();
        assert_eq!((root.text.as_str(), root.is_certain), (text, true));
        assert!(failures.is_root_elsewhere());
        let summary = failures.summary("f.py", "node0", |seconds| seconds.to_string());
        let end = format!(
            "Root Cause (the first observed failure is of rank 0):\n[1]:\n  time      : 50\n  host      : node1\n  \
             rank      : 1\n  exitcode  : 3 (pid: 17) \n  error_file: <N/A>\n  traceback : <N/A>\n  \
             cause     : {text}\n  stderr    : the last line\n    bad shard 17\n"
        );
        assert!(summary.contains(&end), "{summary}");
    }

    #[test]
    fn a_job_that_did_not_stand_still_is_not_explained() {
        let mut now = report(&[(FindingKind::WorkerEnded, &[1])]);
        now.is_stuck = false;
        assert_eq!(blamed(&reports(now, None)), (1, None));
    }
}
