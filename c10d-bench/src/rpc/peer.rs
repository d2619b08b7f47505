//! The process at the other end of a measured connection, and a client of its echo.

use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};

use crate::failure::Failure;

/// A client of an echo server.
pub(super) trait EchoClient {
    /// One round trip.
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, Failure>;

    /// Makes round trips one after the other for `time`, at least one; returns their times. Checks only the
    /// length of answers.
    fn one_at_a_time(&mut self, payload: &Bytes, time: Duration) -> Result<Vec<Duration>, Failure>;
}

#[derive(Debug, Args)]
pub(crate) struct RpcPeerArgs {
    pub(super) kind: PeerKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PeerKind {
    /// A store, and a worker that joins through it. Announces the store's address.
    Agent,
    /// An agent with the secret that it finds in the store.
    AgentWithSecret,
    /// A bare echo for one connection.
    Echo,
}

impl PeerKind {
    /// The arguments that [`ServerChild`](super::super::child::ServerChild) uses to start it.
    pub(super) fn command_line(self) -> Vec<String> {
        let kind = self.to_possible_value();
        let kind = kind.map(|kind| kind.get_name().to_owned());
        ["rpc-peer".to_owned()].into_iter().chain(kind).collect()
    }
}
