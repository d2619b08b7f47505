//! The context's own messages, from their sending until they are answered.
//!
//! A message whose retries are used up *stalls*. It is not given up: it is sent again as soon as anything
//! is heard of its receiver, and at a low rate before that, until the receiver is declared dead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rpc_agent::WorkerId;

use super::RRefContext;
use crate::effect::{Control, Effect};
use crate::id::{ForkId, RRefId};
use crate::protocol::{DELETES_MAX, Message};

/// How long a stalled message waits for a sign of life before it is tried all the same.
pub(super) const RESEND_PAUSE: Duration = Duration::from_secs(10);

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
    /// Those of `sendings` that wait for a sign of life, by receiver. No set is empty.
    pub(super) stalled: BTreeMap<WorkerId, BTreeSet<Control>>,
    /// Deletions that wait for the batch before them, by owner. No queue is empty.
    pub(super) deletes: BTreeMap<WorkerId, VecDeque<(RRefId, ForkId)>>,
    /// The owners that have a batch of deletions among `sendings`.
    pub(super) deleting: BTreeSet<WorkerId>,
    pub(super) batches: u64,
}

impl Outbox {
    pub(super) fn contains(&self, control: Control) -> bool {
        self.sendings.contains_key(&control)
    }

    pub(super) fn is_stalled(&self, control: Control) -> bool {
        self.sendings
            .get(&control)
            .and_then(|sending| self.stalled.get(&sending.to))
            .is_some_and(|stalled| stalled.contains(&control))
    }

    pub(super) fn remove(&mut self, control: Control) -> Option<Sending> {
        let sending = self.sendings.remove(&control)?;
        if let Some(stalled) = self.stalled.get_mut(&sending.to) {
            stalled.remove(&control);
            if stalled.is_empty() {
                self.stalled.remove(&sending.to);
            }
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
            let stalled = self.outbox.stalled.entry(sending.to).or_default();
            stalled.insert(control);
        }
    }

    /// Sends again what has stalled on the way to this worker.
    pub(super) fn resend(&mut self, now: Instant, to: WorkerId) {
        for control in self.outbox.stalled.remove(&to).unwrap_or_default() {
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
        let is_overdue = |control: &Control| {
            let sending = &self.outbox.sendings[control];
            now.saturating_duration_since(sending.since) >= RESEND_PAUSE
        };
        let overdue: Vec<WorkerId> = self
            .outbox
            .stalled
            .iter()
            .filter(|(_, controls)| controls.iter().any(is_overdue))
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
