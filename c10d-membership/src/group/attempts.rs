//! The three stages of an attempt: proposed, called, committed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::roster::Entry;
use super::state::{Change, GroupState, Passed};
use super::{Effect, Group};
use crate::event::{Cause, EndReason, Reason};
use crate::identity::{Attempt, MemberKey};
use crate::record::{Record, Seat};

impl Group {
    /// Asks all members to leave their mesh and be ready. The attempt waits for the present members; members that
    /// arrive later take part if they are ready before the present ones are.
    pub(super) fn propose(&mut self, now: Duration, cause: Cause, effects: &mut Vec<Effect>) {
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
    pub(super) fn propose_change(&mut self, now: Duration, effects: &mut Vec<Effect>) {
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
    pub(super) fn call(
        &mut self,
        now: Duration,
        attempt: Attempt,
        cause: Cause,
        effects: &mut Vec<Effect>,
    ) {
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

    pub(super) fn commit(&mut self, record: Arc<Record>, effects: &mut Vec<Effect>) {
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
