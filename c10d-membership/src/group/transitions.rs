//! The transitions of a group: the loss of a member, the transition that is due, and the three stages of an attempt
//! (proposed, called, committed).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::roster::Entry;
use super::{Change, Effect, Group, GroupState, Passed};
use crate::message::{Cause, EndReason, Reason};
use crate::record::{Attempt, MemberKey, Record, Seat};

/// The loss of members, which ends an attempt or a generation that needs them.
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
    fn break_up(&mut self, now: Duration, cause: Cause, effects: &mut Vec<Effect>) {
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

/// The transitions that are due.
impl Group {
    /// Takes the transitions that are due, one after the other.
    pub(super) fn settle(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while self.advance(now, effects) {}
    }

    /// Takes one transition. Returns false if none is due.
    fn advance(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        let size_min = self.options.size_min;
        let is_enough = self.roster.len() >= size_min;
        match &mut self.state {
            GroupState::Forming { deadline } => {
                let is_late = deadline.is_some_and(|deadline| now >= deadline);
                let size_first = self.options.size_first.max(size_min);
                if self.roster.len() >= size_first || (is_late && is_enough) {
                    self.propose(now, Cause::First, effects);
                } else if is_late {
                    self.end(EndReason::BelowMinimum, effects);
                } else {
                    return false;
                }
            }
            GroupState::Breaking {
                cause,
                propose_at,
                end_at,
            } => {
                let cause = *cause;
                let size = self.committed.as_ref();
                let size = size.map_or(self.options.size_first, |it| it.seats.len());
                if is_enough && (now >= *propose_at || self.roster.len() >= size) {
                    self.propose(now, cause, effects);
                } else if !is_enough && now >= *end_at {
                    self.end(EndReason::BelowMinimum, effects);
                } else {
                    return self.keep_that_it_broke(effects);
                }
            }
            GroupState::Proposed {
                attempt,
                cause,
                missing,
                deadline,
            } => {
                let (attempt, cause, missing) = (*attempt, *cause, *missing);
                if missing == 0 {
                    self.call(now, attempt, cause, effects);
                } else if now >= *deadline {
                    self.lose_all(now, Reason::NotReady, effects, |it| it.is_missing(attempt));
                } else {
                    return false;
                }
            }
            GroupState::Calling {
                record,
                missing,
                deadline,
            } => {
                let attempt = record.attempt;
                if *missing == 0 {
                    let record = Arc::clone(record);
                    self.commit(record, effects);
                } else if now >= *deadline {
                    self.lose_all(now, Reason::NotAcknowledged, effects, |it| {
                        it.ready == Some(attempt) && it.acked != Some(attempt)
                    });
                } else {
                    return false;
                }
            }
            GroupState::Committed { .. } => return self.advance_committed(now, effects),
            GroupState::Ended(_) => return false,
        }
        true
    }

    /// Takes one transition of a generation that works.
    fn advance_committed(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        let GroupState::Committed {
            working,
            change,
            return_by,
            ..
        } = &mut self.state
        else {
            return false;
        };
        if *working == 0 {
            self.end(EndReason::Finished, effects);
        } else if return_by.is_some_and(|return_by| now >= return_by) {
            *return_by = None;
            self.lose_all(now, Reason::Silent, effects, |it| {
                it.rank.is_some() && !it.is_seen
            });
        } else if let Some(change) = *change {
            return self.advance_change(now, change, effects);
        } else if self.roster.newcomers() > 0 || self.roster.leaving() > 0 {
            self.propose_change(now, effects);
        } else {
            return false;
        }
        true
    }

    fn advance_change(&mut self, now: Duration, change: Change, effects: &mut Vec<Effect>) -> bool {
        if change.missing == 0 {
            let has_left = self.roster.leaving() > 0;
            self.call(now, change.attempt, Cause::Change, effects);
            if has_left && self.roster.len() == 0 {
                self.end(EndReason::Finished, effects);
            }
        } else if now < change.deadline {
            return false;
        } else if change.is_binding {
            self.break_up(now, Cause::BoundaryTimedOut, effects);
        } else {
            if let GroupState::Committed { change, .. } = &mut self.state {
                *change = None;
            }
            self.lose_all(now, Reason::NoBoundary, effects, |it| it.rank.is_none());
            self.lose_all(now, Reason::Left, effects, |it| it.is_leaving);
        }
        true
    }

    /// Uses up an attempt if none was made since the last generation, so that a restarted service treats this
    /// generation as broken.
    fn keep_that_it_broke(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self
            .committed
            .as_ref()
            .is_none_or(|it| it.attempt != self.last)
        {
            return false;
        }
        match self.last.next() {
            Some(next) => {
                self.last = next;
                self.keep(effects);
            }
            None => self.end(EndReason::AttemptsUsedUp, effects),
        }
        true
    }

    fn lose_all(
        &mut self,
        now: Duration,
        reason: Reason,
        effects: &mut Vec<Effect>,
        which: impl Fn(&Entry) -> bool,
    ) {
        for member in self.roster.keys(which) {
            self.lose(now, member, reason, effects);
        }
    }

    /// Asks all members to leave their mesh and be ready. The attempt waits for the present members; members that
    /// arrive later take part if they are ready before the present ones are.
    fn propose(&mut self, now: Duration, cause: Cause, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.begin_attempt(effects) else {
            return;
        };
        self.state = GroupState::Proposed {
            attempt,
            cause,
            missing: self.roster.len(),
            deadline: now + self.options.ready_timeout,
        };
        self.keep(effects);
    }

    /// Asks the members of a generation to stop at a step boundary.
    fn propose_change(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let Some(next) = self.begin_attempt(effects) else {
            return;
        };
        if let GroupState::Committed { passed, change, .. } = &mut self.state {
            *change = Some(Change {
                attempt: next,
                step: passed.first_stop(),
                missing: self.roster.len(),
                is_binding: false,
                deadline: now + self.options.boundary_timeout,
            });
        }
        self.keep(effects);
    }

    fn begin_attempt(&mut self, effects: &mut Vec<Effect>) -> Option<Attempt> {
        let Some(attempt) = self.last.next() else {
            self.end(EndReason::AttemptsUsedUp, effects);
            return None;
        };
        self.last = attempt;
        for entry in self.roster.iter_mut() {
            entry.required = Some(attempt);
        }
        Some(attempt)
    }

    /// Makes the list and sends it, because all awaited members are ready.
    fn call(&mut self, now: Duration, attempt: Attempt, cause: Cause, effects: &mut Vec<Effect>) {
        // From here on the loss of a member breaks nothing: the generation before is over.
        self.break_up(now, cause, effects);
        let size = self.committed.as_ref().map_or(0, |it| it.seats.len());
        for member in self.equal_handles(attempt) {
            self.lose(now, member, Reason::HandleTaken, effects);
        }
        let seats: Vec<Seat> = self
            .roster
            .iter()
            .filter(|(_, entry)| entry.ready == Some(attempt))
            .map(|(member, entry)| seat(member, entry))
            .collect();
        if seats.len() < self.options.size_min {
            return;
        }
        self.state = GroupState::Calling {
            missing: seats.len(),
            record: Arc::new(Record::new(attempt, seats, size)),
            deadline: now + self.options.ack_timeout,
        };
    }

    /// Members whose handle another member has: torch refuses such a list. The longest-standing member keeps its
    /// handle.
    fn equal_handles(&self, attempt: Attempt) -> Vec<MemberKey> {
        let mut listed: Vec<_> = self
            .roster
            .iter()
            .filter(|(_, entry)| entry.ready == Some(attempt))
            .collect();
        listed.sort_by_key(|(_, entry)| entry.rank.map_or(u64::MAX, u64::from));
        let mut handles = HashSet::with_capacity(listed.len());
        listed
            .into_iter()
            .filter(|(_, entry)| !handles.insert(&*entry.handle))
            .map(|(member, _)| member)
            .collect()
    }

    fn commit(&mut self, record: Arc<Record>, effects: &mut Vec<Effect>) {
        let attempt = record.attempt;
        self.roster
            .set_ranks(record.seats.iter().map(|seat| seat.member));
        self.committed = Some(Arc::clone(&record));
        self.failed_calls = 0;
        self.state = GroupState::Committed {
            working: record.seats.len(),
            stopped_at: None,
            record,
            passed: Passed::Nothing,
            change: None,
            return_by: None,
        };
        self.keep(effects);
        effects.push(Effect::DeleteKeysBefore(attempt));
        // A change for members that wait may follow in the same step.
        self.announce(None, effects);
    }
}

fn seat(member: MemberKey, entry: &Entry) -> Seat {
    Seat {
        member,
        handle: Arc::clone(&entry.handle),
        step: entry.step,
        previous: entry.rank,
    }
}
