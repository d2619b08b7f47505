//! The part of an announcement about NCCL: when it was queried, and its problems.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::report::{
    Communicator, CommunicatorStatus, Counted, Members, NcclMember, NcclProcess, NcclReport,
};
use crate::report::milliseconds;

/// The most problems of an announcement. For each kind, the problem of the largest communicator is first.
const PROBLEMS_MAX: usize = 16;

/// The most processes of one problem. An announcement has 256 KiB at most.
const PROCESSES_MAX: usize = 64;

/// The last answer of NCCL's RAS service on a launcher's node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedNccl {
    /// The time since the answer, in milliseconds.
    pub asked_ago_ms: u64,
    /// The release of NCCL.
    pub version: String,
    /// The problems that NCCL reports; empty if there are none.
    pub problems: Vec<NcclProblem>,
}

/// A problem that NCCL reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NcclProblem {
    /// The kind of the problem.
    pub kind: ProblemKind,
    /// The processes with this problem, with their ranks in the communicator.
    pub members: Members,
    /// The communicator's id in NCCL's log; empty if the problem is not about a communicator.
    pub communicator: String,
    /// The number of ranks of the communicator, if known.
    pub size: Option<usize>,
    /// The number of other communicators with the same problem.
    pub others: usize,
    /// The error, or the kind of operations.
    pub detail: String,
    /// The number of operations that these members have launched, and the number that the most advanced members have
    /// launched.
    pub launched: (u64, u64),
    /// The time for which each answer has had this problem unchanged, in milliseconds.
    pub for_ms: u64,
}

/// The kind of a problem that NCCL reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProblemKind {
    /// Processes that have been silent for a minute.
    Dead,
    /// Processes that do not answer.
    Silent,
    /// Members whose NCCL has an error.
    Failed,
    /// Members that have launched fewer operations than other members.
    Behind,
    /// Members that are still initializing, or have aborted, while other members work.
    #[default]
    Apart,
}

impl NcclReport {
    /// Returns the problems in this answer, the largest communicators first. [`Behind`](ProblemKind::Behind) and
    /// [`Apart`](ProblemKind::Apart) are normal for a moment, because operations are launched one after the other,
    /// and communicators begin and end.
    #[must_use]
    pub fn problems(&self) -> Vec<NcclProblem> {
        let mut communicators: Vec<&Communicator> = self.communicators.iter().collect();
        communicators.sort_by_key(|it| std::cmp::Reverse(it.size));
        let mut problems = Vec::new();
        for (kind, processes) in [
            (ProblemKind::Dead, &self.dead),
            (ProblemKind::Silent, &self.silent),
        ] {
            problems.extend(silence(kind, processes, &communicators));
        }
        let failed = communicators.iter().flat_map(|it| {
            let each = it.failed.iter();
            each.map(|failed| NcclProblem {
                detail: failed.error.clone(),
                ..of(ProblemKind::Failed, it, failed.members.clone())
            })
        });
        add_first(&mut problems, failed);
        add_first(
            &mut problems,
            communicators.iter().flat_map(|it| behind(it)),
        );
        add_first(&mut problems, communicators.iter().flat_map(|it| apart(it)));
        problems.truncate(PROBLEMS_MAX);
        for problem in &mut problems {
            problem.members.named.truncate(PROCESSES_MAX);
        }
        problems
    }
}

fn of(kind: ProblemKind, communicator: &Communicator, members: Members) -> NcclProblem {
    NcclProblem {
        kind,
        members,
        communicator: communicator.id.clone(),
        size: communicator.size,
        ..NcclProblem::default()
    }
}

/// Adds the problems of the largest communicator, and counts how many other communicators have the same problem.
fn add_first(problems: &mut Vec<NcclProblem>, all: impl Iterator<Item = NcclProblem>) {
    let begin = problems.len();
    for problem in all {
        let known = problems[begin..]
            .iter_mut()
            .find(|it| it.detail == problem.detail);
        match known {
            Some(first) if first.communicator != problem.communicator => first.others += 1,
            _ => problems.push(problem),
        }
    }
}

/// Silent processes, with their ranks in the largest communicator that misses them.
fn silence(
    kind: ProblemKind,
    processes: &Counted<NcclProcess>,
    communicators: &[&Communicator],
) -> Option<NcclProblem> {
    if processes.count == 0 {
        return None;
    }
    let is_one = |member: &NcclMember| {
        let process = member.process.as_ref();
        process.is_some_and(|it| processes.named.contains(it))
    };
    let missed = communicators
        .iter()
        .filter(|it| it.missing.named.iter().any(is_one));
    let mut missed = missed.copied();
    let first = missed.next();
    let mut problem = match first {
        Some(communicator) => of(kind, communicator, Members::default()),
        None => NcclProblem {
            kind,
            ..NcclProblem::default()
        },
    };
    problem.others = missed.count();
    problem.members.count = processes.count;
    for process in processes.named.iter().take(PROCESSES_MAX) {
        let members = first.into_iter().flat_map(|it| &it.missing.named);
        let mut members = members.filter(|it| it.process.as_ref() == Some(process));
        let member = members.next().cloned();
        problem.members.named.push(member.unwrap_or(NcclMember {
            process: Some(process.clone()),
            ..NcclMember::default()
        }));
    }
    Some(problem)
}

/// Returns, for each kind of operation, the members that have launched the fewest.
fn behind(communicator: &Communicator) -> Vec<NcclProblem> {
    let each = communicator.counts.iter().filter_map(|counts| {
        let (furthest, _) = counts.launched.iter().max_by_key(|it| it.0)?;
        let (fewest, members) = counts.launched.iter().min_by_key(|it| it.0)?;
        (fewest < furthest).then(|| NcclProblem {
            detail: counts.operation.clone(),
            launched: (*fewest, *furthest),
            ..of(ProblemKind::Behind, communicator, members.clone())
        })
    });
    each.collect()
}

/// Members that are being made or have aborted, in a communicator that works for others.
fn apart(communicator: &Communicator) -> Vec<NcclProblem> {
    let all = &communicator.statuses;
    let is = |status| move |it: &&super::report::InStatus| it.status == status;
    if !all
        .iter()
        .any(|it| it.status == CommunicatorStatus::Running)
    {
        return Vec::new();
    }
    let apart = [
        (CommunicatorStatus::Abort, "aborted"),
        (CommunicatorStatus::Init, "being made"),
    ];
    let apart = apart.into_iter().filter_map(|(status, detail)| {
        let found = all.iter().find(is(status))?;
        Some(NcclProblem {
            detail: detail.to_owned(),
            ..of(ProblemKind::Apart, communicator, found.members.clone())
        })
    });
    apart.collect()
}

/// Remembers the problems of the last answer.
#[derive(Debug, Default)]
pub struct NcclWatch {
    known: Vec<(Problem, Duration)>,
}

/// The identity of a problem. Members that launch further operations make progress, so they have another problem.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    kind: ProblemKind,
    communicator: String,
    detail: String,
    launched: (u64, u64),
    members: Members,
}

impl NcclWatch {
    /// Takes an answer that arrived at `now`, and returns the announcement of its problems.
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
