//! The context's own messages, until they are answered.
//!
//! A message whose retries are exhausted *stalls*: it is resent when a message from its receiver arrives, or at a low
//! rate, until the receiver is declared dead.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use rpc_agent::WorkerId;

use super::effect::Control;
use crate::id::{ForkId, RRefId};
use crate::protocol::Message;

/// A message without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Unanswered {
    pub(super) to: WorkerId,
    pub(super) message: Message,
}

/// The messages without an answer, and the queued deletions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Outbox {
    pub(super) unanswered: BTreeMap<Control, Unanswered>,
    /// The stalled messages among `unanswered`, by receiver. Each entry has at least one message.
    pub(super) stalled: BTreeMap<WorkerId, Stalled>,
    /// How many of `unanswered` are probes that have not stalled.
    pub(super) probes: usize,
    /// Deletions that wait for an earlier batch, by owner. Each queue has at least one deletion.
    pub(super) deletes: BTreeMap<WorkerId, VecDeque<(RRefId, ForkId)>>,
    /// The number of batches of deletions among `unanswered`, by owner, at least 1.
    pub(super) deleting: BTreeMap<WorkerId, usize>,
    pub(super) batches: u64,
}

/// The stalled messages to one worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Stalled {
    /// The time when the first of them stalled.
    pub(super) since: Instant,
    pub(super) controls: BTreeSet<Control>,
}

impl Outbox {
    pub(super) fn contains(&self, control: Control) -> bool {
        self.unanswered.contains_key(&control)
    }

    pub(super) fn is_stalled(&self, control: Control) -> bool {
        self.unanswered
            .get(&control)
            .and_then(|sending| self.stalled.get(&sending.to))
            .is_some_and(|stalled| stalled.controls.contains(&control))
    }

    /// Returns when the oldest stalled message stalled.
    pub(super) fn oldest_stall(&self) -> Option<Instant> {
        self.stalled.values().map(|stalled| stalled.since).min()
    }

    pub(super) fn remove(&mut self, control: Control) -> Option<Unanswered> {
        let sending = self.unanswered.remove(&control)?;
        let was_stalled = self
            .stalled
            .get_mut(&sending.to)
            .is_some_and(|stalled| stalled.controls.remove(&control));
        if was_stalled
            && let Entry::Occupied(stalled) = self.stalled.entry(sending.to)
            && stalled.get().controls.is_empty()
        {
            stalled.remove();
        }
        if matches!(control, Control::Probe(_)) && !was_stalled {
            self.probes -= 1;
        }
        if let Control::Deletes { owner, .. } = control
            && let Entry::Occupied(mut batches) = self.deleting.entry(owner)
        {
            *batches.get_mut() -= 1;
            if *batches.get() == 0 {
                batches.remove();
            }
        }
        Some(sending)
    }

    pub(super) fn deletes_queued(&self) -> usize {
        self.deletes.values().map(VecDeque::len).sum()
    }
}
