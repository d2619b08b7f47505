//! The consequences of the loss of a member.

use std::sync::Arc;
use std::time::Duration;

use super::state::GroupState;
use super::{Effect, Group};
use crate::event::{Cause, EndReason, Reason};
use crate::identity::MemberKey;

impl Group {
    /// A process has exited. If its hello is still on its way, the hello will be refused.
    pub(super) fn dead(&mut self, now: Duration, member: MemberKey, effects: &mut Vec<Effect>) {
        match self.roster.incarnation_of(member.id) {
            Some(listed) if listed > member.incarnation => return,
            Some(listed) if listed < member.incarnation => {
                let incarnation = listed;
                let earlier = MemberKey {
                    incarnation,
                    ..member
                };
                self.lose(now, earlier, Reason::Replaced, effects);
            }
            Some(_) => return self.lose(now, member, Reason::Dead, effects),
            None => {}
        }
        if self.roster.evicted(member).is_none() && !matches!(self.state, GroupState::Ended(_)) {
            let max = self.options.evicted_max;
            self.roster.evict(member, Reason::Dead, max);
        }
    }

    /// Removes a member, if it is one. An attempt or a generation that it is needed for is broken.
    pub(super) fn lose(
        &mut self,
        now: Duration,
        member: MemberKey,
        reason: Reason,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(self.state, GroupState::Ended(_)) {
            return;
        }
        let Some(entry) = self.roster.remove(member) else {
            return;
        };
        self.roster.evict(member, reason, self.options.evicted_max);
        effects.push(Effect::Dismiss(member, reason));
        if reason != Reason::CallsFailed {
            // Calls with it failed for this reason.
            self.failed_calls = 0;
        }
        let cause = Cause::Lost(member, reason);
        match &mut self.state {
            GroupState::Proposed {
                attempt, missing, ..
            } => *missing -= usize::from(entry.is_missing(*attempt)),
            GroupState::Calling { record, .. } if entry.ready == Some(record.attempt) => {
                self.break_up(now, cause, effects);
            }
            GroupState::Committed { .. } if entry.rank.is_some() => {
                self.break_up(now, cause, effects);
            }
            GroupState::Committed {
                change: Some(change),
                ..
            } => change.missing -= usize::from(entry.is_missing(change.attempt)),
            _ => {}
        }
    }

    /// Torch's call failed at a member. After two failures in a row, newcomers are the likely reason.
    pub(super) fn call_failed(
        &mut self,
        now: Duration,
        member: MemberKey,
        effects: &mut Vec<Effect>,
    ) {
        let GroupState::Calling { record, .. } = &self.state else {
            return;
        };
        let record = Arc::clone(record);
        self.failed_calls += 1;
        self.break_up(now, Cause::CallFailed(member), effects);
        if self.failed_calls >= self.options.failed_calls_max {
            return self.end(EndReason::CallsFailed, effects);
        }
        let stay = self.roster.len() - self.roster.newcomers();
        if self.failed_calls >= 2 && stay >= self.options.size_min {
            for seat in record.seats.iter().filter(|seat| seat.previous.is_none()) {
                self.lose(now, seat.member, Reason::CallsFailed, effects);
            }
        }
    }

    /// Ends an attempt or a generation. Members that wanted to leave are free to.
    pub(super) fn break_up(&mut self, now: Duration, cause: Cause, effects: &mut Vec<Effect>) {
        if let GroupState::Calling { record, .. } | GroupState::Committed { record, .. } =
            &self.state
        {
            effects.push(Effect::ReleaseWaits(record.attempt));
        }
        self.state = GroupState::Breaking {
            cause,
            propose_at: now + self.options.replace_wait,
            end_at: now + self.options.below_min_timeout,
        };
        if self.roster.leaving() > 0 {
            for member in self.roster.keys(|entry| entry.is_leaving) {
                self.lose(now, member, Reason::Left, effects);
            }
        }
    }

    pub(super) fn end(&mut self, reason: EndReason, effects: &mut Vec<Effect>) {
        if let GroupState::Calling { record, .. } = &self.state {
            effects.push(Effect::ReleaseWaits(record.attempt));
        }
        self.state = GroupState::Ended(reason);
        self.keep(effects);
    }
}
