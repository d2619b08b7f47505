//! The load generator: many connections, one thread, one poll.
//!
//! Sends bytes and counts replies, whose meaning only the workload knows. The length of each reply is known
//! beforehand, so nothing is parsed while the clock runs.

use std::fmt::Display;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::failure::{Context as _, Failure};
use c10d_socket::{TlsClient, TlsLayer};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, Type};

/// Events received per poll.
pub(super) const EVENTS_PER_POLL: usize = 1024;

/// The size of the server's own buffer.
pub(super) const READ_BYTES: usize = 64 << 10;

/// Longer than any pause of a healthy server, even while it cancels thousands of waits.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Connections to one server.
#[derive(Debug)]
pub(super) struct Fleet {
    poll: Poll,
    events: Events,
    read_buffer: Box<[u8]>,
    /// What TLS has opened.
    opened: Vec<u8>,
    links: Links,
}

/// The sending half of a [`Fleet`], for use while its replies are being handled.
#[derive(Debug)]
pub(super) struct Links {
    address: SocketAddr,
    registry: Registry,
    /// With it, the connections of the fleet have a secret.
    tls: Option<TlsClient>,
    /// Memory for sealed bytes.
    sealed: Vec<u8>,
    links: Vec<Link>,
    /// Links that still wait for a reply.
    waiting: usize,
}

#[derive(Debug)]
struct Link {
    stream: TcpStream,
    tls: Option<TlsLayer>,
    /// Bytes that the socket has not accepted yet; almost always empty.
    unsent: Vec<u8>,
    /// The received part of the reply.
    reply: Vec<u8>,
    /// The length of the expected reply; 0 if none is expected.
    reply_bytes: usize,
}

/// One kind of request, sent repeatedly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flood<'a> {
    /// For each link, at least `depth` equal units in a row.
    pub(super) batches: &'a [Vec<u8>],
    /// A unit is one request, or several of which the last is answered.
    pub(super) unit_bytes: usize,
    /// The answer to one unit.
    pub(super) reply_bytes: usize,
    /// Units in flight on each link.
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
    /// A fleet without connections.
    pub(super) fn new(address: SocketAddr, tls: Option<TlsClient>) -> Result<Self, Failure> {
        let poll = Poll::new().context("cannot poll")?;
        let registry = poll.registry().try_clone().context("cannot poll")?;
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_POLL),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            opened: Vec::new(),
            links: Links {
                address,
                registry,
                tls,
                sealed: Vec::new(),
                links: Vec::new(),
                waiting: 0,
            },
        })
    }

    pub(super) fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    pub(super) fn len(&self) -> usize {
        self.links.links.len()
    }

    /// Connects until there are `count` links, sends `greeting` on each and checks its reply.
    ///
    /// At most `window` connections wait for their reply at a time. Keep it well below the listener's
    /// backlog: the system retries a connection that exceeds the backlog only after a second.
    pub(super) fn connect(
        &mut self,
        count: usize,
        window: usize,
        greeting: &[u8],
        reply_bytes: usize,
        mut check: impl FnMut(&mut Links, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for _ in self.len()..count.min(self.len() + window) {
            self.links.open(greeting, reply_bytes)?;
        }
        self.run(|links, _, reply| {
            check(links, reply)?;
            if links.links.len() < count {
                links.open(greeting, reply_bytes)?;
            }
            Ok(())
        })
    }

    /// Passes every [requested](Links::ask) reply to `on_reply`, which may send more requests, until no
    /// reply is missing.
    pub(super) fn run(
        &mut self,
        mut on_reply: impl FnMut(&mut Links, usize, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        while self.links.waiting > 0 {
            self.poll_once(|links, index, bytes| {
                let Some(reply) = links.take_in(index, bytes)? else {
                    return Ok(());
                };
                on_reply(links, index, &reply)?;
                links.give_back(index, reply);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Sends a request on one link, and returns the reply.
    pub(super) fn call(
        &mut self,
        link: usize,
        request: &[u8],
        reply_bytes: usize,
    ) -> Result<Vec<u8>, Failure> {
        let mut answer = Vec::new();
        self.links.ask(link, request, reply_bytes)?;
        self.run(|_, _, reply| {
            answer.extend_from_slice(reply);
            Ok(())
        })?;
        Ok(answer)
    }

    /// Keeps `depth` units in flight on every link for `time`, then waits for the remaining answers.
    pub(super) fn flood(&mut self, flood: Flood<'_>, time: Duration) -> Result<Flooded, Failure> {
        let mut remainders = vec![0; flood.batches.len()];
        let start = Instant::now();
        for (index, batch) in flood.batches.iter().enumerate() {
            self.links
                .send(index, &batch[..flood.depth * flood.unit_bytes])?;
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
                    links.send(index, &flood.batches[index][..units * flood.unit_bytes])?;
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

    /// Polls once, and passes on the received bytes of each link.
    fn poll_once(
        &mut self,
        mut on_bytes: impl FnMut(&mut Links, usize, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let links = &mut self.links;
        match self.poll.poll(&mut self.events, Some(SILENCE_MAX)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error).context("cannot poll"),
        }
        if self.events.is_empty() {
            return Err(stalled(links.address, links.waiting));
        }
        for event in &self.events {
            let index = event.token().0;
            if event.is_writable() && !links.links[index].unsent.is_empty() {
                links.flush(index)?;
            }
            // Reading distinguishes readable from broken. A short read means that no more is available.
            while event.is_readable() || event.is_error() {
                match links.links[index].stream.read(&mut self.read_buffer) {
                    Ok(0) => return Err(links.lost(index, io::ErrorKind::UnexpectedEof.into())),
                    Ok(count) => {
                        let received = &self.read_buffer[..count];
                        if let Some(tls) = &mut links.links[index].tls {
                            self.opened.clear();
                            let opened = tls.receive(received, &mut self.opened);
                            opened.map_err(|error| links.lost(index, error.into()))?;
                            links.send_sealed(index)?;
                            if !self.opened.is_empty() {
                                on_bytes(links, index, &self.opened)?;
                            }
                        } else {
                            on_bytes(links, index, received)?;
                        }
                        if count < self.read_buffer.len() {
                            break;
                        }
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => break,
                        io::ErrorKind::Interrupted => {}
                        _ => return Err(links.lost(index, error)),
                    },
                }
            }
        }
        Ok(())
    }
}

/// How many connections to a local server share a source address. Machines of a real job have an address
/// each. With a single one, each connect beyond half of the port range (14,116 of 28,232 by default) searches
/// many times longer for a free port, which would dominate the figure.
const LINKS_PER_SOURCE: usize = 8000;

/// The source address of link `index`: the default, then 127.0.0.2 and so on. macOS has no 127.0.0.2, so more
/// connections need Linux.
fn source_of(target: SocketAddr, index: usize) -> Option<SocketAddr> {
    let host = u8::try_from(index / LINKS_PER_SOURCE + 1).ok()?;
    let local = host > 1 && target.ip().is_loopback() && target.is_ipv4();
    local.then(|| SocketAddr::from(([127, 0, 0, host], 0)))
}

fn start_connect(target: SocketAddr, source: Option<SocketAddr>) -> io::Result<TcpStream> {
    let Some(source) = source else {
        return TcpStream::connect(target);
    };
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&source.into())?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// Starts to connect socket `index` of many, which has its index as the token.
pub(super) fn open_socket(
    target: SocketAddr,
    index: usize,
    registry: &Registry,
) -> io::Result<TcpStream> {
    let mut stream = start_connect(target, source_of(target, index))?;
    stream.set_nodelay(true)?;
    // Closing then resets the connection, which frees its port at once for the next round.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    let interest = Interest::READABLE | Interest::WRITABLE;
    registry.register(&mut stream, Token(index), interest)?;
    Ok(stream)
}

impl Links {
    /// Sends `request` on a link, and expects a reply of `reply_bytes`.
    pub(super) fn ask(
        &mut self,
        link: usize,
        request: &[u8],
        reply_bytes: usize,
    ) -> Result<(), Failure> {
        debug_assert_eq!(self.links[link].reply_bytes, 0, "one reply at a time");
        self.links[link].reply_bytes = reply_bytes;
        self.waiting += 1;
        self.send(link, request)
    }

    /// Sends bytes without a reply, or with one that is already [expected](Self::expect).
    pub(super) fn send(&mut self, link: usize, bytes: &[u8]) -> Result<(), Failure> {
        if self.links[link].tls.is_none() {
            return self.send_plain(link, bytes);
        }
        let mut left = bytes;
        while let Some(tls) = &mut self.links[link].tls {
            let count = tls.seal(&[IoSlice::new(left)]);
            left = &left[count..];
            self.send_sealed(link)?;
            if left.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Sends what TLS has sealed.
    fn send_sealed(&mut self, link: usize) -> Result<(), Failure> {
        let mut sealed = std::mem::take(&mut self.sealed);
        sealed.clear();
        if let Some(tls) = &mut self.links[link].tls {
            let sent = tls.send(&mut sealed);
            sent.context("no memory")?;
        }
        let result = if sealed.is_empty() {
            Ok(())
        } else {
            self.send_plain(link, &sealed)
        };
        self.sealed = sealed;
        result
    }

    fn send_plain(&mut self, link: usize, bytes: &[u8]) -> Result<(), Failure> {
        let taken = if self.links[link].unsent.is_empty() {
            match self.links[link].stream.write(bytes) {
                Ok(count) => count,
                Err(error) => match error.kind() {
                    // Systems differ in the error of a socket that is not connected yet.
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected => 0,
                    _ => return Err(self.lost(link, error)),
                },
            }
        } else {
            0
        };
        self.links[link].unsent.extend_from_slice(&bytes[taken..]);
        Ok(())
    }

    /// Expects another reply on a link, to a request sent before.
    pub(super) fn expect(&mut self, link: usize, reply_bytes: usize) {
        debug_assert_eq!(self.links[link].reply_bytes, 0, "one reply at a time");
        self.links[link].reply_bytes = reply_bytes;
        self.waiting += 1;
    }

    fn open(&mut self, greeting: &[u8], reply_bytes: usize) -> Result<(), Failure> {
        let address = self.address;
        let failed = || format!("cannot connect to {address}");
        let index = self.links.len();
        let stream = open_socket(address, index, &self.registry).with_context(failed)?;
        let tls = self.tls.as_ref().map(TlsClient::start).transpose();
        let tls = tls.with_context(failed)?;
        self.links.push(Link {
            stream,
            tls,
            unsent: Vec::new(),
            reply: Vec::new(),
            reply_bytes: 0,
        });
        self.ask(index, greeting, reply_bytes)
    }

    fn flush(&mut self, index: usize) -> Result<(), Failure> {
        let link = &mut self.links[index];
        while !link.unsent.is_empty() {
            match link.stream.write(&link.unsent) {
                Ok(count) => drop(link.unsent.drain(..count)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected => break,
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(self.lost(index, error)),
                },
            }
        }
        Ok(())
    }

    /// Adds bytes to the reply of a link; returns the reply when it is complete.
    fn take_in(&mut self, index: usize, bytes: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let link = &mut self.links[index];
        link.reply.extend_from_slice(bytes);
        if link.reply.len() > link.reply_bytes {
            let detail = format!("{} bytes instead of {}", link.reply.len(), link.reply_bytes);
            return Err(self.wrong_answer("a request", detail));
        }
        if link.reply.len() < link.reply_bytes {
            return Ok(None);
        }
        link.reply_bytes = 0;
        self.waiting -= 1;
        Ok(Some(std::mem::take(&mut link.reply)))
    }

    /// Reuses the memory of a reply.
    fn give_back(&mut self, index: usize, mut reply: Vec<u8>) {
        reply.clear();
        self.links[index].reply = reply;
    }

    pub(super) fn wrong_answer(&self, request: &str, detail: impl Display) -> Failure {
        Failure::wrong_answer(self.address, request, detail)
    }

    fn lost(&self, link: usize, error: io::Error) -> Failure {
        lost(self.address, link, error)
    }
}

/// The server did not send anything for [`SILENCE_MAX`].
pub(super) fn stalled(address: SocketAddr, missing: usize) -> Failure {
    Failure::new(format!(
        "the server at {address} sent nothing for {SILENCE_MAX:?}; {missing} replies are missing"
    ))
}

pub(super) fn lost(address: SocketAddr, link: usize, error: io::Error) -> Failure {
    Failure::new(format!(
        "lost connection {link} to the server at {address}: {error}"
    ))
}
