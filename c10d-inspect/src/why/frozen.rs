//! Ranks that stand still in the middle of joining a group.

use std::collections::BTreeSet;
use std::time::Duration;

use super::draft::{DRAFTS_MAX, Draft};
use crate::job::{GroupState, Job, SILENCE_GRACE};
use crate::progress::Progress;
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
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
        0 => "it published its address but has read none of the others'".to_owned(),
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
