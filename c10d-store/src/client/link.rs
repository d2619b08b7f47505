//! A connection as a value: what carries a session, and its two ends.

use std::net::SocketAddr;

#[cfg(feature = "extensions")]
use {crate::session::Restart, c10d_socket::TlsLayer, mio::net::TcpStream};

/// A connection that has just resumed a session, and has not been used yet.
#[cfg(feature = "extensions")]
#[derive(Debug)]
pub struct SessionLink {
    /// The socket of the connection, non-blocking.
    pub socket: TcpStream,
    /// The TLS of the connection, if it has any.
    pub tls: Option<TlsLayer>,
    /// The bytes that the server has already sent.
    pub received: Vec<u8>,
    /// The server's address.
    pub server: SocketAddr,
    /// The number of bytes of the session that the server has received.
    pub received_by_server: u64,
    /// Set if the server was restarted and has the session: both streams begin again, and requests are sent again.
    /// Only with [`carrying_over`](super::SessionDialer::carrying_over).
    pub restart: Option<Restart>,
    /// Whether the server sends heartbeats: if so, a link that has received nothing for
    /// [`SILENCE_MAX`](super::SILENCE_MAX) is lost.
    pub has_heartbeats: bool,
    /// Whether the server keeps the session in its journal, and acknowledges requests once it has kept them.
    pub is_kept: bool,
}

/// The addresses of the two ends of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionEnds {
    /// The address of this process. Other hosts of the same network reach this host at its IP address.
    pub local: SocketAddr,
    /// The address of the server, or of a proxy that forwards to it.
    pub remote: SocketAddr,
}
