//! The recordings of one group: where its ranks differ, and which of them are behind.

use std::collections::{BTreeMap, BTreeSet};

use super::recording::{Collective, FlightRecording, GroupRecording};
use super::report::{FlightFinding, FlightFindingKind};
use crate::report::RankSet;
use crate::text::{capitalized, ranks_named};

/// The ranks of one group that have answered.
#[derive(Debug, Default)]
pub(super) struct Members<'a> {
    pub(super) ranks: BTreeMap<usize, &'a GroupRecording>,
}

pub(super) fn by_group(
    recordings: &BTreeMap<usize, FlightRecording>,
) -> BTreeMap<&str, Members<'_>> {
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
    pub(super) fn divergence(&self, name: &str) -> Option<FlightFinding> {
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
    pub(super) fn gap(&self, name: &str, clock: &dyn Fn(u64) -> String) -> Option<FlightFinding> {
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
        // A few ranks ahead of the rest are as odd as a few behind.
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
                "{names} {verb} ahead of the other ranks: {pronoun} entered {count} collectives of \
                 {group}{what}, the other ranks {least}"
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
                "{names} {verb} behind: {pronoun} entered {least} {noun} of {group}, the other ranks \
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
