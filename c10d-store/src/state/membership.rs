//! MEMBERSHIP and MEMBERSHIP_POLL (docs/spec/wire-extensions.md, section 9.13): has groups take inputs, and carries out their
//! effects.

use std::sync::Arc;
use std::time::Duration;

use c10d_membership::codec::{Encode, list_of};
use c10d_membership::{Attempt, Effect, Group, Input, Kept, Reply as MemberReply};

use super::groups::{CarriedGroup, Polling};
use super::owners::silence_max;
use super::recorder::Mark;
use super::waiters::{Answer, Wants};
use super::{Refusal, StoreState};
use crate::journal::batch::{BatchWriter, Effect as Change};
use crate::message::{ConnId, Replies, Reply};
use crate::moment::Moment;
use crate::snapshot::GroupRecord;
use crate::stored_value::Value;
use crate::wire::{GroupReply, GroupRequest, Opcode, Opening};

/// The most groups. A job has a few, one for each of its starts.
const GROUPS_MAX: usize = 1024;

impl StoreState {
    /// The uuids of groups begin with bits of this random seed.
    pub(crate) const fn seed_groups(&mut self, seed: u64) {
        self.groups.seed = seed;
    }

    /// docs/spec/wire-extensions.md, MEMBERSHIP.
    pub(super) fn membership(
        &mut self,
        conn: ConnId,
        name: &[u8],
        bytes: &[u8],
        waits: bool,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        let request = GroupRequest::decode(bytes).map_err(|_| Refusal::NotAGroupRequest)?;
        if waits {
            self.cancel(conn);
        } else if let GroupRequest::KeepAlive(millis) = request {
            let reply = match self.set_silence(conn, silence_max(millis)) {
                false => GroupReply::Done,
                true => GroupReply::WasSilent,
            };
            self.reply_of_group(conn, waits, &reply, None, replies);
            return Ok(());
        }
        let found = self.groups.by_name.get_key_value(name);
        let Some((name, carried)) = found else {
            let reply = match request {
                _ if waits => GroupReply::NotOpen,
                GroupRequest::Open(opening) => self.open_group(name, opening),
                _ => GroupReply::NotOpen,
            };
            self.reply_of_group(conn, waits, &reply, None, replies);
            return Ok(());
        };
        if let Some(recorder) = &self.slots.recorder {
            recorder.look(name, carried.changed);
        }
        let name = Arc::clone(name);
        let (reply, list) = match request {
            GroupRequest::Say {
                member,
                known,
                message,
            } => {
                let polls = message.polls_after();
                if waits && polls.is_none() {
                    return Err(Refusal::NotAGroupRequest);
                }
                let reply = self.step_group(&name, Input::Message(member, message), replies);
                self.groups.spoke(conn, &name, member);
                self.watch_speaker(conn);
                if waits
                    && reply == MemberReply::NotYet
                    && let Some(after) = polls
                {
                    let polling = Polling {
                        name,
                        member,
                        after,
                        known,
                    };
                    self.wait_for_event(conn, polling, replies);
                    return Ok(());
                }
                let list = self.list_with(&reply, &name, known);
                (GroupReply::Reply(reply), list)
            }
            _ if waits => return Err(Refusal::NotAGroupRequest),
            // Above.
            GroupRequest::KeepAlive(_) => (GroupReply::Done, None),
            GroupRequest::Open(opening) if opening == carried.opening => (GroupReply::Done, None),
            GroupRequest::Open(_) => (GroupReply::OpenOtherwise(carried.opening.clone()), None),
            GroupRequest::Dead(member) => {
                self.step_group(&name, Input::Dead(member), replies);
                (GroupReply::Done, None)
            }
            GroupRequest::End => {
                self.step_group(&name, Input::Close, replies);
                (GroupReply::Done, None)
            }
            GroupRequest::Status => {
                let status = carried.group.status(self.now.since_start());
                self.work += status.members.len() as u64;
                (GroupReply::Status(status), None)
            }
        };
        self.reply_of_group(conn, waits, &reply, list, replies);
        Ok(())
    }

    /// The groups, for a snapshot.
    pub(super) fn group_records(&self) -> Vec<GroupRecord> {
        let now = self.now.since_start();
        let groups = self.groups.by_name.iter();
        groups
            .map(|(name, carried)| GroupRecord {
                name: (**name).into(),
                status: carried.group.status(now),
            })
            .collect()
    }

    /// How many things are known of all groups: polls, connections, members, timers.
    #[cfg(test)]
    pub(crate) fn groups_len(&self) -> [usize; 4] {
        let groups = &self.groups;
        let by_name = groups.by_name.values();
        let polls = by_name.clone().map(|it| it.polls.len()).sum();
        let speakers = by_name.map(|it| it.speakers.len()).sum();
        [polls, speakers, groups.spoken.len(), groups.timers.len()]
    }

    /// When [`tick_groups`](Self::tick_groups) has something to do.
    pub(crate) fn next_group_timer(&self) -> Option<Moment> {
        self.groups.timers.first().map(|(at, _)| *at)
    }

    /// Carries out what the time has brought.
    pub(crate) fn tick_groups(&mut self, replies: &mut impl Replies) {
        if self.next_group_timer().is_none_or(|at| at > self.now) {
            return;
        }
        self.look_at_all();
        self.requester = crate::snapshot::ConnectionId::default();
        let due = self.groups.timers.iter();
        let due = due.take_while(|(at, _)| *at <= self.now);
        let due: Vec<_> = due.map(|(_, name)| Arc::clone(name)).collect();
        for name in due {
            self.step_group(&name, Input::Tick, replies);
        }
    }

    /// A connection has ended or is silent, and so have the members for whom no other one has spoken.
    /// [`look_at_all`](Self::look_at_all) has been called.
    pub(super) fn end_speaker(&mut self, conn: ConnId, replies: &mut impl Replies) {
        if self.groups.spoken.is_empty() {
            return;
        }
        for (name, member) in self.groups.unspoken(conn) {
            self.step_group(&name, Input::Silent(member), replies);
        }
    }

    /// Carries out `Effect::Group`. `false` if it is none.
    pub(super) fn recover_group(&mut self, name: &[u8], bytes: &[u8]) -> bool {
        let name: Arc<[u8]> = name.into();
        if bytes.is_empty() {
            self.groups.remove(&name, &mut self.slots.lent);
            return true;
        }
        let Some((opening, kept)) = decode_kept(bytes) else {
            return false;
        };
        self.groups.remove(&name, &mut self.slots.lent);
        let (group, _) = Group::recover(opening.options.clone(), kept, Duration::ZERO);
        self.groups.insert(name, opening, group);
        true
    }

    /// The groups of a recovered journal go on. Effects are recorded already.
    pub(super) fn end_recovered_groups(&mut self, replies: &mut impl Replies) {
        let names: Vec<_> = self.groups.by_name.keys().cloned().collect();
        for name in names {
            if let Some(carried) = self.groups.by_name.get_mut(&name) {
                let options = carried.opening.options.clone();
                let kept = carried.group.kept();
                let now = self.now.since_start();
                let (group, effects) = Group::recover(options, kept, now);
                carried.group = group;
                for effect in effects {
                    self.carry_out(&name, effect, replies);
                }
                self.groups.update(&name);
            }
        }
    }

    /// The groups, for a snapshot of the journal.
    pub(super) fn write_groups(&self, writer: &mut BatchWriter) {
        for (name, carried) in &self.groups.by_name {
            let bytes = encode_kept(carried);
            writer.push(Change::Group {
                group: name,
                bytes: &bytes,
            });
        }
    }

    fn open_group(&mut self, name: &[u8], opening: Opening) -> GroupReply {
        if self.groups.by_name.len() >= GROUPS_MAX {
            let Some(unused) = self.groups.oldest_unused() else {
                return GroupReply::TooMany;
            };
            self.groups.remove(&unused, &mut self.slots.lent);
            self.record_group(&unused);
        }
        let name: Arc<[u8]> = name.into();
        let group = Group::new(opening.options.clone(), self.groups.new_nonce());
        self.groups.insert(Arc::clone(&name), opening, group);
        self.record_group(&name);
        GroupReply::Done
    }

    /// Has a group take an input, and carries out what follows.
    fn step_group(
        &mut self,
        name: &Arc<[u8]>,
        input: Input,
        replies: &mut impl Replies,
    ) -> MemberReply {
        let now = self.now.since_start();
        let Some(carried) = self.groups.by_name.get_mut(name) else {
            return MemberReply::Unknown;
        };
        let outcome = carried.group.step(now, input);
        for effect in outcome.effects {
            self.carry_out(name, effect, replies);
        }
        self.groups.update(name);
        outcome.reply
    }

    fn carry_out(&mut self, name: &Arc<[u8]>, effect: Effect, replies: &mut impl Replies) {
        match effect {
            Effect::Keep(_) => self.record_group(name),
            Effect::Announce(..) => self.answer_polls(name, replies),
            Effect::Dismiss(member, _) => {
                if let Some(conn) = self.groups.forget_member(name, member) {
                    self.answer_poll(conn, replies);
                }
            }
            Effect::ReleaseWaits(attempt) => {
                if let Some(carried) = self.groups.by_name.get_mut(name) {
                    carried.released = carried.released.max(Some(attempt));
                    let prefix = keys_of(carried, attempt);
                    self.end_waits_of(&prefix, replies);
                }
            }
            Effect::DeleteKeysBefore(attempt) => {
                if let Some(carried) = self.groups.by_name.get(name) {
                    let keys = keys_of(carried, attempt);
                    let prefix = carried.opening.key_prefix.clone();
                    self.sweep_all_but(&prefix, &keys);
                }
            }
            _ => {}
        }
    }

    /// Answers the polls of a group for which there is news.
    fn answer_polls(&mut self, name: &Arc<[u8]>, replies: &mut impl Replies) {
        let Some(carried) = self.groups.by_name.get(name) else {
            return;
        };
        let polls: Vec<ConnId> = carried.polls.values().copied().collect();
        self.work += polls.len() as u64;
        for conn in polls {
            self.answer_poll(conn, replies);
        }
    }

    /// Answers the poll of a connection, unless it has to go on waiting.
    fn answer_poll(&mut self, conn: ConnId, replies: &mut impl Replies) {
        let Some(Answer::Event(polling)) = self.waiters.answer_of(conn) else {
            return;
        };
        let Polling {
            name,
            member,
            after,
            known,
        } = (**polling).clone();
        let Some(carried) = self.groups.by_name.get(&name) else {
            return;
        };
        let reply = carried.group.poll(member, after);
        if reply == MemberReply::NotYet {
            return;
        }
        let list = self.list_with(&reply, &name, known);
        self.directory.keep(conn, &self.waiters);
        self.cancel(conn);
        self.reply_of_group(conn, true, &GroupReply::Reply(reply), list, replies);
    }

    /// A poll waits. An earlier one of the same member over another connection ends.
    fn wait_for_event(&mut self, conn: ConnId, polling: Polling, replies: &mut impl Replies) {
        let name = Arc::clone(&polling.name);
        let Some(carried) = self.groups.by_name.get_mut(&name) else {
            return;
        };
        if let Some(earlier) = carried.polls.insert(polling.member, conn) {
            self.depend_on_batch();
            self.end_wait_of(earlier, replies);
            // The end of the earlier one has removed this one.
            if let Some(carried) = self.groups.by_name.get_mut(&name) {
                carried.polls.insert(polling.member, conn);
            }
        }
        let origin = self.origin(Opcode::MembershipPoll);
        self.waiters
            .open(conn, Answer::Event(Box::new(polling)), origin);
        self.miss(conn, &name, Wants::Event);
    }

    /// The list of a reply to a client that has the one of attempt `known`, as bytes, which are made once.
    fn list_with(
        &mut self,
        reply: &MemberReply,
        name: &Arc<[u8]>,
        known: Option<Attempt>,
    ) -> Option<Value> {
        let list = list_of(reply).filter(|list| known != Some(list.attempt))?;
        let carried = self.groups.by_name.get_mut(name)?;
        let (lists, lent) = (&mut carried.lists, &mut self.slots.lent);
        if lists.start(list, carried.group.committed(), lent) {
            self.groups.update(name);
        }
        let carried = self.groups.by_name.get_mut(name)?;
        let (bytes, is_new) = carried.lists.bytes(known)?;
        if is_new {
            self.work += super::work_of(bytes.as_bytes());
            self.groups.update(name);
        }
        Some(bytes)
    }

    fn reply_of_group(
        &self,
        conn: ConnId,
        waits: bool,
        reply: &GroupReply,
        list: Option<Value>,
        replies: &mut impl Replies,
    ) {
        if waits {
            self.reply(replies, conn, Reply::StopWaiting);
        }
        let bytes = reply.encode(self.now.since_start());
        self.reply(replies, conn, Reply::Bytes(&bytes));
        self.reply(replies, conn, Reply::Value(list.as_ref()));
    }

    /// Records what a restarted server needs of a group, or that it is gone.
    fn record_group(&mut self, name: &Arc<[u8]>) {
        let Some(recorder) = &mut self.slots.recorder else {
            return;
        };
        let carried = self.groups.by_name.get_mut(name);
        let bytes = carried.as_deref().map_or_else(Vec::new, encode_kept);
        let last = carried.as_ref().map_or(Mark::default(), |it| it.changed);
        let effect = Change::Group {
            group: name,
            bytes: &bytes,
        };
        let changed = recorder.record(last, effect);
        match carried {
            Some(carried) => carried.changed = changed,
            None => recorder.removed(name, changed),
        }
    }
}

fn keys_of(carried: &CarriedGroup, attempt: Attempt) -> Vec<u8> {
    let uuid = attempt.uuid().to_string();
    [&*carried.opening.key_prefix, uuid.as_bytes(), b"/"].concat()
}

fn encode_kept(carried: &CarriedGroup) -> Vec<u8> {
    let mut bytes = Vec::new();
    carried.group.kept().encode(&mut bytes);
    carried.opening.encode(&mut bytes);
    bytes
}

fn decode_kept(mut bytes: &[u8]) -> Option<(Opening, Kept)> {
    let kept = Kept::decode(&mut bytes).ok()?;
    Some((Opening::decode(bytes).ok()?, kept))
}
