//! An accepted connection, and the table of all of them.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use c10d_socket::{SendBuf, TlsLayer};
use mio::net::TcpStream;
use mio::{Interest, Token};
use slab::Slab;

use crate::message::{ConnId, Replies, Reply};
use crate::request_parser::RequestParser;
use crate::wire::encode_reply;

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

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
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
    /// Whether anything is to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.tls.as_ref().is_some_and(TlsLayer::has_unsent)
    }

    /// Sends until everything is sent or the system accepts no more. Returns whether everything is.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            None => self.out.flush(&mut self.stream),
            Some(tls) => {
                let is_sealed = self.out.flush(&mut tls.sealing(&mut self.stream))?;
                Ok(tls.send(&mut self.stream)? && is_sealed)
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
    touched: Vec<Token>,
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
            parser: RequestParser::default(),
            tls: None,
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

    /// The connections with new replies since the last call, in the order of their first reply. Return
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

/// The state machine's id of a connection.
pub(super) const fn conn_id_of(token: Token) -> ConnId {
    ConnId(token.0 as u64)
}

/// The token of a connection, from the state machine's id.
pub(super) const fn token_of(conn: ConnId) -> Token {
    Token(conn.0 as usize)
}
