//! Mistakes in how the processes were started: two with one rank, two jobs on one store, different world sizes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use super::draft::Draft;
use crate::index::{Previous, Slot};
use crate::job::{GroupState, Job, MemberState};
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let Some(state) = job.newest_main() else {
        return;
    };
    let pairs: Vec<Pair<'_>> = state
        .members
        .iter()
        .filter_map(|member| pair(job, member))
        .collect();
    if let Some(first) = pairs.first() {
        for draft in drafts.iter_mut() {
            draft.is_explained |= draft.is_about_default_group();
        }
        drafts.push(shared_ranks(job, state, &pairs, first));
        return;
    }
    if let Some(draft) = world_sizes(job, state) {
        drafts.push(draft);
    }
}

/// Two processes that published as the same rank while both were connected.
struct Pair<'s> {
    member: &'s MemberState<'s>,
    before: Slot,
    now: Slot,
}

fn pair<'s>(job: &Job<'_>, member: &'s MemberState<'s>) -> Option<Pair<'s>> {
    let now = member.published.writer?;
    let Previous { writer, .. } = member.published.previous?;
    let before = writer?;
    let closed = job.index.connections[before].closed;
    let overlaps = closed.is_none_or(|closed| closed.at > member.published.key.written);
    let is_same = job.index.process(before) == job.index.process(now);
    let is_pair = before != now && overlaps && !is_same && !is_leftover(job, member, before, now);
    is_pair.then_some(Pair {
        member,
        before,
        now,
    })
}

/// Whether a launcher that has restarted its workers has announced the new process but not the old process. A child
/// of the old process then holds the connection open.
fn is_leftover(job: &Job<'_>, member: &MemberState<'_>, before: Slot, now: Slot) -> bool {
    let Some(worker) = job.launched.worker(member.published.rank) else {
        return false;
    };
    let is_listed = |slot: Slot| {
        job.index.process(slot).is_some_and(|(_, pid)| {
            worker
                .worker
                .processes
                .iter()
                .any(|process| process.inner_pid.unwrap_or(process.pid) == pid)
        })
    };
    worker.node.announced.restarts > 0 && is_listed(now) && !is_listed(before)
}

fn shared_ranks(
    job: &Job<'_>,
    state: &GroupState<'_>,
    pairs: &[Pair<'_>],
    first: &Pair<'_>,
) -> Draft {
    let ranks: BTreeSet<usize> = pairs
        .iter()
        .map(|pair| pair.member.published.rank)
        .collect();
    let slots = state
        .members
        .iter()
        .filter_map(|member| member.published.writer);
    let slots = slots.chain(pairs.iter().map(|pair| pair.before));
    let processes: HashSet<(IpAddr, u32)> =
        slots.filter_map(|slot| job.index.process(slot)).collect();
    let rank = first.member.published.rank;
    let before = job.who.process(job.index, first.before);
    let now = job.who.process(job.index, first.now);
    let is_spawned = is_child(job, rank, first.before, first.now);
    let (kind, text) = if state.size.is_some_and(|size| processes.len() > size) && !is_spawned {
        let more = of_several(&ranks, |count| format!("The same holds for {count} ranks"));
        let both = match (
            job.index.is_open(first.before),
            job.index.is_open(first.now),
        ) {
            (true, true) => "both connected",
            _ => "and they were connected at the same time",
        };
        (
            FindingKind::TwoJobs,
            format!(
                "A second job uses this store: rank {rank} was {before} and is now {now}, {both}. \
                 Addresses of two jobs are mixed: give each job its own store.{more}"
            ),
        )
    } else if is_spawned {
        (
            FindingKind::SameRank,
            format!(
                "Two processes of one worker claim to be rank {rank}: {before} and {now}. The script \
                 probably starts processes without a guard `if __name__ == \"__main__\"`."
            ),
        )
    } else {
        let nobody = if state.missing.is_empty() {
            String::new()
        } else {
            format!("; no process is {}", text::ranks(&state.missing))
        };
        let several = of_several(&ranks, |count| format!("{count} ranks have two processes"));
        (
            FindingKind::SameRank,
            format!(
                "Two processes claim to be rank {rank}: {before} and {now}{nobody}. Is RANK (or \
                 --node-rank) set right?{several}"
            ),
        )
    };
    let since = pairs
        .iter()
        .map(|pair| pair.member.published.key.written)
        .min();
    let others = state.ranks(|member| !ranks.contains(&member.published.rank));
    Draft::new(kind, text, since.unwrap_or_default())
        .caused_by(ranks)
        .waited_by(others.0)
}

/// A sentence with the numbers of the ranks, if there are several.
fn of_several(ranks: &BTreeSet<usize>, words: impl Fn(usize) -> String) -> String {
    match ranks.len() {
        1 => String::new(),
        count => format!(" {}: {}.", words(count), text::numbers(ranks)),
    }
}

/// Whether the launcher lists both processes under the worker of this rank.
fn is_child(job: &Job<'_>, rank: usize, before: Slot, now: Slot) -> bool {
    let Some(worker) = job.launched.worker(rank) else {
        return false;
    };
    [before, now].into_iter().all(|slot| {
        job.index.process(slot).is_some_and(|(_, pid)| {
            let mut processes = worker.worker.processes.iter();
            processes.any(|process| process.inner_pid.unwrap_or(process.pid) == pid)
        })
    })
}

fn world_sizes(job: &Job<'_>, state: &GroupState<'_>) -> Option<Draft> {
    let mut by_size: BTreeMap<usize, Vec<&MemberState<'_>>> = BTreeMap::new();
    for member in state.members.iter().filter(|member| !member.is_orphan) {
        if let Some(size) = member.published.address.size {
            by_size.entry(size).or_default().push(member);
        }
    }
    let agreed = state.size?;
    let right = by_size.remove(&agreed)?;
    let wrong: BTreeSet<usize> = by_size
        .values()
        .flatten()
        .map(|member| member.published.rank)
        .collect();
    let mut parts = Vec::new();
    for (size, members) in &by_size {
        let first = members.first()?;
        let name = match (members.len(), first.published.writer) {
            (1, Some(slot)) => job.who.name(job.index, slot),
            _ => text::ranks(&members.iter().map(|member| member.published.rank).collect()),
        };
        let was = text::verb(members.len(), "was", "were");
        parts.push(format!("{name} {was} started with WORLD_SIZE={size}"));
    }
    let since = by_size
        .values()
        .flatten()
        .map(|member| member.published.key.written)
        .min()?;
    let right: BTreeSet<usize> = right.iter().map(|member| member.published.rank).collect();
    let text = format!(
        "{}, {} with {agreed}. All ranks of a job need the same WORLD_SIZE.",
        text::capitalized(&parts.join(", ")),
        text::ranks(&right),
    );
    let draft = Draft::new(FindingKind::WorldSizeDiffers, text, since);
    Some(draft.caused_by(wrong).waited_by(right))
}
