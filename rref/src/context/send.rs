//! How the context's own messages are sent, kept until they are answered, and resent.

use std::collections::BTreeSet;
use std::time::Instant;

use rpc_agent::WorkerId;

use super::effect::{Control, Effect};
use super::outbox::{Stalled, Unanswered};
use super::state::{DeleteWindow, RRefContext, has_elapsed};
use crate::id::{ForkId, RRefId};
use crate::protocol::Message;

impl<V: Clone> RRefContext<V> {
    pub(super) fn send(&mut self, to: WorkerId, control: Control, message: Message) {
        let sending = Unanswered {
            to,
            message: message.clone(),
        };
        let before = self.outbox.unanswered.insert(control, sending);
        debug_assert!(before.is_none(), "{control:?} is under way");
        self.outbox.probes += usize::from(matches!(control, Control::Probe(_)));
        self.effects.push(Effect::Send {
            to,
            control,
            message,
        });
    }

    /// Queues a user's deletion for its owner.
    pub(super) fn send_delete(&mut self, owner: WorkerId, rref: RRefId, fork: ForkId) {
        let queue = self.outbox.deletes.entry(owner).or_default();
        queue.push_back((rref, fork));
        self.send_deletes(owner);
    }

    /// Sends queued deletions: what there is if no batch is under way, and full batches beside others, so that a lost
    /// one does not delay the rest and single deletions still travel together.
    pub(super) fn send_deletes(&mut self, owner: WorkerId) {
        let DeleteWindow {
            deletes_max,
            batches_max,
        } = self.delete_window;
        while let Some(queue) = self.outbox.deletes.get_mut(&owner) {
            let batches = self.outbox.deleting.entry(owner).or_default();
            if *batches > 0 && (queue.len() < deletes_max || *batches >= batches_max) {
                return;
            }
            *batches += 1;
            let forks = queue.drain(..queue.len().min(deletes_max)).collect();
            if queue.is_empty() {
                self.outbox.deletes.remove(&owner);
            }
            let batch = self.outbox.batches;
            self.outbox.batches += 1;
            let control = Control::Deletes { owner, batch };
            self.send(owner, control, Message::UserDelete { forks });
        }
    }

    pub(super) fn send_child_accept(&mut self, now: Instant, parent: WorkerId, fork: ForkId) {
        if parent == self.me {
            self.release_child(now, fork);
        } else {
            let control = Control::ChildAccept(fork);
            self.send(parent, control, Message::ChildAccept { fork });
        }
    }

    pub(super) fn stall(&mut self, now: Instant, control: Control) {
        if let Some(sending) = self.outbox.unanswered.get(&control) {
            let to = sending.to;
            let stalled = self.outbox.stalled.entry(to).or_insert_with(|| Stalled {
                since: now,
                controls: BTreeSet::new(),
            });
            stalled.controls.insert(control);
            self.outbox.probes -= usize::from(matches!(control, Control::Probe(_)));
        }
    }

    /// Resends the stalled messages to a worker.
    pub(super) fn resend(&mut self, to: WorkerId) {
        let stalled = self.outbox.stalled.get(&to);
        let controls = stalled.map(|stalled| stalled.controls.clone());
        for control in controls.unwrap_or_default() {
            let Some(sending) = self.outbox.remove(control) else {
                continue;
            };
            match sending.message {
                // Deletions that were queued in the meantime are sent in the same batch.
                Message::UserDelete { forks } => {
                    let queue = self.outbox.deletes.entry(to).or_default();
                    for fork in forks.into_iter().rev() {
                        queue.push_front(fork);
                    }
                    self.send_deletes(to);
                }
                message => self.send(to, control, message),
            }
        }
    }

    pub(super) fn resend_overdue(&mut self, now: Instant) {
        let resend_after = self.timing.resend_after;
        let overdue: Vec<WorkerId> = self
            .outbox
            .stalled
            .iter()
            .filter(|(_, stalled)| has_elapsed(stalled.since, resend_after, now))
            .map(|(&to, _)| to)
            .collect();
        for to in overdue {
            self.resend(to);
        }
    }

    /// Drops all messages to a dead worker.
    pub(super) fn drop_messages_to(&mut self, worker: WorkerId) {
        let controls: Vec<Control> = self
            .outbox
            .unanswered
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
