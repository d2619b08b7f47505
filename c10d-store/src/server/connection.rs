//! A connection, accepted or of a session, and the table of all of them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use c10d_socket::{SendBuf, TlsLayer};
use mio::net::TcpStream;
use mio::{Interest, Token};
use slab::Slab;

use super::session_memory::SessionMemory;
use crate::message::{ConnId, Replies, Reply};
use crate::request_parser::RequestParser;
use crate::session::Credit;
use crate::wire::{CAPABILITIES, CAPABILITY_NONCE, CAPABILITY_SESSION, encode_reply};

/// With at least this many unsent reply bytes, a peer's further requests wait until it reads.
pub(super) const PAUSE_UNSENT_BYTES: usize = 1 << 20;

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

/// What carries a connection's bytes.
#[derive(Debug)]
pub(super) enum Carrier {
    Socket(TcpStream),
    /// A session, over whatever link it has.
    Session(Client),
}

/// A client of a session.
#[derive(Debug)]
pub(super) struct Client {
    /// The slot of the session.
    pub(super) session: usize,
    pub(super) number: u32,
    pub(super) credit: Credit,
    /// Received bytes that wait because the client does not read its replies.
    pub(super) kept_bytes: usize,
    /// Bytes of groups in requests that were not carried out yet. The peer has sent them once for many clients.
    pub(super) grouped_bytes: usize,
    /// The memory of its pending wait, as of its last request.
    pub(super) waiting_bytes: usize,
    /// In the list of clients whose replies wait for room in the session.
    pub(super) waits_for_room: bool,
    /// In the list of clients whose requests wait for the session's budget.
    pub(super) waits_for_budget: bool,
    /// What [`Connections::session_memory`] has counted of it.
    counted: SessionMemory,
}

impl Client {
    pub(super) fn new(session: usize, number: u32) -> Self {
        Self {
            session,
            number,
            credit: Credit::default(),
            kept_bytes: 0,
            grouped_bytes: 0,
            waiting_bytes: 0,
            waits_for_room: false,
            waits_for_budget: false,
            counted: SessionMemory::default(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) carrier: Carrier,
    /// The slot of the session whose link this connection is.
    pub(super) link: Option<usize>,
    pub(super) peer: SocketAddr,
    pub(super) parser: RequestParser,
    /// Between the socket and the parser.
    pub(super) tls: Option<TlsLayer>,
    pub(super) out: SendBuf,
    pub(super) phase: Phase,
    /// Requests wait until the peer reads its replies.
    pub(super) paused: bool,
    /// Waiting requests can be carried out now.
    pub(super) resume: bool,
    /// In the event loop's list of connections that are read without an event.
    pub(super) is_ready: bool,
    /// The replies exceed the limit: the connection is to be closed.
    pub(super) overflowed: bool,
    /// In the list of connections that have new replies.
    touched: bool,
    /// The deadline of the handshake or of closing.
    pub(super) deadline: Option<Instant>,
    /// The registered interest; `None` if not registered.
    pub(super) registered: Option<Interest>,
    generation: u32,
}

impl Connection {
    /// The interest to register, from the state; `None` for none.
    pub(super) fn interest(&self) -> Option<Interest> {
        let readable = match self.phase {
            Phase::Open => !self.paused,
            Phase::Finishing => false,
            Phase::Refusing => true,
        };
        match (readable, self.has_unsent()) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        }
    }
}

impl Connection {
    /// The socket; `None` for a client of a session.
    pub(super) const fn socket(&mut self) -> Option<&mut TcpStream> {
        match &mut self.carrier {
            Carrier::Socket(stream) => Some(stream),
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

    /// Whether anything is to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.tls.as_ref().is_some_and(TlsLayer::has_unsent)
    }

    /// Sends until everything is sent or the system accepts no more. Returns whether everything is.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Carrier::Socket(stream) = &mut self.carrier else {
            return Ok(self.out.is_empty());
        };
        match &mut self.tls {
            None => self.out.flush(stream),
            Some(tls) => {
                let is_sealed = self.out.flush(&mut tls.sealing(stream))?;
                Ok(tls.send(stream)? && is_sealed)
            }
        }
    }
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
    /// The same of clients of sessions.
    touched_clients: VecDeque<Token>,
    /// Of each session, by slot.
    session_memory: Vec<SessionMemory>,
}

const SLOT_BITS: u32 = usize::BITS / 2;
const SLOT_MASK: usize = (1 << SLOT_BITS) - 1;

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
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn insert(
        &mut self,
        carrier: Carrier,
        peer: SocketAddr,
        deadline: Option<Instant>,
    ) -> Token {
        let generation = self.next_generation;
        self.next_generation = (generation + 1) % GENERATION_END;
        let parser = match carrier {
            Carrier::Socket(_) => RequestParser::default(),
            Carrier::Session(_) => RequestParser::after_handshake(),
        };
        let slot = self.slots.insert(Connection {
            carrier,
            link: None,
            peer,
            parser,
            tls: None,
            out: SendBuf::new(),
            phase: Phase::Open,
            paused: false,
            resume: false,
            is_ready: false,
            overflowed: false,
            touched: false,
            deadline,
            registered: None,
            generation,
        });
        Token((generation as usize) << SLOT_BITS | slot)
    }

    pub(super) fn get(&self, token: Token) -> Option<&Connection> {
        self.slots
            .get(token.0 & SLOT_MASK)
            .filter(|connection| connection.generation as usize == token.0 >> SLOT_BITS)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Connection> {
        self.slots
            .get_mut(token.0 & SLOT_MASK)
            .filter(|connection| connection.generation as usize == token.0 >> SLOT_BITS)
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Connection> {
        let connection = self.get_mut(token)?;
        if let Some(client) = connection.client() {
            client.grouped_bytes = 0;
            client.waiting_bytes = 0;
            connection.out = SendBuf::new();
            self.recount(token);
        }
        self.slots.try_remove(token.0 & SLOT_MASK)
    }

    /// What the clients of a session hold.
    pub(super) fn session_memory(&self, session: usize) -> SessionMemory {
        self.session_memory
            .get(session)
            .copied()
            .unwrap_or_default()
    }

    /// Counts again what a client of a session holds: after each change of that. The client overflows if the session holds
    /// more than a connection may.
    pub(super) fn recount(&mut self, token: Token) {
        let unsent_bytes_max = self.unsent_bytes_max;
        let Some(connection) = self
            .slots
            .get_mut(token.0 & SLOT_MASK)
            .filter(|connection| connection.generation as usize == token.0 >> SLOT_BITS)
        else {
            return;
        };
        let Carrier::Session(client) = &mut connection.carrier else {
            return;
        };
        let now = SessionMemory {
            reply_bytes: connection.out.memory_bytes(),
            request_bytes: client.grouped_bytes + client.waiting_bytes,
        };
        let before = std::mem::replace(&mut client.counted, now);
        if client.session >= self.session_memory.len() {
            let none = SessionMemory::default();
            self.session_memory.resize(client.session + 1, none);
        }
        let total = &mut self.session_memory[client.session];
        total.reply_bytes = total.reply_bytes - before.reply_bytes + now.reply_bytes;
        total.request_bytes = total.request_bytes - before.request_bytes + now.request_bytes;
        let grows = now.all() > before.all();
        connection.overflowed |= grows && total.all() > unsent_bytes_max;
    }

    /// Whether requests of a connection may be carried out now: its replies are read, and so are those of the other
    /// clients of its session.
    pub(super) fn may_continue(&self, token: Token) -> bool {
        let Some(connection) = self.get(token) else {
            return false;
        };
        let unsent_bytes_max = match &connection.carrier {
            Carrier::Socket(_) => PAUSE_UNSENT_BYTES,
            Carrier::Session(client) => self
                .session_memory(client.session)
                .unsent_bytes_max(PAUSE_UNSENT_BYTES),
        };
        connection.out.unsent_bytes() < unsent_bytes_max
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

    /// Has a connection flushed soon, as after a reply.
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
        if self.touched.is_empty() {
            self.touched = list;
        }
    }
}

impl Replies for Connections {
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>) {
        let token = token_of(conn);
        let unsent_bytes_max = self.unsent_bytes_max;
        let Some(connection) = self.get_mut(token) else {
            return;
        };
        if connection.overflowed {
            return;
        }
        encode_reply(without_sessions(reply, connection), &mut connection.out);
        connection.overflowed = connection.out.copied_bytes() > unsent_bytes_max;
        let is_client = matches!(connection.carrier, Carrier::Session(_));
        self.touch(token);
        if is_client {
            self.recount(token);
        }
    }
}

/// A client of a session cannot begin another one, so the server must not say that it can.
fn without_sessions<'r>(reply: Reply<'r>, connection: &Connection) -> Reply<'r> {
    const ALL: u32 = CAPABILITY_NONCE | CAPABILITIES;
    match (&reply, &connection.carrier) {
        (Reply::Nonce(ALL), Carrier::Session(_)) => Reply::Nonce(ALL & !CAPABILITY_SESSION),
        _ => reply,
    }
}

/// The state machine's id of a connection.
pub(super) const fn conn_id_of(token: Token) -> ConnId {
    ConnId(token.0 as u64)
}

/// The token of a connection, from the state machine's id.
pub(super) const fn token_of(conn: ConnId) -> Token {
    Token(conn.0 as usize)
}
