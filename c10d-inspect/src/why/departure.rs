//! Ranks that left a group: while it was being made, or first of all afterwards, or because they gave up waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::absence::ended;
use super::draft::{DRAFTS_MAX, Draft};
use super::other_keys;
use crate::cause::{Exit, KeyWait, root_cause};
use crate::identity::shown_name;
use crate::job::{GroupState, Job};
use crate::progress::Progress;
use crate::report::{FindingKind, RankSet};
use crate::text;

/// How long after the first rank of a complete group the other ranks may leave.
const LEAVE_GRACE: Duration = Duration::from_secs(5);

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let reported: BTreeSet<usize> = drafts
        .iter()
        .flat_map(|draft| draft.finding.culprits.0.iter().copied())
        .collect();
    let ended = announced(job)
        .or_else(|| worker_ended(job, &reported))
        .or_else(|| awaited(job));
    let newest = job.mains().max_by_key(|state| {
        state
            .members
            .iter()
            .map(|member| member.published.key.version)
            .max()
    });
    let left = newest.and_then(|state| left_first(job, state));
    // A launcher's word says more than the end of a connection.
    let is_same = |left: &Draft| {
        ended.as_ref().is_some_and(|ended| {
            ended
                .finding
                .culprits
                .0
                .is_superset(&left.finding.culprits.0)
        })
    };
    drafts.extend(left.filter(|left| !is_same(left)));
    drafts.extend(ended);
}

/// The longest text of a launcher that is shown, in characters.
const CAUSE_CHARS_MAX: usize = 600;

/// A connection of a member that closed.
struct Departure {
    at: Duration,
    rank: usize,
    slot: usize,
    progress: Progress,
}

fn left_first(job: &Job<'_>, state: &GroupState<'_>) -> Option<Draft> {
    // After a restart, ranks that have not published again belong to the run before.
    let is_rerun = state.members.iter().any(|member| {
        member
            .published
            .previous
            .is_some_and(|previous| previous.writer != member.published.writer)
    });
    let mut departures: Vec<Departure> = state
        .members
        .iter()
        .filter(|member| !(is_rerun && member.is_orphan))
        .filter(|member| member.rank.is_none_or(|rank| !job.is_left_out(rank)))
        .filter_map(|member| {
            let slot = member.published.writer?;
            let closed = job.index.connections[slot].closed?;
            Some(Departure {
                at: closed.at,
                rank: member.rank?,
                slot,
                progress: member.progress,
            })
        })
        .collect();
    departures.sort_by_key(|departure| departure.at);
    let lost = lost_unpublished(job, state);
    let first = departures.first()?;
    // Who leaves after a victim is also a victim: a launcher stops a rank's neighbours with it.
    let is_victim = match first.progress {
        Progress::GaveUp { .. } => true,
        Progress::Waiting { member, .. } if state.missing.contains(&member) => {
            let is_after = lost.is_some_and(|lost| lost <= first.at);
            is_after || departures.len() * 2 >= state.members.len()
        }
        _ => false,
    };
    if is_victim {
        return None;
    }
    let open = state.ranks(|member| {
        member
            .published
            .writer
            .is_some_and(|slot| job.index.is_open(slot))
    });
    let others = departures
        .iter()
        .filter(|departure| departure.rank != first.rank);
    let next = others.clone().find(|departure| departure.at >= first.at);
    let is_in_init = first.progress != Progress::Past;
    let draft = if is_in_init {
        in_init(job, first, next, &open.0)
    } else {
        later(job, first, next, &open.0, state.members.len())?
    };
    let mut draft = draft
        .caused_by([first.rank])
        .waited_by(open.0.iter().copied());
    draft.is_stall &= !open.0.is_empty();
    Some(draft)
}

/// When the first process left that had joined and may be a rank whose address is missing.
fn lost_unpublished(job: &Job<'_>, state: &GroupState<'_>) -> Option<Duration> {
    let slots = 0..job.index.connections.len();
    let lost = slots.filter(|&slot| {
        let rank = job.who.rank(slot);
        job.index.is_joining(slot) && rank.is_none_or(|rank| state.missing.contains(&rank))
    });
    lost.filter_map(|slot| Some(job.index.connections[slot].closed?.at))
        .min()
}

fn in_init(
    job: &Job<'_>,
    first: &Departure,
    next: Option<&Departure>,
    open: &BTreeSet<usize>,
) -> Draft {
    let read = match first.progress {
        Progress::Published => "before it had read any address".to_owned(),
        Progress::Reading { read } => format!("after it had read {read} addresses"),
        Progress::Waiting { member, .. } => format!("while it waited for rank {member}"),
        _ => "in init_process_group".to_owned(),
    };
    let mut text = format!(
        "{} left first, {} ago, {read}",
        text::capitalized(&job.who.name(job.index, first.slot)),
        text::age(job.ago(first.at)),
    );
    if let Some(next) = next {
        text.push_str(&format!(
            "; {} followed {} later",
            text::ranks(&BTreeSet::from([next.rank])),
            text::age(next.at.saturating_sub(first.at))
        ));
    }
    text.push('.');
    if !open.is_empty() {
        text.push_str(&format!(
            " {} {} still connected and cannot reach it: {} will fail or time out.",
            text::ranks_start(open),
            text::verb(open.len(), "is", "are"),
            text::verb(open.len(), "it", "they"),
        ));
    }
    Draft::new(FindingKind::LostInInit, text, first.at)
}

/// A rank that left a complete group some time before the other ranks. A small difference is the normal end of a job.
fn later(
    job: &Job<'_>,
    first: &Departure,
    next: Option<&Departure>,
    open: &BTreeSet<usize>,
    members: usize,
) -> Option<Draft> {
    let gap = match next {
        Some(next) => next.at.saturating_sub(first.at),
        None => job.ago(first.at),
    };
    let is_late = !open.is_empty() && job.ago(first.at) >= LEAVE_GRACE;
    let is_early = gap >= Duration::from_secs(1) && open.is_empty();
    if members < 2 || !(is_late || is_early) {
        return None;
    }
    let mut text = format!(
        "First to leave: {}, {} ago",
        job.who.name(job.index, first.slot),
        text::age(job.ago(first.at)),
    );
    match next {
        Some(next) => text.push_str(&format!(
            ", {} before the next, rank {}.",
            text::age(next.at.saturating_sub(first.at)),
            next.rank
        )),
        None => text.push('.'),
    }
    if !open.is_empty() {
        text.push_str(&format!(
            " {} {} still connected.",
            text::ranks_start(open),
            text::verb(open.len(), "is", "are"),
        ));
    }
    let mut draft = Draft::new(FindingKind::LostLater, text, first.at);
    // When most have left, the job is ending and the rest is slow.
    draft.is_stall = open.len() * 2 > members;
    Some(draft)
}

/// The root cause that a launcher reports: it has the last lines of the workers, and the exits on other nodes.
fn announced(job: &Job<'_>) -> Option<Draft> {
    let counts =
        |rank: &usize| job.world_size.is_none_or(|size| *rank < size) && !job.is_left_out(*rank);
    let ranks = |ranks: &RankSet| ranks.0.iter().copied().filter(counts).collect::<Vec<_>>();
    // A launcher that is still connected knows of the last failure.
    let nodes = job.launched.nodes.iter().rev();
    let (node, cause) = nodes
        .filter_map(|node| Some((node, node.announced.cause.as_ref()?)))
        .find(|(_, cause)| !ranks(&cause.ranks).is_empty())?;
    let text = text::shown_up_to(cause.text.as_bytes(), CAUSE_CHARS_MAX);
    let mut draft = Draft::new(FindingKind::WorkerEnded, text, node.at);
    draft.is_stall = job.who.seen().any(|rank| job.is_connected(rank));
    let victims = ranks(&cause.victims);
    Some(draft.caused_by(ranks(&cause.ranks)).waited_by(victims))
}

/// Workers that have left with code 0 while other ranks wait for keys that those may have been expected to write.
fn awaited(job: &Job<'_>) -> Option<Draft> {
    let millis = |at: Duration| i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    let exits: Vec<Exit> = job
        .workers()
        .filter_map(|worker| {
            let (end, at) = worker.end()?;
            Some(Exit {
                rank: worker.worker.rank,
                code: end.exit_code,
                signal: end.signal,
                at_ms: millis(at),
                is_stopped: end.by_launcher,
                ..Exit::default()
            })
        })
        .collect();
    if exits.is_empty() {
        return None;
    }
    let mut waits: Vec<KeyWait> = Vec::new();
    let mut since = job.index.snapshot.now;
    for (key, waiting) in other_keys::unexplained(job) {
        let key = String::from_utf8_lossy(key);
        since = since.min(waiting.since);
        let ranks = waiting.slots.iter().filter_map(|&slot| job.who.rank(slot));
        waits.extend(ranks.map(|rank| {
            KeyWait::new(
                rank,
                key.clone().into_owned(),
                millis(job.index.snapshot.now),
            )
        }));
    }
    // Another finding is about each failed worker.
    let has_left = |exit: &Exit| {
        (exit.is_stopped || exit.code == Some(0)) && waits.iter().all(|wait| wait.rank != exit.rank)
    };
    if waits.is_empty() || !exits.iter().all(has_left) {
        return None;
    }
    let cause = root_cause(&exits, &waits, job.world_size, &|_| None)?;
    let culprits: Vec<usize> = cause.culprits.iter().map(|&it| exits[it].rank).collect();
    let text = format!("{}.", text::capitalized(&cause.text));
    let draft = Draft::new(FindingKind::WorkerEnded, text, since);
    Some(
        draft
            .caused_by(culprits)
            .waited_by(waits.iter().map(|wait| wait.rank)),
    )
}

/// Workers that failed and that no other finding is about.
fn worker_ended(job: &Job<'_>, reported: &BTreeSet<usize>) -> Option<Draft> {
    let mut failed: Vec<_> = job
        .workers()
        .filter_map(|worker| Some((worker.end()?, worker)))
        .filter(|((end, _), _)| {
            !end.by_launcher
                && (end.signal.is_some() || end.exit_code.is_some_and(|code| code != 0))
        })
        .map(|((end, at), worker)| (at, worker.worker.rank, end, worker))
        .filter(|(_, rank, ..)| !reported.contains(rank))
        .collect();
    failed.sort_by_key(|&(at, rank, ..)| (at, rank));
    let (at, rank, end, worker) = failed.first()?;
    let mut text = format!(
        "Rank {rank} (pid {} on {}) {} {} ago",
        worker.worker.pid,
        shown_name(&worker.node.announced.host),
        ended(*end),
        text::age(job.ago(*at)),
    );
    let others: BTreeSet<usize> = failed.iter().skip(1).map(|&(_, rank, ..)| rank).collect();
    match failed.get(1) {
        Some((next, ..)) => text.push_str(&format!(
            ", {} before the next; {} ended after it.",
            text::age(next.saturating_sub(*at)),
            text::ranks(&others)
        )),
        None => text.push('.'),
    }
    let open: Vec<usize> = job
        .who
        .seen()
        .filter(|&rank| job.is_connected(rank))
        .collect();
    let mut draft = Draft::new(FindingKind::WorkerEnded, text, *at);
    draft.is_stall = open.iter().any(|other| other != rank);
    let waiting: Vec<usize> = open.into_iter().filter(|other| other != rank).collect();
    Some(draft.caused_by([*rank]).waited_by(waiting))
}

/// Finds ranks that stopped waiting although what they waited for has arrived since.
pub(super) fn find_gave_up(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    for state in &job.groups {
        let mut by_member: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for member in &state.members {
            if let (Progress::GaveUp { member }, Some(rank)) = (member.progress, member.rank) {
                by_member.entry(member).or_default().insert(rank);
            }
        }
        for (member, ranks) in by_member {
            let Some(late) = state.group.member(member) else {
                continue;
            };
            let gave_up = ranks.iter().filter_map(|&rank| {
                job.main_connection(rank)
                    .map(|slot| job.index.last_active(slot))
            });
            let Some(at) = gave_up.min() else { continue };
            if late.key.written < at {
                continue;
            }
            let text = format!(
                "{} gave up waiting for the address of {} in {}, which arrived {} later: it was late, or \
                 their timeout is too short.",
                text::ranks_start(&ranks),
                if state.group.is_default() {
                    format!("rank {member}")
                } else {
                    format!("member {member}")
                },
                state.group.name.words(),
                text::age(late.key.written.saturating_sub(at)),
            );
            let culprit = state
                .members
                .iter()
                .find(|other| other.published.rank == member)
                .and_then(|other| other.rank);
            let mut draft = Draft::new(FindingKind::GaveUp, text, at)
                .caused_by(culprit)
                .waited_by(ranks);
            draft.is_stall = false;
            drafts.push(draft);
            if drafts.len() > DRAFTS_MAX {
                return;
            }
        }
    }
}
