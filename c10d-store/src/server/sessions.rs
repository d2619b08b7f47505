//! The sessions of relays, and of clients that survive broken connections. Pure: the current time is an argument.
//!
//! Does not see the requests of clients: the event loop serves each client of a session like a connection.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mio::Token;
use slab::Slab;

use super::session_replies::SessionReplies;
use super::timers::Timers;
use crate::moment::Moment;
use crate::session::{
    FrameReader, Group, Hello, SentPieces, SessionId, SessionStream, StoreId, Violation, Welcome,
};

#[cfg(test)]
mod tests;

/// The most sessions at a time. Each has a relay, thus a node, behind it.
const SESSIONS_MAX: usize = 65_536;

/// The most clients of a session at a time. A node has some hundreds of ranks at most, with a few connections each.
const CLIENTS_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct Sessions {
    store: StoreId,
    /// The position of the journal at which this run began, plus 1; 0 without one.
    begins: u64,
    /// The longest time that a session without a link is remembered.
    keep_max: Duration,
    by_id: HashMap<SessionId, usize>,
    slots: Slab<Session>,
    expiries: Timers,
    /// The part of the sessions that survives the server. Empty without a journal.
    pub(super) carried: SessionReplies,
    /// The slots of sessions with clients that wait for their budget.
    pub(super) short_of_budget: BTreeSet<usize>,
    /// Sessions of the journal that have ended since the last record of this.
    pub(super) ended: Vec<SessionId>,
    /// The part of forgotten sessions in the [`Budget`](super::budget::Budget), which has to be taken off.
    pub(super) forgotten_bytes: usize,
}

/// The server's end of one session.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    pub(super) stream: SessionStream,
    pub(super) reader: FrameReader,
    /// The pieces of long values that the peer has; `None` if it takes no pieces.
    pub(super) pieces: Option<Box<SentPieces>>,
    pub(super) backlog: Backlog,
    /// The open clients in the order of their numbers, each with the token of its connection.
    clients: Vec<(u32, Token)>,
    /// The number of the last client that was opened.
    last_client: Option<u32>,
    pub(super) link: Option<Token>,
    /// The time when the last link was accepted.
    pub(super) accepted: Moment,
    attempt: u64,
    keep: Duration,
    /// Set while there is no link.
    expires: Option<Instant>,
    /// The address of the link's peer.
    pub(super) peer: IpAddr,
    /// `None` while none have had to wait.
    waiting: Option<Box<Waiting>>,
    /// Whether its link gets heartbeats.
    wants_heartbeats: bool,
    /// Whether its clients may be shown REFUSAL.
    pub(super) knows_refusal: bool,
    /// The position that was last reported to its peer; `None` if it does not take any.
    told: Option<u64>,
    /// Whether the journal keeps the effects of its clients' requests.
    pub(super) is_carried: bool,
    /// The part of the [`Budget`](super::budget::Budget) that the session itself takes, without its clients.
    pub(super) counted_bytes: usize,
}

/// Clients of a session that others hold up.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Their replies wait until the peer acknowledges replies to other clients.
    pub(super) for_room: VecDeque<Token>,
    /// They have no unsent replies, and their requests wait until the replies of others are sent.
    pub(super) for_budget: VecDeque<Token>,
}

/// The result of a SESSION request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attached {
    /// The connection is the session's link from now on, and `replaced` is not any more.
    Accepted {
        slot: usize,
        replaced: Option<Token>,
        welcome: Welcome,
    },
    Refused(Welcome),
    /// A newer attempt has arrived before, or the number is that of no attempt.
    Late,
}

/// A connection that may become the link of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) link: Token,
    pub(super) peer: IpAddr,
}

impl Session {
    /// Reports to the peer the position up to which the journal has kept the effects that the next replies show
    /// (docs/spec/wire-extensions.md, SESSION 19).
    pub(super) fn tell_position(&mut self, durable: u64) {
        if let Some(told) = &mut self.told
            && *told < durable
        {
            *told = durable;
            self.stream.push_position(durable);
        }
    }
}

impl Sessions {
    pub(super) fn new(store: StoreId, keep_max: Duration) -> Self {
        Self {
            store,
            begins: 0,
            keep_max,
            by_id: HashMap::new(),
            slots: Slab::new(),
            expiries: Timers::default(),
            carried: SessionReplies::default(),
            short_of_budget: BTreeSet::new(),
            ended: Vec::new(),
            forgotten_bytes: 0,
        }
    }

    /// The sessions that a journal has kept begin again, without links, at a store that now has this id. Returns the
    /// last time at which a session expires that has no link.
    pub(super) fn restore(
        &mut self,
        store: StoreId,
        begins: u64,
        carried: SessionReplies,
        now: Instant,
    ) -> Option<Instant> {
        (self.store, self.begins) = (store, begins);
        let mut last = None;
        for (id, keep) in carried.sessions() {
            let peer = IpAddr::from([0, 0, 0, 0]);
            let slot = self.insert(id, peer);
            if let Some(session) = self.slots.get_mut(slot) {
                session.is_carried = true;
                session.keep = keep.min(self.keep_max);
                session.expires = now.checked_add(session.keep);
                if let Some(at) = session.expires {
                    self.expiries.add(at, Token(slot));
                }
                last = last.max(session.expires);
            }
        }
        self.carried = carried;
        last
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Session> {
        self.slots.get_mut(slot)
    }

    /// Whether the journal keeps a session.
    pub(super) fn is_carried(&self, slot: usize) -> bool {
        self.slots
            .get(slot)
            .is_some_and(|session| session.is_carried)
    }

    /// Whether clients of a session wait for its budget.
    pub(super) fn waits_for_budget(&self, slot: usize) -> bool {
        let waiting = self.slots.get(slot).and_then(|it| it.waiting.as_ref());
        waiting.is_some_and(|waiting| !waiting.for_budget.is_empty())
    }

    /// Whether a session has received what it has not carried out.
    pub(super) fn has_backlog(&self, slot: usize) -> bool {
        let session = self.slots.get(slot);
        session.is_some_and(|session| !session.backlog.is_empty())
    }

    /// Whether a later run of this store has accepted the session: another process has taken over.
    pub(super) fn is_deposed_by(&self, hello: &Hello) -> bool {
        self.store.is_before(hello.store)
    }

    /// A connection has sent SESSION (docs/spec/wire-extensions.md, SESSION 2 and 3).
    pub(super) fn attach(&mut self, hello: &Hello, candidate: Candidate) -> Attached {
        if hello.attempt == 0 {
            return Attached::Late;
        }
        let store = self.store;
        let mut is_restarted = false;
        let begins = self.begins;
        let unknown = Attached::Refused(Welcome::Unknown { store, begins });
        let slot = match self.by_id.get(&hello.session) {
            // docs/spec/wire-extensions.md, SESSION 12.
            Some(slot) if hello.store.is_before(store) => {
                is_restarted = true;
                *slot
            }
            Some(_) if hello.store != store && hello.store != StoreId::ANY => return unknown,
            Some(slot) => *slot,
            // A session that was accepted once never begins again: its clients have a history.
            None if hello.store != StoreId::ANY || hello.received > 0 => return unknown,
            None => {
                if self.slots.len() >= SESSIONS_MAX {
                    self.forget_unused();
                }
                if self.slots.len() >= SESSIONS_MAX {
                    return Attached::Refused(Welcome::Full { store });
                }
                self.insert(hello.session, candidate.peer)
            }
        };
        let Some(session) = self.slots.get_mut(slot) else {
            return unknown;
        };
        if hello.attempt <= session.attempt {
            return Attached::Late;
        }
        if is_restarted {
            if !hello.carries_over || !session.is_carried || session.had_clients() {
                return unknown;
            }
            session.stream = SessionStream::default();
            session.reader = FrameReader::default();
            session.backlog = Backlog::default();
        } else if session.stream.attach(hello.received).is_err() {
            return unknown;
        }
        if is_restarted || session.attempt == 0 {
            session.pieces = hello.takes_pieces.then(Box::default);
            session.told = hello.takes_positions.then_some(0);
        }
        session.attempt = hello.attempt;
        session.wants_heartbeats = hello.wants_heartbeats;
        session.knows_refusal = hello.knows_refusal;
        session.keep = hello.keep.min(self.keep_max);
        session.expires = None;
        session.peer = candidate.peer;
        Attached::Accepted {
            slot,
            replaced: session.link.replace(candidate.link),
            welcome: if is_restarted {
                Welcome::Restarted { store, begins }
            } else {
                Welcome::Accepted {
                    store,
                    received: session.stream.received(),
                }
            },
        }
    }

    /// A connection was closed that may have been the link of this session: its time runs
    /// (docs/spec/wire-extensions.md, SESSION 9). Returns whether it was, so that its clients are away from now on.
    pub(super) fn link_closed(&mut self, slot: usize, link: Token, now: Instant) -> bool {
        let Some(session) = self.slots.get_mut(slot) else {
            return false;
        };
        if session.link != Some(link) {
            return false;
        }
        session.link = None;
        session.expires = now.checked_add(session.keep);
        if let Some(at) = session.expires {
            self.expiries.add(at, Token(slot));
        }
        true
    }

    /// The memory of each session itself, by slot.
    pub(super) fn kept(&self) -> impl Iterator<Item = (usize, usize)> {
        let sessions = self.slots.iter();
        sessions.map(|(slot, session)| (slot, session.counted_bytes))
    }

    /// The links that get heartbeats, each with the slot of its session.
    pub(super) fn beating(&self) -> Vec<(usize, Token)> {
        let beating = self.slots.iter().filter(|(_, it)| it.wants_heartbeats);
        beating
            .filter_map(|(slot, session)| Some((slot, session.link?)))
            .collect()
    }

    /// Removes a session. Its clients are closed by the caller.
    pub(super) fn remove(&mut self, slot: usize) -> Option<Session> {
        let session = self.slots.try_remove(slot)?;
        self.by_id.remove(&session.id);
        if session.is_carried {
            self.ended.push(session.id);
        }
        Some(session)
    }

    /// The next session whose time without a link has passed.
    pub(super) fn next_expired(&mut self, now: Instant) -> Option<usize> {
        while let Some((at, Token(slot))) = self.expiries.pop_due(now) {
            let session = self.slots.get(slot);
            if session.is_some_and(|session| session.expires == Some(at)) {
                return Some(slot);
            }
        }
        None
    }

    /// When [`next_expired`](Self::next_expired) may return one.
    pub(super) fn next_expiry(&mut self) -> Option<Instant> {
        let slots = &self.slots;
        self.expiries.next(|at, Token(slot)| {
            let session = slots.get(slot);
            session.is_some_and(|session| session.expires == Some(at))
        })
    }

    /// Drops the sessions without a link that never had a client, which loses nothing.
    fn forget_unused(&mut self) {
        let (by_id, carried, ended) = (&mut self.by_id, &self.carried, &mut self.ended);
        let forgotten_bytes = &mut self.forgotten_bytes;
        self.slots.retain(|_, session| {
            let is_used = session.link.is_some()
                || session.had_clients()
                || session.is_carried && carried.has_clients(session.id);
            if !is_used {
                by_id.remove(&session.id);
                *forgotten_bytes += session.counted_bytes;
                if session.is_carried {
                    ended.push(session.id);
                }
            }
            is_used
        });
    }

    fn insert(&mut self, id: SessionId, peer: IpAddr) -> usize {
        let slot = self.slots.insert(Session {
            id,
            stream: SessionStream::default(),
            reader: FrameReader::default(),
            pieces: None,
            backlog: Backlog::default(),
            clients: Vec::new(),
            last_client: None,
            link: None,
            accepted: Moment::default(),
            attempt: 0,
            keep: Duration::ZERO,
            expires: None,
            peer,
            waiting: None,
            wants_heartbeats: false,
            knows_refusal: false,
            told: None,
            is_carried: false,
            counted_bytes: 0,
        });
        self.by_id.insert(id, slot);
        slot
    }
}

impl Session {
    pub(super) const fn id(&self) -> SessionId {
        self.id
    }

    /// The memory of unacknowledged bytes, and of received bytes that were not carried out.
    pub(super) fn memory_bytes(&self) -> usize {
        self.stream.memory_bytes() + self.reader.memory_bytes() + self.backlog.memory_bytes()
    }

    /// Whether a client was ever opened, since the server started.
    pub(super) const fn had_clients(&self) -> bool {
        self.last_client.is_some()
    }

    /// The lowest number that a new client can have.
    pub(super) fn next_client(&self) -> u32 {
        self.last_client.map_or(0, |last| last.saturating_add(1))
    }

    /// The connection of a client. `None` if it was closed; its late frames are no error.
    pub(super) fn client(&self, number: u32) -> Result<Option<Token>, Violation> {
        if self.last_client.is_none_or(|last| number > last) {
            return Err(Violation::new("it named a client that was never opened"));
        }
        let found = self
            .clients
            .binary_search_by_key(&number, |client| client.0);
        Ok(found.ok().map(|index| self.clients[index].1))
    }

    /// The clients that wait, to add one.
    pub(super) fn waiting(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_default()
    }

    /// The next client that waits for room.
    pub(super) fn next_for_room(&mut self) -> Option<Token> {
        self.waiting.as_mut()?.for_room.pop_front()
    }

    /// The next client that waits for the session's budget.
    pub(super) fn next_for_budget(&mut self) -> Option<Token> {
        self.waiting.as_mut()?.for_budget.pop_front()
    }

    /// Whether a client with this number can be opened.
    pub(super) fn check_new(&self, number: u32) -> Result<(), Violation> {
        match self.last_client {
            Some(last) if number <= last => Err(Violation::new("it opened a client twice")),
            _ => Ok(()),
        }
    }

    /// Whether there is room for one more client.
    pub(super) const fn has_room_for_client(&self) -> bool {
        self.clients.len() < CLIENTS_MAX
    }

    /// Refuses a client, whose number [is new](Self::check_new): its frames are treated like frames of a closed
    /// client.
    pub(super) fn refuse(&mut self, number: u32) {
        self.last_client = Some(number);
        self.stream.push_close(number);
    }

    /// Adds a client, whose number [is new](Self::check_new).
    pub(super) fn open(&mut self, number: u32, token: Token) {
        self.last_client = Some(number);
        self.clients.push((number, token));
    }

    /// Removes a client.
    pub(super) fn close(&mut self, number: u32) {
        let found = self
            .clients
            .binary_search_by_key(&number, |client| client.0);
        if let Ok(index) = found {
            self.clients.remove(index);
        }
    }

    /// The connections of all clients.
    pub(super) fn tokens(&self) -> impl Iterator<Item = Token> {
        self.clients.iter().map(|(_, token)| *token)
    }

    /// The connections of all clients.
    pub(super) fn into_clients(self) -> impl Iterator<Item = Token> {
        self.clients.into_iter().map(|(_, token)| token)
    }
}

/// A part of a session's stream that waits for the session's next turn. At most a group and the bytes of one read,
/// since the link is not read before these are carried out.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// A group, and how many of its clients have had their bytes.
    group: Option<Box<(Group, usize)>>,
    /// The bytes after the group.
    bytes: Vec<u8>,
}

impl Backlog {
    pub(super) const fn is_empty(&self) -> bool {
        self.group.is_none() && self.bytes.is_empty()
    }

    /// The memory of what waits.
    pub(super) fn memory_bytes(&self) -> usize {
        let group = self.group.as_ref();
        self.bytes.capacity() + group.map_or(0, |waiting| waiting.0.memory_bytes())
    }

    /// Keeps the clients of a group from this one on. There must be no other group.
    pub(super) fn keep_group(&mut self, group: Group, next: usize) {
        debug_assert!(
            self.is_empty(),
            "a group is kept before the bytes that follow"
        );
        self.group = Some(Box::new((group, next)));
    }

    pub(super) fn keep_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the group with the position of its next client, and the bytes that follow it.
    pub(super) fn take(&mut self) -> (Option<(Group, usize)>, Vec<u8>) {
        let group = self.group.take().map(|group| *group);
        (group, std::mem::take(&mut self.bytes))
    }
}
