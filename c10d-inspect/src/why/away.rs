//! Ranks whose relay has lost its connection to the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::draft::Draft;
use crate::job::Job;
use crate::report::FindingKind;
use crate::text;

/// Shorter losses are what relays are for.
const AWAY_MIN: Duration = Duration::from_secs(2);

/// Finds the ranks that are away, together those that are of one host and since the same moment: those of one relay.
pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
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
