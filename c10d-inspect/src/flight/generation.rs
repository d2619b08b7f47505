//! Selects the comparable recordings of survivors: the members' recordings of the collectives of the current
//! generation.

use std::collections::BTreeMap;

use c10d_membership::Attempt;

use super::compare::{compare_all, ranks};
use super::recording::FlightRecording;
use super::report::FlightReport;
use crate::report::{MembershipReport, Report};
use crate::text::{capitalized, ranks_named};

/// Compares the recordings of ranks. `silent` has a reason for each rank without a recording; `job` is the report of the
/// store, with the sizes of groups and the groups of survivors; `clock` makes a text of a time in nanoseconds since 1970.
///
/// Ranks of a job that runs differ by a collective or two at any moment: how long ago the texts say that a
/// collective was entered tells a hang from that. Of survivors, the members of the current generation are compared, by its
/// collectives alone.
#[must_use]
pub fn compare_flights(
    recordings: &BTreeMap<usize, FlightRecording>,
    silent: &BTreeMap<usize, String>,
    job: &Report,
    clock: &dyn Fn(u64) -> String,
) -> FlightReport {
    match Compared::new(recordings, silent, &job.memberships) {
        Some(compared) => compared.report(job, clock),
        None => compare_all(recordings, silent, job, clock),
    }
}

/// The recordings of the members of the current generation, and the reasons why other ranks are not compared.
struct Compared {
    recordings: BTreeMap<usize, FlightRecording>,
    silent: BTreeMap<usize, String>,
    outside: BTreeMap<usize, String>,
    /// The reason why no ranks can be compared at this moment.
    why_not: Option<String>,
}

impl Compared {
    /// `None` if the job has no generation of survivors.
    fn new(
        recordings: &BTreeMap<usize, FlightRecording>,
        silent: &BTreeMap<usize, String>,
        memberships: &[MembershipReport],
    ) -> Option<Self> {
        let newest = recordings
            .values()
            .filter_map(|it| it.generation)
            .max_by_key(|it| it.count());
        let group = group_of(memberships, newest);
        let current = group.and_then(generation_of).or(newest)?;
        let mut compared = Self {
            recordings: BTreeMap::new(),
            silent: silent.clone(),
            outside: BTreeMap::new(),
            why_not: None,
        };
        // Without launchers that announce the group, it is not known which member a rank is.
        let members = group
            .map(|group| &group.ranks.0)
            .filter(|ranks| !ranks.is_empty());
        for (&rank, recording) in recordings {
            let is_member = members.map(|ranks| ranks.contains(&rank));
            let outside = match (recording.generation, is_member) {
                (_, Some(false)) => format!("it is not in generation {current} of its group"),
                (Some(generation), _) if generation == current => {
                    compared.recordings.insert(rank, recording.only(current));
                    continue;
                }
                (generation, _)
                    if generation.is_none_or(|it| it.is_over_with(current))
                        && recording.generation_of_subgroups() == Some(current.count()) =>
                {
                    compared.recordings.insert(rank, recording.only(current));
                    continue;
                }
                (generation, Some(true))
                    if generation.map_or(recording.is_empty(), |it| it.is_over_with(current)) =>
                {
                    compared
                        .recordings
                        .insert(rank, FlightRecording::without_collectives(current));
                    continue;
                }
                (Some(generation), _) => {
                    format!("its last collectives are of generation {generation}, not {current}")
                }
                (None, _) => "its collectives name no generation of its group".to_owned(),
            };
            compared.outside.insert(rank, outside);
        }
        if let Some(members) = members {
            let (inside, outside) = silent.iter().partition(|(rank, _)| members.contains(rank));
            compared.silent = clone_of(inside);
            let why = |rank| {
                (
                    rank,
                    format!("it is not in generation {current} of its group"),
                )
            };
            compared
                .outside
                .extend(clone_of(outside).into_keys().map(why));
        }
        compared.why_not = group.filter(|it| !it.is_whole).map(|it| {
            format!(
                "The group of survivors has no whole generation: {}. Ask again when it has",
                it.stage
            )
        });
        if newest.is_some_and(|newest| newest != current && current.is_over_with(newest)) {
            compared.why_not =
                Some("The members of the group change at this moment: ask again".to_owned());
        }
        Some(compared)
    }

    /// Compares what is comparable.
    fn report(&self, job: &Report, clock: &dyn Fn(u64) -> String) -> FlightReport {
        let mut report = match &self.why_not {
            Some(why_not) => FlightReport {
                headline: why_not.clone(),
                findings: Vec::new(),
                ranks: ranks(&self.recordings, &self.silent),
            },
            None if self.recordings.is_empty() && !self.outside.is_empty() => FlightReport {
                headline: format!(
                    "No rank shows collectives of its group's generation; {}",
                    self.outside_named()
                ),
                findings: Vec::new(),
                ranks: ranks(&self.recordings, &self.silent),
            },
            None => compare_all(&self.recordings, &self.silent, job, clock),
        };
        report.ranks.extend(ranks(&BTreeMap::new(), &self.outside));
        report.ranks.sort_by_key(|rank| rank.rank);
        report
    }

    fn outside_named(&self) -> String {
        let names = ranks_named(self.outside.keys().copied());
        match self.outside.values().next() {
            Some(why) => format!("{names}: {why}"),
            None => capitalized(&names),
        }
    }
}

/// The group that launchers have announced, or the group that the recorded collectives name.
fn group_of(
    memberships: &[MembershipReport],
    newest: Option<Attempt>,
) -> Option<&MembershipReport> {
    let mut announced = memberships.iter().filter(|it| !it.ranks.0.is_empty());
    let has_recorded = |it: &&MembershipReport| {
        let nonce = |attempt: Attempt| attempt.uuid() >> 32;
        generation_of(it).map(nonce) == newest.map(nonce)
    };
    let recorded = newest.and_then(|_| memberships.iter().find(has_recorded));
    announced.next().or(recorded)
}

fn generation_of(group: &MembershipReport) -> Option<Attempt> {
    Attempt::from_uuid(group.uuid.parse().ok()?)
}

fn clone_of(part: BTreeMap<&usize, &String>) -> BTreeMap<usize, String> {
    part.into_iter()
        .map(|(rank, why)| (*rank, why.clone()))
        .collect()
}
