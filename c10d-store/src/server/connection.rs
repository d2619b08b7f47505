//! One accepted connection and the table of all of them.

use std::net::SocketAddr;
use std::time::Instant;

use c10d_socket::SendBuf;
use mio::net::TcpStream;
use mio::{Interest, Token};
use slab::Slab;

use crate::message::{ConnId, Replies, Reply};
use crate::session::Session;
use crate::wire::encode_reply;

/// Reply bytes from which on a peer's further requests wait until it has read.
pub(super) const PAUSE_UNSENT_BYTES: usize = 1 << 20;

/// What a connection is still good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requests are read and answered.
    Open,
    /// The peer has closed its sending side: what it asked for is sent to the end, then closed.
    Finishing,
    /// The peer has done wrong: earlier replies are sent, then our sending side is closed, and what
    /// still arrives is dropped, so that the system does not reset the connection under the replies.
    Refusing,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) session: Session,
    pub(super) out: SendBuf,
    pub(super) phase: Phase,
    /// Requests wait for the peer to read its replies.
    pub(super) paused: bool,
    /// Requests that waited can be carried out now.
    pub(super) resume: bool,
    /// More replies than allowed: to be closed.
    pub(super) overflowed: bool,
    /// Is in the list of connections that got replies from another's request.
    touched: bool,
    /// When the hello, or the end, is overdue.
    pub(super) deadline: Option<Instant>,
    /// What the system has been asked to report.
    pub(super) registered: Option<Interest>,
    generation: u32,
}

impl Connection {
    /// What the system should report, computed from the state; `None` for nothing at all.
    pub(super) fn interest(&self) -> Option<Interest> {
        let readable = match self.phase {
            Phase::Open => !self.paused,
            Phase::Finishing => false,
            Phase::Refusing => true,
        };
        match (readable, !self.out.is_empty()) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        }
    }
}

/// All connections, by slot. A token holds the slot and a generation, so that a late event or wake
/// for a closed connection finds nothing instead of its successor.
#[derive(Debug)]
pub(super) struct Connections {
    slots: Slab<Connection>,
    next_generation: u32,
    unsent_bytes_max: usize,
    touched: Vec<Token>,
}

const SLOT_BITS: u32 = usize::BITS / 2;
const SLOT_MASK: usize = (1 << SLOT_BITS) - 1;

/// Generations end before the tokens of the waker and the listeners begin.
const GENERATION_END: u32 = (SLOT_MASK >> 1) as u32;

impl Connections {
    pub(super) fn new(unsent_bytes_max: usize) -> Self {
        Self {
            slots: Slab::new(),
            next_generation: 0,
            unsent_bytes_max,
            touched: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn insert(
        &mut self,
        stream: TcpStream,
        peer: SocketAddr,
        deadline: Option<Instant>,
    ) -> Token {
        let generation = self.next_generation;
        self.next_generation = (generation + 1) % GENERATION_END;
        let slot = self.slots.insert(Connection {
            stream,
            peer,
            session: Session::default(),
            out: SendBuf::new(),
            phase: Phase::Open,
            paused: false,
            resume: false,
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
        self.get(token)?;
        self.slots.try_remove(token.0 & SLOT_MASK)
    }

    /// The connections that have got replies since the last call, in the order in which each got
    /// its first. Hand the emptied list back with [`reuse_touched`](Self::reuse_touched).
    pub(super) fn take_touched(&mut self) -> Vec<Token> {
        let touched = std::mem::take(&mut self.touched);
        for token in &touched {
            if let Some(connection) = self.get_mut(*token) {
                connection.touched = false;
            }
        }
        touched
    }

    pub(super) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
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
        encode_reply(reply, &mut connection.out);
        connection.overflowed = connection.out.copied_bytes() > unsent_bytes_max;
        if !connection.touched {
            connection.touched = true;
            self.touched.push(token);
        }
    }
}

/// The name by which the state machine knows a connection.
pub(super) const fn conn_id_of(token: Token) -> ConnId {
    ConnId(token.0 as u64)
}

/// The token of a connection, from the state machine's name for it.
pub(super) const fn token_of(conn: ConnId) -> Token {
    Token(conn.0 as usize)
}
