//! How a group handles a member's message. Each message may arrive twice, late, or never.

use std::sync::Arc;
use std::time::Duration;

use super::roster::Entry;
use super::{Effect, Group, GroupState, Passed};
use crate::message::{Limit, Message, Reason, Reply};
use crate::record::{Attempt, MemberKey};

impl Group {
    pub(super) fn message(
        &mut self,
        now: Duration,
        member: MemberKey,
        message: Message,
        effects: &mut Vec<Effect>,
    ) -> Reply {
        if let Some(reason) = self.roster.evicted(member) {
            return Reply::Evicted(reason);
        }
        if let GroupState::Ended(reason) = self.state {
            return Reply::Ended(reason);
        }
        if let Message::Hello { handle, step } = message {
            return self.hello(now, member, handle, step, effects);
        }
        let Some(entry) = self.roster.get_mut(member) else {
            return Reply::Unknown;
        };
        entry.is_seen = true;
        match message {
            Message::Ready {
                attempt,
                handle,
                step,
            } => self.ready(now, member, attempt, handle, step),
            Message::Ack { attempt, is_ok } => self.ack(now, member, attempt, is_ok, effects),
            Message::Boundary { generation, .. } if message == Message::finished(generation) => {
                self.finish(now, member, generation)
            }
            Message::Boundary { generation, step } => self.boundary(now, member, generation, step),
            Message::Leave => self.leave(now, member, effects),
            Message::Poll { after, is_leaving } => {
                if is_leaving {
                    self.leave(now, member, effects);
                }
                self.poll(member, after)
            }
            Message::PollFinished { generation, after } => {
                self.finish(now, member, generation);
                self.poll(member, after)
            }
            Message::Hello { .. } => Reply::Accepted,
        }
    }

    /// A member has done its last step. The group has finished when all members of the generation have.
    fn finish(&mut self, now: Duration, member: MemberKey, generation: Attempt) -> Reply {
        let (
            GroupState::Committed {
                record,
                working,
                stopped_at,
                ..
            },
            Some(entry),
        ) = (&mut self.state, self.roster.get_mut(member))
        else {
            return Reply::Over;
        };
        if record.attempt != generation || entry.rank.is_none() {
            return Reply::Over;
        }
        *working -= usize::from(entry.finished != Some(generation));
        entry.finished = Some(generation);
        stopped_at.get_or_insert(now);
        Reply::Accepted
    }

    fn hello(
        &mut self,
        now: Duration,
        member: MemberKey,
        handle: Arc<str>,
        step: u64,
        effects: &mut Vec<Effect>,
    ) -> Reply {
        if let Some(entry) = self.roster.get_mut(member) {
            entry.is_seen = true;
            return Reply::Accepted;
        }
        if let Some(limit) = self.handle_limit(&handle) {
            return Reply::Refused(limit);
        }
        let replaced = self.roster.incarnation_of(member.id);
        let others = self.roster.len() - usize::from(replaced.is_some());
        if others >= self.options.members_max {
            return Reply::Refused(Limit::Members(self.options.members_max));
        }
        let is_running = self.committed.is_some();
        if is_running && self.roster.newcomers() >= self.options.newcomers_max {
            return Reply::Refused(Limit::Newcomers(self.options.newcomers_max));
        }
        if let Some(incarnation) = replaced {
            let replaced = MemberKey {
                incarnation,
                ..member
            };
            self.lose(now, replaced, Reason::Replaced, effects);
        }
        self.roster
            .insert(member, Entry::new(member.incarnation, handle, step));
        if let GroupState::Forming { deadline } = &mut self.state {
            deadline.get_or_insert(now + self.options.form_timeout);
        }
        Reply::Accepted
    }

    fn ready(
        &mut self,
        now: Duration,
        member: MemberKey,
        attempt: Attempt,
        handle: Arc<str>,
        step: u64,
    ) -> Reply {
        if let Some(limit) = self.handle_limit(&handle) {
            return Reply::Refused(limit);
        }
        let Some(entry) = self.roster.get_mut(member) else {
            return Reply::Unknown;
        };
        if entry.ready == Some(attempt) {
            return Reply::Accepted;
        }
        let missing = match &mut self.state {
            GroupState::Proposed {
                attempt: proposed,
                missing,
                ..
            } if *proposed == attempt => missing,
            GroupState::Committed {
                change: Some(change),
                stopped_at,
                ..
            } if change.attempt == attempt => {
                if entry.rank.is_some() {
                    stopped_at.get_or_insert(now);
                    change.bind(now + self.options.boundary_timeout);
                }
                &mut change.missing
            }
            _ => return Reply::Over,
        };
        *missing -= usize::from(entry.is_missing(attempt));
        entry.ready = Some(attempt);
        entry.handle = handle;
        entry.step = step;
        Reply::Accepted
    }

    fn ack(
        &mut self,
        now: Duration,
        member: MemberKey,
        attempt: Attempt,
        is_ok: bool,
        effects: &mut Vec<Effect>,
    ) -> Reply {
        let Some(entry) = self.roster.get_mut(member) else {
            return Reply::Unknown;
        };
        match &mut self.state {
            GroupState::Calling {
                record, missing, ..
            } if record.attempt == attempt && entry.ready == Some(attempt) => {
                if !is_ok {
                    self.call_failed(now, member, effects);
                } else if entry.acked != Some(attempt) {
                    entry.acked = Some(attempt);
                    *missing -= 1;
                }
                Reply::Accepted
            }
            GroupState::Committed { record, .. } if record.attempt == attempt => Reply::Accepted,
            _ => Reply::Over,
        }
    }

    fn boundary(
        &mut self,
        now: Duration,
        member: MemberKey,
        generation: Attempt,
        step: u64,
    ) -> Reply {
        let (
            GroupState::Committed {
                record,
                passed,
                stopped_at,
                change,
                ..
            },
            Some(entry),
        ) = (&mut self.state, self.roster.get_mut(member))
        else {
            return Reply::Over;
        };
        if record.attempt != generation || entry.rank.is_none() {
            return Reply::Over;
        }
        entry.boundary = Some(step);
        if let Some(change) = change {
            match change.step {
                Some(stop) if step >= stop => {
                    stopped_at.get_or_insert(now);
                    change.bind(now + self.options.boundary_timeout);
                    return Reply::Change(change.attempt);
                }
                Some(_) => {}
                // Other members may have passed this boundary before the service was restarted.
                None => change.step = Some(step.saturating_add(1)),
            }
        }
        *passed = match *passed {
            Passed::Step(newest) => Passed::Step(newest.max(step)),
            Passed::Nothing | Passed::Unknown => Passed::Step(step),
        };
        Reply::Proceed
    }

    /// A member of a list leaves at the next boundary, because the other members count on it; any other member leaves
    /// at once.
    fn leave(&mut self, now: Duration, member: MemberKey, effects: &mut Vec<Effect>) -> Reply {
        let Some(entry) = self.roster.get(member) else {
            return Reply::Unknown;
        };
        let is_needed = match &self.state {
            GroupState::Calling { record, .. } => entry.ready == Some(record.attempt),
            GroupState::Committed { .. } => entry.rank.is_some(),
            _ => false,
        };
        if is_needed {
            self.roster.set_leaving(member);
            return Reply::Accepted;
        }
        self.lose(now, member, Reason::Left, effects);
        Reply::Evicted(Reason::Left)
    }

    fn handle_limit(&self, handle: &str) -> Option<Limit> {
        let max = self.options.handle_bytes_max;
        (handle.len() > max).then_some(Limit::HandleBytes(max))
    }
}
