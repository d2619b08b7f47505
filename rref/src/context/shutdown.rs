//! How the references of a worker end, in two steps; and at once, when its agent has ended.

use std::time::Instant;

use super::effect::{Effect, Handle};
use super::error::UserError;
use super::holders::Holders;
use super::outbox::Outbox;
use super::state::{Phase, RRefContext};
use crate::id::{ForkId, RRefId};

impl<V: Clone> RRefContext<V> {
    /// The first step of the shutdown: refuses new references, and deletes all users as soon as their registrations
    /// and children allow, held or not.
    pub(crate) fn delete_all_users(&mut self, now: Instant) {
        if self.phase == Phase::Running {
            self.phase = Phase::DeletingUsers;
        }
        let forks: Vec<ForkId> = self.users.keys().copied().collect();
        for fork in forks {
            self.drop_handle(now, Handle::User(fork));
        }
    }

    /// The second step: frees values without users, and frees each remaining value with its last user. Promised
    /// values fail.
    pub(crate) fn sweep_unforked(&mut self, now: Instant) {
        self.phase = Phase::Sweeping;
        let rrefs: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in rrefs {
            self.fail_promise(rref);
            self.settle_owned(now, rref);
        }
    }

    /// The agent has ended, so no message will be answered: removes everything.
    pub(crate) fn end(&mut self, now: Instant) {
        self.phase = Phase::Sweeping;
        let users = std::mem::take(&mut self.users);
        for fork in users.into_keys() {
            let error = UserError::ShutDown;
            self.effects.push(Effect::Failed { fork, error });
        }
        self.children.clear();
        self.under_way.clear();
        self.outbox = Outbox::default();
        self.orphans.clear();
        for owned in self.owned.values_mut() {
            owned.forks = Holders::None;
        }
        let rrefs: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in rrefs {
            self.fail_promise(rref);
            self.settle_owned(now, rref);
        }
    }

    /// Whether this worker has no user, no child, and no unanswered message.
    #[must_use]
    pub(crate) fn has_no_users(&self) -> bool {
        self.users.is_empty()
            && self.children.is_empty()
            && self.outbox.unanswered.is_empty()
            && self.outbox.deletes.is_empty()
    }

    /// Whether all tables but the tombstones are empty.
    #[must_use]
    pub(crate) fn is_drained(&self) -> bool {
        self.owned.is_empty() && self.has_no_users() && self.waiting.is_empty()
    }
}
