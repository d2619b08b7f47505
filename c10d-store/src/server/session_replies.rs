//! The part of the sessions that survives a restart of the server: the executed requests of their clients, with the replies
//! that may not have arrived (docs/spec/wire-extensions.md, SESSION 12 to 14). Pure.
//!
//! Only effects change the table, and the journal keeps the same effects, so the table is the same after a restart.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::journal::batch::{BatchWriter, Effect};
use crate::session::SessionId;

/// About the memory of a session, a client and a kept reply without its bytes, including the overhead of the allocator.
const SESSION_BYTES: usize = 128;
const CLIENT_BYTES: usize = 128;
const REPLY_BYTES: usize = 64;

/// All sessions that the journal keeps.
#[derive(Debug, Default)]
pub(super) struct SessionReplies {
    sessions: HashMap<SessionId, CarriedSession>,
    memory_bytes: usize,
}

#[derive(Debug, Default)]
struct CarriedSession {
    keep_millis: u32,
    clients: BTreeMap<u32, VecDeque<Executed>>,
}

impl CarriedSession {
    fn memory_bytes(&self) -> usize {
        SESSION_BYTES + self.clients.values().map(memory_of_client).sum::<usize>()
    }
}

/// A request that must not be carried out again, in the order of their numbers.
#[derive(Debug)]
struct Executed {
    request: u32,
    waits: bool,
    reply: Box<[u8]>,
}

impl Executed {
    fn memory_bytes(&self) -> usize {
        REPLY_BYTES + self.reply.len()
    }
}

fn memory_of_client(executed: &VecDeque<Executed>) -> usize {
    CLIENT_BYTES + executed.iter().map(Executed::memory_bytes).sum::<usize>()
}

/// The first outcome of a request that a client sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again<'a> {
    /// The request was carried out, with this reply.
    Reply(&'a [u8]),
    /// The request has arrived at a barrier.
    Waits,
}

impl SessionReplies {
    /// Carries out an effect of a session. `false` if it cannot follow those before.
    pub(super) fn apply(&mut self, effect: Effect<'_>) -> bool {
        match effect {
            Effect::BeginSession {
                session,
                keep_millis,
            } => {
                let Some(id) = SessionId::from_bytes(session) else {
                    return false;
                };
                let session = self.sessions.entry(id).or_insert_with(|| {
                    self.memory_bytes += SESSION_BYTES;
                    CarriedSession::default()
                });
                session.keep_millis = keep_millis;
            }
            Effect::EndSession { session } => {
                let ended = SessionId::from_bytes(session).and_then(|id| self.sessions.remove(&id));
                self.memory_bytes -= ended.map_or(0, |it| it.memory_bytes());
            }
            Effect::Executed {
                session,
                client,
                request,
                answered,
                waits,
                reply,
            } => {
                let id = SessionId::from_bytes(session);
                let Some(session) = id.and_then(|id| self.sessions.get_mut(&id)) else {
                    return false;
                };
                let executed = session.clients.entry(client).or_insert_with(|| {
                    self.memory_bytes += CLIENT_BYTES;
                    VecDeque::new()
                });
                executed.retain(|it| {
                    let is_kept = it.request > answered && it.request != request;
                    if !is_kept {
                        self.memory_bytes -= it.memory_bytes();
                    }
                    is_kept
                });
                let after = executed.partition_point(|it| it.request < request);
                let new = Executed {
                    request,
                    waits,
                    reply: reply.into(),
                };
                self.memory_bytes += new.memory_bytes();
                executed.insert(after, new);
            }
            Effect::EndClient { session, client } => {
                let id = SessionId::from_bytes(session);
                if let Some(session) = id.and_then(|id| self.sessions.get_mut(&id)) {
                    let ended = session.clients.remove(&client);
                    self.memory_bytes -= ended.map_or(0, |it| memory_of_client(&it));
                }
            }
            _ => {}
        }
        true
    }

    /// About the memory of all, in bytes.
    pub(super) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// The sessions, each with its time without a link.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (SessionId, Duration)> {
        let sessions = self.sessions.iter();
        sessions.map(|(id, it)| (*id, Duration::from_millis(u64::from(it.keep_millis))))
    }

    /// Whether anything is kept of clients of this session.
    pub(super) fn has_clients(&self, session: SessionId) -> bool {
        let session = self.sessions.get(&session);
        session.is_some_and(|session| !session.clients.is_empty())
    }

    /// Returns the outcome of this request of a client, if it is kept.
    pub(super) fn again(&self, session: SessionId, client: u32, request: u32) -> Option<Again<'_>> {
        let executed = self.sessions.get(&session)?.clients.get(&client)?;
        let found = executed.iter().find(|it| it.request == request)?;
        Some(if found.waits {
            Again::Waits
        } else {
            Again::Reply(&found.reply)
        })
    }

    /// Whether anything is kept of a client.
    pub(super) fn has_client(&self, session: SessionId, client: u32) -> bool {
        let session = self.sessions.get(&session);
        session.is_some_and(|session| session.clients.contains_key(&client))
    }

    /// Returns the numbers of the clients that have kept requests, from `from` up to, but not including, `to`.
    pub(super) fn clients(&self, session: SessionId, from: u32, to: u32) -> Vec<u32> {
        let session = self.sessions.get(&session);
        let clients = session.map(|session| session.clients.range(from..to));
        clients
            .into_iter()
            .flatten()
            .map(|(client, _)| *client)
            .collect()
    }

    /// The effects that make this table, for a snapshot.
    pub(super) fn write(&self, writer: &mut BatchWriter) {
        for (id, session) in &self.sessions {
            let keep_millis = session.keep_millis;
            let session_id = id.as_bytes();
            writer.push(Effect::BeginSession {
                session: session_id,
                keep_millis,
            });
            for (client, executed) in &session.clients {
                for it in executed {
                    writer.push(Effect::Executed {
                        session: session_id,
                        client: *client,
                        request: it.request,
                        answered: 0,
                        waits: it.waits,
                        reply: &it.reply,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::batch::effects;

    fn executed(id: &SessionId, client: u32, request: u32, answered: u32) -> Effect<'_> {
        Effect::Executed {
            session: id.as_bytes(),
            client,
            request,
            answered,
            waits: request == 9,
            reply: b"r",
        }
    }

    #[test]
    fn a_reply_is_kept_until_it_has_arrived() {
        let id = SessionId::random();
        let mut carried = SessionReplies::default();
        assert!(!carried.apply(executed(&id, 1, 1, 0)), "no session");
        assert_eq!(carried.memory_bytes(), 0);
        let session = id.as_bytes();
        let keep_millis = 5;
        assert!(carried.apply(Effect::BeginSession {
            session,
            keep_millis
        }));
        for (request, answered) in [(3, 0), (9, 0), (5, 0)] {
            assert!(carried.apply(executed(&id, 1, request, answered)));
        }
        let again = |carried: &SessionReplies, request| carried.again(id, 1, request).is_some();
        assert_eq!(
            [3, 4, 5, 9].map(|it| again(&carried, it)),
            [true, false, true, true]
        );
        assert_eq!(carried.again(id, 1, 9), Some(Again::Waits));
        assert!(carried.apply(executed(&id, 1, 10, 5)));
        assert_eq!(
            [3, 5, 9, 10].map(|it| again(&carried, it)),
            [false, false, true, true]
        );

        let expected = SESSION_BYTES + CLIENT_BYTES + 2 * (REPLY_BYTES + 1);
        assert_eq!(carried.memory_bytes(), expected);

        let mut writer = BatchWriter::default();
        carried.write(&mut writer);
        let chunk = writer.finish(1, Vec::new());
        let mut copy = SessionReplies::default();
        for effect in effects(1, &chunk).expect("intact") {
            assert!(copy.apply(effect.expect("intact")));
        }
        assert_eq!([5, 9, 10].map(|it| again(&copy, it)), [false, true, true]);
        assert_eq!(copy.sessions().next(), Some((id, Duration::from_millis(5))));
        assert_eq!(copy.clients(id, 0, 2), [1]);
        assert_eq!(copy.memory_bytes(), expected);
        assert!(copy.apply(Effect::EndClient { session, client: 1 }));
        assert!(!copy.has_client(id, 1));
        assert_eq!(copy.memory_bytes(), SESSION_BYTES);
        assert!(copy.apply(executed(&id, 2, 1, 0)));
        assert!(copy.apply(Effect::EndSession { session }));
        assert_eq!(copy.sessions().count(), 0);
        assert_eq!(copy.memory_bytes(), 0);
    }
}
