//! The invariants of one worker's tables, which hold between any two steps.

use std::collections::BTreeMap;

use super::effect::Control;
use super::holders::Arrival;
use super::state::{Phase, RRefContext};
use super::user::{Failure, State};
use super::values::Value;
use crate::id::ForkId;
use crate::protocol::Message;

impl<V: Clone> RRefContext<V> {
    /// Checks all invariants. Takes time in proportion to the tables.
    ///
    /// # Errors
    /// The first violated invariant, with the entry that violates it.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        self.check_owned()?;
        self.check_users()?;
        self.check_children()?;
        self.check_arrivals()?;
        self.check_outbox()
    }

    /// [`RRefContext::check_invariants`] while the tables are so small that it costs little.
    pub(crate) fn check_small_tables(&self) -> Result<(), String> {
        const ENTRIES_MAX: usize = 64;
        let entries = self.owned.len() + self.users.len() + self.outbox.unanswered.len();
        if entries > ENTRIES_MAX {
            return Ok(());
        }
        self.check_invariants()
    }

    fn check_owned(&self) -> Result<(), String> {
        let mut uncreated = 0;
        let mut waiters = 0;
        for (rref, owned) in &self.owned {
            let is_uncreated = matches!(owned.value, Value::Uncreated);
            uncreated += usize::from(is_uncreated);
            let waiting = self.waiters_of(*rref);
            waiters += waiting.len();
            let is_awaited = is_uncreated && !waiting.is_empty();
            if owned.forks.is_empty() && owned.handles == 0 && !is_awaited {
                return Err(format!("a value without user and handle is freed: {rref}"));
            }
            if self.phase == Phase::Sweeping && owned.handles > 0 && owned.forks.is_empty() {
                return Err(format!("a swept value has a user: {rref}"));
            }
            if self.phase == Phase::Sweeping && matches!(owned.value, Value::Promised) {
                return Err(format!(
                    "no promised value is left that cannot be set: {rref}"
                ));
            }
            if self.tombstones.contains(rref.0) {
                return Err(format!("a tombstone is not owned: {rref}"));
            }
            if owned.value.result().is_some() && !waiting.is_empty() {
                return Err(format!("no request waits for a ready value: {rref}"));
            }
            for token in waiting {
                if self.waiting.get(&token).map(|waiting| waiting.rref) != Some(*rref) {
                    return Err(format!("each waiter is listed: {token} for {rref} is not"));
                }
            }
            for (fork, _) in owned.forks.iter() {
                if self.tombstones.contains(fork.0) {
                    return Err(format!("a deleted user is not known: {fork}"));
                }
                if self.users.contains_key(&fork) {
                    return Err(format!(
                        "a worker cannot be a user of the value that it owns: {fork}"
                    ));
                }
            }
        }
        if uncreated != self.uncreated {
            return Err(format!(
                "{} entries are uncreated, not {uncreated}",
                self.uncreated
            ));
        }
        let places = self.waiting_places.taken();
        if [self.waiting.len(), self.waiters.len(), places] != [waiters; 3] {
            return Err(format!(
                "{} requests wait, not {waiters}",
                self.waiting.len()
            ));
        }
        Ok(())
    }

    fn check_users(&self) -> Result<(), String> {
        for (fork, user) in &self.users {
            let children = self
                .children
                .values()
                .filter(|child| child.parent == *fork)
                .count();
            if children != user.children as usize {
                return Err(format!(
                    "{fork} has {} children, not {children}",
                    user.children
                ));
            }
            if user.owner == self.me {
                return Err(format!(
                    "a worker cannot be a user of the value that it owns: {fork}"
                ));
            }
            let is_requesting = user.state == State::Requesting;
            if is_requesting != self.outbox.contains(Control::ForkRequest(*fork)) {
                return Err(format!(
                    "a user is requesting exactly while its FORK_REQUEST is open: {fork}"
                ));
            }
            let is_settling = matches!(
                user.state,
                State::Unsettled(_) | State::Failed(_, Failure::Reporting)
            );
            if is_settling != self.outbox.contains(Control::Abandon(*fork)) {
                return Err(format!(
                    "a creation is unsettled exactly while its ABANDON is open: {fork}"
                ));
            }
            let is_accepting = self.outbox.contains(Control::ChildAccept(*fork));
            if is_accepting && (is_requesting || user.state == State::Creating) {
                return Err(format!(
                    "a parent is released after its child was registered: {fork}"
                ));
            }
            let is_held = user.has_handle || user.children > 0;
            let is_pending = is_requesting || is_settling || user.state == State::Creating;
            if !is_held && !is_pending {
                return Err(format!(
                    "a user without handle and children is deleted: {fork}"
                ));
            }
        }
        Ok(())
    }

    fn check_children(&self) -> Result<(), String> {
        for (fork, child) in &self.children {
            if !self.users.contains_key(&child.parent) {
                return Err(format!("a child has a parent: {fork}"));
            }
        }
        Ok(())
    }

    fn check_arrivals(&self) -> Result<(), String> {
        let of_users = self.children.iter().filter_map(|(&fork, child)| {
            let parent = self.users.get(&child.parent)?;
            Some((parent.rref, fork, child.arrival))
        });
        let of_owned = self.owned.iter().flat_map(|(&rref, owned)| {
            let forks = owned.forks.iter();
            forks.map(move |(fork, holder)| (rref, fork, holder.arrival))
        });
        let mut under_way = 0;
        for (rref, fork, arrival) in of_users.chain(of_owned) {
            if let Arrival::UnderWay { since } = arrival {
                under_way += 1;
                if !self.under_way.contains(&(since, rref, fork)) {
                    return Err(format!("a fork under way is scheduled for a probe: {fork}"));
                }
            }
            let is_asked = self.outbox.contains(Control::Probe(fork));
            if is_asked != (arrival == Arrival::Asked) {
                return Err(format!(
                    "a fork is probed exactly while its PROBE is open: {fork}"
                ));
            }
        }
        if under_way != self.under_way.len() {
            let listed = self.under_way.len();
            return Err(format!("{under_way} forks are under way, not {listed}"));
        }
        Ok(())
    }

    /// Whether a user exists whose owner is not lost. Of a lost owner, a later process may know the user.
    fn is_used(&self, fork: ForkId) -> bool {
        let user = self.users.get(&fork);
        user.is_some_and(|user| user.state != State::OwnerLost)
    }

    fn check_outbox(&self) -> Result<(), String> {
        let outbox = &self.outbox;
        let probes = outbox.unanswered.keys().filter(|&&control| {
            matches!(control, Control::Probe(_)) && !outbox.is_stalled(control)
        });
        let probes = probes.count();
        if probes != outbox.probes {
            return Err(format!("{probes} probes are sent, not {}", outbox.probes));
        }
        for (control, sending) in &outbox.unanswered {
            if sending.to == self.me {
                return Err(format!("no message goes to its sender: {control:?}"));
            }
            if let Message::UserDelete { forks } = &sending.message
                && let Some((_, fork)) = forks.iter().find(|(_, fork)| self.is_used(*fork))
            {
                return Err(format!("a living user is not deleted: {fork}"));
            }
        }
        let mut deleting = BTreeMap::new();
        for control in outbox.unanswered.keys() {
            if let Control::Deletes { owner, .. } = control {
                *deleting.entry(*owner).or_insert(0) += 1;
            }
        }
        if deleting != outbox.deleting {
            return Err(format!(
                "{deleting:?} batches of deletions are sent, not {:?}",
                outbox.deleting
            ));
        }
        let batches_max = self.delete_window.batches_max;
        if let Some((owner, batches)) = deleting.iter().find(|(_, n)| **n > batches_max) {
            return Err(format!(
                "{batches} batches of deletions are sent to {owner}"
            ));
        }
        for (to, stalled) in &outbox.stalled {
            let controls = &stalled.controls;
            if controls.is_empty() || controls.iter().any(|control| !outbox.contains(*control)) {
                return Err(format!("a stalled message is unanswered: to {to}"));
            }
        }
        for (owner, queue) in &outbox.deletes {
            if !outbox.deleting.contains_key(owner) {
                return Err(format!("queued deletions wait for a batch: to {owner}"));
            }
            if let Some((_, fork)) = queue.iter().find(|(_, fork)| self.is_used(*fork)) {
                return Err(format!("a living user is not deleted: {fork}"));
            }
        }
        Ok(())
    }
}
