//! The context's own messages, from their sending until they are answered.
//!
//! A message whose retries are used up *stalls*. It is not given up: it is sent again as soon as anything
//! is heard of its receiver, and at a low rate before that, until the receiver is declared dead.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use rpc_agent::WorkerId;

use super::{RRefContext, is_over};
use crate::effect::{Control, Effect};
use crate::id::{ForkId, RRefId};
use crate::protocol::{DELETES_MAX, Message};

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Sending {
    pub(super) to: WorkerId,
    pub(super) message: Message,
    /// Of the last sending, or of the stall.
    pub(super) since: Instant,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Outbox {
    pub(super) sendings: BTreeMap<Control, Sending>,
    /// Those of `sendings` that wait for a sign of life, by receiver. None is empty.
    pub(super) stalled: BTreeMap<WorkerId, Stalled>,
    /// How many of `sendings` are probes that have not stalled.
    pub(super) probes: usize,
    /// Deletions that wait for the batch before them, by owner. No queue is empty.
    pub(super) deletes: BTreeMap<WorkerId, VecDeque<(RRefId, ForkId)>>,
    /// The owners that have a batch of deletions among `sendings`.
    pub(super) deleting: BTreeSet<WorkerId>,
    pub(super) batches: u64,
}

/// What has stalled on the way to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Stalled {
    /// Of the first of these.
    pub(super) since: Instant,
    pub(super) controls: BTreeSet<Control>,
}

impl Outbox {
    pub(super) fn contains(&self, control: Control) -> bool {
        self.sendings.contains_key(&control)
    }

    pub(super) fn is_stalled(&self, control: Control) -> bool {
        self.sendings
            .get(&control)
            .and_then(|sending| self.stalled.get(&sending.to))
            .is_some_and(|stalled| stalled.controls.contains(&control))
    }

    /// When a message has stalled, of those that wait for a sign of life.
    pub(super) fn oldest_stall(&self) -> Option<Instant> {
        self.stalled.values().map(|stalled| stalled.since).min()
    }

    pub(super) fn remove(&mut self, control: Control) -> Option<Sending> {
        let sending = self.sendings.remove(&control)?;
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
        if let Control::Deletes { owner, .. } = control {
            self.deleting.remove(&owner);
        }
        Some(sending)
    }

    pub(super) fn deletes_queued(&self) -> usize {
        self.deletes.values().map(VecDeque::len).sum()
    }
}

impl<V: Clone> RRefContext<V> {
    pub(super) fn send(&mut self, now: Instant, to: WorkerId, control: Control, message: Message) {
        let sending = Sending {
            to,
            message: message.clone(),
            since: now,
        };
        let before = self.outbox.sendings.insert(control, sending);
        debug_assert!(before.is_none(), "{control:?} is under way");
        self.outbox.probes += usize::from(matches!(control, Control::Probe(_)));
        self.effects.push(Effect::Send {
            to,
            control,
            message,
        });
    }

    /// Tells the owner, with others, that a user is gone.
    pub(super) fn send_delete(
        &mut self,
        now: Instant,
        owner: WorkerId,
        rref: RRefId,
        fork: ForkId,
    ) {
        let queue = self.outbox.deletes.entry(owner).or_default();
        queue.push_back((rref, fork));
        self.send_deletes(now, owner);
    }

    pub(super) fn send_deletes(&mut self, now: Instant, owner: WorkerId) {
        if self.outbox.deleting.contains(&owner) {
            return;
        }
        let Some(queue) = self.outbox.deletes.get_mut(&owner) else {
            return;
        };
        let forks = queue.drain(..queue.len().min(DELETES_MAX)).collect();
        if queue.is_empty() {
            self.outbox.deletes.remove(&owner);
        }
        let batch = self.outbox.batches;
        self.outbox.batches += 1;
        self.outbox.deleting.insert(owner);
        let control = Control::Deletes { owner, batch };
        self.send(now, owner, control, Message::UserDelete { forks });
    }

    pub(super) fn stall(&mut self, now: Instant, control: Control) {
        if let Some(sending) = self.outbox.sendings.get_mut(&control) {
            sending.since = now;
            let to = sending.to;
            let stalled = self.outbox.stalled.entry(to).or_insert_with(|| Stalled {
                since: now,
                controls: BTreeSet::new(),
            });
            stalled.controls.insert(control);
            self.outbox.probes -= usize::from(matches!(control, Control::Probe(_)));
        }
    }

    /// Sends again what has stalled on the way to this worker.
    pub(super) fn resend(&mut self, now: Instant, to: WorkerId) {
        let stalled = self.outbox.stalled.get(&to);
        let controls = stalled.map(|stalled| stalled.controls.clone());
        for control in controls.unwrap_or_default() {
            let Some(sending) = self.outbox.remove(control) else {
                continue;
            };
            match sending.message {
                // What has gathered meanwhile goes with it.
                Message::UserDelete { forks } => {
                    let queue = self.outbox.deletes.entry(to).or_default();
                    for fork in forks.into_iter().rev() {
                        queue.push_front(fork);
                    }
                    self.send_deletes(now, to);
                }
                message => self.send(now, to, control, message),
            }
        }
    }

    pub(super) fn resend_overdue(&mut self, now: Instant) {
        let resend_after = self.timing.resend_after;
        let overdue: Vec<WorkerId> = self
            .outbox
            .stalled
            .iter()
            .filter(|(_, stalled)| is_over(stalled.since, resend_after, now))
            .map(|(&to, _)| to)
            .collect();
        for to in overdue {
            self.resend(now, to);
        }
    }

    /// Drops everything that was to go to a worker that is dead.
    pub(super) fn drop_messages_to(&mut self, worker: WorkerId) {
        let controls: Vec<Control> = self
            .outbox
            .sendings
            .iter()
            .filter(|(_, sending)| sending.to == worker)
            .map(|(&control, _)| control)
            .collect();
        for control in controls {
            self.outbox.remove(control);
        }
        self.outbox.deletes.remove(&worker);
    }
}
