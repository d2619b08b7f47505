//! The two ends of a connection.

use std::net::SocketAddr;

/// The addresses of the two ends of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionEnds {
    /// The address of this process. Other hosts of the same network reach this host at its IP address.
    pub local: SocketAddr,
    /// The address of the server, or of a proxy that forwards to it.
    pub remote: SocketAddr,
}
