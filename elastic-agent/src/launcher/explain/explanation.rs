//! Combines the evidence of the store, the launchers and the flight recorders into one explanation. Pure.

use std::time::Duration;

use c10d_inspect::report_text::TextStyle;
use c10d_inspect::{Finding, FindingKind, Report, ReportState};

use super::blame::Absent;
use super::collectives::Stuck;

/// The explanation why a job makes no progress.
#[derive(Debug)]
pub(super) struct Explanation<'r> {
    report: &'r Report,
    /// The finding of observed ranks, if that is the cause.
    alarm: Option<&'r Finding>,
    /// The observation of flight recorders, if that is the cause.
    collectives: Option<&'r Stuck>,
    /// The sentence that flight recorders add to the cause, if they agree.
    addition: Option<&'r str>,
    is_whole: bool,
}

impl<'r> Explanation<'r> {
    /// Combines the evidence. Stacks show a line and why a rank is there, and flight recorders show which collective a
    /// rank has not entered, and its group. If both name ranks but different ranks, only the stacks count, because a
    /// recorder shows the past. If all ranks are at one line, they may be in different groups, which only recorders
    /// show. Without `is_whole` the text is the first sentence, because another launcher prints the rest.
    pub(super) fn of(
        report: &'r Report,
        alarm: Option<&'r Finding>,
        collectives: Option<&'r Stuck>,
        is_whole: bool,
    ) -> Self {
        let mut causes = collectives.iter().flat_map(|it| &it.report.findings);
        let recorded = causes.find(|it| !it.is_consequence);
        let mut explanation = Self {
            report,
            alarm,
            collectives,
            addition: None,
            is_whole,
        };
        let Some(alarm) = alarm else {
            return explanation;
        };
        let is_replaced = recorded.is_some_and(|it| {
            alarm.culprits.0.is_empty()
                && (!it.culprits.0.is_empty() || alarm.kind == FindingKind::TransportStalled)
        });
        if !is_replaced {
            explanation.addition = recorded
                .filter(|it| it.culprits == alarm.culprits)
                .map(|it| it.text.as_str());
            explanation.collectives = None;
        }
        explanation
    }

    /// Returns the observation of flight recorders, if that is the cause.
    pub(super) const fn recorded(&self) -> Option<&'r Stuck> {
        self.collectives
    }

    /// Returns all lines about a job that has made no progress for `lasted`.
    pub(super) fn text(&self, lasted: Duration) -> String {
        if let Some(collectives) = self.collectives {
            return collectives.text();
        }
        let seconds = lasted.as_secs();
        let start = match self.is_partial() {
            true => format!("the observed ranks have waited for {seconds} s"),
            false => format!("the job has made no progress for {seconds} s"),
        };
        if self.alarm.is_some() && !self.is_whole {
            return format!("{start}: {}\n", self.headline());
        }
        let text = self.report.to_text(TextStyle::PLAIN);
        let mut text = format!("{start}\n{text}");
        if let Some(addition) = self.addition {
            text.push_str(&format!("  by the flight recorders: {addition}\n"));
        }
        text
    }

    /// Returns the line that repeats the explanation after `lasted`.
    pub(super) fn unchanged(&self, lasted: Duration) -> String {
        let still = match self.is_partial() {
            true => "the observed ranks still wait",
            false => "the job has still made no progress",
        };
        let seconds = lasted.as_secs();
        format!("{still}, for {seconds} s now: {}\n", self.headline())
    }

    /// Whether ranks that no launcher observes may make progress.
    fn is_partial(&self) -> bool {
        self.collectives.is_none() && self.report.state == ReportState::PartlyObserved
    }

    /// Returns the cause in one line, or only its first sentence if another launcher prints the rest.
    fn headline(&self) -> String {
        let headline = match self.collectives {
            Some(collectives) => return collectives.report.headline.clone(),
            None => self.report.headline_text(),
        };
        match headline.find(". ") {
            Some(end) if self.alarm.is_some() && !self.is_whole => headline[..=end].to_owned(),
            _ => headline,
        }
    }

    /// Returns the ranks that take no part in a collective, if some are known.
    pub(super) fn absent(&self) -> Option<Absent> {
        let (ranks, text) = match (self.collectives, self.alarm) {
            (Some(collectives), _) => {
                let named = collectives.report.named()?;
                (&named.culprits, &named.text)
            }
            (None, Some(alarm)) => (&alarm.culprits, &alarm.text),
            (None, None) => return None,
        };
        (!ranks.0.is_empty()).then(|| Absent {
            ranks: ranks.clone(),
            text: text.trim_end_matches('.').to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use c10d_inspect::flight::{FlightRecording, compare_flights};

    use crate::launcher::explain::explanation::*;

    const LASTED: Duration = Duration::from_secs(31);

    /// A report in which ranks wait for these ranks, as launchers have observed.
    fn observed(culprits: &[usize]) -> Report {
        let text = "Ranks 0 and 1 wait in all_reduce (train.py:41).".to_owned();
        let mut finding = Finding::new(FindingKind::RankBlocked, text);
        finding.culprits.0.extend(culprits);
        let mut report = Report::default();
        report.headline.clone_from(&finding.text);
        report.is_stuck = true;
        report.findings = vec![finding];
        report
    }

    /// The collectives that a rank has entered: the group, the number, and whether it waits in it.
    type Entered = [(&'static str, u64, bool)];

    fn recorded(ranks: &[&Entered]) -> Stuck {
        let recording = |entered: &&Entered| {
            let entry = |(group, number, is_inside): &(&str, u64, bool)| {
                serde_json::json!({
                    "process_group": [group, ""], "collective_seq_id": number,
                    "profiling_name": "gloo:all_reduce", "retired": !is_inside,
                })
            };
            let entries: Vec<_> = entered.iter().map(entry).collect();
            let json = serde_json::json!({ "entries": entries }).to_string();
            FlightRecording::parse(json.as_bytes()).unwrap()
        };
        let recordings = ranks.iter().map(recording).enumerate().collect();
        let clock = |_| String::new();
        Stuck {
            report: compare_flights(&recordings, &BTreeMap::new(), &Report::default(), &clock),
            lasted: LASTED,
        }
    }

    #[test]
    fn recorders_add_to_stacks_that_name_the_same_rank_and_replace_those_that_name_none() {
        // Rank 2 has not entered the fourth collective.
        let inside: &Entered = &[("0", 4, true)];
        let stuck = recorded(&[inside, inside, &[("0", 3, false)]]);
        let behind = &stuck.report.headline;
        let (same, other, none) = (observed(&[2]), observed(&[1]), observed(&[]));
        let explanation = |report: &Report| {
            let alarm = report.findings.first();
            let it = Explanation::of(report, alarm, Some(&stuck), true);
            (it.text(LASTED), it.absent().map(|absent| absent.ranks))
        };
        let (text, absent) = explanation(&same);
        assert!(
            text.starts_with("the job has made no progress for 31 s\nRanks 0 and 1 wait"),
            "{text}"
        );
        assert!(
            text.contains("by the flight recorders: Rank 2 is behind"),
            "{text}"
        );
        assert_eq!(absent.as_ref(), Some(&same.findings[0].culprits));
        let (text, absent) = explanation(&other);
        assert!(!text.contains("flight recorders"), "{text}");
        assert_eq!(absent.as_ref(), Some(&other.findings[0].culprits));
        let (text, absent) = explanation(&none);
        assert!(text.contains(behind), "{text}");
        assert_eq!(absent.as_ref(), Some(&same.findings[0].culprits));
    }

    /// Two groups of two ranks, which two ranks use in opposite orders.
    #[test]
    fn recorded_groups_replace_the_network_as_the_cause() {
        let ahead: &Entered = &[("1", 2, true), ("2", 1, false)];
        let crossed: &Entered = &[("1", 1, false), ("2", 2, true)];
        let stuck = recorded(&[ahead, crossed]);
        assert!(stuck.report.named().is_none());
        let text = |kind: FindingKind| {
            let mut report = observed(&[]);
            report.findings[0].kind = kind;
            let alarm = report.findings.first();
            Explanation::of(&report, alarm, Some(&stuck), true).text(LASTED)
        };
        let cause = "Ranks wait for each other: ";
        let stalled = text(FindingKind::TransportStalled);
        assert!(
            stalled.contains(cause) && !stalled.contains("train.py:41"),
            "{stalled}"
        );
        let differ = text(FindingKind::CallsDiffer);
        let addition = format!("by the flight recorders: {cause}");
        assert!(
            differ.contains("train.py:41") && differ.contains(&addition),
            "{differ}"
        );
    }

    #[test]
    fn of_a_job_with_unobserved_ranks_only_the_observed_ranks_wait() {
        let mut report = observed(&[]);
        report.is_stuck = false;
        report.state = ReportState::PartlyObserved;
        report.findings[0].kind = FindingKind::PartlyObserved;
        for is_whole in [true, false] {
            let explanation = Explanation::of(&report, report.findings.first(), None, is_whole);
            let text = explanation.text(LASTED);
            assert!(
                text.starts_with("the observed ranks have waited for 31 s"),
                "{text}"
            );
            assert_eq!(
                explanation.unchanged(LASTED),
                "the observed ranks still wait, for 31 s now: Ranks 0 and 1 wait in all_reduce (train.py:41).\n"
            );
        }
    }

    #[test]
    fn other_launchers_print_one_sentence() {
        let mut report = observed(&[2]);
        report
            .headline
            .push_str(" Rank 2 does not take part: it is at a.py:1 (main).");
        let explanation = Explanation::of(&report, report.findings.first(), None, false);
        assert_eq!(
            explanation.text(LASTED),
            "the job has made no progress for 31 s: Ranks 0 and 1 wait in all_reduce (train.py:41).\n"
        );
        let absent = explanation.absent().unwrap();
        assert_eq!(
            absent.text,
            "Ranks 0 and 1 wait in all_reduce (train.py:41)"
        );
        // The store's findings are printed whole by each launcher.
        let explanation = Explanation::of(&report, None, None, false);
        assert!(
            explanation
                .text(LASTED)
                .starts_with("the job has made no progress for 31 s\n")
        );
        assert_eq!(explanation.absent(), None);
    }
}
