//! Members of a group that have recorded nothing of it, and ranks that wait for each other in different groups.

use std::collections::{BTreeMap, BTreeSet};

use super::members::Members;
use super::recording::{DEFAULT_GROUP, FlightRecording, GroupRecording};
use super::report::{FlightFinding, FlightFindingKind};
use crate::report::{RankSet, Report};
use crate::text::{capitalized, ranks_named};

/// How many groups a text about ranks that wait for each other names.
const GROUPS_NAMED: usize = 4;

/// A member that has not entered a collective of its group.
static NOTHING: GroupRecording = GroupRecording {
    description: String::new(),
    entered: 0,
    completed: None,
    collectives: BTreeMap::new(),
};

/// The members of a group that may be missing.
#[derive(Debug)]
pub(super) struct Absent {
    /// The ranks that have recorded nothing of the group, and those whose recordings are unknown.
    candidates: BTreeSet<usize>,
    /// How many of them are members, if known.
    missing: Option<usize>,
}

impl Absent {
    /// Adds to `members`, which are the ranks that have recorded something of the group, those that certainly belong to it and
    /// have recorded nothing. Returns the candidates if it is not known which ranks are missing. Does nothing for a group
    /// whose ranks do not wait.
    pub(super) fn of(
        name: &str,
        members: &mut Members<'_>,
        recordings: &BTreeMap<usize, FlightRecording>,
        silent: &BTreeMap<usize, String>,
        job: &Report,
    ) -> Option<Self> {
        if members.ranks.values().all(|group| group.open().is_none()) {
            return None;
        }
        let everybody: BTreeSet<usize> = recordings.keys().chain(silent.keys()).copied().collect();
        let listed = recordings.values().find_map(|it| it.members.get(name));
        let mut candidates = everybody.clone();
        candidates.retain(|rank| {
            !members.ranks.contains_key(rank) && listed.is_none_or(|it| it.contains(rank))
        });
        let missing = if listed.is_some() || name == DEFAULT_GROUP {
            Some(candidates.len())
        } else {
            // A rank that was not asked could be the missing one.
            size(name, job)
                .filter(|_| job.world_size == Some(everybody.len()))
                .map(|size| size.saturating_sub(members.ranks.len()))
        };
        if missing.is_some_and(|missing| missing >= candidates.len()) {
            for rank in candidates {
                let recording = recordings.get(&rank);
                if recording.is_some_and(|it| !it.is_empty() && !it.is_partial) {
                    members.ranks.insert(rank, &NOTHING);
                }
            }
            return None;
        }
        let is_open = missing != Some(0) && !candidates.is_empty();
        is_open.then_some(Self {
            candidates,
            missing,
        })
    }

    /// Names the waiting ranks of the group and the candidates.
    pub(super) fn finding(
        &self,
        name: &str,
        members: &Members<'_>,
        clock: &dyn Fn(u64) -> String,
    ) -> Option<FlightFinding> {
        let open = members
            .ranks
            .iter()
            .filter_map(|(rank, group)| Some((*rank, group.open()?.number)));
        let number = open.clone().map(|(_, number)| number).min()?;
        let waiting: BTreeSet<usize> = open.map(|(rank, _)| rank).collect();
        let what = members.entered_as(number, clock);
        let candidates = ranks_named(self.candidates.iter().copied());
        let missing = match self.missing {
            Some(1) => format!("one of {candidates} has not entered it"),
            Some(missing) => format!("{missing} of {candidates} have not entered it"),
            None => format!(
                "no collective of this group is recorded at {candidates}: those that belong to it are missing"
            ),
        };
        let text = format!(
            "{} {} in collective {number} of {} ({}); {missing}",
            capitalized(&ranks_named(waiting.iter().copied())),
            if waiting.len() == 1 { "waits" } else { "wait" },
            members.group_named(name),
            what.unwrap_or_default(),
        );
        Some(FlightFinding {
            kind: FlightFindingKind::MembersMissing,
            text,
            group: name.to_owned(),
            number,
            culprits: RankSet::default(),
            others: RankSet(waiting),
            is_consequence: false,
        })
    }
}

/// The size of a group of this name, if the store has it.
fn size(name: &str, job: &Report) -> Option<usize> {
    let mut sizes = job.groups.iter().filter(|it| it.name == name);
    let first = sizes.next()?.size?;
    sizes
        .all(|it| it.size.is_none_or(|size| size == first))
        .then_some(first)
}

/// Replaces findings whose missing ranks all wait in collectives of other groups: no rank alone is the cause.
pub(super) fn crossed(
    findings: &[FlightFinding],
    missing: &BTreeMap<&str, Absent>,
    recordings: &BTreeMap<usize, FlightRecording>,
    groups: &BTreeMap<&str, Members<'_>>,
    clock: &dyn Fn(u64) -> String,
) -> Option<FlightFinding> {
    let causes: Vec<&FlightFinding> = findings.iter().filter(|it| !it.is_consequence).collect();
    let waits_elsewhere = |rank: &usize, group: &str| {
        let current = recordings.get(rank).and_then(FlightRecording::current);
        current.is_some_and(|current| current.group != group)
    };
    let mut parts = Vec::new();
    let mut others = BTreeSet::new();
    for cause in &causes {
        let (late, waiting) = match cause.kind {
            FlightFindingKind::Behind | FlightFindingKind::Ahead => {
                let (late, waiting) = cause.late_and_waiting();
                (&late.0, &waiting.0)
            }
            FlightFindingKind::MembersMissing => (
                &missing.get(cause.group.as_str())?.candidates,
                &cause.others.0,
            ),
            _ => return None,
        };
        if !late.iter().all(|rank| waits_elsewhere(rank, &cause.group)) {
            return None;
        }
        let members = groups.get(cause.group.as_str())?;
        let what = members.entered_as(cause.number, clock);
        parts.push(format!(
            "{} in {} for {}{} ({})",
            ranks_named(waiting.iter().copied()),
            members.group_named(&cause.group),
            match cause.kind {
                FlightFindingKind::MembersMissing => "one of ",
                _ => "",
            },
            ranks_named(late.iter().copied()),
            what.unwrap_or_default(),
        ));
        others.extend(waiting);
    }
    if causes.len() < 2 {
        return None;
    }
    let more = parts.len().saturating_sub(GROUPS_NAMED);
    parts.truncate(GROUPS_NAMED);
    let more = match more {
        0 => String::new(),
        more => format!(", and in {more} more groups"),
    };
    Some(FlightFinding {
        kind: FlightFindingKind::Crossed,
        text: format!("Ranks wait for each other: {}{more}", parts.join(", ")),
        group: causes[0].group.clone(),
        number: causes[0].number,
        culprits: RankSet::default(),
        others: RankSet(others),
        is_consequence: false,
    })
}
