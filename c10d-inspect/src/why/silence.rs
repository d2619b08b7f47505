//! Ranks that are connected or run, and send nothing: frozen while they join a group, away with their relay, or stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::draft::{DRAFTS_MAX, Draft};
use crate::identity::shown_name;
use crate::job::{GroupState, Job, SILENCE_GRACE};
use crate::progress::Progress;
use crate::report::FindingKind;
use crate::text;

/// Finds ranks that send nothing in the middle of joining a group.
pub(super) fn find_frozen(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let frozen = job.groups.iter().filter_map(|state| find_in(job, state));
    drafts.extend(frozen.take(DRAFTS_MAX));
}

fn find_in(job: &Job<'_>, state: &GroupState<'_>) -> Option<Draft> {
    let mut frozen = Vec::new();
    for member in &state.members {
        let slot = member
            .published
            .writer
            .filter(|&slot| job.index.is_open(slot));
        let read = match member.progress {
            Progress::Published => 0,
            Progress::Reading { read } => read,
            _ => continue,
        };
        if let Some(slot) = slot {
            let since = job.index.last_active(slot);
            if job.ago(since) >= SILENCE_GRACE {
                frozen.push((since, slot, read, member));
            }
        }
    }
    let &(since, slot, read, first) = frozen.iter().min_by_key(|(since, ..)| *since)?;
    let place = if state.group.is_default() {
        "init_process_group".to_owned()
    } else {
        format!("making {}", state.group.name.words())
    };
    let ranks: BTreeSet<usize> = frozen
        .iter()
        .filter_map(|(.., member)| member.rank)
        .collect();
    let done: BTreeSet<usize> = state.ranks(|member| member.progress == Progress::Past).0;
    let name = match first.rank {
        Some(_) => job.who.name(job.index, slot),
        None => format!(
            "member {} ({})",
            first.published.rank,
            job.who.process(job.index, slot)
        ),
    };
    let what = match read {
        0 => "it published its address but has read none of the other addresses".to_owned(),
        read => format!(
            "it published its address and stopped after reading {read} of {}",
            state.size.unwrap_or_default()
        ),
    };
    let mut text = format!(
        "{} froze inside {place} {} ago: {what}",
        text::capitalized(&name),
        text::age(job.ago(since)),
    );
    if done.is_empty() {
        text.push('.');
    } else {
        let have = text::verb(done.len(), "has", "have");
        text.push_str(&format!("; {} {have} read all.", text::ranks(&done)));
    }
    if frozen.len() > 1 {
        text.push_str(&format!(" {} of this group are frozen: ", frozen.len()));
        text.push_str(&format!("{}.", text::ranks(&ranks)));
    }
    if let Some((pid, seen)) = first.rank.and_then(|rank| stopped_pid(job, rank)) {
        text.push_str(&format!(
            " Pid {pid} is stopped (state T{}): continue it with kill -CONT {pid}.",
            text::seen(job.ago(seen))
        ));
    }
    let others = state.ranks(|member| {
        !member.rank.is_some_and(|rank| ranks.contains(&rank))
            && member
                .published
                .writer
                .is_some_and(|slot| job.index.is_open(slot))
    });
    let draft = Draft::new(FindingKind::Frozen, text, since);
    Some(draft.caused_by(ranks).waited_by(others.0))
}

fn stopped_pid(job: &Job<'_>, rank: usize) -> Option<(u32, Duration)> {
    let worker = job.launched.worker(rank)?;
    Some((worker.stopped_pid()?, worker.seen()))
}

/// Shorter losses are what relays are for.
const AWAY_MIN: Duration = Duration::from_secs(2);

/// Finds the ranks that are away. Ranks of one host that have been away since the same moment are reported together, because
/// they use the same relay.
pub(super) fn find_away(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let mut relays: BTreeMap<(Duration, String), BTreeSet<usize>> = BTreeMap::new();
    for rank in job.who.seen().filter(|&rank| !job.is_left_out(rank)) {
        if let Some((since, slot)) = job.away_since(rank)
            && job.ago(since) >= AWAY_MIN
        {
            let host = job.who.host(job.index, slot);
            relays.entry((since, host)).or_default().insert(rank);
        }
    }
    // They wait for keys, which need not be those of ranks that are away; but no other finding would name these.
    let waiting: Vec<usize> = job
        .who
        .seen()
        .filter(|&rank| job.away_since(rank).is_none() && is_waiting(job, rank))
        .collect();
    for ((since, host), ranks) in relays {
        let text = format!(
            "{} of {host} {} away: {} relay has had no connection to this store for {}. Either the relay was killed, or \
             its host or the network is down.",
            text::ranks_start(&ranks),
            text::verb(ranks.len(), "is", "are"),
            text::verb(ranks.len(), "its", "their"),
            text::age(job.ago(since)),
        );
        let mut draft = Draft::new(FindingKind::Away, text, since).caused_by(ranks);
        draft.is_stall = !waiting.is_empty();
        drafts.push(draft.waited_by(waiting.iter().copied()));
    }
}

fn is_waiting(job: &Job<'_>, rank: usize) -> bool {
    let mut slots = job.who.connections(rank).iter();
    slots.any(|&slot| job.index.is_open(slot) && job.index.connections[slot].wait.is_some())
}

/// Finds workers that their launcher reports as stopped, wherever in the job that is. The store alone cannot know it.
pub(super) fn find_stopped(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let reported: BTreeSet<usize> = drafts
        .iter()
        .filter(|draft| tells_the_state(draft.finding.kind))
        .flat_map(|draft| draft.finding.culprits.0.iter().copied())
        .collect();
    let stopped: Vec<_> = job
        .workers()
        .filter(|worker| worker.end().is_none() && !worker.is_node_lost())
        .filter(|worker| !reported.contains(&worker.worker.rank))
        .filter_map(|worker| Some((worker.worker.rank, worker.stopped_rank_pid()?, worker)))
        .collect();
    let ranks: BTreeSet<usize> = stopped.iter().map(|&(rank, ..)| rank).collect();
    let Some((rank, pid, worker)) = stopped.first() else {
        return;
    };
    let mut text = format!(
        "Rank {rank} is stopped: pid {pid} on {} is in state T{}. Continue it with kill -CONT {pid}.",
        shown_name(&worker.node.announced.host),
        text::seen(job.ago(worker.seen())),
    );
    if ranks.len() > 1 {
        text.push_str(&format!(" In all, {} are stopped.", text::ranks(&ranks)));
    }
    let mut waiting = BTreeSet::new();
    for draft in drafts.iter_mut() {
        let culprits = &draft.finding.culprits.0;
        if !culprits.is_empty() && culprits.is_subset(&ranks) {
            draft.is_explained = true;
            waiting.extend(&draft.finding.waiting.0);
        }
    }
    let draft = Draft::new(FindingKind::WorkerStopped, text, job.index.snapshot.now);
    drafts.push(draft.caused_by(ranks).waited_by(waiting));
}

/// Whether findings of this kind say themselves that a rank's process is stopped.
const fn tells_the_state(kind: FindingKind) -> bool {
    use FindingKind as Kind;
    matches!(
        kind,
        Kind::NeverConnected | Kind::NotPublished | Kind::Frozen
    )
}
