//! One explanation from the evidence of the store, the launchers and the flight recorders. Pure.

use std::time::Duration;

use c10d_inspect::report_text::TextStyle;
use c10d_inspect::{Finding, Report};

use super::collectives::Stuck;
use super::failure_reports::Absent;

/// Why a job makes no progress.
#[derive(Debug)]
pub(super) struct Explained<'r> {
    report: &'r Report,
    /// The finding of observed ranks, if that is the cause.
    alarm: Option<&'r Finding>,
    /// The observation of flight recorders, if that is the cause.
    collectives: Option<&'r Stuck>,
    /// The sentence that flight recorders add to the cause, if they agree.
    addition: Option<&'r str>,
    is_whole: bool,
}

impl<'r> Explained<'r> {
    /// Combines the evidence. Stacks show a line and why a rank is there, and flight recorders show which collective a
    /// rank has not entered. If both name ranks but different ranks, only the stacks count, because a recorder shows
    /// the past. Without `is_whole` the text is the first sentence, because another launcher prints the rest.
    pub(super) fn of(
        report: &'r Report,
        alarm: Option<&'r Finding>,
        collectives: Option<&'r Stuck>,
        is_whole: bool,
    ) -> Self {
        let named = collectives.and_then(|it| it.report.named());
        let mut explained = Self {
            report,
            alarm,
            collectives,
            addition: None,
            is_whole,
        };
        let Some(alarm) = alarm else {
            return explained;
        };
        if !alarm.culprits.0.is_empty() || named.is_none() {
            explained.addition = named
                .filter(|it| it.culprits == alarm.culprits)
                .map(|it| it.text.as_str());
            explained.collectives = None;
        }
        explained
    }

    /// Returns all lines about a job that has made no progress for `lasted`.
    pub(super) fn text(&self, lasted: Duration) -> String {
        if let Some(collectives) = self.collectives {
            return collectives.text();
        }
        let seconds = lasted.as_secs();
        if self.alarm.is_some() && !self.is_whole {
            return format!(
                "the job has stood still for {seconds} s: {}\n",
                self.headline()
            );
        }
        let text = self.report.to_text(TextStyle::PLAIN);
        let mut text = format!("the job has stood still for {seconds} s\n{text}");
        if let Some(addition) = self.addition {
            text.push_str(&format!("  by the flight recorders: {addition}\n"));
        }
        text
    }

    /// Returns one sentence.
    pub(super) fn headline(&self) -> String {
        match self.collectives {
            Some(collectives) => collectives.report.headline.clone(),
            None => self.report.headline_text(),
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
