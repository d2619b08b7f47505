//! When a value is freed: no user of it is known, and no handle of it is held here.

use std::time::Instant;

use super::effect::Effect;
use super::error::FetchError;
use super::state::{Phase, RRefContext};
use super::values::{Owned, Value};
use crate::id::{ForkId, RRefId};

impl<V: Clone> RRefContext<V> {
    /// Frees the value if no user is known, no handle is held, and no request waits for a creation that may come.
    pub(super) fn settle_owned(&mut self, now: Instant, rref: RRefId) {
        let is_sweeping = self.phase == Phase::Sweeping;
        let Some(owned) = self.owned.get_mut(&rref) else {
            return;
        };
        if is_sweeping {
            owned.handles = 0;
        }
        let is_uncreated = matches!(owned.value, Value::Uncreated);
        let may_come = !is_sweeping && !self.tombstones.contains(rref.0);
        let is_used = !owned.forks.is_empty() || owned.handles > 0;
        if is_used || (is_uncreated && may_come && self.is_awaited(rref)) {
            return;
        }
        let Some(owned) = self.owned.remove(&rref) else {
            return;
        };
        for token in self.waiters_of(rref) {
            self.answer_fetch(token, Err(FetchError::Deleted(rref)));
        }
        match owned.value {
            // Its creation can still arrive, so its id stays valid. Its users were registered and deleted.
            Value::Uncreated => self.uncreated -= 1,
            // Every living user is known once the value was created: docs/spec/rref-protocol.md, section 5.
            Value::Running | Value::Promised | Value::Failed { .. } => {
                self.tombstones.insert(now, rref.0);
            }
            Value::Ready(value) => {
                self.tombstones.insert(now, rref.0);
                self.effects.push(Effect::Free(value));
            }
        }
    }

    pub(super) fn user_deleted(&mut self, now: Instant, rref: RRefId, fork: ForkId) {
        self.tombstones.insert(now, fork.0);
        self.remove_holder(rref, fork);
        let is_unused = |owned: &Owned<V>| {
            matches!(owned.value, Value::Uncreated) && owned.forks.is_empty() && owned.handles == 0
        };
        // Without other users, it will never be created: docs/spec/rref-protocol.md, section 5.
        if fork == rref.creators_fork()
            && self.owned.get(&rref).is_none_or(|owned| is_unused(owned))
        {
            self.tombstones.insert(now, rref.0);
        }
        self.settle_owned(now, rref);
    }

    /// Removes a user of a value here.
    pub(super) fn remove_holder(&mut self, rref: RRefId, fork: ForkId) {
        if let Some(owned) = self.owned.get_mut(&rref)
            && let Some(holder) = owned.forks.remove(fork)
        {
            self.forget_arrival(holder.arrival, rref, fork);
        }
    }
}
