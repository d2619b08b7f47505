//! Since when each problem has been the same.

use std::time::Duration;

use super::announced::{AnnouncedNccl, NcclProblem, ProblemKind};
use super::report::{Members, NcclReport};
use crate::report::milliseconds;

/// Remembers the problems of the last answer.
#[derive(Debug, Default)]
pub struct NcclWatch {
    known: Vec<(Problem, Duration)>,
}

/// What makes a problem the same one. Members that launch further operations do not stand still.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    kind: ProblemKind,
    communicator: String,
    detail: String,
    launched: (u64, u64),
    members: Members,
}

impl NcclWatch {
    /// Takes an answer that came at `now`, and returns what to announce of it.
    pub fn note(&mut self, report: &NcclReport, now: Duration) -> AnnouncedNccl {
        let mut problems = report.problems();
        let mut known = Vec::new();
        for problem in &mut problems {
            let same = Problem::of(problem);
            let before = self.known.iter().find(|(it, _)| *it == same);
            let since = before.map_or(now, |(_, since)| *since);
            problem.for_ms = milliseconds(now.saturating_sub(since));
            known.push((same, since));
        }
        self.known = known;
        AnnouncedNccl {
            asked_ago_ms: 0,
            version: report.version.clone(),
            problems,
        }
    }
}

impl Problem {
    fn of(problem: &NcclProblem) -> Self {
        Self {
            kind: problem.kind,
            communicator: problem.communicator.clone(),
            detail: problem.detail.clone(),
            launched: problem.launched,
            members: problem.members.clone(),
        }
    }
}
