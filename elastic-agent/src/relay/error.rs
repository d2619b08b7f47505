//! Why the workers of a node got no relay.

use std::io;
use std::time::Duration;

use c10d_relay::RelayError;
use c10d_socket::HostPort;
use c10d_store::StoreError;
use elastic_rendezvous::BoardError;

/// Why the workers of a node got no relay.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NodeRelayError {
    /// The worker with rank 0 will serve the store, with PyTorch's server.
    #[error(
        "the worker with rank 0 serves the workers' store {master}, with PyTorch's server, which no relay can use: \
         a relay needs a store that a launcher of this kind serves"
    )]
    NoAgentStore {
        /// The address of the store.
        master: HostPort,
    },

    /// Nodes of the round did not take part in the choice of the port in time.
    #[error(
        "{arrived} of {group_world_size} nodes took part in the choice of the relays' port within {:.1} s: every \
         node of the round needs --relay, or relay=1 in PET_RDZV_CONF under torchrun",
        waited.as_secs_f64()
    )]
    NodesMissing {
        /// How many nodes took part.
        arrived: u64,
        /// How many nodes the round has.
        group_world_size: usize,
        /// How long this node waited.
        waited: Duration,
    },

    /// The node with group rank 0 found no port for its own relay.
    #[error("the node with group rank 0 found no port for its relay: its own error says why")]
    NoneProposed,

    /// No proposed port was free on all nodes.
    #[error(
        "no port was free for the relays of all nodes: {refusals} of {group_world_size} nodes refused port {port}, the \
         last of {attempts}; their logs say why; choose a port that is free on every node with --relay-port"
    )]
    NoFreePort {
        /// The last port.
        port: u16,
        /// How many nodes refused it.
        refusals: u64,
        /// How many nodes the round has.
        group_world_size: usize,
        /// How many ports were proposed.
        attempts: u32,
    },

    /// This node cannot listen on the port.
    #[error(
        "cannot listen for the relay on {}: {source}; choose a port that is free on every node with --relay-port",
        if *port == 0 {
            "a free port of 127.0.0.1".to_owned()
        } else {
            format!("port {port} of 127.0.0.1, nor of the next loopback addresses")
        }
    )]
    NotBound {
        /// The port; 0 for any.
        port: u16,
        /// The system's error at 127.0.0.1.
        source: io::Error,
    },

    /// This node and the one with group rank 0 were given different ports.
    #[error(
        "--relay-port is {own} on this node, but the node with group rank 0 has port {proposed}: give all nodes the \
         same, or none"
    )]
    PortsDiffer {
        /// The port of this node.
        own: u16,
        /// The port of the node with group rank 0.
        proposed: u16,
    },

    /// The nodes of the round could not agree on the port, or the caller interrupted the start.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// The relay cannot run.
    #[error("cannot start the relay: {0}")]
    Start(RelayError),

    /// The relay has no session with the workers' store: it is not reached, or has another secret or no sessions.
    #[error("the relay has no session with the workers' store {master} after {:.1} s: {source}", waited.as_secs_f64())]
    NotConnected {
        /// The address of the workers' store.
        master: HostPort,
        /// How long this node waited.
        waited: Duration,
        /// The relay's error.
        source: RelayError,
    },
}

impl From<StoreError> for NodeRelayError {
    fn from(error: StoreError) -> Self {
        Self::Board(error.into())
    }
}

c10d_socket::debug_as_display!(NodeRelayError);
