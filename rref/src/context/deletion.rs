//! When a user is deleted: its handle is dropped, its registration is settled, and its children are known.

use std::time::Instant;

use super::effect::{Effect, Handle};
use super::state::RRefContext;
use super::user::{Child, Failure, State};
use crate::id::ForkId;

impl<V: Clone> RRefContext<V> {
    /// The last clone of a handle was dropped. The shutdown may have taken the handle before.
    pub(crate) fn drop_handle(&mut self, now: Instant, handle: Handle) {
        match handle {
            Handle::Owner(rref) => {
                if let Some(owned) = self.owned.get_mut(&rref) {
                    owned.handles = owned.handles.saturating_sub(1);
                    self.settle_owned(now, rref);
                }
            }
            Handle::User(fork) => {
                if let Some(user) = self.users.get_mut(&fork) {
                    user.has_handle = false;
                    self.settle_user(now, fork);
                }
            }
        }
    }

    /// Deletes the user if nothing keeps it, and notifies the owner if the owner has the user.
    pub(super) fn settle_user(&mut self, now: Instant, fork: ForkId) {
        let Some(user) = self.users.get(&fork) else {
            return;
        };
        if user.has_handle || user.children > 0 {
            return;
        }
        let is_known = match user.state {
            State::Creating
            | State::Requesting
            | State::Unsettled(_)
            | State::Failed(_, Failure::Reporting) => return,
            State::Confirmed | State::Failed(_, Failure::Reported) => true,
            State::Failed(_, Failure::Unreported) | State::Refused(_) | State::OwnerLost => false,
        };
        let Some(user) = self.users.remove(&fork) else {
            return;
        };
        // A late copy of the message that carried it is refused.
        if user.parent.is_some() {
            self.tombstones.insert(now, fork.0);
        }
        if is_known {
            self.send_delete(user.owner, user.rref, fork);
        }
    }

    /// Reports the user's state to the shell.
    pub(super) fn notify(&mut self, fork: ForkId) {
        if let Some(user) = self.users.get(&fork) {
            self.effects.push(match user.error() {
                None => Effect::Confirmed { fork },
                Some(error) => Effect::Failed { fork, error },
            });
        }
    }

    pub(super) fn children_where(&self, is_meant: impl Fn(&Child) -> bool) -> Vec<ForkId> {
        self.children
            .iter()
            .filter(|(_, child)| is_meant(child))
            .map(|(&fork, _)| fork)
            .collect()
    }
}
