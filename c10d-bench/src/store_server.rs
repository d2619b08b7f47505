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

#[derive(Debug)]
pub(crate) struct StoreServer {
    pub(crate) child: ServerChild,
    secret: Option<ServerSecret>,
}

#[derive(Debug)]
struct ServerSecret {
    file: NamedTempFile,
    credentials: Credentials,
}

impl StoreServer {
    /// A new store. With a secret, it serves only clients that have it.
    pub(crate) fn start(cores: Option<Cores>, has_secret: bool) -> Result<Self, Failure> {
        let secret = has_secret.then(ServerSecret::random).transpose()?;
        let mut command = vec!["store-server".to_owned()];
        command.extend(secret.as_ref().map(ServerSecret::option));
        Ok(Self {
            child: ServerChild::start(&command, cores)?,
            secret,
        })
    }

    /// Starts a server without a secret, with the content of the directory.
    pub(crate) fn with_journal(directory: &Path, cores: Option<Cores>) -> Result<Self, Failure> {
        let option = format!("--dir={}", directory.display());
        Ok(Self {
            child: ServerChild::start(&["store-server".to_owned(), option], cores)?,
            secret: None,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.child.address()
    }

    /// Returns the address for callers that also accept a store in etcd.
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

    /// The option for another process to use the secret.
    pub(crate) fn secret_file_option(&self) -> Option<String> {
        self.secret.as_ref().map(ServerSecret::option)
    }

    /// Returns the TLS client for connections with the secret.
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
