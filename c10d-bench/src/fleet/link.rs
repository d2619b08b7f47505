//! A connection of the load generator, and the replies that its ranks wait for.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::time::Duration;

use c10d_socket::{SendBuf, TlsLayer};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, Type};

use super::session::{Session, SessionError};

#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) is_connected: bool,
    tls: Option<TlsLayer>,
    out: SendBuf,
    /// Present if the connection belongs to a relay.
    pub(super) session: Option<Session>,
    /// The pending requests of each rank.
    pub(super) pending: Vec<Pending>,
}

/// The reply that a rank waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct Pending {
    /// The received part.
    pub(super) reply: Vec<u8>,
    /// The length; 0 if no reply is expected.
    reply_bytes: usize,
}

impl Link {
    /// Starts to connect. The token is the index of the connection.
    pub(super) fn open(
        address: SocketAddr,
        index: usize,
        registry: &Registry,
        tls: Option<TlsLayer>,
        ranks_per_relay: Option<usize>,
    ) -> io::Result<Self> {
        let mut stream = start_connect(address, source_of(address, index))?;
        stream.set_nodelay(true)?;
        // Closing then resets the connection, which frees its port at once for the next round.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut stream, Token(index), interest)?;
        let mut link = Self {
            stream,
            is_connected: false,
            tls,
            out: SendBuf::new(),
            session: ranks_per_relay.map(Session::with_ranks),
            pending: vec![Pending::default(); ranks_per_relay.unwrap_or(1)],
        };
        if link.session.is_some() {
            link.out.push(&Session::handshake());
        }
        Ok(link)
    }

    /// Adds requests of a rank to this turn.
    pub(super) fn push(&mut self, place: usize, requests: &[&[u8]]) -> Result<(), SessionError> {
        for request in requests {
            match &mut self.session {
                None => self.out.push(request),
                Some(session) => session.push(place, request)?,
            }
        }
        Ok(())
    }

    /// Sends the requests of a turn, with one write.
    pub(super) fn end_turn(&mut self) -> io::Result<()> {
        if let Some(session) = &mut self.session {
            session.end_turn(&mut self.out);
        }
        self.flush()
    }

    /// Acknowledges what has arrived.
    pub(super) fn report(&mut self) -> io::Result<()> {
        if let Some(session) = &mut self.session {
            session.report(&mut self.out);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.is_connected {
            return Ok(());
        }
        match &mut self.tls {
            None => self.out.flush(&mut self.stream).map(drop),
            Some(tls) => {
                self.out.flush(&mut tls.sealing(&mut self.stream))?;
                tls.send(&mut self.stream).map(drop)
            }
        }
    }

    /// Reads once; `None` if nothing is available. Returns the bytes for the ranks, and whether no more are available.
    pub(super) fn read<'b>(
        &mut self,
        buffer: &'b mut [u8],
        opened: &'b mut Vec<u8>,
    ) -> io::Result<Option<(&'b [u8], bool)>> {
        let count = loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => break count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        };
        let is_all = count < buffer.len();
        let bytes = match &mut self.tls {
            None => &buffer[..count],
            Some(tls) => {
                opened.clear();
                tls.receive(&buffer[..count], opened)?;
                &opened[..]
            }
        };
        Ok(Some((bytes, is_all)))
    }

    /// Adds bytes to the replies of the ranks. Passes on the complete ones.
    pub(super) fn take_in(
        &mut self,
        bytes: &[u8],
        replies: &mut Vec<(usize, Vec<u8>)>,
    ) -> Result<(), SessionError> {
        let Self {
            session, pending, ..
        } = self;
        let mut take = |place: usize, bytes: &[u8]| {
            if let Some(reply) = pending[place].take_in(bytes)? {
                replies.push((place, reply));
            }
            Ok(())
        };
        match session {
            None => take(0, bytes),
            Some(session) => session.receive(bytes, take),
        }
    }
}

impl Pending {
    pub(super) fn expect(&mut self, reply_bytes: usize) {
        debug_assert_eq!(self.reply_bytes, 0, "one reply at a time");
        self.reply_bytes = reply_bytes;
    }

    /// Returns the reply when it is complete.
    fn take_in(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, SessionError> {
        self.reply.extend_from_slice(bytes);
        let (received, expected) = (self.reply.len(), self.reply_bytes);
        if received > expected {
            return Err(SessionError::TooLong { received, expected });
        }
        if received < expected {
            return Ok(None);
        }
        self.reply_bytes = 0;
        Ok(Some(std::mem::take(&mut self.reply)))
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
