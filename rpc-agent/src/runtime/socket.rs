//! A socket under the poller.

use std::net::SocketAddr;

use mio::net::TcpStream;

/// A connected socket, and the token of its events.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) token: usize,
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
}

/// At most this many unsent bytes of a connection are with the system: bytes handed to it cannot be overtaken.
pub(super) const NOT_SENT_LOW_WATER_BYTES: u32 = 1 << 20;
