//! A measured store in a child process: open to all, with a secret, or with a journal.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;

use c10d_socket::{Credentials, HostPort, Protocol, Secret, TlsClient};
use c10d_store::StoreAddress;
use tempfile::NamedTempFile;

use crate::affinity::Cores;
use crate::child::ServerChild;
use crate::failure::{Context as _, Failure};
use crate::process::Process;
use crate::servers::StoreServerArgs;

#[derive(Debug)]
pub(crate) struct StoreServer {
    pub(crate) child: ServerChild,
    secret: Option<ServerSecret>,
}

/// Which clients it serves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    Open,
    /// Those with its secret.
    Secret,
    /// Those too of the same user that have none.
    PlainToo,
}

#[derive(Debug)]
struct ServerSecret {
    file: NamedTempFile,
    credentials: Credentials,
}

impl StoreServer {
    /// A new store.
    pub(crate) fn start(cores: Option<Cores>, access: Access) -> Result<Self, Failure> {
        let options: &[&str] = match access {
            Access::PlainToo => &["--plain-from-same-user"],
            Access::Open | Access::Secret => &[],
        };
        let secret = match access {
            Access::Open => None,
            Access::Secret | Access::PlainToo => Some(ServerSecret::random()?),
        };
        Self::start_with(cores, options, secret)
    }

    /// Without a secret, and with what is in the directory.
    pub(crate) fn with_journal(directory: &Path, cores: Option<Cores>) -> Result<Self, Failure> {
        let option = format!("--dir={}", directory.display());
        Self::start_with(cores, &[&option], None)
    }

    fn start_with(
        cores: Option<Cores>,
        options: &[&str],
        secret: Option<ServerSecret>,
    ) -> Result<Self, Failure> {
        let mut command = StoreServerArgs::command_line(options);
        command.extend(secret.as_ref().map(ServerSecret::option));
        Ok(Self {
            child: ServerChild::start(&command, cores)?,
            secret,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.child.address()
    }

    /// For those that also take one in etcd.
    pub(crate) fn place(&self) -> StoreAddress {
        let address = self.address();
        HostPort::new(address.ip().to_string(), address.port()).into()
    }

    pub(crate) fn process(&self) -> Process {
        self.child.process()
    }

    /// `None` for a server without a secret.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.secret.as_ref().map(|it| &it.credentials)
    }

    /// The option with which another process uses the secret.
    pub(crate) fn secret_file_option(&self) -> Option<String> {
        self.secret.as_ref().map(ServerSecret::option)
    }

    /// For connections with the secret.
    pub(crate) fn tls(&self) -> Result<Option<TlsClient>, Failure> {
        let host = self.address().ip().to_string();
        let tls = self.credentials();
        let tls = tls.map(|it| it.client(Protocol::Store, &host));
        tls.transpose().context("the secret")
    }
}

impl ServerSecret {
    fn random() -> Result<Self, Failure> {
        let secret = Secret::random().context("the secret")?;
        // Only this user may read it.
        let write = || {
            let mut file = NamedTempFile::new()?;
            file.write_all(secret.to_text().as_bytes())?;
            io::Result::Ok(file)
        };
        Ok(Self {
            file: write().context("cannot write a secret")?,
            credentials: Credentials::from(secret),
        })
    }

    fn option(&self) -> String {
        format!("--secret-file={}", self.file.path().display())
    }
}
