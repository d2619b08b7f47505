//! The comparison of all ranks' recordings: who is behind, and where ranks first do different things.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::absent::{Absent, crossed};
use super::recording::{Collective, DEFAULT_GROUP, FlightRecording, GroupRecording};
use crate::report::{RankSet, Report};
use crate::text::{capitalized, ranks_named, shown_up_to};

/// What the ranks' flight recorders tell together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlightReport {
    /// One or two sentences: the first thing that differs, or that nothing does.
    pub headline: String,
    /// What was found: causes first.
    pub findings: Vec<FlightFinding>,
    /// The ranks that were asked, in order.
    pub ranks: Vec<FlightRank>,
}

/// One difference between ranks of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlightFinding {
    /// In which way the ranks differ.
    pub kind: FlightFindingKind,
    /// One or two sentences.
    pub text: String,
    /// The group's name: "0" for the default group.
    pub group: String,
    /// The number of the first collective of the group in which the ranks differ.
    pub number: u64,
    /// The ranks that do not do what the others do.
    pub culprits: RankSet,
    /// The ranks of the group that the culprits are compared with.
    pub others: RankSet,
    /// Whether another finding explains this one.
    pub is_consequence: bool,
}

impl FlightReport {
    /// The first finding that is a cause, if it names ranks.
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
    /// These ranks alone have entered a collective.
    Ahead,
    /// These ranks have recorded nothing, while others have.
    NothingRecorded,
    /// Ranks wait in a group for missing members, which are not known.
    MembersMissing,
    /// Ranks of different groups wait for each other.
    Crossed,
}

/// One rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlightRank {
    /// The global rank.
    pub rank: usize,
    /// Why its recording is unknown, or is not compared.
    pub error: Option<String>,
    /// The collective that it is in.
    pub current: Option<Collective>,
    /// What it has done in each of its groups.
    pub groups: Vec<GroupProgress>,
}

/// How far a rank is in one group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupProgress {
    /// The group's name: "0" for the default group.
    pub group: String,
    /// The group's description, as "default_pg".
    pub description: String,
    /// The number of the last collective that the rank has entered; 0 if none.
    pub entered: u64,
    /// The number of the last collective that has ended at this rank, if recorded.
    pub completed: Option<u64>,
}

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

/// The ranks of one group that have answered.
#[derive(Debug, Default)]
pub(super) struct Members<'a> {
    pub(super) ranks: BTreeMap<usize, &'a GroupRecording>,
}

fn by_group(recordings: &BTreeMap<usize, FlightRecording>) -> BTreeMap<&str, Members<'_>> {
    let mut groups: BTreeMap<&str, Members<'_>> = BTreeMap::new();
    for (rank, recording) in recordings {
        for (name, group) in &recording.groups {
            let members = groups.entry(name).or_default();
            members.ranks.insert(*rank, group);
        }
    }
    groups
}

impl Members<'_> {
    /// "group 0 (default_pg)".
    pub(super) fn group_named(&self, name: &str) -> String {
        let mut descriptions = self.ranks.values().map(|group| group.description.as_str());
        match descriptions.find(|text| !text.is_empty() && *text != "undefined") {
            Some(description) => format!("group {name} ({description})"),
            None => format!("group {name}"),
        }
    }

    fn least_entered(&self) -> u64 {
        let entered = self.ranks.values().map(|group| group.entered);
        entered.min().unwrap_or(0)
    }

    /// The first collective that ranks have entered differently, as far as all of them still remember it.
    fn divergence(&self, name: &str) -> Option<FlightFinding> {
        let firsts = self.ranks.values().map(|group| {
            let first = group.collectives.first_key_value();
            first.map_or(u64::MAX, |(number, _)| *number)
        });
        let first = firsts.max()?;
        let last = self.least_entered();
        let (_, reference) = self.ranks.first_key_value()?;
        for number in reference.collectives.keys().copied() {
            if !(first..=last).contains(&number) {
                continue;
            }
            let entered: Vec<(usize, &Collective)> = self
                .ranks
                .iter()
                .filter_map(|(rank, group)| Some((*rank, group.collectives.get(&number)?)))
                .collect();
            let camps = camps(&entered);
            if camps.len() > 1 {
                return Some(self.diverged(name, number, &camps));
            }
        }
        None
    }

    fn diverged(
        &self,
        name: &str,
        number: u64,
        camps: &[(BTreeSet<usize>, &Collective)],
    ) -> FlightFinding {
        let (most, usual) = &camps[0];
        let others: Vec<String> = camps[1..]
            .iter()
            .take(3)
            .map(|(ranks, collective)| {
                format!(
                    "{} entered {collective}",
                    ranks_named(ranks.iter().copied())
                )
            })
            .collect();
        let text = format!(
            "Ranks differ in collective {number} of {}: {}, {} entered {usual}",
            self.group_named(name),
            others.join(", "),
            ranks_named(most.iter().copied()),
        );
        FlightFinding {
            kind: FlightFindingKind::Diverged,
            text,
            group: name.to_owned(),
            number,
            culprits: RankSet(
                camps[1..]
                    .iter()
                    .flat_map(|camp| &camp.0)
                    .copied()
                    .collect(),
            ),
            others: RankSet(most.clone()),
            is_consequence: false,
        }
    }

    /// Ranks that have entered fewer collectives than others.
    fn gap(&self, name: &str, clock: &dyn Fn(u64) -> String) -> Option<FlightFinding> {
        let least = self.least_entered();
        let (behind, ahead): (Vec<_>, Vec<_>) = self
            .ranks
            .iter()
            .partition(|(_, group)| group.entered == least);
        let numbers = |side: &[(&usize, &&GroupRecording)]| {
            let entered = side.iter().map(|(_, group)| group.entered);
            entered.clone().min().zip(entered.max())
        };
        let (nearest, farthest) = numbers(&ahead)?;
        let next = least + 1;
        let what = self.entered_as(next, clock);
        let what = what.map_or(String::new(), |what| format!(" ({what})"));
        let count = if nearest == farthest {
            farthest.to_string()
        } else {
            format!("{nearest} to {farthest}")
        };
        let set = |side: &[(&usize, &&GroupRecording)]| -> RankSet {
            RankSet(side.iter().map(|(rank, _)| **rank).collect())
        };
        let (behind, ahead) = (set(&behind), set(&ahead));
        let group = self.group_named(name);
        // A few ranks that went on alone are as odd as a few that stayed behind.
        let is_ahead_odd = ahead.0.len() < behind.0.len();
        let (kind, culprits, others, text) = if is_ahead_odd {
            let verb = if ahead.0.len() == 1 { "is" } else { "are" };
            let pronoun = if ahead.0.len() == 1 {
                "it has"
            } else {
                "they have"
            };
            let names = capitalized(&ranks_named(ahead.0.iter().copied()));
            let text = format!(
                "{names} {verb} ahead of the others: {pronoun} entered {count} collectives of \
                 {group}{what}, the others {least}"
            );
            (FlightFindingKind::Ahead, ahead, behind, text)
        } else {
            let verb = if behind.0.len() == 1 { "is" } else { "are" };
            let pronoun = if behind.0.len() == 1 {
                "it has"
            } else {
                "they have"
            };
            let names = capitalized(&ranks_named(behind.0.iter().copied()));
            let noun = if least == 1 {
                "collective"
            } else {
                "collectives"
            };
            let least = if least == 0 {
                "no".to_owned()
            } else {
                least.to_string()
            };
            let text = format!(
                "{names} {verb} behind: {pronoun} entered {least} {noun} of {group}, the others \
                 {count}{what}"
            );
            (FlightFindingKind::Behind, behind, ahead, text)
        };
        Some(FlightFinding {
            kind,
            text,
            group: name.to_owned(),
            number: next,
            culprits,
            others,
            is_consequence: false,
        })
    }

    /// "all_reduce, [1000] float, since 18:04:11": the collective `number`, as the first rank entered it.
    pub(super) fn entered_as(&self, number: u64, clock: &dyn Fn(u64) -> String) -> Option<String> {
        let entered = self
            .ranks
            .values()
            .filter_map(|group| group.collectives.get(&number));
        let first = entered.min_by_key(|collective| collective.entered_unix_ns)?;
        Some(match (first.entered_unix_ns, first.is_done) {
            (0, _) => first.to_string(),
            (at, false) => format!("{first}, since {}", clock(at)),
            (at, true) => format!("{first}, entered at {}", clock(at)),
        })
    }
}

/// Ranks that entered a collective alike, the largest number of ranks first.
fn camps<'a>(entered: &[(usize, &'a Collective)]) -> Vec<(BTreeSet<usize>, &'a Collective)> {
    let mut camps: Vec<(BTreeSet<usize>, &Collective)> = Vec::new();
    for (rank, collective) in entered {
        let camp = camps.iter_mut().find(|camp| camp.1.agrees_with(collective));
        match camp {
            Some((ranks, _)) => {
                ranks.insert(*rank);
            }
            None => camps.push((BTreeSet::from([*rank]), collective)),
        }
    }
    camps.sort_by_key(|(ranks, _)| usize::MAX - ranks.len());
    camps
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
