//! The comparison of all ranks' recordings: who is behind, and where ranks first do different things.

use std::collections::{BTreeMap, BTreeSet};

use super::absent::{Absent, crossed};
use super::members::{Members, by_group};
use super::recording::{DEFAULT_GROUP, FlightRecording};
use super::report::{FlightFinding, FlightFindingKind, FlightRank, FlightReport, GroupProgress};
use crate::report::{RankSet, Report};
use crate::text::{capitalized, ranks_named, shown_up_to};

/// The most characters of the reason why a recording is unknown.
const ERROR_CHARS_MAX: usize = 200;

/// Compares recordings of one generation, as [`compare_flights`](super::compare_flights) does.
pub(super) fn compare_all(
    recordings: &BTreeMap<usize, FlightRecording>,
    silent: &BTreeMap<usize, String>,
    job: &Report,
    clock: &dyn Fn(u64) -> String,
) -> FlightReport {
    let mut groups = by_group(recordings);
    let mut missing = BTreeMap::new();
    for (name, members) in &mut groups {
        let absent = Absent::of(name, members, recordings, silent, job);
        missing.extend(absent.map(|absent| (*name, absent)));
    }
    let mut findings: Vec<FlightFinding> = Vec::new();
    findings.extend(nothing_recorded(recordings));
    for (name, members) in &groups {
        let diverged = members.divergence(name);
        let is_explained = diverged.is_some();
        findings.extend(diverged);
        let gap = members.gap(name, clock);
        let gap = gap.or_else(|| missing.get(name)?.finding(name, members, clock));
        findings.extend(gap.map(|finding| FlightFinding {
            is_consequence: is_explained,
            ..finding
        }));
    }
    mark_consequences(&mut findings, recordings, !silent.is_empty());
    if let Some(crossed) = crossed(&findings, &missing, recordings, &groups, clock) {
        findings.retain(|finding| finding.is_consequence);
        findings.push(crossed);
    }
    findings.sort_by_key(|finding| finding.is_consequence);
    FlightReport {
        headline: match silent.first_key_value() {
            Some((rank, error)) if recordings.is_empty() => {
                let error = shown_up_to(error.as_bytes(), ERROR_CHARS_MAX);
                format!("No rank shows its collectives; rank {rank}: {error}")
            }
            _ => headline(&findings, &groups, silent, clock),
        },
        findings,
        ranks: ranks(recordings, silent),
    }
}

fn nothing_recorded(recordings: &BTreeMap<usize, FlightRecording>) -> Option<FlightFinding> {
    let (empty, others): (Vec<_>, Vec<_>) = recordings
        .iter()
        .partition(|(_, recording)| recording.is_empty());
    if empty.is_empty() || others.is_empty() {
        return None;
    }
    let culprits = RankSet(empty.iter().map(|(rank, _)| **rank).collect());
    let (verb, pronoun) = if empty.len() == 1 {
        ("has", "it has")
    } else {
        ("have", "they have")
    };
    Some(FlightFinding {
        kind: FlightFindingKind::NothingRecorded,
        text: format!(
            "{} {verb} recorded no group: {pronoun} not finished init_process_group, or \
             TORCH_FR_BUFFER_SIZE=0 turns the recorder off",
            capitalized(&ranks_named(culprits.0.iter().copied()))
        ),
        group: DEFAULT_GROUP.to_owned(),
        number: 0,
        culprits,
        others: RankSet(others.iter().map(|(rank, _)| **rank).collect()),
        is_consequence: false,
    })
}

/// A rank that waits in a collective of one group is late in others because of that one. It may wait for a rank whose
/// recording is unknown.
fn mark_consequences(
    findings: &mut [FlightFinding],
    recordings: &BTreeMap<usize, FlightRecording>,
    is_one_unknown: bool,
) {
    // By rank: the groups with a finding in which it waits for others, and those in which it is late.
    let mut waits: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    let mut late: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (rank, recording) in recordings.iter().filter(|_| is_one_unknown) {
        let current = recording.current().map(|it| it.group.clone());
        waits.entry(*rank).or_default().extend(current);
    }
    for finding in findings.iter() {
        let (late_here, waiting) = finding.late_and_waiting();
        for rank in &late_here.0 {
            late.entry(*rank).or_default().insert(finding.group.clone());
        }
        for rank in &waiting.0 {
            let groups = recordings.get(rank).map(|recording| &recording.groups);
            let group = groups.and_then(|groups| groups.get(&finding.group));
            if group.is_some_and(|group| group.open().is_some()) {
                waits
                    .entry(*rank)
                    .or_default()
                    .insert(finding.group.clone());
            }
        }
    }
    let is_elsewhere = |groups: &BTreeMap<usize, BTreeSet<String>>, rank: usize, group: &str| {
        let mut groups = groups.get(&rank).into_iter().flatten();
        groups.any(|other| other != group)
    };
    let is_explained = |finding: &FlightFinding| {
        let (late_here, _) = finding.late_and_waiting();
        let (waiting, others): (Vec<usize>, Vec<usize>) = late_here
            .0
            .iter()
            .partition(|rank| is_elsewhere(&waits, **rank, &finding.group));
        let mut others = others.into_iter();
        !waiting.is_empty() && others.all(|rank| is_elsewhere(&late, rank, &finding.group))
    };
    let explained: Vec<bool> = findings
        .iter()
        .map(|finding| finding.kind != FlightFindingKind::Diverged && is_explained(finding))
        .collect();
    // In a circle each explains the next: then all of them are causes.
    if !is_one_unknown && explained.iter().all(|explained| *explained) {
        return;
    }
    for (finding, explained) in findings.iter_mut().zip(explained) {
        finding.is_consequence |= explained;
    }
}

fn headline(
    findings: &[FlightFinding],
    groups: &BTreeMap<&str, Members<'_>>,
    silent: &BTreeMap<usize, String>,
    clock: &dyn Fn(u64) -> String,
) -> String {
    let silence = if silent.is_empty() {
        String::new()
    } else {
        let names = capitalized(&ranks_named(silent.keys().copied()));
        let (verb, whose) = if silent.len() == 1 {
            ("does", "its")
        } else {
            ("do", "their")
        };
        format!("{names} {verb} not answer, so {whose} collectives are unknown. ")
    };
    if let Some(first) = findings.iter().find(|finding| !finding.is_consequence) {
        return match silence.trim_end() {
            "" => first.text.clone(),
            silence => format!("{}. {silence}", first.text),
        };
    }
    let answer = groups
        .iter()
        .filter_map(|(name, members)| {
            let open = members.ranks.values().filter_map(|group| group.open());
            let last = open.max_by_key(|collective| collective.entered_unix_ns)?;
            Some((*name, members, last))
        })
        .max_by_key(|(_, _, last)| last.entered_unix_ns);
    let who = if silent.is_empty() {
        "All ranks"
    } else {
        "The others"
    };
    let state = match answer {
        Some((name, members, last)) => {
            let what = members.entered_as(last.number, clock);
            format!(
                "{who} agree: collective {} of {} is the last ({})",
                last.number,
                members.group_named(name),
                what.unwrap_or_default()
            )
        }
        None if groups.is_empty() => {
            "No recording of a collective: no rank has made a group yet, or TORCH_FR_BUFFER_SIZE=0 \
             turns the recorders off"
                .to_owned()
        }
        None => format!("{who} agree, and are in no collective"),
    };
    format!("{silence}{state}")
}

pub(super) fn ranks(
    recordings: &BTreeMap<usize, FlightRecording>,
    silent: &BTreeMap<usize, String>,
) -> Vec<FlightRank> {
    let answers = recordings.iter().map(|(rank, recording)| FlightRank {
        rank: *rank,
        error: None,
        current: recording.current().cloned(),
        groups: recording
            .groups
            .iter()
            .map(|(name, group)| GroupProgress {
                group: name.clone(),
                description: group.description.clone(),
                entered: group.entered,
                completed: group.completed,
            })
            .collect(),
    });
    let errors = silent.iter().map(|(rank, error)| FlightRank {
        rank: *rank,
        error: Some(shown_up_to(error.as_bytes(), ERROR_CHARS_MAX)),
        ..FlightRank::default()
    });
    let mut ranks: Vec<FlightRank> = answers.chain(errors).collect();
    ranks.sort_by_key(|rank| rank.rank);
    ranks
}
