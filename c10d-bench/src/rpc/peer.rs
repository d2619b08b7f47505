//! The command line of the second process.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct RpcPeerArgs {
    pub(super) kind: PeerKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PeerKind {
    /// A store, and a worker that joins through it. Announces the store's address.
    Agent,
    /// The same, with the secret that it finds in the store.
    AgentWithSecret,
    /// A bare echo for one connection.
    Echo,
}

impl PeerKind {
    /// The arguments with which [`ServerChild`](super::super::child::ServerChild) starts it.
    pub(super) fn command_line(self) -> Vec<String> {
        let kind = self.to_possible_value();
        let kind = kind.map(|kind| kind.get_name().to_owned());
        ["rpc-peer".to_owned()].into_iter().chain(kind).collect()
    }
}
