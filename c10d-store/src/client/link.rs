//! A connection that carries a session.

use std::net::SocketAddr;

use c10d_socket::TlsLayer;
use mio::net::TcpStream;

use crate::session::Restart;

/// A connection on which both sides go on with a session. Nothing has been sent over it since.
#[derive(Debug)]
pub struct SessionLink {
    /// The connection, non-blocking.
    pub socket: TcpStream,
    /// The TLS of the connection, if it has any.
    pub tls: Option<TlsLayer>,
    /// What the server has already sent.
    pub received: Vec<u8>,
    /// The server's address.
    pub server: SocketAddr,
    /// How many bytes of the session the server has received.
    pub received_by_server: u64,
    /// Set if the server was restarted and knows the session: both streams begin anew, and requests are sent again. Only
    /// with [`carrying_over`](super::SessionDialer::carrying_over).
    pub restart: Option<Restart>,
    /// The server sends heartbeats: a link on which nothing has arrived for
    /// [`SILENCE_MAX`](super::SILENCE_MAX) is lost.
    pub has_heartbeats: bool,
    /// The server keeps the session in its journal, and acknowledges requests once it has kept them.
    pub is_kept: bool,
}
