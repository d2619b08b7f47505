//! The result of the comparison of recordings.

use std::fmt::Write as _;

use serde::Serialize;

use super::recording::Collective;
use crate::report::RankSet;

/// The comparison of the ranks' flight recorders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlightReport {
    /// The first difference, or that there is none, in one or two sentences.
    pub headline: String,
    /// The differences, causes first.
    pub findings: Vec<FlightFinding>,
    /// The ranks that were asked, in order.
    pub ranks: Vec<FlightRank>,
}

/// A difference between ranks of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlightFinding {
    /// The kind of the difference.
    pub kind: FlightFindingKind,
    /// The difference in one or two sentences.
    pub text: String,
    /// The group's name: "0" for the default group.
    pub group: String,
    /// The number of the first collective of the group in which the ranks differ.
    pub number: u64,
    /// The ranks that differ from the rest of their group. Empty if it is not known which ranks these are.
    pub culprits: RankSet,
    /// The ranks of the group that the culprits are compared with.
    pub others: RankSet,
    /// Whether another finding explains this one.
    pub is_consequence: bool,
}

impl FlightReport {
    /// Returns the first finding that is a cause, if it names ranks.
    #[must_use]
    pub fn named(&self) -> Option<&FlightFinding> {
        let cause = self.findings.iter().find(|it| !it.is_consequence);
        cause.filter(|it| !it.culprits.0.is_empty())
    }
}

impl FlightFinding {
    /// The ranks that have not entered the collective, and those that wait for them in it. Most ranks may be late: then those
    /// that wait are named as culprits.
    pub(super) const fn late_and_waiting(&self) -> (&RankSet, &RankSet) {
        match self.kind {
            FlightFindingKind::Ahead => (&self.others, &self.culprits),
            _ => (&self.culprits, &self.others),
        }
    }
}

/// The kinds of differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FlightFindingKind {
    /// Ranks entered different collectives under the same number.
    Diverged,
    /// Most ranks have entered a collective that these have not.
    Behind,
    /// Only these ranks have entered a collective.
    Ahead,
    /// These ranks have recorded nothing, while other ranks have.
    NothingRecorded,
    /// Ranks wait in a group for missing members, which are not known.
    MembersMissing,
    /// Ranks of different groups wait for each other.
    Crossed,
}

/// The recording of one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlightRank {
    /// The rank's number in the job.
    pub rank: usize,
    /// The reason why the recording is unknown, or is not compared.
    pub error: Option<String>,
    /// The collective that the rank is in.
    pub current: Option<Collective>,
    /// The rank's progress in each of its groups.
    pub groups: Vec<GroupProgress>,
}

/// The progress of a rank in one group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupProgress {
    /// The group's name: "0" for the default group.
    pub group: String,
    /// The group's description, such as "default_pg".
    pub description: String,
    /// The number of the last collective that the rank has entered; 0 if none.
    pub entered: u64,
    /// The number of the last collective that has ended at this rank, if recorded.
    pub completed: Option<u64>,
}

/// How many ranks are listed.
const LISTED_MAX: usize = 64;

impl FlightReport {
    /// The comparison as lines for a terminal or a log, with 64 ranks at most. `clock` makes a text of a time in nanoseconds
    /// since 1970.
    #[must_use]
    pub fn to_text(&self, clock: &dyn Fn(u64) -> String) -> String {
        let mut text = format!("{}\n", self.headline);
        for finding in &self.findings {
            if !self.headline.starts_with(&finding.text) {
                let note = if finding.is_consequence {
                    " (a consequence)"
                } else {
                    ""
                };
                _ = writeln!(text, "{}{note}", finding.text);
            }
        }
        text.push('\n');
        for rank in self.ranks.iter().take(LISTED_MAX) {
            _ = match (&rank.error, &rank.current) {
                (Some(error), _) => writeln!(text, "rank {}: {}", rank.rank, error),
                (None, Some(current)) => writeln!(
                    text,
                    "rank {}: in collective {} of group {} since {}: {current}",
                    rank.rank,
                    current.number,
                    current.group,
                    clock(current.entered_unix_ns),
                ),
                (None, None) => {
                    let progress: Vec<String> = rank
                        .groups
                        .iter()
                        .map(|group| format!("{} of group {}", group.entered, group.group))
                        .collect();
                    let entered = match progress.len() {
                        0 => "nothing recorded".to_owned(),
                        _ => format!("has entered {}", progress.join(", ")),
                    };
                    writeln!(text, "rank {}: in no collective; {entered}", rank.rank)
                }
            };
        }
        if self.ranks.len() > LISTED_MAX {
            let more = self.ranks.len() - LISTED_MAX;
            _ = writeln!(text, "and {more} more ranks: --json shows all");
        }
        text
    }
}
