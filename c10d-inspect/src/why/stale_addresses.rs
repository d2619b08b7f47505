//! Ranks that have read addresses of an earlier run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use c10d_store::Version;

use super::draft::Draft;
use crate::index::Slot;
use crate::job::{GroupState, Job, MemberState};
use crate::progress::Progress;
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let Some(state) = job.newest_main() else {
        return;
    };
    let reads = stale_reads(job, state);
    if reads.is_empty() {
        return;
    }
    for draft in drafts.iter_mut() {
        draft.is_explained |= draft.finding.kind == FindingKind::LostInInit;
    }
    drafts.extend(draft(job, state, &reads));
}

/// An address of an earlier run, and who has read it.
struct StaleRead {
    reader: usize,
    owner: usize,
    written: Duration,
    /// The connection that wrote it, if it is still known.
    writer: Option<Slot>,
    /// Whether its owner has published a new one since.
    is_replaced: bool,
}

fn stale_reads(job: &Job<'_>, state: &GroupState<'_>) -> Vec<StaleRead> {
    let mut writes: HashMap<Version, Write<'_>> = HashMap::new();
    let mut has_rerun = false;
    for member in &state.members {
        let published = member.published;
        let current = Write {
            owner: member,
            writer: published.writer,
            written: published.key.written,
            is_replaced: false,
        };
        writes.insert(published.key.version, current);
        if let Some(previous) = published.previous {
            has_rerun |= previous.writer != published.writer;
            let before = Write {
                writer: previous.writer,
                written: previous.written,
                is_replaced: true,
                ..current
            };
            writes.insert(previous.version, before);
        }
    }
    let mut stale = Vec::new();
    if !has_rerun && !state.members.iter().any(|member| member.is_orphan) {
        return stale;
    }
    for reader in &state.members {
        let Some(slot) = reader.published.writer else {
            continue;
        };
        for version in &job.index.connections[slot].reads {
            let Some(write) = writes.get(version) else {
                continue;
            };
            if is_stale(job, reader, slot, write, has_rerun) {
                stale.push(StaleRead {
                    reader: reader.published.rank,
                    owner: write.owner.published.rank,
                    written: write.written,
                    writer: write.writer,
                    is_replaced: write.is_replaced,
                });
            }
        }
    }
    stale
}

/// A write of an address.
#[derive(Clone, Copy)]
struct Write<'s> {
    owner: &'s MemberState<'s>,
    writer: Option<Slot>,
    written: Duration,
    is_replaced: bool,
}

fn is_stale(
    job: &Job<'_>,
    reader: &MemberState<'_>,
    slot: Slot,
    write: &Write<'_>,
    has_rerun: bool,
) -> bool {
    let opened = job.index.connections[slot].opened;
    if write.owner.published.rank == reader.published.rank || write.written >= opened {
        return false;
    }
    // The writer disconnected before the reader connected. In a first run, this alone indicates a killed rank, not a
    // stale address.
    let was_closed = write.writer.is_some_and(|writer| {
        job.index.connections[writer]
            .closed
            .is_some_and(|closed| closed.at < opened)
    });
    if was_closed && (has_rerun || write.owner.progress == Progress::Past) {
        return true;
    }
    // The reader's rank has published before, and was still at work when this address was written: so it belongs
    // to that earlier run.
    let Some(previous) = reader
        .published
        .previous
        .filter(|previous| previous.writer != Some(slot))
    else {
        return false;
    };
    previous.writer.is_some_and(|before| {
        let connection = job.index.connections[before];
        let end = match (connection.wait.is_some(), connection.closed) {
            (true, Some(closed)) => closed.at,
            (true, None) => job.index.snapshot.now,
            (false, _) => job.index.last_active(before),
        };
        end >= write.written
    })
}

fn draft(job: &Job<'_>, state: &GroupState<'_>, reads: &[StaleRead]) -> Option<Draft> {
    let first = reads
        .iter()
        .min_by_key(|read| (read.is_replaced, read.reader, read.owner))?;
    let readers: BTreeSet<usize> = reads.iter().map(|read| read.reader).collect();
    let mut absent = BTreeSet::new();
    let mut by_owner: BTreeMap<usize, usize> = BTreeMap::new();
    for read in reads {
        *by_owner.entry(read.owner).or_default() += 1;
        if !read.is_replaced {
            absent.insert(read.owner);
        }
    }
    let gone = match first.writer {
        Some(slot) => {
            let name = job.who.process(job.index, slot);
            if job.index.is_open(slot) {
                format!("{name} wrote it for an earlier run")
            } else {
                // A process that makes its group again closes it too, so the process may live.
                format!("the connection that wrote it ({name}) has closed")
            }
        }
        None => "the connection that wrote it has closed".to_owned(),
    };
    let (reader, owner) = (first.reader, first.owner);
    let since = if first.is_replaced {
        format!("rank {owner} has published a new one since")
    } else {
        format!("rank {owner} has not published a new one")
    };
    let more = if readers.len() > 1 || by_owner.len() > 1 {
        format!(
            " In all, {} read old addresses of {}.",
            text::ranks(&readers),
            text::ranks(&by_owner.keys().copied().collect())
        )
    } else {
        String::new()
    };
    let text = format!(
        "Rank {reader} read rank {owner}'s address of {} ago; {gone}, {since}. Use a fresh store, or \
         another prefix, per attempt.{more}",
        text::age(job.ago(first.written)),
    );
    let culprits = if absent.is_empty() {
        readers.clone()
    } else {
        absent
    };
    let waiting =
        state.ranks(|member| !culprits.contains(&member.published.rank) && !member.is_orphan);
    let at = state
        .members
        .iter()
        .filter(|member| readers.contains(&member.published.rank))
        .map(|member| member.published.key.written);
    let draft = Draft::new(FindingKind::StaleAddresses, text, at.min()?);
    let mut draft = draft.caused_by(culprits).waited_by(waiting.0);
    draft.is_stall = readers.iter().any(|&reader| job.is_connected(reader));
    Some(draft)
}
