//! The groups of a server: gives them their inputs, and returns their effects for the server
//! (docs/spec/wire-extensions.md, section 9.13).

mod open_groups;

use std::sync::Arc;
use std::time::Duration;

use c10d_store::GroupRecord;
use c10d_store::groups::{
    ConnId, GroupEffect, GroupRequest as Request, Groups, NotAGroupRequest, RequestKind, Value,
};

use crate::codec::{Encode, list_of};
use crate::group::{Effect, Group, GroupStatus, Input, Kept};
use crate::message::Reply;
use crate::record::Attempt;
use crate::request::{GroupReply, GroupRequest, Opening};
use open_groups::{GROUP_BYTES, OpenGroup, OpenGroups, Polling};

/// The most groups. A job has a few, one for each of its starts.
pub(crate) const GROUPS_MAX: usize = 1024;

/// Copying this many bytes is one unit of work of the server.
const BYTES_PER_WORK: usize = 1024;

/// Makes the groups of a server, for
/// [`ServerOptions::with_groups`](c10d_store::ServerOptions::with_groups). The uuids of its groups begin with bits of the
/// random `seed`.
///
/// ```
/// use c10d_store::{ServerOptions, TcpStoreServer};
///
/// let options = ServerOptions::default().with_groups(c10d_membership::groups);
/// let server = TcpStoreServer::bind("127.0.0.1:0", options)?;
/// # Ok::<(), c10d_store::StoreError>(())
/// ```
#[must_use]
pub fn groups(seed: u64) -> Box<dyn Groups> {
    Box::new(OpenGroups::new(seed))
}

/// Returns the status of a group in a snapshot of a server; `None` if the server did not get its groups from
/// [`groups`](groups()).
#[must_use]
pub fn status_of(record: &GroupRecord) -> Option<&GroupStatus> {
    record.status.downcast_ref()
}

impl Groups for OpenGroups {
    fn kind_of(&self, request: &[u8]) -> RequestKind {
        if GroupRequest::may_add(request) {
            RequestKind::Adds(GROUP_BYTES + request.len())
        } else if GroupRequest::is_keep_alive(request) {
            RequestKind::KeepsAlive
        } else {
            RequestKind::Other
        }
    }

    fn request(
        &mut self,
        now: Duration,
        request: Request<'_>,
        effects: &mut Vec<GroupEffect>,
    ) -> Result<(), NotAGroupRequest> {
        let Request {
            conn,
            name,
            bytes,
            waits,
        } = request;
        let request = GroupRequest::decode(bytes).map_err(|_| NotAGroupRequest)?;
        if let (GroupRequest::KeepAlive(millis), false) = (&request, waits) {
            effects.push(GroupEffect::KeepAlive {
                conn,
                millis: *millis,
                kept: GroupReply::Done.encode(now),
                was_silent: GroupReply::WasSilent.encode(now),
            });
            return Ok(());
        }
        let mut step = Step {
            groups: self,
            now,
            effects,
        };
        let Some((name, _)) = step.groups.by_name.get_key_value(name) else {
            let reply = match request {
                GroupRequest::Open(opening) if !waits => step.open(name, opening),
                _ => GroupReply::NotOpen,
            };
            step.reply(conn, waits, &reply, None);
            return Ok(());
        };
        let name = Arc::clone(name);
        match request {
            GroupRequest::Say {
                member,
                known,
                message,
            } => {
                let polls = message.polls_after();
                if waits && polls.is_none() {
                    return Err(NotAGroupRequest);
                }
                let reply = step.step(&name, Input::Message(member, message));
                step.groups.spoke(conn, &name, member);
                match polls {
                    Some(after) if waits && reply == Reply::NotYet => {
                        let polling = Polling {
                            name,
                            member,
                            after,
                            known,
                        };
                        step.wait(conn, polling);
                    }
                    _ => {
                        let list = step.list_with(&reply, &name, known);
                        step.reply(conn, waits, &GroupReply::Reply(reply), list);
                    }
                }
            }
            _ if waits => return Err(NotAGroupRequest),
            request => {
                let reply = step.answer(&name, request);
                step.reply(conn, false, &reply, None);
            }
        }
        Ok(())
    }

    fn wait_ended(&mut self, conn: ConnId) {
        self.poll_ended(conn);
    }

    fn silent(&mut self, now: Duration, conn: ConnId, effects: &mut Vec<GroupEffect>) {
        if self.spoken.is_empty() {
            return;
        }
        let members = self.unspoken(conn);
        let mut step = Step {
            groups: self,
            now,
            effects,
        };
        for (name, member) in members {
            step.step(&name, Input::Silent(member));
        }
    }

    fn is_speaker(&self, conn: ConnId) -> bool {
        self.spoken.contains_key(&conn)
    }

    fn wake_at(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<GroupEffect>) {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        let due: Vec<_> = due.map(|(_, name)| Arc::clone(name)).collect();
        let mut step = Step {
            groups: self,
            now,
            effects,
        };
        for name in due {
            step.step(&name, Input::Tick);
        }
    }

    fn is_released(&self, key: &[u8]) -> bool {
        self.is_released(key)
    }

    fn memory_bytes(&self) -> usize {
        self.memory_bytes()
    }

    fn records(&self, now: Duration) -> Vec<GroupRecord> {
        let groups = self.by_name.iter();
        groups
            .map(|(name, open)| GroupRecord {
                name: (**name).into(),
                status: Arc::new(open.group.status(now)),
            })
            .collect()
    }

    fn names(&self) -> Vec<Arc<[u8]>> {
        self.by_name.keys().cloned().collect()
    }

    fn image(&self, name: &[u8]) -> Option<Vec<u8>> {
        let open = self.by_name.get(name)?;
        let mut bytes = Vec::new();
        open.group.kept().encode(&mut bytes);
        open.opening.encode(&mut bytes);
        Some(bytes)
    }

    fn restore(&mut self, name: &[u8], image: &[u8]) -> bool {
        let name: Arc<[u8]> = name.into();
        // No reply holds a list yet.
        let nothing = &mut Vec::new();
        if image.is_empty() {
            self.remove(&name, nothing);
            return true;
        }
        let Some((opening, kept)) = decode_image(image) else {
            return false;
        };
        self.remove(&name, nothing);
        let (group, _) = Group::recover(opening.options.clone(), kept, Duration::ZERO);
        self.insert(name, opening, group);
        true
    }

    fn resume(&mut self, now: Duration, effects: &mut Vec<GroupEffect>) {
        let names = self.names();
        let mut step = Step {
            groups: self,
            now,
            effects,
        };
        for name in names {
            let Some(open) = step.groups.by_name.get_mut(&name) else {
                continue;
            };
            let options = open.opening.options.clone();
            let (group, effects) = Group::recover(options, open.group.kept(), now);
            open.group = group;
            step.carry_out(&name, effects);
        }
    }

    #[cfg(any(test, debug_assertions))]
    fn check_invariants(&self) {
        self.check_invariants();
    }
}

fn decode_image(mut bytes: &[u8]) -> Option<(Opening, Kept)> {
    let kept = Kept::decode(&mut bytes).ok()?;
    Some((Opening::decode(bytes).ok()?, kept))
}

/// Something that happens to groups at one moment.
struct Step<'a> {
    groups: &'a mut OpenGroups,
    now: Duration,
    effects: &'a mut Vec<GroupEffect>,
}

impl Step<'_> {
    fn open(&mut self, name: &[u8], opening: Opening) -> GroupReply {
        if self.groups.by_name.len() >= GROUPS_MAX {
            let Some(unused) = self.groups.oldest_unused() else {
                return GroupReply::TooMany;
            };
            self.groups.remove(&unused, self.effects);
            self.effects.push(GroupEffect::Keep(unused));
        }
        let name: Arc<[u8]> = name.into();
        let group = Group::new(opening.options.clone(), self.groups.new_nonce());
        self.groups.insert(Arc::clone(&name), opening, group);
        self.effects.push(GroupEffect::Keep(name));
        GroupReply::Done
    }

    /// Carries out a request to an open group that is not of a member.
    fn answer(&mut self, name: &Arc<[u8]>, request: GroupRequest) -> GroupReply {
        let Some(open) = self.groups.by_name.get(name) else {
            return GroupReply::NotOpen;
        };
        match request {
            GroupRequest::Open(opening) if opening != open.opening => {
                return GroupReply::OpenOtherwise(open.opening.clone());
            }
            GroupRequest::Status => {
                let status = open.group.status(self.now);
                let members = status.members.len() as u64;
                self.effects.push(GroupEffect::Work(members));
                return GroupReply::Status(status);
            }
            GroupRequest::Dead(member) => drop(self.step(name, Input::Dead(member))),
            GroupRequest::End => drop(self.step(name, Input::Close)),
            GroupRequest::Open(_) | GroupRequest::KeepAlive(_) | GroupRequest::Say { .. } => {}
        }
        GroupReply::Done
    }

    /// Has a group take an input. Returns its answer.
    fn step(&mut self, name: &Arc<[u8]>, input: Input) -> Reply {
        let Some(open) = self.groups.by_name.get_mut(name) else {
            return Reply::Unknown;
        };
        let outcome = open.group.step(self.now, input);
        self.carry_out(name, outcome.effects);
        outcome.reply
    }

    fn carry_out(&mut self, name: &Arc<[u8]>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Keep(_) => self.effects.push(GroupEffect::Keep(Arc::clone(name))),
                Effect::Announce(..) => self.answer_polls(name),
                Effect::Dismiss(member, _) => {
                    if let Some(conn) = self.groups.forget_member(name, member) {
                        self.answer_poll(conn);
                    }
                }
                Effect::ReleaseWaits(attempt) => {
                    if let Some(open) = self.groups.by_name.get_mut(name) {
                        open.released = open.released.max(Some(attempt));
                        let keys = keys_of(open, attempt);
                        self.effects.push(GroupEffect::EndWaits(keys));
                    }
                }
                Effect::DeleteKeysBefore(attempt) => {
                    if let Some(open) = self.groups.by_name.get(name) {
                        self.effects.push(GroupEffect::DeleteKeys {
                            prefix: open.opening.key_prefix.clone(),
                            except: keys_of(open, attempt),
                        });
                    }
                }
            }
        }
        self.groups.update(name);
    }

    /// Answers the polls of a group for which there is news.
    fn answer_polls(&mut self, name: &Arc<[u8]>) {
        let Some(open) = self.groups.by_name.get(name) else {
            return;
        };
        let polls: Vec<ConnId> = open.polls.values().copied().collect();
        self.effects.push(GroupEffect::Work(polls.len() as u64));
        for conn in polls {
            self.answer_poll(conn);
        }
    }

    /// Answers the poll of a connection, unless it continues to wait.
    fn answer_poll(&mut self, conn: ConnId) {
        let Some(polling) = self.groups.polls.get(&conn) else {
            return;
        };
        let Some(open) = self.groups.by_name.get(&polling.name) else {
            return;
        };
        let reply = open.group.poll(polling.member, polling.after);
        if reply == Reply::NotYet {
            return;
        }
        let (name, known) = (Arc::clone(&polling.name), polling.known);
        self.groups.poll_ended(conn);
        let list = self.list_with(&reply, &name, known);
        self.reply(conn, true, &GroupReply::Reply(reply), list);
    }

    /// A poll waits. The earlier poll of the same member over another connection ends.
    fn wait(&mut self, conn: ConnId, polling: Polling) {
        let name = Arc::clone(&polling.name);
        if let Some(earlier) = self.groups.poll_waits(conn, polling) {
            self.effects.push(GroupEffect::EndWait(earlier));
        }
        self.effects.push(GroupEffect::Wait { conn, name });
    }

    /// The list of a reply to a client that has the list of attempt `known`, as bytes, which are made once.
    fn list_with(
        &mut self,
        reply: &Reply,
        name: &Arc<[u8]>,
        known: Option<Attempt>,
    ) -> Option<Value> {
        let list = list_of(reply).filter(|list| known != Some(list.attempt))?;
        let open = self.groups.by_name.get_mut(name)?;
        let is_new_list = open.lists.start(list, open.group.committed(), self.effects);
        let (bytes, is_new) = open.lists.bytes(known)?;
        if is_new {
            let work = bytes.as_bytes().len() / BYTES_PER_WORK;
            self.effects.push(GroupEffect::Work(work as u64));
        }
        if is_new || is_new_list {
            self.groups.update(name);
        }
        Some(bytes)
    }

    fn reply(&mut self, conn: ConnId, waits: bool, reply: &GroupReply, list: Option<Value>) {
        self.effects.push(GroupEffect::Reply {
            conn,
            waits,
            bytes: reply.encode(self.now),
            list,
        });
    }
}

/// The prefix of the keys of an attempt.
fn keys_of(open: &OpenGroup, attempt: Attempt) -> Vec<u8> {
    let uuid = attempt.uuid().to_string();
    [&*open.opening.key_prefix, uuid.as_bytes(), b"/"].concat()
}
