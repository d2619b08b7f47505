//! The results of a history: steps kept and redone, how long the job waited after each fault, and violated laws.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Joined, PAUSE_MS, Process, Run, SUCCESS, SideHistory};
use super::plan::{INTERVAL, Kind};
use super::training::Training;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Account {
    /// The duration of an undisturbed step.
    pub(super) step_ms: f64,
    /// The number of undisturbed steps that fit into the measured time.
    pub(super) possible: f64,
    /// The number of steps that the job advanced in the measured time.
    pub(super) kept: u64,
    /// The total length of the pauses in the measured time.
    pub(super) stalled_ms: u64,
    /// Steps of the whole history that were repeated because the checkpoint was older.
    pub(super) redone: u64,
    /// The longest time without a step after each fault that hit a running job, until the next fault.
    pub(super) waits: Vec<(Kind, u64)>,
    /// Pauses that no launcher survived.
    pub(super) jobs_lost: usize,
    /// Processes that were ranks.
    pub(super) processes: usize,
    /// Violations of the laws, each in words.
    pub(super) violations: Vec<String>,
}

impl Account {
    pub(super) fn goodput_percent(&self) -> f64 {
        100.0 * self.kept as f64 / self.possible
    }
}

/// A process group.
struct Group<'h> {
    id: u64,
    members: Vec<(&'h Process, Joined, Vec<&'h Run>)>,
}

impl<'h> Group<'h> {
    fn runs(&self) -> impl Iterator<Item = &'h Run> + '_ {
        self.members
            .iter()
            .flat_map(|(_, _, runs)| runs.iter().copied())
    }

    /// When its first step ended. `None`: it did none.
    fn begin_ms(&self) -> Option<u64> {
        self.runs().map(|run| run.begin_ms).min()
    }

    fn first(&self) -> Option<u64> {
        self.runs().map(|run| run.first).min()
    }

    fn last(&self) -> Option<u64> {
        self.runs().map(|run| run.last).max()
    }

    /// How many steps it had behind it at that time.
    fn steps_at(&self, ms: u64) -> Option<u64> {
        let at = |run: &Run| {
            if run.end_ms <= ms {
                return Some(run.last + 1);
            }
            let passed = ms.checked_sub(run.begin_ms)?;
            let share = passed as f64 / (run.end_ms - run.begin_ms) as f64;
            Some(run.first + 1 + (share * (run.last - run.first) as f64) as u64)
        };
        self.runs().filter_map(at).max()
    }
}

pub(super) fn account(side: &SideHistory, training: &mut Training) -> Account {
    let groups = groups(side);
    let steps_at = |ms| {
        let begun = groups.iter().rev();
        let newest = begun.filter(|it| it.begin_ms().is_some_and(|begin| begin <= ms));
        newest.filter_map(|it| it.steps_at(ms)).next().unwrap_or(0)
    };
    let steps_in = |(begin, end)| u64::saturating_sub(steps_at(end), steps_at(begin));
    let length = |(begin, end): (u64, u64)| end.saturating_sub(begin) as f64;
    let step_ms = length(side.calm_ms) / steps_in(side.calm_ms) as f64;
    let done: u64 = groups
        .iter()
        .filter_map(|it| Some(it.last()? + 1 - it.first()?))
        .sum();
    let highest = groups.iter().filter_map(Group::last).max();
    let pauses = pauses(side);
    Account {
        step_ms,
        possible: length(side.measured_ms) / step_ms,
        kept: steps_in(side.measured_ms),
        redone: done.saturating_sub(highest.map_or(0, |last| last + 1)),
        stalled_ms: stalled_ms(side, &pauses),
        waits: waits(side, &pauses),
        jobs_lost: pauses.iter().filter(|it| !has_survivor(side, **it)).count(),
        processes: side.processes.len(),
        violations: violations(side, &groups, training),
    }
}

/// Returns the groups in the order of their first steps. Groups without steps are last.
fn groups(side: &SideHistory) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<u64, Group<'_>> = BTreeMap::new();
    for process in &side.processes {
        for joined in &process.joined {
            let id = joined.generation;
            let runs = process.runs.iter().filter(|run| run.generation == id);
            let members = Vec::new();
            let group = groups.entry(id).or_insert(Group { id, members });
            group.members.push((process, *joined, runs.collect()));
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|it| (it.begin_ms().unwrap_or(u64::MAX), it.id));
    groups
}

/// The longer times in which no rank ended a step.
fn pauses(side: &SideHistory) -> Vec<(u64, u64)> {
    let runs = side.processes.iter().flat_map(|it| &it.runs);
    let mut runs: Vec<_> = runs.map(|run| (run.begin_ms, run.end_ms)).collect();
    runs.push((side.measured_ms.1, side.measured_ms.1));
    runs.sort_unstable();
    let mut pauses = Vec::new();
    let mut until = runs[0].1;
    for (begin, end) in runs {
        if begin > until + PAUSE_MS {
            pauses.push((until, begin));
        }
        until = until.max(end);
    }
    pauses.retain(|it| it.1 > side.measured_ms.0 && it.0 < side.measured_ms.1);
    pauses
}

fn stalled_ms(side: &SideHistory, pauses: &[(u64, u64)]) -> u64 {
    let (begin, end) = side.measured_ms;
    let within = pauses.iter().map(|it| it.1.min(end) - it.0.max(begin));
    within.sum()
}

fn waits(side: &SideHistory, pauses: &[(u64, u64)]) -> Vec<(Kind, u64)> {
    let next = side.faults.iter().skip(1).map(|it| it.at_ms);
    let nexts = next.chain([side.measured_ms.1]);
    let of = |(at, next): (u64, u64)| {
        // A pause that is caused by the next fault begins at the last step before that fault.
        let after = pauses
            .iter()
            .filter(|it| it.1 > at && it.0 + PAUSE_MS < next);
        let times = after.map(|it| it.1.min(next) - it.0.max(at));
        times.max().unwrap_or(0)
    };
    let is_down = |at| pauses.iter().any(|it| it.0 + PAUSE_MS < at && at < it.1);
    let faults = side.faults.iter().zip(nexts);
    let effective = faults.filter(|(fault, _)| !fault.is_void && !is_down(fault.at_ms));
    effective
        .map(|(fault, next)| (fault.kind, of((fault.at_ms, next))))
        .collect()
}

/// Whether a launcher lived all through this time.
fn has_survivor(side: &SideHistory, (begin, end): (u64, u64)) -> bool {
    let lived = |it: &super::history::Launcher| {
        it.begin_ms <= begin && it.end_ms.is_none_or(|ended| ended >= end)
    };
    side.launchers.iter().any(lived)
}

fn violations(side: &SideHistory, groups: &[Group<'_>], training: &mut Training) -> Vec<String> {
    let mut found = Vec::new();
    for process in &side.processes {
        let name = process.name();
        found.extend(process.wrong.iter().map(|it| format!("{name}: {it}")));
        found.extend(wrong_ends(process, training));
        found.extend(wrong_order(process, side.keeps_ranks));
    }
    for (index, group) in groups.iter().enumerate() {
        found.extend(disagreement(group));
        found.extend(wrong_begin(side, group, &groups[..index]));
    }
    found.extend(two_at_once(groups));
    if side.keeps_ranks {
        found.extend(bystanders(side));
    }
    if !side.has_finished {
        found.push("the job did not end when it was told to".to_owned());
    }
    found.extend(wrong_last_ends(side));
    found
}

/// Launchers that failed when the job was told to end. Another one may have taken the place of such a one.
fn wrong_last_ends(side: &SideHistory) -> Vec<String> {
    let last = side
        .launchers
        .iter()
        .filter(|it| it.end_ms.is_some_and(|end| end >= side.measured_ms.1));
    let wrong = last.filter(|it| it.how != SUCCESS);
    wrong
        .map(|it| format!("the launcher of node {} ended by {}", it.node, it.how))
        .collect()
}

/// A run whose last state or loss differs from the undisturbed run.
fn wrong_ends(process: &Process, training: &mut Training) -> Vec<String> {
    let wrong = process
        .runs
        .iter()
        .filter(|run| !training.is_right(run.last, run.chain, run.loss));
    let name = process.name();
    wrong
        .map(|run| {
            format!(
                "{name}: step {} has chain {} and loss {}",
                run.last, run.chain, run.loss
            )
        })
        .collect()
}

/// Steps that a process did twice in a group, or left out. A rank that stays never goes back, either.
fn wrong_order(process: &Process, keeps_ranks: bool) -> Vec<String> {
    let mut found = Vec::new();
    for pair in process.runs.windows(2) {
        let (before, run) = (&pair[0], &pair[1]);
        let is_same = before.generation == run.generation;
        let is_right = match is_same {
            true => run.first == before.last + 1,
            false => !keeps_ranks || run.first > before.last,
        };
        if !is_right {
            let (name, first, last) = (process.name(), run.first, before.last);
            found.push(format!(
                "{name}: step {first} follows step {last} in generation {}",
                run.generation
            ));
        }
    }
    let ids: Vec<_> = process.joined.iter().map(|it| it.generation).collect();
    if !ids.is_sorted_by(|earlier, later| earlier < later) {
        found.push(format!(
            "{}: generations {ids:?} do not ascend",
            process.name()
        ));
    }
    found
}

/// Members of a group that are not of one mind about it.
fn disagreement(group: &Group<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let sizes: BTreeSet<_> = group.members.iter().map(|it| it.1.size).collect();
    let mut ranks: Vec<_> = group.members.iter().map(|it| it.1.rank).collect();
    ranks.sort_unstable();
    let are_ranks = ranks.is_sorted_by(|one, other| one < other);
    if sizes.len() > 1 || !are_ranks || ranks.last() >= sizes.first() {
        found.push(format!(
            "generation {} has the ranks {ranks:?} of {sizes:?}",
            group.id
        ));
    }
    let firsts = group
        .members
        .iter()
        .filter_map(|it| Some(it.2.first()?.first));
    let firsts: BTreeSet<_> = firsts.collect();
    if firsts.len() > 1 {
        found.push(format!(
            "generation {} begins at the steps {firsts:?}",
            group.id
        ));
    }
    found
}

/// A group that begins after steps that no group has done, or before an existing checkpoint.
fn wrong_begin(side: &SideHistory, group: &Group<'_>, earlier: &[Group<'_>]) -> Option<String> {
    let first = group.first()?;
    let done = earlier.iter().filter_map(Group::last).max();
    let done = done.map_or(0, |last| last + 1);
    if first > done {
        return Some(format!(
            "generation {} begins at step {first}, and {done} were done",
            group.id
        ));
    }
    let started = group.members.iter().map(|it| it.0.start_ms).min()?;
    let saves = side
        .processes
        .iter()
        .flat_map(|it| &it.runs)
        .filter_map(|run| run.saved);
    let saved = saves
        .filter(|(_, ms)| *ms < started)
        .map(|(steps, _)| steps)
        .max()?;
    (first < saved).then(|| {
        let id = group.id;
        format!("generation {id} begins at step {first}, and the checkpoint had {saved}")
    })
}

/// Groups that train at the same time. A rank may report its last step late.
fn two_at_once(groups: &[Group<'_>]) -> Vec<String> {
    const STEPS: u64 = 3;
    let mut found = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let Some(last) = group.last() else { continue };
        for later in &groups[index + 1..] {
            let Some(begin) = later.begin_ms() else {
                continue;
            };
            let steps = group.steps_at(begin).unwrap_or(0);
            if last + 1 >= steps + STEPS {
                let (one, other) = (group.id, later.id);
                found.push(format!(
                    "generation {one} does {} steps after {other} has begun",
                    last + 1 - steps
                ));
            }
        }
    }
    found
}

/// Ranks that ended although no fault was theirs.
fn bystanders(side: &SideHistory) -> Vec<String> {
    let grace_ms = INTERVAL.as_millis() as u64;
    let is_bystander = |process: &&Process| {
        let last_step = process.runs.last().map(|it| it.end_ms);
        let last_joined = process.joined.last().map(|it| it.at_ms);
        let failed = process.error.as_ref().map(|it| it.1);
        let times = [failed, last_step, last_joined, Some(process.start_ms)];
        let ended = times.into_iter().flatten().max().unwrap_or(0);
        let mut faults = side
            .faults
            .iter()
            .filter(|it| it.hit.contains(&process.seat()));
        let was_hit =
            faults.any(|it| it.at_ms <= ended + grace_ms && it.end_ms + grace_ms >= ended);
        !process.is_done && !was_hit
    };
    let ended = side.processes.iter().filter(is_bystander);
    let text = |it: &Process| {
        format!(
            "{} ended without a fault of its own: {:?}",
            it.name(),
            it.error
        )
    };
    ended.map(text).collect()
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
