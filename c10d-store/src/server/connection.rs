//! A connection, accepted or of a session, and the table of all of them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Instant;

use c10d_socket::{SendBuf, TlsLayer};
use mio::net::TcpStream;
use mio::{Interest, Token};
use slab::Slab;

use super::budget::{Budget, SessionMemory};
use super::delayed_replies::DelayedReplies;
use super::session_client::Client;
use crate::message::{ConnId, Replies, Reply, Request};
use crate::request_parser::RequestParser;
use crate::state::Refusal;
use crate::wire::{REFUSAL_NONCE, encode_reply};
#[cfg(feature = "extensions")]
use crate::wire::{are_capabilities, capability, without_capabilities};

#[cfg(all(test, feature = "extensions"))]
mod tests;

/// With at least this many unsent reply bytes, a peer's further requests wait until it reads.
pub(super) const PAUSE_UNSENT_BYTES: usize = 1 << 20;

/// An unfinished request with at least this much memory pauses when memory is scarce.
const LONG_INPUT_BYTES: usize = 256 << 10;

/// A connection with less memory is not closed because of other connections.
const SMALL_BYTES: usize = 4 << 10;

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requests are read and answered.
    Open,
    /// The peer has closed its sending side: the remaining replies are sent, then the connection is
    /// closed.
    Finishing,
    /// The peer sent an invalid request: earlier replies are sent, then the sending side is closed, and
    /// further input is discarded, so that the system does not reset the connection before the peer has
    /// read the replies.
    Refusing,
}

/// Whether the rest of a request of [`LONG_INPUT_BYTES`] may arrive while peers have taken much memory: one at a time, so that
/// each is carried out before the next one takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputTurn {
    /// There was room, or the request was short.
    Any,
    /// The request cannot be carried out now.
    Waits,
    /// Yes, until the request is complete.
    Has,
}

/// The socket or the session that carries a connection's bytes.
#[derive(Debug)]
pub(super) enum Carrier {
    /// Boxed, since a client of a session needs little of it: a relay costs less than the connections of its ranks.
    Socket(Box<Accepted>),
    /// A session, over whatever link it has.
    Session(Client),
}

/// An accepted connection.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    /// Between the socket and the parser.
    pub(super) tls: Option<TlsLayer>,
    /// The slot of the session whose link this connection is.
    link: Option<u32>,
    pub(super) out: SendBuf,
    /// The deadline of the handshake or of closing.
    pub(super) deadline: Option<Instant>,
    /// The registered interest; `None` if not registered.
    pub(super) registered: Option<Interest>,
    /// Whether its peer may ask whether a write was refused.
    is_shown_refusal: bool,
}

/// How a connection treats the requests that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestFlow {
    /// The connection carries requests out.
    Reading,
    /// They wait until the peer reads its replies, or until there is room for more.
    Paused,
    /// They wait until the deletion of a prefix is complete.
    Deleting,
    /// They have waited, and can be carried out now.
    Resumed,
    /// The replies exceed the limit: the connection is to be closed.
    Overflowed,
}

impl RequestFlow {
    /// Whether nothing more is read.
    pub(super) const fn is_paused(self) -> bool {
        matches!(self, Self::Paused | Self::Deleting | Self::Overflowed)
    }

    /// Whether there may be requests that were not carried out.
    pub(super) const fn has_waiting(self) -> bool {
        matches!(self, Self::Paused | Self::Deleting | Self::Resumed)
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) carrier: Carrier,
    pub(super) parser: RequestParser,
    pub(super) phase: Phase,
    pub(super) flow: RequestFlow,
    /// Whether it is in the event loop's list of connections that are read without an event.
    pub(super) is_ready: bool,
    /// Whether the rest of a long request may arrive, if memory is scarce.
    pub(super) input_turn: InputTurn,
    /// Whether it is in the list of connections that have new replies.
    touched: bool,
    generation: u32,
    /// The connection's part of [`Connections::budget`].
    counted_bytes: usize,
    /// Replies that a crash would take back; `None` if there was never one.
    held: Option<Box<DelayedReplies>>,
}

impl Connection {
    /// Changes the flow, unless the connection is to be closed.
    pub(super) fn set_flow(&mut self, flow: RequestFlow) {
        if !self.has_overflowed() {
            self.flow = flow;
        }
    }

    /// Has requests that were resumed carried out. Returns whether there are some.
    pub(super) fn take_resumed(&mut self) -> bool {
        let is_resumed = self.flow == RequestFlow::Resumed;
        if is_resumed {
            self.flow = RequestFlow::Reading;
        }
        is_resumed
    }

    /// Whether the replies exceed the limit.
    pub(super) fn has_overflowed(&self) -> bool {
        self.flow == RequestFlow::Overflowed
    }

    #[inline]
    fn overflow_if(&mut self, is_too_much: bool) {
        if is_too_much {
            self.flow = RequestFlow::Overflowed;
        }
    }

    /// The interest to register, from the state; `None` for none.
    pub(super) fn interest(&self) -> Option<Interest> {
        let readable = match self.phase {
            Phase::Open => !self.flow.is_paused(),
            Phase::Finishing => false,
            Phase::Refusing => true,
        };
        match (readable, self.has_sendable()) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        }
    }
}

impl Connection {
    /// The accepted connection; `None` for a client of a session.
    pub(super) const fn accepted(&self) -> Option<&Accepted> {
        match &self.carrier {
            Carrier::Socket(accepted) => Some(accepted),
            Carrier::Session(_) => None,
        }
    }

    /// The accepted connection; `None` for a client of a session.
    pub(super) const fn accepted_mut(&mut self) -> Option<&mut Accepted> {
        match &mut self.carrier {
            Carrier::Socket(accepted) => Some(accepted),
            Carrier::Session(_) => None,
        }
    }

    /// The client of a session; `None` for a socket.
    pub(super) const fn client(&mut self) -> Option<&mut Client> {
        match &mut self.carrier {
            Carrier::Socket(_) => None,
            Carrier::Session(client) => Some(client),
        }
    }

    /// The slot of the session whose link this connection is.
    pub(super) fn link(&self) -> Option<usize> {
        self.accepted().and_then(Accepted::link)
    }

    /// The replies that are not sent; `None` if a client has none.
    #[inline]
    fn out(&self) -> Option<&SendBuf> {
        match &self.carrier {
            Carrier::Socket(accepted) => Some(&accepted.out),
            Carrier::Session(client) => client.out(),
        }
    }

    /// Returns the buffer for replies.
    #[inline]
    pub(super) fn out_mut(&mut self) -> &mut SendBuf {
        match &mut self.carrier {
            Carrier::Socket(accepted) => &mut accepted.out,
            Carrier::Session(client) => client.out_mut(),
        }
    }

    /// The bytes of replies that are not sent.
    #[inline]
    pub(super) fn unsent_bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.unsent_bytes());
        held + self.out().map_or(0, SendBuf::unsent_bytes)
    }

    /// Returns how many bytes of an incomplete request have arrived.
    pub(super) fn input_bytes(&self) -> usize {
        self.parser.partial_bytes()
    }

    /// Whether much of a request has arrived that is not complete.
    pub(super) fn has_long_input(&self) -> bool {
        self.parser.memory_bytes() >= LONG_INPUT_BYTES
    }

    /// Whether [`input_turn`](Self::input_turn) decides about the rest of a request, or has to be forgotten.
    #[inline]
    pub(super) fn needs_input_turn(&self) -> bool {
        self.has_long_input() || self.input_turn != InputTurn::Any
    }

    /// Whether anything is to be sent, now or when it is durable.
    pub(super) fn has_unsent(&self) -> bool {
        self.has_sendable() || self.is_held()
    }

    /// Whether anything is to be sent now.
    fn has_sendable(&self) -> bool {
        let tls = self.accepted().and_then(|accepted| accepted.tls.as_ref());
        self.out().is_some_and(|out| !out.is_empty()) || tls.is_some_and(TlsLayer::has_unsent)
    }

    /// Whether something, perhaps only its end, waits until it is durable.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.is_empty())
    }

    /// Returns the buffer for a reply that depends on this position, and whether the connection is to be released at
    /// it.
    fn hold(&mut self, position: u64) -> (&mut SendBuf, bool) {
        if matches!(self.carrier, Carrier::Session(_)) {
            // Its memory is counted there.
            self.out_mut();
        }
        self.held.get_or_insert_default().out(position)
    }

    /// Puts bytes behind the unsent bytes, where they wait until this position is durable. Returns whether the
    /// connection must be released at that time, besides the earlier entries.
    #[inline]
    fn put(
        &mut self,
        position: u64,
        unsent_bytes_max: usize,
        write: impl FnOnce(&mut SendBuf),
    ) -> bool {
        if position == 0 && !self.is_held() {
            let out = self.out_mut();
            write(out);
            let is_too_much = out.copied_bytes() > unsent_bytes_max;
            self.overflow_if(is_too_much);
            return false;
        }
        let (out, is_new) = self.hold(position);
        write(out);
        self.overflow_if(self.copied_bytes() > unsent_bytes_max);
        is_new
    }

    /// The memory of its unread replies, without shared ones, and of its unfinished requests.
    #[inline]
    fn kept_bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.memory_bytes());
        let out = self.out().filter(|out| !out.is_empty());
        held + out.map_or(0, SendBuf::memory_bytes) + self.parser.memory_bytes()
    }

    /// Drops all replies of a connection that is to be closed for them.
    fn drop_replies(&mut self) {
        self.held = None;
        match &mut self.carrier {
            Carrier::Socket(accepted) => accepted.out = SendBuf::new(),
            Carrier::Session(client) => client.drop_replies(),
        }
    }

    /// The memory of these values, as far as it has to send them.
    fn bytes_of(&self, values: &HashSet<*const Vec<u8>>) -> usize {
        let held = self.held.iter().flat_map(|held| held.outs());
        let shared = held.chain(self.out()).flat_map(SendBuf::shared);
        let of_these = shared.filter(|bytes| values.contains(&Arc::as_ptr(bytes)));
        of_these.map(|bytes| bytes.capacity()).sum()
    }

    #[inline]
    fn copied_bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.copied_bytes());
        held + self.out().map_or(0, SendBuf::copied_bytes)
    }
}

impl Accepted {
    /// The slot of the session whose link this connection is.
    pub(super) fn link(&self) -> Option<usize> {
        self.link.map(|slot| slot as usize)
    }

    /// Makes this connection the link of the session in this slot.
    pub(super) fn become_link(&mut self, slot: usize) {
        // There are at most 65,536.
        self.link = Some(slot as u32);
    }
}

/// A peer that has the server keep memory: a connection, or a session with its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    Connection(Token, SocketAddr),
    /// A client of the session in this slot.
    Session(usize),
}

/// All connections, by slot. A token contains the slot and a generation, so that a late event for a
/// closed connection does not reach the next connection in its slot.
#[derive(Debug)]
pub(super) struct Connections {
    slots: Slab<Connection>,
    next_generation: u32,
    unsent_bytes_max: usize,
    /// Connections with a socket that are to be flushed, in the order of their first reply.
    touched: Vec<Token>,
    /// Clients of sessions that have new replies.
    touched_clients: VecDeque<Token>,
    /// The memory of each session, by slot.
    session_memory: Vec<SessionMemory>,
    /// The memory that all connections and sessions have the server keep.
    pub(super) budget: Budget,
    /// The position on which the replies of the current request depend.
    dependency: u64,
    /// The connections to be released at each position.
    held: BTreeMap<u64, Vec<Token>>,
    /// The journal has more to append than it should: no request may be carried out.
    is_full: bool,
    /// The replies of the current request to clients whose sessions the journal keeps, once more.
    captured: Vec<(Token, SendBuf)>,
    /// Clients are shown REFUSAL (docs/spec/wire-extensions.md, REFUSAL 4).
    pub(super) reports_refusals: bool,
    /// Connections whose last write was refused, each with the bytes of the data and their limit.
    refused: HashMap<Token, (usize, usize)>,
}

const SLOT_BITS: u32 = usize::BITS / 2;
const SLOT_MASK: usize = (1 << SLOT_BITS) - 1;

/// The connections with new replies for whose list memory is kept.
const TOUCHED_KEPT: usize = 1024;

/// Generations stay below the tokens of the waker and the listeners.
const GENERATION_END: u32 = (SLOT_MASK >> 1) as u32;

impl Connections {
    pub(super) fn new(unsent_bytes_max: usize) -> Self {
        Self {
            slots: Slab::new(),
            next_generation: 0,
            unsent_bytes_max,
            touched: Vec::new(),
            touched_clients: VecDeque::new(),
            session_memory: Vec::new(),
            budget: Budget::default(),
            dependency: 0,
            held: BTreeMap::new(),
            is_full: false,
            captured: Vec::new(),
            reports_refusals: false,
            refused: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The connections with a socket, each with its peer.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (Token, SocketAddr)> {
        self.slots.iter().filter_map(|(slot, connection)| {
            let token = Token((connection.generation as usize) << SLOT_BITS | slot);
            Some((token, connection.accepted()?.peer))
        })
    }

    /// Adds an accepted connection.
    pub(super) fn insert_accepted(
        &mut self,
        stream: TcpStream,
        peer: SocketAddr,
        deadline: Option<Instant>,
    ) -> Token {
        let accepted = Box::new(Accepted {
            stream,
            peer,
            tls: None,
            link: None,
            out: SendBuf::new(),
            deadline,
            registered: None,
            is_shown_refusal: false,
        });
        self.insert(Carrier::Socket(accepted), RequestParser::default())
    }

    /// Adds a client of a session.
    pub(super) fn insert_client(&mut self, client: Client) -> Token {
        self.insert(Carrier::Session(client), RequestParser::after_handshake())
    }

    fn insert(&mut self, carrier: Carrier, parser: RequestParser) -> Token {
        let generation = self.next_generation;
        self.next_generation = (generation + 1) % GENERATION_END;
        let slot = self.slots.insert(Connection {
            carrier,
            parser,
            phase: Phase::Open,
            flow: RequestFlow::Reading,
            is_ready: false,
            input_turn: InputTurn::Any,
            touched: false,
            generation,
            counted_bytes: 0,
            held: None,
        });
        Token((generation as usize) << SLOT_BITS | slot)
    }

    pub(super) fn get(&self, token: Token) -> Option<&Connection> {
        self.slots
            .get(token.0 & SLOT_MASK)
            .filter(|connection| connection.generation as usize == token.0 >> SLOT_BITS)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Connection> {
        find(&mut self.slots, token)
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Connection> {
        let connection = self.get_mut(token)?;
        connection.drop_replies();
        connection.parser = RequestParser::default();
        if let Some(client) = connection.client() {
            client.drop_requests();
        }
        self.refused.remove(&token);
        self.recount(token);
        self.slots.try_remove(token.0 & SLOT_MASK)
    }

    /// A write was refused. Returns whether the connection may ask why, so that it stays open until its next request.
    pub(super) fn may_ask_why(&mut self, token: Token, used: usize, limit: usize) -> bool {
        let Some(connection) = find(&mut self.slots, token) else {
            return false;
        };
        let may_ask = match &connection.carrier {
            Carrier::Socket(accepted) => accepted.is_shown_refusal,
            Carrier::Session(client) => client.knows_refusal(),
        };
        if may_ask {
            self.refused.insert(token, (used, limit));
        }
        may_ask
    }

    /// Whether the last write of a connection was refused, and it has not asked why.
    #[inline]
    pub(super) fn is_refused(&self, token: Token) -> bool {
        !self.refused.is_empty() && self.refused.contains_key(&token)
    }

    /// Whether some write was refused whose connection may still ask why.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Returns why a connection with a further request has to be closed, if it should have asked why its last write
    /// was refused.
    pub(super) fn unasked_refusal(
        &mut self,
        token: Token,
        request: &Request<'_>,
    ) -> Option<Refusal> {
        if self.refused.is_empty() || request.asks_for_refusal() {
            return None;
        }
        let (used, limit) = self.refused.remove(&token)?;
        Some(Refusal::MemoryFull { used, limit })
    }

    /// The memory that the clients of a session hold.
    pub(super) fn session_memory(&self, session: usize) -> SessionMemory {
        self.session_memory
            .get(session)
            .copied()
            .unwrap_or_default()
    }

    /// Counts again what a connection holds: after each change of that. A client of a session overflows if the session holds
    /// more than a connection may.
    pub(super) fn recount(&mut self, token: Token) {
        let unsent_bytes_max = self.unsent_bytes_max;
        let Some(connection) = find(&mut self.slots, token) else {
            return;
        };
        let kept = connection.kept_bytes();
        self.budget.count(&mut connection.counted_bytes, kept);
        let held_bytes = connection.held.as_ref().map_or(0, |it| it.memory_bytes());
        let Carrier::Session(client) = &mut connection.carrier else {
            return;
        };
        let (now, before) = client.recount(held_bytes);
        let slot = client.slot();
        if slot >= self.session_memory.len() {
            let none = SessionMemory::default();
            self.session_memory.resize(slot + 1, none);
        }
        let total = &mut self.session_memory[slot];
        total.reply_bytes = total.reply_bytes - before.reply_bytes + now.reply_bytes;
        total.request_bytes = total.request_bytes - before.request_bytes + now.request_bytes;
        let grows = now.all() > before.all();
        connection.overflow_if(grows && total.all() > unsent_bytes_max);
    }

    /// Whether some client of this session may have a request carried out.
    pub(super) fn has_budget(&self, session: usize) -> bool {
        self.session_memory(session)
            .has_budget(self.budget.session_bytes_max())
    }

    /// The memory that each peer has the server keep, without the session itself, and with these values that it shares.
    pub(super) fn kept_by_peer(&self, lent: &HashSet<*const Vec<u8>>) -> BTreeMap<Peer, usize> {
        let mut peers = BTreeMap::new();
        for (slot, connection) in &self.slots {
            let mut bytes = connection.counted_bytes;
            if !lent.is_empty() {
                bytes += connection.bytes_of(lent);
            }
            if bytes == 0 {
                continue;
            }
            let token = Token((connection.generation as usize) << SLOT_BITS | slot);
            let peer = match &connection.carrier {
                Carrier::Session(client) => Peer::Session(client.slot()),
                Carrier::Socket(accepted) => match accepted.link() {
                    Some(session) => Peer::Session(session),
                    None => Peer::Connection(token, accepted.peer),
                },
            };
            *peers.entry(peer).or_default() += bytes;
        }
        peers
    }

    /// Whether the journal lets no request be carried out.
    pub(super) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Sets [`is_full`](Self::is_full).
    pub(super) const fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Whether requests of a connection may be carried out now: nothing is deleted for it, its replies are read, and
    /// the replies to other clients of its session are read as well.
    #[inline(always)] // After each request.
    pub(super) fn may_continue(&self, token: Token) -> bool {
        if self.is_full {
            return false;
        }
        let Some(connection) = self.get(token) else {
            return false;
        };
        // After an overflow, a later reply would take the place of a dropped one.
        if matches!(
            connection.flow,
            RequestFlow::Deleting | RequestFlow::Overflowed
        ) {
            return false;
        }
        let usual = match self.budget.is_scarce() {
            true => 1,
            false => PAUSE_UNSENT_BYTES,
        };
        let unsent_bytes_max = match &connection.carrier {
            Carrier::Socket(_) => usual,
            Carrier::Session(client) => self
                .session_memory(client.slot())
                .unsent_bytes_max(usual, self.budget.session_bytes_max()),
        };
        connection.unsent_bytes() < unsent_bytes_max
    }

    /// Drops the replies of a connection that are too many, or that are one too much for all peers: a single write can end
    /// thousands of waits, so that no peer is paused in between.
    #[inline]
    fn drop_if_too_much(&mut self, token: Token) {
        let is_exceeded = self.budget.is_exceeded_unshared();
        if let Some(connection) = find(&mut self.slots, token)
            && (connection.has_overflowed()
                || is_exceeded && connection.counted_bytes >= SMALL_BYTES)
        {
            connection.flow = RequestFlow::Overflowed;
            connection.drop_replies();
            self.recount(token);
        }
    }

    /// Has a connection wait until this position is durable before it ends, like for a reply without bytes.
    pub(super) fn hold_end(&mut self, token: Token, position: u64) {
        if position > 0 {
            self.put(token, position, |_| ());
        }
    }

    /// Sends bytes once this position is durable; 0 for at once.
    pub(super) fn send_after(&mut self, token: Token, position: u64, bytes: &[u8]) {
        self.put(token, position, |out| out.push(bytes));
        self.touch(token);
        self.recount(token);
    }

    /// Puts bytes behind the unsent bytes of a connection, where they wait until this position is durable.
    fn put(&mut self, token: Token, position: u64, write: impl FnOnce(&mut SendBuf)) {
        if let Some(connection) = find(&mut self.slots, token) {
            let is_new = connection.put(position, self.unsent_bytes_max, write);
            if is_new {
                self.held.entry(position).or_default().push(token);
            }
        }
    }

    /// Takes what the current request has replied to this client, whose session the journal keeps.
    pub(super) fn take_captured_of(&mut self, token: Token) -> Option<Vec<u8>> {
        let index = self.captured.iter().position(|(of, _)| *of == token)?;
        Some(bytes_of(self.captured.swap_remove(index).1))
    }

    /// Whether there is something to [take](Self::take_captured).
    #[inline]
    pub(super) const fn has_captured(&self) -> bool {
        !self.captured.is_empty()
    }

    /// Takes what the current request, or the end of a connection, has replied to some other client.
    pub(super) fn take_captured(&mut self) -> Option<(Token, Vec<u8>)> {
        let (token, reply) = self.captured.pop()?;
        Some((token, bytes_of(reply)))
    }

    /// How many connections wait until one of these positions is durable.
    pub(super) fn count_held(&self, positions: impl RangeBounds<u64>) -> usize {
        self.held.range(positions).map(|(_, held)| held.len()).sum()
    }

    /// Everything up to this position is durable: the replies that have waited for it can be sent.
    pub(super) fn release(&mut self, durable: u64) {
        while let Some(first) = self.held.first_entry()
            && *first.key() <= durable
        {
            for token in first.remove() {
                if let Some(connection) = self.get_mut(token)
                    && let Some(mut held) = connection.held.take()
                {
                    held.release(durable, connection.out_mut());
                    connection.held = Some(held);
                    self.recount(token);
                    self.touch(token);
                }
            }
        }
    }

    /// The connections with a socket that have new replies since the last call. Return
    /// the list with [`reuse_touched`](Self::reuse_touched).
    pub(super) fn take_touched(&mut self) -> Vec<Token> {
        let touched = std::mem::take(&mut self.touched);
        for token in &touched {
            if let Some(connection) = self.get_mut(*token) {
                connection.touched = false;
            }
        }
        touched
    }

    /// Has a connection flushed soon, like after a reply.
    pub(super) fn touch(&mut self, token: Token) {
        let Some(connection) = self.get_mut(token) else {
            return;
        };
        if connection.touched {
            return;
        }
        connection.touched = true;
        match connection.carrier {
            Carrier::Socket(_) => self.touched.push(token),
            Carrier::Session(_) => self.touched_clients.push_back(token),
        }
    }

    /// Takes the first of the touched clients of sessions.
    pub(super) fn next_touched_client(&mut self) -> Option<Token> {
        let token = self.touched_clients.pop_front()?;
        if let Some(connection) = self.get_mut(token) {
            connection.touched = false;
        }
        Some(token)
    }

    pub(super) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    pub(super) fn has_touched_clients(&self) -> bool {
        !self.touched_clients.is_empty()
    }

    pub(super) fn reuse_touched(&mut self, mut list: Vec<Token>) {
        list.clear();
        list.shrink_to(TOUCHED_KEPT);
        if self.touched.is_empty() {
            self.touched = list;
        }
    }
}

fn find(slots: &mut Slab<Connection>, token: Token) -> Option<&mut Connection> {
    slots
        .get_mut(token.0 & SLOT_MASK)
        .filter(|connection| connection.generation as usize == token.0 >> SLOT_BITS)
}

impl Replies for Connections {
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>) {
        let token = token_of(conn);
        let Some(connection) = find(&mut self.slots, token) else {
            return;
        };
        if connection.has_overflowed() {
            return;
        }
        let (is_client, is_carried) = match &connection.carrier {
            Carrier::Socket(_) => (false, false),
            Carrier::Session(client) => (true, client.is_carried()),
        };
        let reply = match reply {
            Reply::Nonce(REFUSAL_NONCE) => match self.refused.remove(&token) {
                Some((used, limit)) => Reply::Refused { used, limit },
                None => reply,
            },
            #[cfg(feature = "extensions")]
            Reply::Nonce(nonce) => Reply::Nonce(shown_nonce(
                nonce,
                &mut connection.carrier,
                self.reports_refusals,
            )),
            reply => reply,
        };
        if is_carried {
            let index = self.captured.iter().position(|(of, _)| *of == token);
            let index = index.unwrap_or_else(|| {
                self.captured.push((token, SendBuf::new()));
                self.captured.len() - 1
            });
            encode_reply(reply, &mut self.captured[index].1);
        }
        let position = match reply {
            // docs/spec/wire-extensions.md, REFUSAL 5.
            Reply::Nonce(REFUSAL_NONCE) | Reply::Refused { .. } if !is_client => 0,
            _ => self.dependency,
        };
        let write = |out: &mut SendBuf| encode_reply(reply, out);
        if connection.put(position, self.unsent_bytes_max, write) {
            self.held.entry(position).or_default().push(token);
        }
        if !connection.touched {
            self.touch(token);
        }
        self.recount(token);
        self.drop_if_too_much(token);
    }

    fn depend_on(&mut self, position: u64) {
        self.dependency = position;
    }
}

/// The reply to a PING, as far as it shows the capabilities of the server.
#[cfg(feature = "extensions")]
const fn shown_nonce(nonce: u32, carrier: &mut Carrier, reports_refusals: bool) -> u32 {
    let (mut hidden, is_shown) = match carrier {
        Carrier::Socket(accepted) => {
            // PyTorch's clients do not ask for capabilities.
            accepted.is_shown_refusal |= are_capabilities(nonce) && reports_refusals;
            (0, reports_refusals)
        }
        Carrier::Session(client) => (
            capability::SESSION,
            reports_refusals && client.knows_refusal(),
        ),
    };
    if !is_shown {
        hidden |= capability::REFUSAL;
    }
    without_capabilities(nonce, hidden)
}

/// Takes the bytes of a buffer.
fn bytes_of(mut out: SendBuf) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(out.unsent_bytes());
    // Memory takes everything.
    let _ = out.flush(&mut bytes);
    bytes
}

/// The state machine's id of a connection.
pub(super) const fn conn_id_of(token: Token) -> ConnId {
    ConnId(token.0 as u64)
}

/// The token of a connection, from the state machine's id.
pub(super) const fn token_of(conn: ConnId) -> Token {
    Token(conn.0 as usize)
}
