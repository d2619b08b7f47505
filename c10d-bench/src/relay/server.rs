//! A new server, with a secret or without.

use std::net::SocketAddr;

use c10d_socket::{Credentials, Protocol, TlsClient};

use crate::affinity::Cores;
use crate::child::ServerChild;
use crate::failure::{Context as _, Failure};
use crate::process::Process;
use crate::servers::StoreServerArgs;
use crate::workload::secret::SecretServer;

pub(super) enum Server {
    Plain(ServerChild),
    Secret(SecretServer),
}

impl Server {
    pub(super) fn start(cores: Option<Cores>, with_secret: bool) -> Result<Self, Failure> {
        if with_secret {
            return Ok(Self::Secret(SecretServer::start(cores)?));
        }
        let command = StoreServerArgs::command_line(&[]);
        Ok(Self::Plain(ServerChild::start(&command, cores)?))
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::Plain(server) => server.address(),
            Self::Secret(server) => server.address(),
        }
    }

    pub(super) fn process(&self) -> Process {
        match self {
            Self::Plain(server) => server.process(),
            Self::Secret(server) => server.process(),
        }
    }

    /// `None` for a server without a secret.
    pub(super) fn credentials(&self) -> Option<&Credentials> {
        match self {
            Self::Plain(_) => None,
            Self::Secret(server) => Some(&server.credentials),
        }
    }

    /// The option with which another process uses the secret.
    pub(super) fn secret_file_option(&self) -> Option<String> {
        match self {
            Self::Plain(_) => None,
            Self::Secret(server) => Some(server.secret_file_option()),
        }
    }

    /// For connections with the secret.
    pub(super) fn tls(&self) -> Result<Option<TlsClient>, Failure> {
        let host = self.address().ip().to_string();
        let tls = self
            .credentials()
            .map(|it| it.client(Protocol::Store, &host));
        tls.transpose().context("the secret")
    }
}
