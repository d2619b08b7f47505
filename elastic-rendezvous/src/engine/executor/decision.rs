//! The next decision of an executor, and the time at which it decides again.

use std::time::Duration;

use super::Executor;
use crate::engine::decide::{self, Context, Decision, Entering, Rule};
use crate::values::goal::{Entry, Operation};
use crate::values::node::NodeId;
use crate::values::settings::ROLLBACK_WINDOW;
use crate::values::timestamp::Now;

/// How often a node checks whether a suspect has written, because heartbeats do not wake other nodes.
const SUSPECT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a node waits to enter a round after the round is complete: as long as workers usually need to start with
/// their imports. After this time, it waits for the next round, for which the members restart.
const ENTRY_WAIT: Duration = Duration::from_secs(60);

impl Executor {
    pub(super) fn decide(&self, now: Now) -> Decision {
        let decider = &self.decider;
        let last_call_over = decider.state.deadline.is_some()
            && (decider.has_last_call_timed_out(now) || self.all_are_back(now));
        let ctx = Context {
            deadline: self.progress.deadline,
            heartbeat_due: self
                .heartbeat_due_at()
                .is_some_and(|due| due <= now.monotonic),
            last_call_over,
            has_every_rank: decide::has_every_rank(&decider.state),
            must_yield: self.must_yield(now),
            entering: self.entering(now),
            ..decider.context(&self.me, now)
        };
        match self.progress.operation {
            Operation::Exit => decide::exit(&ctx),
            Operation::Join | Operation::Enter => {
                decide::amend(decide::join(&ctx), &ctx, decider.has_suspects(&self.me))
            }
            Operation::Close => decide::close(&ctx),
            Operation::KeepAlive => decide::keep_alive(&ctx),
            Operation::Leave => decide::leave(&ctx),
        }
    }

    /// Whether this node leaves the free places of an open round to members of the last one.
    fn must_yield(&self, now: Now) -> bool {
        let claimants = || self.decider.claimants(now).count();
        self.progress.operation.is_join() && self.decider.must_yield(&self.me, now, claimants)
    }

    /// Whether this node enters the complete round (section 7.3).
    fn entering(&self, now: Now) -> Entering {
        let Some(since) = self.decider.observations.complete_since() else {
            return Entering::No;
        };
        if self.progress.operation != Operation::Enter || !self.decider.state.complete {
            return Entering::No;
        }
        if self.decider.state.participants.contains_key(&self.me) {
            return if self.progress.has_entered {
                Entering::Now
            } else {
                Entering::No
            };
        }
        match self.entry_of_round() {
            Some(Entry::Open) => Entering::Now,
            Some(Entry::Unknown) if since.saturating_add(ENTRY_WAIT) < now.monotonic => {
                Entering::No
            }
            _ => Entering::Waits,
        }
    }

    fn entry_of_round(&self) -> Option<Entry> {
        let (round, entry) = self.progress.entry?;
        (round == self.decider.state.round).then_some(entry)
    }

    /// The running round that this spare may enter if its members agree, because the round has a place for it.
    pub(crate) fn awaits_entry(&self) -> Option<i64> {
        let state = &self.decider.state;
        let is_wanted = self.progress.operation == Operation::Enter
            && state.complete
            && state.redundancy_list.contains(&self.me)
            && state.participants.len() < self.decider.settings.max_nodes;
        is_wanted.then_some(state.round)
    }

    /// Whether the join waits for nodes that are on no list, and may have written a notice about it.
    pub(crate) fn awaits_notices(&self, now: Now) -> bool {
        let is_unlisted = |node: &NodeId| {
            *node != self.me
                && !self.decider.state.last_heartbeats.contains_key(node)
                && !self.decider.gone.contains(node)
                && !self.departures.has_dropped(node)
        };
        if self.must_yield(now) {
            return self.decider.claimants(now).any(is_unlisted);
        }
        let is_in_last_call = self.progress.operation.is_join()
            && self.decider.state.deadline.is_some()
            && self.decider.state.participants.contains_key(&self.me);
        is_in_last_call && self.expected.iter().flatten().any(is_unlisted)
    }

    /// Whether all expected nodes are back.
    fn all_are_back(&self, now: Now) -> bool {
        let is_dropped = |node: &NodeId| self.departures.has_dropped(node);
        let expected = self.expected.as_ref();
        expected.is_some_and(|nodes| self.decider.are_back(nodes, is_dropped, now))
    }

    /// The next time at which a decision may change without a change of the state.
    pub(super) fn wake_at(&self, now: Now) -> Duration {
        let margin = Duration::from_millis(1);
        let is_spare = self.decider.state.redundancy_list.contains(&self.me);
        let give_up = (!is_spare).then(|| {
            let limit = if now.monotonic > self.progress.deadline {
                self.progress.deadline.saturating_add(ROLLBACK_WINDOW)
            } else {
                self.progress.deadline
            };
            limit.saturating_add(margin)
        });
        let is_participant = self.decider.state.participants.contains_key(&self.me);
        let last_call = [
            self.decider
                .observations
                .last_call_ends_at(&self.decider.settings),
            self.decider
                .all_had_time_at()
                .filter(|_| self.expected.is_some()),
        ]
        .into_iter()
        .flatten()
        .filter(|&at| is_participant && at >= now.monotonic)
        .min()
        .map(|at| at.saturating_add(margin));
        let silence = self.decider.observations.next_silence_at(
            &self.me,
            &self.decider.settings,
            self.requests.requested_at,
        );
        let heartbeat = self
            .decider
            .observations
            .heartbeat_due_at(&self.me, &self.decider.settings);
        // Reads at least once in an interval, whatever it waits for.
        let interval = self.decider.settings.keep_alive_interval;
        let longest = match self.last_decision {
            Some(Decision { rule: Rule::H2, .. }) => interval.min(SUSPECT_INTERVAL),
            _ => interval,
        };
        let precedence = self.decider.last_round.next_change_at(
            &self.decider.state,
            &self.decider.settings,
            now.monotonic,
        );
        [give_up, last_call, silence, heartbeat, precedence]
            .into_iter()
            .flatten()
            .fold(now.monotonic.saturating_add(longest), Duration::min)
            .max(now.monotonic.saturating_add(margin))
    }
}
