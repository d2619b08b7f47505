//! The load generator for relays: one connection a node, one thread, one poll, as [`Fleet`](super::super::fleet::Fleet)
//! is for ranks that connect to the store themselves.
//!
//! Makes the handshakes and keeps the rules of the session. Only the workload knows the meaning of replies.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use byteorder::{ByteOrder, LittleEndian};
use c10d_socket::{SendBuf, TlsClient, TlsLayer};
use c10d_store::Opcode;
use c10d_store::unstable::{CAPABILITY_MASK, CAPABILITY_NONCE, CAPABILITY_SESSION, RequestBuf};
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Poll};

use super::node::{Ask, Asking, Node, NodeError};
use crate::failure::{Context as _, Failure};
use crate::fleet::{EVENTS_PER_POLL, READ_BYTES, SILENCE_MAX, lost, open_socket, stalled};

/// How long after an arrival a relay acknowledges it, if it has nothing else to send.
const REPORT_DELAY: Duration = Duration::from_millis(200);

/// How long a relay asks the store to remember its session, in milliseconds.
const KEEP_MILLIS: u32 = 600_000;

/// Bits of the milliseconds: a relay can send requests again to a store that was restarted, and takes long values in pieces
/// that its ranks share.
const CARRIES_OVER: u32 = 1 << 31;
const TAKES_PIECES: u32 = 1 << 30;

/// How the answer to SESSION starts if the session has begun, or goes on.
const ACCEPTED: u8 = 0;
const RESTARTED: u8 = 3;

/// The answers to the handshake: the capabilities, and that to SESSION.
const HELLO_REPLY_BYTES: usize = 4;
const SESSION_REPLY_BYTES: usize = 1 + 16 + 8;

/// When the ranks of a node ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turns {
    /// All in one turn of the relay.
    Together,
    /// Each in a turn of its own, and so with frames and a write of its own.
    Apart,
}

/// Simulated relays.
#[derive(Debug)]
pub(super) struct Nodes {
    poll: Poll,
    events: Events,
    read_buffer: Box<[u8]>,
    /// What TLS has opened.
    opened: Vec<u8>,
    address: SocketAddr,
    tls: Option<TlsClient>,
    relays: Vec<Relay>,
    ranks_per_node: usize,
    /// Replies that are missing.
    waiting: usize,
    /// When to acknowledge what has arrived on a link.
    reports: VecDeque<(Instant, usize)>,
}

#[derive(Debug)]
struct Relay {
    link: Link,
    node: Node,
    session: SessionName,
    /// The received part of an answer of the handshake.
    answer: Vec<u8>,
    /// It is in the list of reports.
    is_report_due: bool,
}

/// How its session is known to the store.
#[derive(Debug)]
struct SessionName {
    session: [u64; 2],
    /// Zeros until the store has answered.
    store: [u64; 2],
    attempt: u64,
}

/// Its connection.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    tls: Option<TlsLayer>,
    out: SendBuf,
    phase: Phase,
    moved: Moved,
}

/// Bytes of a link, or of all.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moved {
    pub(super) sent: u64,
    pub(super) received: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    Hello,
    Session,
    Open,
}

impl Moved {
    /// What has moved after `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
        }
    }
}

/// One turn of a relay.
struct Turn<'a, F> {
    turns: Turns,
    buffer: &'a mut [u8],
    opened: &'a mut Vec<u8>,
    on_reply: F,
}

/// Takes the reply to a rank, by its place on the node.
trait OnReply: FnMut(&mut Node, usize, &[u8]) -> Result<(), Failed> {}

impl<F: FnMut(&mut Node, usize, &[u8]) -> Result<(), Failed>> OnReply for F {}

/// How an event of a relay has failed.
#[derive(Debug)]
enum Failed {
    Io(io::Error),
    Node(NodeError),
    Bench(Failure),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<NodeError> for Failed {
    fn from(error: NodeError) -> Self {
        Self::Node(error)
    }
}

impl From<Failure> for Failed {
    fn from(error: Failure) -> Self {
        Self::Bench(error)
    }
}

impl Nodes {
    /// No relay yet.
    pub(super) fn new(
        address: SocketAddr,
        tls: Option<TlsClient>,
        ranks_per_node: usize,
    ) -> Result<Self, Failure> {
        let poll = Poll::new().context("cannot poll")?;
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_POLL),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            opened: Vec::new(),
            address,
            tls,
            relays: Vec::new(),
            ranks_per_node,
            waiting: 0,
            reports: VecDeque::new(),
        })
    }

    /// The server's address.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of ranks of all nodes.
    pub(super) fn ranks(&self) -> usize {
        self.relays.len() * self.ranks_per_node
    }

    /// The bytes that have moved on all links so far.
    pub(super) fn moved(&self) -> Moved {
        let links = self.relays.iter().map(|relay| relay.link.moved);
        links.fold(Moved::default(), |sum, it| Moved {
            sent: sum.sent + it.sent,
            received: sum.received + it.received,
        })
    }

    /// The frames with requests that all relays have sent so far.
    pub(super) fn frames(&self) -> usize {
        self.relays.iter().map(|relay| relay.node.frames).sum()
    }

    /// Starts `count` relays, at most `window` at a time, whose ranks send `greeting` while the relay connects, each
    /// in a turn of its own. Passes the replies to `check`.
    pub(super) fn connect(
        &mut self,
        count: usize,
        window: usize,
        greeting: Ask<'_>,
        check: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let open = |nodes: &mut Self, index| {
            let link = nodes.open_link(index)?;
            nodes.relays.push(Relay {
                link,
                node: Node::with_ranks(nodes.ranks_per_node),
                session: SessionName {
                    session: [fastrand::u64(..), fastrand::u64(..)],
                    store: [0; 2],
                    attempt: 0,
                },
                answer: Vec::new(),
                is_report_due: false,
            });
            Ok(())
        };
        self.open_all(count, window, open, greeting, check)
    }

    /// The store was restarted and is at this address: its relays go on, at most `window` connect at a time, and their
    /// ranks send `request`, as in [`connect`](Self::connect).
    pub(super) fn carry_over(
        &mut self,
        address: SocketAddr,
        window: usize,
        request: Ask<'_>,
        check: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.address = address;
        self.reports.clear();
        for relay in &mut self.relays {
            let lost = self.poll.registry().deregister(&mut relay.link.stream);
            lost.context("cannot poll")?;
        }
        let open = |nodes: &mut Self, index: usize| {
            let link = nodes.open_link(index)?;
            let relay = &mut nodes.relays[index];
            relay.link = link;
            relay.node.carry_over();
            relay.is_report_due = false;
            Ok(())
        };
        self.open_all(self.relays.len(), window, open, request, check)
    }

    fn open_all(
        &mut self,
        count: usize,
        window: usize,
        open: impl Fn(&mut Self, usize) -> Result<(), Failure>,
        greeting: Ask<'_>,
        mut check: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut opened = 0;
        loop {
            let pending = self.waiting.div_ceil(self.ranks_per_node);
            let more = window.saturating_sub(pending).min(count - opened);
            for index in opened..opened + more {
                open(self, index)?;
                for place in 0..self.ranks_per_node {
                    self.ask(index * self.ranks_per_node + place, greeting)?;
                    self.relays[index].node.end_turn();
                }
            }
            opened += more;
            if self.waiting == 0 {
                return Ok(());
            }
            self.poll_once(Turns::Apart, &mut |_, reply| {
                check(reply)?;
                Ok(None::<Ask<'_>>)
            })?;
        }
    }

    /// All ranks ask: each for what `ask` returns for it.
    pub(super) fn ask_all<'a>(
        &mut self,
        turns: Turns,
        ask: impl Fn(usize) -> Ask<'a>,
    ) -> Result<(), Failure> {
        let per_node = self.ranks_per_node;
        match turns {
            Turns::Together => {
                for index in 0..self.relays.len() {
                    for rank in index * per_node..(index + 1) * per_node {
                        self.ask(rank, ask(rank))?;
                    }
                    self.end_turn(index)?;
                }
            }
            Turns::Apart => {
                for place in 0..per_node {
                    for index in 0..self.relays.len() {
                        let rank = index * per_node + place;
                        self.ask(rank, ask(rank))?;
                        self.end_turn(index)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Expects another reply to each rank, to a request asked before.
    pub(super) fn expect_all(&mut self, reply_bytes: usize) {
        for relay in &mut self.relays {
            relay.node.expect_all(reply_bytes);
        }
        self.waiting += self.ranks();
    }

    /// Expects the reply of `opcode` to each rank but one, to a request asked before.
    pub(super) fn expect_scanned(&mut self, opcode: Opcode, but: usize) {
        for rank in (0..self.ranks()).filter(|rank| *rank != but) {
            let relay = &mut self.relays[rank / self.ranks_per_node];
            relay
                .node
                .expect_scanned(rank % self.ranks_per_node, opcode);
            self.waiting += 1;
        }
    }

    /// The connection of a rank ends.
    pub(super) fn close(&mut self, rank: usize) -> Result<(), Failure> {
        let index = rank / self.ranks_per_node;
        self.relays[index].node.close(rank % self.ranks_per_node);
        self.end_turn(index)
    }

    /// A rank asks, in a turn of its own.
    pub(super) fn ask_one(&mut self, rank: usize, ask: impl Asking) -> Result<(), Failure> {
        self.ask(rank, ask)?;
        self.end_turn(rank / self.ranks_per_node)
    }

    /// A rank sends a request without a reply, in a turn of its own.
    pub(super) fn send_one(&mut self, rank: usize, request: &[u8]) -> Result<(), Failure> {
        let (index, place) = (rank / self.ranks_per_node, rank % self.ranks_per_node);
        let sent = self.relays[index].node.send(place, &[request]);
        sent.map_err(|error| failure(self.address, index, error.into()))?;
        self.end_turn(index)
    }

    /// Passes every reply and its rank to `on_reply`, which may have the rank ask again, until no reply is missing.
    pub(super) fn run<A: Asking>(
        &mut self,
        turns: Turns,
        mut on_reply: impl FnMut(usize, &[u8]) -> Result<Option<A>, Failure>,
    ) -> Result<(), Failure> {
        while self.waiting > 0 {
            self.poll_once(turns, &mut on_reply)?;
        }
        Ok(())
    }

    pub(super) fn wrong_answer(&self, request: &str, detail: impl Display) -> Failure {
        Failure::wrong_answer(self.address, request, detail)
    }

    fn open_link(&self, index: usize) -> Result<Link, Failure> {
        let address = self.address;
        let failed = || format!("cannot connect to {address}");
        let stream = open_socket(address, index, self.poll.registry()).with_context(failed)?;
        let tls = self.tls.as_ref().map(TlsClient::start).transpose();
        Ok(Link {
            stream,
            tls: tls.with_context(failed)?,
            out: SendBuf::new(),
            phase: Phase::Connecting,
            moved: Moved::default(),
        })
    }

    fn ask(&mut self, rank: usize, ask: impl Asking) -> Result<(), Failure> {
        let (index, place) = (rank / self.ranks_per_node, rank % self.ranks_per_node);
        self.waiting += 1;
        let asked = ask.put(&mut self.relays[index].node, place);
        asked.map_err(|error| failure(self.address, index, error.into()))
    }

    fn end_turn(&mut self, index: usize) -> Result<(), Failure> {
        let relay = &mut self.relays[index];
        let sent = relay.link.end_turn(&mut relay.node);
        sent.map_err(|error| failure(self.address, index, error.into()))
    }

    /// Polls once. Each relay that has received something has one turn.
    fn poll_once<A: Asking>(
        &mut self,
        turns: Turns,
        on_reply: &mut impl FnMut(usize, &[u8]) -> Result<Option<A>, Failure>,
    ) -> Result<(), Failure> {
        let now = Instant::now();
        self.send_reports(now)?;
        let next_report = self.reports.front().map(|(at, _)| *at - now);
        let timeout = next_report.unwrap_or(SILENCE_MAX);
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error).context("cannot poll"),
        }
        if self.events.is_empty() && next_report.is_none() {
            return Err(stalled(self.address, self.waiting));
        }
        let report_at = Instant::now() + REPORT_DELAY;
        for event in &self.events {
            let index = event.token().0;
            let first_rank = index * self.ranks_per_node;
            let relay = &mut self.relays[index];
            let waiting = &mut self.waiting;
            let handle = |node: &mut Node, place: usize, reply: &[u8]| {
                *waiting -= 1;
                if let Some(ask) = on_reply(first_rank + place, reply)? {
                    *waiting += 1;
                    ask.put(node, place)?;
                }
                Ok(())
            };
            let result = relay.on_event(
                event,
                Turn {
                    turns,
                    buffer: &mut self.read_buffer,
                    opened: &mut self.opened,
                    on_reply: handle,
                },
            );
            result.map_err(|error| failure(self.address, index, error))?;
            if relay.node.stream.has_unreported() && !relay.is_report_due {
                relay.is_report_due = true;
                self.reports.push_back((report_at, index));
            }
        }
        Ok(())
    }

    /// Acknowledges what has arrived a while ago.
    fn send_reports(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some((at, index)) = self.reports.front().copied() {
            if at > now {
                break;
            }
            self.reports.pop_front();
            let relay = &mut self.relays[index];
            relay.is_report_due = false;
            relay.node.stream.report(&mut relay.link.out);
            let sent = relay.link.flush();
            sent.map_err(|error| failure(self.address, index, error.into()))?;
        }
        Ok(())
    }
}

impl Relay {
    fn on_event(&mut self, event: &Event, mut turn: Turn<'_, impl OnReply>) -> Result<(), Failed> {
        if event.is_writable() {
            self.on_writable()?;
        }
        // A short read means that no more is available. Reading distinguishes readable from broken.
        while event.is_readable() || event.is_error() {
            let count = match self.link.stream.read(turn.buffer) {
                Ok(0) => return Err(Failed::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.link.moved.received += count as u64;
                    count
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => continue,
                    _ => return Err(Failed::Io(error)),
                },
            };
            match &mut self.link.tls {
                None => self.receive(&turn.buffer[..count], turn.turns, &mut turn.on_reply)?,
                Some(tls) => {
                    turn.opened.clear();
                    let result = tls.receive(&turn.buffer[..count], turn.opened);
                    result.map_err(io::Error::from)?;
                    self.receive(turn.opened, turn.turns, &mut turn.on_reply)?;
                }
            }
            if count < turn.buffer.len() {
                break;
            }
        }
        Ok(self.link.end_turn(&mut self.node)?)
    }

    fn on_writable(&mut self) -> io::Result<()> {
        if self.link.phase == Phase::Connecting {
            self.link.phase = Phase::Hello;
            let received = self.node.stream.received();
            self.link.out.push(&self.session.handshake(received));
        }
        self.link.flush()
    }

    fn receive(
        &mut self,
        mut bytes: &[u8],
        turns: Turns,
        on_reply: &mut impl OnReply,
    ) -> Result<(), Failed> {
        while self.link.phase != Phase::Open && !bytes.is_empty() {
            self.shake_hands(&mut bytes)?;
        }
        let link = &mut self.link;
        self.node.receive(bytes, |node, place, reply| {
            on_reply(node, place, reply)?;
            match turns {
                Turns::Together => Ok(()),
                Turns::Apart => Ok(link.end_turn(node)?),
            }
        })
    }

    /// Takes a part of the answers to the handshake.
    fn shake_hands(&mut self, bytes: &mut &[u8]) -> Result<(), Failed> {
        let length = match self.link.phase {
            Phase::Session => SESSION_REPLY_BYTES,
            _ => HELLO_REPLY_BYTES,
        };
        let (now, later) = bytes.split_at((length - self.answer.len()).min(bytes.len()));
        self.answer.extend_from_slice(now);
        *bytes = later;
        if self.answer.len() < length {
            return Ok(());
        }
        if self.link.phase == Phase::Session {
            if ![ACCEPTED, RESTARTED].contains(&self.answer[0]) {
                return Err(NodeError::Unexpected("it refused a session").into());
            }
            LittleEndian::read_u64_into(&self.answer[1..17], &mut self.session.store);
            let received = LittleEndian::read_u64(&self.answer[17..]);
            let attached = self.node.stream.attach(received);
            attached.map_err(NodeError::from)?;
            self.link.phase = Phase::Open;
        } else {
            let capabilities = LittleEndian::read_u32(&self.answer);
            let is_store = capabilities & !CAPABILITY_MASK == CAPABILITY_NONCE;
            if !is_store || capabilities & CAPABILITY_SESSION == 0 {
                return Err(NodeError::Unexpected("it has no sessions").into());
            }
            self.link.phase = Phase::Session;
        }
        self.answer = Vec::new();
        Ok(())
    }
}

impl Link {
    /// Sends the requests of a turn, with one write.
    fn end_turn(&mut self, node: &mut Node) -> io::Result<()> {
        node.end_turn();
        if self.phase == Phase::Open {
            node.stream.fill(&mut self.out, usize::MAX);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.phase == Phase::Connecting {
            return Ok(());
        }
        let before = self.out.unsent_bytes();
        let result = match &mut self.tls {
            None => self.out.flush(&mut self.stream).map(drop),
            Some(tls) => {
                self.out.flush(&mut tls.sealing(&mut self.stream))?;
                tls.send(&mut self.stream).map(drop)
            }
        };
        self.moved.sent += (before - self.out.unsent_bytes()) as u64;
        result
    }
}

impl SessionName {
    /// The handshake, and SESSION (docs/wire-extensions.md, section 9.9).
    fn handshake(&mut self, received: u64) -> Vec<u8> {
        self.attempt += 1;
        let mut request = RequestBuf::new();
        request.hello().opcode(Opcode::Session);
        for number in [self.session, self.store].as_flattened() {
            request.u64(*number);
        }
        request
            .u64(self.attempt)
            .u64(received)
            .u32(KEEP_MILLIS | CARRIES_OVER | TAKES_PIECES);
        request.to_bytes()
    }
}

fn failure(address: SocketAddr, link: usize, failed: Failed) -> Failure {
    match failed {
        Failed::Io(error) => lost(address, link, error),
        Failed::Node(error) => Failure::wrong_answer(address, "a session", error),
        Failed::Bench(error) => error,
    }
}
