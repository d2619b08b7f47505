//! The connection to the store.

use std::io::{self, Read};

use c10d_socket::{SendBuf, TlsLayer};
use c10d_store::unstable::{SessionLink, SessionStream};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

/// Bytes handed to the connection before it is written.
const UNSENT_BYTES: usize = 256 << 10;

/// The most bytes taken in one go, so that ranks are served in between.
const BYTES_PER_TURN: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Link {
    socket: TcpStream,
    tls: Option<TlsLayer>,
    out: SendBuf,
    opened: Vec<u8>,
}

/// The event of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// All available bytes have been read.
    Idle,
    /// There may be more to read, for which no event will arrive.
    Busy,
    /// The store has closed it.
    Closed,
}

impl Link {
    /// Takes a new connection. Returns the bytes that it has already received as well.
    pub(crate) fn new(
        mut link: SessionLink,
        registry: &Registry,
        token: Token,
    ) -> io::Result<(Self, Vec<u8>)> {
        let both = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut link.socket, token, both)?;
        let taken = Self {
            socket: link.socket,
            tls: link.tls,
            out: SendBuf::new(),
            opened: Vec::new(),
        };
        Ok((taken, link.received))
    }

    /// Sends the unsent bytes of the session, as far as the system takes them.
    pub(crate) fn flush(&mut self, stream: &mut SessionStream) -> io::Result<()> {
        loop {
            stream.fill(&mut self.out, UNSENT_BYTES);
            if !self.send()? || !stream.has_unsent() {
                return Ok(());
            }
        }
    }

    /// Acknowledges the bytes that have arrived, so that the store can drop them.
    pub(crate) fn report(&mut self, stream: &mut SessionStream) -> io::Result<()> {
        stream.report(&mut self.out);
        self.send().map(|_| ())
    }

    /// Reads, and passes the received bytes on. With `to_the_end` a short read is not the last one, since the end of the
    /// stream may follow.
    pub(crate) fn read<E>(
        &mut self,
        buffer: &mut [u8],
        to_the_end: bool,
        mut receive: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> io::Result<Result<LinkState, E>> {
        let mut budget = BYTES_PER_TURN;
        while budget > 0 {
            let count = match self.socket.read(buffer) {
                Ok(0) => return Ok(Ok(LinkState::Closed)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Ok(LinkState::Idle));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            budget = budget.saturating_sub(count);
            let result = match &mut self.tls {
                None => receive(&buffer[..count]),
                Some(tls) => {
                    self.opened.clear();
                    tls.receive(&buffer[..count], &mut self.opened)?;
                    receive(&self.opened)
                }
            };
            if let Err(error) = result {
                return Ok(Err(error));
            }
            // With less than was asked for, the next input causes an event (epoll(7), kqueue(2)).
            if count < buffer.len() && !to_the_end && SHORT_READ_DRAINS {
                return Ok(Ok(LinkState::Idle));
            }
        }
        Ok(Ok(LinkState::Busy))
    }

    fn send(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            None => self.out.flush(&mut self.socket),
            Some(tls) => {
                let is_sealed = self.out.flush(&mut tls.sealing(&mut self.socket))?;
                Ok(tls.send(&mut self.socket)? && is_sealed)
            }
        }
    }
}

/// Whether a short read has emptied the socket, and the next input causes an event.
pub(crate) const SHORT_READ_DRAINS: bool = cfg!(any(target_os = "linux", target_os = "android"));
