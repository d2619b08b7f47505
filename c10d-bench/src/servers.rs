//! The measured servers, each in a separate process: `c10d store serve` and `c10d relay` without the additions of the
//! commands (a status page, limits of memory, signals).

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use c10d_journal::{EtcdDirectory, EtcdJournal, EtcdOptions, SqliteJournal};
use c10d_relay::{Relay, RelayOptions};
use c10d_socket::{Credentials, HostPort, ListenOptions, Protocol, Secret, TlsClient, listen};
use c10d_store::{ServerOptions, StoreAddress, TcpStoreServer};
use clap::Args;
use tempfile::NamedTempFile;

use crate::affinity::Cores;
use crate::child::{ServerChild, announce, end_with_measurement, park};
use crate::failure::{Context as _, Failure};
use crate::process::Process;

/// A measured store in a child process: open to all, with a secret, or with a journal.
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

#[derive(Debug, Args)]
pub(crate) struct StoreServerArgs {
    /// The file of the secret that clients must have.
    #[arg(long)]
    secret_file: Option<PathBuf>,

    /// The directory of its journal.
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Its journal is in etcd: it is a standby while another server leads.
    #[arg(long, conflicts_with = "dir")]
    etcd: Option<EtcdOptions>,
}

#[derive(Debug, Args)]
pub(crate) struct RelayServerArgs {
    #[arg(value_parser = store_place)]
    upstream: StoreAddress,

    /// The file of the upstream's secret.
    #[arg(long)]
    secret_file: Option<PathBuf>,
}

impl RelayServerArgs {
    /// The arguments that [`ServerChild`] uses to start it.
    pub(crate) fn command_line(upstream: &str, secret: Option<String>) -> Vec<String> {
        let words = ["relay-server".to_owned(), upstream.to_string()];
        words.into_iter().chain(secret).collect()
    }
}

/// Serves until it is killed, or its parent ends.
pub(crate) fn serve_store(args: &StoreServerArgs) -> Result<(), Failure> {
    end_with_measurement();
    let options = match credentials(args.secret_file.as_ref())? {
        Some(credentials) => ServerOptions::default().with_credentials(credentials),
        None => ServerOptions::default(),
    };
    let options = match &args.dir {
        Some(directory) => options.with_journal(SqliteJournal::open(directory)?),
        None => options,
    };
    let listeners = listeners()?;
    let server = match &args.etcd {
        Some(etcd) => {
            let address = listeners[0].local_addr()?;
            let address = HostPort::new(address.ip().to_string(), address.port());
            let journal = EtcdJournal::source(etcd.clone(), address);
            TcpStoreServer::stand_by(listeners, options.with_journal(journal))?
        }
        None => TcpStoreServer::serve(listeners, options)?,
    };
    announce(server.local_addr())?;
    park()
}

/// Serves until it is killed, or its parent ends.
pub(crate) fn serve_relay(args: &RelayServerArgs) -> Result<(), Failure> {
    end_with_measurement();
    let options = match credentials(args.secret_file.as_ref())? {
        Some(credentials) => RelayOptions::default().with_credentials(credentials),
        None => RelayOptions::default(),
    };
    let relay = Relay::start(args.upstream.clone(), listeners()?, options)?;
    announce(relay.local_addrs()[0])?;
    park()
}

/// Listens on a free port of 127.0.0.1.
fn listeners() -> Result<Vec<TcpListener>, Failure> {
    let options = ListenOptions::default().with_host("127.0.0.1").with_port(0);
    Ok(listen(&options)?)
}

fn credentials(secret_file: Option<&PathBuf>) -> Result<Option<Credentials>, Failure> {
    let Some(path) = secret_file else {
        return Ok(None);
    };
    let secrets = Secret::read_file(path)?;
    Ok(Some(Credentials::from_secrets(secrets)?))
}

/// Parses `HOST:PORT`, or `etcd://H1:2379,H2:2379/PREFIX`: wherever the store is served at the moment.
pub(crate) fn store_place(text: &str) -> Result<StoreAddress, String> {
    if text.starts_with("etcd://") {
        let options: EtcdOptions = text.parse().map_err(|error| format!("{error}"))?;
        return Ok(StoreAddress::LookedUp(Arc::new(EtcdDirectory::new(
            options,
        ))));
    }
    let address: HostPort = text.parse().map_err(|error| format!("{error}"))?;
    Ok(address.into())
}
