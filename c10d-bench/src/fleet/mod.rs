//! The load generator: the ranks of a job, one thread, one poll. Each rank has a connection, or the ranks of a node share
//! the connection of a simulated relay.
//!
//! Sends bytes and counts replies, whose meaning only the workload knows. The length of each reply is known
//! beforehand, so nothing is parsed while the clock runs.

mod link;
mod session;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::TlsClient;
use mio::{Events, Poll};

use self::link::Link;
use crate::failure::{Context as _, Failure};

/// Events received per poll.
const EVENTS_PER_POLL: usize = 1024;

/// The size of the server's own buffer.
const READ_BYTES: usize = 64 << 10;

/// How many connections wait for replies at a time while they are opened. Well below the listener's backlog: the system
/// retries a connection that exceeds the backlog only after a second.
const CONNECTING_MAX: usize = 256;

/// Longer than any pause of a healthy server, even while it cancels thousands of waits.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often relays acknowledge what has arrived, if they have nothing else to send.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Requests of a rank, and the length of all their replies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'r> {
    /// Each is one request.
    pub(super) requests: &'r [&'r [u8]],
    pub(super) reply_bytes: usize,
}

/// When the ranks of a relay ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turns {
    /// All in one turn of the relay.
    Together,
    /// Each in a separate turn, with separate frames and a separate write.
    Apart,
}

/// The connected ranks of a job.
#[derive(Debug)]
pub(super) struct Fleet {
    poll: Poll,
    events: Events,
    read_buffer: Box<[u8]>,
    /// The bytes that TLS has decrypted.
    opened: Vec<u8>,
    /// The TLS client, if the connections have a secret.
    tls: Option<TlsClient>,
    ranks_per_relay: Option<usize>,
    links: Links,
    /// How long the server has sent nothing.
    silence: Duration,
    /// When the relays acknowledge what has arrived.
    report_at: Instant,
}

/// The sending half of a [`Fleet`], for use while its replies are being handled.
#[derive(Debug)]
struct Links {
    address: SocketAddr,
    links: Vec<Link>,
    ranks_per_link: usize,
    /// Number of missing replies.
    waiting: usize,
}

/// A kind of request, sent repeatedly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flood<'a> {
    /// At least `depth` equal units in a row for each rank.
    pub(super) batches: &'a [Vec<u8>],
    /// Length of a unit: one request, or several with one reply to the last.
    pub(super) unit_bytes: usize,
    /// The answer to one unit.
    pub(super) reply_bytes: usize,
    /// Units in flight on each connection.
    pub(super) depth: usize,
}

/// The result of a [`Flood`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Flooded {
    /// Units answered in time.
    pub(super) answered: u64,
    /// The time in which they were answered.
    pub(super) elapsed: Duration,
    /// All units sent, including those answered later.
    pub(super) sent: u64,
}

impl Fleet {
    /// A fleet without ranks. With `ranks_per_relay`, that many ranks share a relay.
    pub(super) fn new(
        address: SocketAddr,
        tls: Option<TlsClient>,
        ranks_per_relay: Option<usize>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            poll: Poll::new().context("cannot poll")?,
            events: Events::with_capacity(EVENTS_PER_POLL),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            opened: Vec::new(),
            tls,
            ranks_per_relay,
            links: Links {
                address,
                links: Vec::new(),
                ranks_per_link: ranks_per_relay.unwrap_or(1),
                waiting: 0,
            },
            silence: Duration::ZERO,
            report_at: Instant::now(),
        })
    }

    /// The server's address.
    pub(super) const fn address(&self) -> SocketAddr {
        self.links.address
    }

    pub(super) fn ranks(&self) -> usize {
        self.links.links.len() * self.links.ranks_per_link
    }

    /// The number of frames with requests that all relays have sent so far.
    pub(super) fn frames(&self) -> usize {
        let sessions = self.links.links.iter().filter_map(|it| it.session.as_ref());
        sessions.map(|session| session.frames).sum()
    }

    /// Opens `count` connections, whose ranks send `greeting`, each in a separate turn. Passes the replies to `check`.
    ///
    /// At most [`CONNECTING_MAX`] connections wait for replies at a time.
    pub(super) fn connect(
        &mut self,
        count: usize,
        greeting: Ask<'_>,
        mut check: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let ranks_per_link = self.links.ranks_per_link;
        let mut opened = 0;
        let mut replies = Vec::new();
        loop {
            let pending = self.links.waiting.div_ceil(ranks_per_link);
            let more = CONNECTING_MAX.saturating_sub(pending).min(count - opened);
            for index in opened..opened + more {
                self.open_link(index)?;
                for rank in index * ranks_per_link..(index + 1) * ranks_per_link {
                    self.ask(rank, greeting)?;
                }
            }
            opened += more;
            if self.links.waiting == 0 {
                return Ok(());
            }
            self.poll_once(|links, index, bytes| {
                links.take_in(index, bytes, &mut replies)?;
                for (place, reply) in replies.drain(..) {
                    check(&reply)?;
                    links.give_back(index, place, reply);
                }
                Ok(())
            })?;
        }
    }

    fn open_link(&mut self, index: usize) -> Result<(), Failure> {
        let address = self.address();
        let failed = || format!("cannot connect to {address}");
        let tls = self.tls.as_ref().map(TlsClient::start).transpose();
        let tls = tls.with_context(failed)?;
        let registry = self.poll.registry();
        let link = Link::open(address, index, registry, tls, self.ranks_per_relay);
        self.links.links.push(link.with_context(failed)?);
        Ok(())
    }

    /// All ranks ask: each for what `ask` returns for it.
    pub(super) fn ask_all<'a>(
        &mut self,
        turns: Turns,
        ask: impl Fn(usize) -> Ask<'a>,
    ) -> Result<(), Failure> {
        let links = &mut self.links;
        let (count, ranks_per_link) = (links.links.len(), links.ranks_per_link);
        match turns {
            Turns::Together => {
                for index in 0..count {
                    for rank in index * ranks_per_link..(index + 1) * ranks_per_link {
                        links.ask(rank, ask(rank))?;
                    }
                    links.end_turn(index)?;
                }
            }
            Turns::Apart => {
                for place in 0..ranks_per_link {
                    for index in 0..count {
                        let rank = index * ranks_per_link + place;
                        links.ask(rank, ask(rank))?;
                        links.end_turn(index)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A rank asks, in a separate turn.
    pub(super) fn ask(&mut self, rank: usize, ask: Ask<'_>) -> Result<(), Failure> {
        self.links.ask(rank, ask)?;
        self.links.end_turn(rank / self.links.ranks_per_link)
    }

    /// A rank sends a request in a separate turn. It has no reply, or an [expected](Self::expect_all) reply.
    pub(super) fn send(&mut self, rank: usize, request: &[u8]) -> Result<(), Failure> {
        self.links.send(rank, &[request])?;
        self.links.end_turn(rank / self.links.ranks_per_link)
    }

    /// Expects another reply to each rank, to a request asked before.
    pub(super) fn expect_all(&mut self, reply_bytes: usize) {
        for link in &mut self.links.links {
            for pending in &mut link.pending {
                pending.expect(reply_bytes);
            }
        }
        self.links.waiting += self.ranks();
    }

    /// Passes every reply and its rank to `on_reply`, which may have the rank ask again, until no reply is missing.
    pub(super) fn run<'a>(
        &mut self,
        turns: Turns,
        mut on_reply: impl FnMut(usize, &[u8]) -> Result<Option<Ask<'a>>, Failure>,
    ) -> Result<(), Failure> {
        let mut replies = Vec::new();
        while self.links.waiting > 0 {
            self.poll_once(|links, index, bytes| {
                links.take_in(index, bytes, &mut replies)?;
                for (place, reply) in replies.drain(..) {
                    let rank = index * links.ranks_per_link + place;
                    let ask = on_reply(rank, &reply)?;
                    links.give_back(index, place, reply);
                    if let Some(ask) = ask {
                        links.ask(rank, ask)?;
                    }
                    if turns == Turns::Apart {
                        links.end_turn(index)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A rank sends a request; returns the reply.
    pub(super) fn call(
        &mut self,
        rank: usize,
        request: &[u8],
        reply_bytes: usize,
    ) -> Result<Vec<u8>, Failure> {
        let mut answer = Vec::new();
        let requests = [request];
        self.ask(
            rank,
            Ask {
                requests: &requests,
                reply_bytes,
            },
        )?;
        self.run(Turns::Together, |_, reply| {
            answer.extend_from_slice(reply);
            Ok(None)
        })?;
        Ok(answer)
    }

    /// Keeps `depth` units in flight on every connection for `time`, then waits for the remaining answers. Without relays.
    pub(super) fn flood(&mut self, flood: Flood<'_>, time: Duration) -> Result<Flooded, Failure> {
        let mut remainders = vec![0; flood.batches.len()];
        let start = Instant::now();
        for (rank, batch) in flood.batches.iter().enumerate() {
            self.send(rank, &batch[..flood.depth * flood.unit_bytes])?;
        }
        let mut sent = (flood.batches.len() * flood.depth) as u64;
        let mut answered = 0;
        let mut in_time = None;
        while answered < sent {
            let open = in_time.is_none();
            self.links.waiting = usize::try_from(sent - answered).unwrap_or(usize::MAX);
            self.poll_once(|links, index, bytes| {
                let received: usize = remainders[index] + bytes.len();
                let units = received / flood.reply_bytes;
                remainders[index] = received % flood.reply_bytes;
                answered += units as u64;
                if open && units > 0 {
                    let units_sent = &flood.batches[index][..units * flood.unit_bytes];
                    links.send(index, &[units_sent])?;
                    sent += units as u64;
                }
                Ok(())
            })?;
            if open && start.elapsed() >= time {
                in_time = Some((answered, start.elapsed()));
            }
        }
        self.links.waiting = 0;
        let (answered, elapsed) = in_time.unwrap_or((answered, start.elapsed()));
        Ok(Flooded {
            answered,
            elapsed,
            sent,
        })
    }

    pub(super) fn wrong_answer(&self, request: &str, detail: impl Display) -> Failure {
        Failure::wrong_answer(self.address(), request, detail)
    }

    /// Polls once, and passes on the received bytes of each connection, which has one turn.
    fn poll_once(
        &mut self,
        mut on_bytes: impl FnMut(&mut Links, usize, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let timeout = match self.ranks_per_relay {
            Some(_) => REPORT_INTERVAL,
            None => SILENCE_MAX,
        };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error).context("cannot poll"),
        }
        let links = &mut self.links;
        self.silence = match self.events.is_empty() {
            true => self.silence + timeout,
            false => Duration::ZERO,
        };
        if self.silence >= SILENCE_MAX {
            return Err(links.stalled());
        }
        for event in &self.events {
            let index = event.token().0;
            if event.is_writable() {
                links.links[index].is_connected = true;
            }
            // Reading distinguishes readable from broken. A short read means that no more is available.
            while event.is_readable() || event.is_error() {
                let link = &mut links.links[index];
                let received = link.read(&mut self.read_buffer, &mut self.opened);
                let received = received.map_err(|error| lost(links.address, index, error))?;
                let Some((bytes, is_all)) = received else {
                    break;
                };
                if !bytes.is_empty() {
                    on_bytes(links, index, bytes)?;
                }
                if is_all {
                    break;
                }
            }
            links.end_turn(index)?;
        }
        if self.ranks_per_relay.is_some() && self.report_at <= Instant::now() {
            links.report()?;
            self.report_at = Instant::now() + REPORT_INTERVAL;
        }
        Ok(())
    }
}

impl Links {
    fn ask(&mut self, rank: usize, ask: Ask<'_>) -> Result<(), Failure> {
        let (index, place) = (rank / self.ranks_per_link, rank % self.ranks_per_link);
        self.links[index].pending[place].expect(ask.reply_bytes);
        self.waiting += 1;
        self.send(rank, ask.requests)
    }

    fn send(&mut self, rank: usize, requests: &[&[u8]]) -> Result<(), Failure> {
        let (index, place) = (rank / self.ranks_per_link, rank % self.ranks_per_link);
        let sent = self.links[index].push(place, requests);
        sent.map_err(|error| Failure::wrong_answer(self.address, "a session", error))
    }

    fn end_turn(&mut self, index: usize) -> Result<(), Failure> {
        let sent = self.links[index].end_turn();
        sent.map_err(|error| lost(self.address, index, error))
    }

    /// Adds received bytes to the replies of a connection's ranks. Passes on the complete ones.
    fn take_in(
        &mut self,
        index: usize,
        bytes: &[u8],
        replies: &mut Vec<(usize, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let taken = self.links[index].take_in(bytes, replies);
        self.waiting -= replies.len();
        taken.map_err(|error| Failure::wrong_answer(self.address, "a request", error))
    }

    /// Reuses the memory of a reply.
    fn give_back(&mut self, index: usize, place: usize, mut reply: Vec<u8>) {
        reply.clear();
        self.links[index].pending[place].reply = reply;
    }

    /// Acknowledges what has arrived.
    fn report(&mut self) -> Result<(), Failure> {
        for (index, link) in self.links.iter_mut().enumerate() {
            let sent = link.report();
            sent.map_err(|error| lost(self.address, index, error))?;
        }
        Ok(())
    }

    /// The server did not send anything for [`SILENCE_MAX`].
    fn stalled(&self) -> Failure {
        let (address, missing) = (self.address, self.waiting);
        Failure::new(format!(
            "the server at {address} sent nothing for {SILENCE_MAX:?}; {missing} replies are missing"
        ))
    }
}

pub(super) fn lost(address: SocketAddr, link: usize, error: io::Error) -> Failure {
    Failure::new(format!(
        "lost connection {link} to the server at {address}: {error}"
    ))
}
