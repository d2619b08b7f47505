//! Groups that members wait in and others have not joined.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::draft::{DRAFTS_MAX, Draft};
use crate::index::Slot;
use crate::job::{GroupState, Job, WAIT_GRACE};
use crate::keys::{Maker, is_hash};
use crate::progress::Progress;
use crate::report::FindingKind;
use crate::text;

/// The most missing members, and ranks that one of them can be, that are looked at.
const CANDIDATES_MAX: usize = 1024;

/// The most ranks whose state is described.
const DESCRIBED_MAX: usize = 3;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let mut incomplete: Vec<Incomplete<'_>> = job
        .groups
        .iter()
        .filter_map(|state| Incomplete::of(job, state))
        .collect();
    incomplete.sort_by_key(|group| group.since);
    drafts.extend(names_differ(job, &mut incomplete));
    drafts.extend(
        incomplete
            .iter()
            .take(DRAFTS_MAX)
            .map(|group| group.draft(job)),
    );
}

/// An incomplete group in which members wait.
struct Incomplete<'s> {
    state: &'s GroupState<'s>,
    slots: Vec<Slot>,
    waiting: BTreeSet<usize>,
    gave_up: BTreeSet<usize>,
    since: Duration,
}

impl<'s> Incomplete<'s> {
    fn of(job: &Job<'_>, state: &'s GroupState<'s>) -> Option<Self> {
        if state.missing.is_empty() || job.is_main(state.group) {
            return None;
        }
        let mut group = Self {
            state,
            slots: Vec::new(),
            waiting: BTreeSet::new(),
            gave_up: BTreeSet::new(),
            since: job.index.snapshot.now,
        };
        for member in &state.members {
            let Some(slot) = member.published.writer else {
                continue;
            };
            match member.progress {
                Progress::Waiting {
                    member: awaited,
                    since,
                } if state.missing.contains(&awaited) && job.index.is_open(slot) => {
                    group.slots.push(slot);
                    group.waiting.extend(member.rank);
                    group.since = group.since.min(since);
                }
                Progress::GaveUp { member: awaited } if state.missing.contains(&awaited) => {
                    group.gave_up.extend(member.rank);
                }
                _ => {}
            }
        }
        let is_due = job.ago(group.since) >= WAIT_GRACE;
        (is_due && !group.slots.is_empty()).then_some(group)
    }

    fn draft(&self, job: &Job<'_>) -> Draft {
        let state = self.state;
        let maker = state.group.name.maker;
        if state.group.is_default() {
            return self.of_another_job(job);
        }
        let mut sure = BTreeSet::new();
        let mut possible = BTreeSet::new();
        let mut probable = BTreeSet::new();
        for &member in state.missing.iter().take(CANDIDATES_MAX) {
            let candidates = self.candidates(job, member);
            if candidates.len() == 1 {
                sure.extend(&candidates);
            } else {
                probable.extend(
                    self.by_stride(member)
                        .filter(|rank| candidates.contains(rank)),
                );
                possible.extend(candidates);
            }
        }
        let members = state.size.map_or_else(String::new, |size| {
            format!(" ({})", text::count(size, "member"))
        });
        let call = match maker {
            Maker::Rpc => "init_rpc",
            Maker::Saver => "started its checkpoint process",
            Maker::Process if is_hash(state.group.name.name) => "split_group or new_group",
            Maker::Process => "new_group",
        };
        let called = match maker {
            Maker::Saver => call.to_owned(),
            Maker::Rpc | Maker::Process => format!("called {call}"),
        };
        let mut text = format!(
            "{}{members}: group {} {} not {called} for {}.",
            text::capitalized(&state.group.name.words()),
            text::ranks(&state.missing),
            text::verb(state.missing.len(), "has", "have"),
            text::age(job.ago(self.since)),
        );
        if !sure.is_empty() {
            text.push_str(&format!(" {}.", described("It is", "They are", job, &sure)));
        } else if !probable.is_empty() {
            text.push_str(&format!(
                " {}.",
                described("It is probably", "They are probably", job, &probable)
            ));
        } else if (2..=DESCRIBED_MAX).contains(&possible.len()) {
            text.push_str(&format!(
                " {}.",
                described("It is", "It is one of", job, &possible)
            ));
        } else if !possible.is_empty() {
            text.push_str(&format!(" It is one of {}.", text::ranks(&possible)));
        }
        text.push_str(&self.waiters(job));
        if maker == Maker::Process {
            text.push_str(" The timeout of init_process_group does not apply.");
        }
        let waiting = self.waiting.union(&self.gave_up).copied();
        Draft::new(FindingKind::GroupIncomplete, text, self.since)
            .caused_by(sure)
            .waited_by(waiting)
    }

    fn waiters(&self, job: &Job<'_>) -> String {
        if self.waiting.len() == self.slots.len() {
            let wait = text::verb(self.waiting.len(), "waits", "wait");
            return format!(" {} {wait} for it.", text::ranks_start(&self.waiting));
        }
        let names: Vec<String> = self
            .slots
            .iter()
            .take(DESCRIBED_MAX)
            .map(|&slot| job.who.name(job.index, slot))
            .collect();
        let more = match self.slots.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let wait = text::verb(self.slots.len(), "waits", "wait");
        format!(
            " {}{more} {wait} for it.",
            text::capitalized(&names.join(", "))
        )
    }

    /// A job of another prefix, whose ranks are not the ranks of this report.
    fn of_another_job(&self, job: &Job<'_>) -> Draft {
        let state = self.state;
        let text = format!(
            "Another job on this store (prefix {}) has waited for its {} ({} of {}) for {}.",
            text::shown(state.group.name.prefix),
            text::ranks(&state.missing),
            state.missing.len(),
            state.size.unwrap_or_default(),
            text::age(job.ago(self.since)),
        );
        Draft::new(FindingKind::GroupIncomplete, text, self.since)
    }

    /// The global ranks that can be the member: members of a group are in the order of their global ranks.
    fn candidates(&self, job: &Job<'_>, member: usize) -> BTreeSet<usize> {
        let state = self.state;
        if state.group.name.maker != Maker::Process && !job.has_default_group() {
            return BTreeSet::from([member]);
        }
        let (Some(world_size), Some(size)) = (job.world_size, state.size) else {
            return BTreeSet::new();
        };
        // Members of a generation of survivors are in the order of their ranks in it.
        if job.members.is_some() {
            return BTreeSet::new();
        }
        let known: Vec<(usize, usize)> = self.known();
        if !known.is_sorted_by(|one, other| one.1 < other.1) {
            return BTreeSet::new();
        }
        let after = known.partition_point(|&(place, _)| place < member);
        let first = match after.checked_sub(1).map(|before| known[before]) {
            Some((place, rank)) => rank + (member - place),
            None => member,
        };
        let last = match known.get(after) {
            Some(&(place, rank)) => rank.checked_sub(place - member),
            None => (world_size + member).checked_sub(size),
        };
        let end = last.map_or(first, |last| last.saturating_add(1));
        (first..end.min(first.saturating_add(CANDIDATES_MAX))).collect()
    }

    /// The group ranks and global ranks of members that are known.
    fn known(&self) -> Vec<(usize, usize)> {
        let members = self.state.members.iter();
        members
            .filter_map(|member| Some((member.published.rank, member.rank?)))
            .collect()
    }

    /// The global rank of a member, if the known members are equally far apart.
    fn by_stride(&self, member: usize) -> Option<usize> {
        let known = self.known();
        let (&(first_place, first), &(last_place, last)) = (known.first()?, known.last()?);
        let places = last_place
            .checked_sub(first_place)
            .filter(|&places| places > 0)?;
        let span = last.checked_sub(first)?;
        if !span.is_multiple_of(places) {
            return None;
        }
        let stride = span / places;
        let is_regular = known
            .iter()
            .all(|&(place, rank)| rank == first + (place - first_place) * stride);
        let rank = (first + member * stride).checked_sub(first_place * stride)?;
        is_regular.then_some(rank)
    }
}

/// "It is rank 2 (pid 4711 on vm, connected, idle for 31 s)".
fn described(one: &str, several: &str, job: &Job<'_>, ranks: &BTreeSet<usize>) -> String {
    if ranks.len() > DESCRIBED_MAX {
        return format!("{several} {}", text::ranks(ranks));
    }
    let names: Vec<String> = ranks
        .iter()
        .map(|&rank| format!("rank {rank} ({})", job.status(rank)))
        .collect();
    let start = if ranks.len() == 1 { one } else { several };
    format!("{start} {}", text::joined(&names))
}

/// All ranks wait, in several groups with the same parent: no rank is left that could complete one of them.
fn names_differ(job: &Job<'_>, incomplete: &mut Vec<Incomplete<'_>>) -> Option<Draft> {
    let world_size = job.world_size?;
    let mut by_parent: BTreeMap<(&[u8], &[u8]), Vec<usize>> = BTreeMap::new();
    for (place, group) in incomplete.iter().enumerate() {
        let name = group.state.group.name;
        if name.maker == Maker::Process && !group.state.group.is_default() {
            by_parent
                .entry((name.prefix, name.parents))
                .or_default()
                .push(place);
        }
    }
    let places = by_parent.into_values().find(|places| {
        let slots: BTreeSet<Slot> = places
            .iter()
            .flat_map(|&place| incomplete[place].slots.iter().copied())
            .collect();
        let names: BTreeSet<&[u8]> = places
            .iter()
            .map(|&place| incomplete[place].state.group.name.name)
            .collect();
        names.len() > 1 && slots.len() >= world_size
    })?;
    let groups: Vec<&Incomplete<'_>> = places.iter().map(|&place| &incomplete[place]).collect();
    let names: Vec<String> = groups
        .iter()
        .take(6)
        .map(|group| group.state.group.name.short_name())
        .collect();
    let more = if groups.len() > names.len() {
        ", …"
    } else {
        ""
    };
    let ranks: BTreeSet<usize> = groups
        .iter()
        .flat_map(|group| group.waiting.iter().copied())
        .collect();
    let is_each = groups.iter().all(|group| group.slots.len() == 1);
    let how = if is_each {
        "each under another name"
    } else {
        "under different names"
    };
    let slots: usize = groups.iter().map(|group| group.slots.len()).sum();
    let who = if ranks.is_empty() {
        format!("All {}", text::count(slots, "process"))
    } else {
        text::ranks_start(&ranks)
    };
    let text = format!(
        "{who} are making a group, but {how} ({}{more}): they have not created the same groups in the \
         same order.",
        names.join(", "),
    );
    let since = groups.iter().map(|group| group.since).max()?;
    let draft = Draft::new(FindingKind::GroupNamesDiffer, text, since)
        .caused_by(ranks.iter().copied())
        .waited_by(ranks.iter().copied());
    let mut place = 0;
    incomplete.retain(|_| {
        place += 1;
        !places.contains(&(place - 1))
    });
    Some(draft)
}
