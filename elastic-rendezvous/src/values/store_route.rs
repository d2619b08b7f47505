//! How a node reaches the store of its rendezvous.

use std::net::{IpAddr, SocketAddr};

use c10d_socket::HostPort;
use c10d_store::ConnectionEnds;

/// How a node reaches the store of its rendezvous.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreRoute {
    /// The endpoint that this node was given, with its port; `None` for a store in a file or in a directory. Behind
    /// address translation it differs from node to node.
    pub endpoint: Option<HostPort>,
    /// The address of this node on the network that leads to the store. On the node that serves the store, the address at
    /// which the first node of another host has reached it, if there is one. `None` for a store in a file.
    pub local: Option<IpAddr>,
    /// The other end of the node's connection to the store: its server, or what forwards to it.
    pub remote: Option<SocketAddr>,
    /// On the node that serves the store, the addresses of the latest eight other hosts with clients. Empty on other nodes.
    pub peers: Vec<IpAddr>,
}

impl StoreRoute {
    pub(crate) fn new(endpoint: impl Into<Option<HostPort>>, ends: Option<ConnectionEnds>) -> Self {
        Self {
            endpoint: endpoint.into(),
            local: ends.map(|ends| ends.local.ip().to_canonical()),
            remote: ends.map(|ends| ends.remote),
            peers: Vec::new(),
        }
    }
}
