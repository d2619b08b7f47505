//! The measured servers, each in a process of its own: `c10d store serve` and `c10d relay` without what the command adds
//! (a status page, limits of memory, signals).

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;

use c10d_journal::SqliteJournal;
use c10d_relay::{Relay, RelayOptions};
use c10d_socket::{Credentials, HostPort, ListenOptions, Secret, listen};
use c10d_store::{ServerOptions, TcpStoreServer};
use clap::Args;

use super::child::{announce, end_with_measurement};
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct StoreServerArgs {
    /// The file of the secret that clients must have.
    #[arg(long)]
    secret_file: Option<PathBuf>,

    /// Also serves clients of the same user without the secret.
    #[arg(long, requires = "secret_file")]
    plain_from_same_user: bool,

    /// The directory of its journal.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl StoreServerArgs {
    /// The arguments with which [`ServerChild`](super::child::ServerChild) starts it.
    pub(crate) fn command_line(options: &[&str]) -> Vec<String> {
        let words = [&["store-server"], options].concat();
        words.into_iter().map(str::to_owned).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct RelayServerArgs {
    upstream: HostPort,

    /// The file of the upstream's secret.
    #[arg(long)]
    secret_file: Option<PathBuf>,
}

impl RelayServerArgs {
    /// The arguments with which [`ServerChild`](super::child::ServerChild) starts it.
    pub(crate) fn command_line(upstream: SocketAddr, secret: Option<String>) -> Vec<String> {
        let words = ["relay-server".to_owned(), upstream.to_string()];
        words.into_iter().chain(secret).collect()
    }
}

/// Serves until it is killed, or its parent ends.
pub(crate) fn serve_store(args: &StoreServerArgs) -> Result<(), Failure> {
    end_with_measurement();
    let options = match credentials(args.secret_file.as_ref())? {
        Some(credentials) => ServerOptions::default()
            .with_credentials(credentials)
            .with_plain_from_same_user(args.plain_from_same_user),
        None => ServerOptions::default(),
    };
    let options = match &args.dir {
        Some(directory) => options.with_journal(SqliteJournal::open(directory).map_err(failed)?),
        None => options,
    };
    let server = TcpStoreServer::serve(listeners()?, options).map_err(failed)?;
    announce(server.local_addr()).map_err(Failure::Output)?;
    park()
}

/// Serves until it is killed, or its parent ends.
pub(crate) fn serve_relay(args: &RelayServerArgs) -> Result<(), Failure> {
    end_with_measurement();
    let options = match credentials(args.secret_file.as_ref())? {
        Some(credentials) => RelayOptions::default().with_credentials(credentials),
        None => RelayOptions::default(),
    };
    let relay = Relay::start(args.upstream.clone(), listeners()?, options).map_err(failed)?;
    announce(relay.local_addrs()[0]).map_err(Failure::Output)?;
    park()
}

/// On a free port of 127.0.0.1.
fn listeners() -> Result<Vec<TcpListener>, Failure> {
    let options = ListenOptions::default().with_host("127.0.0.1").with_port(0);
    listen(&options).map_err(failed)
}

fn credentials(secret_file: Option<&PathBuf>) -> Result<Option<Credentials>, Failure> {
    let Some(path) = secret_file else {
        return Ok(None);
    };
    let secrets = Secret::read_file(path).map_err(failed)?;
    Ok(Some(Credentials::from_secrets(secrets).map_err(failed)?))
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::Bench(Box::new(error))
}

fn park() -> ! {
    loop {
        thread::park();
    }
}
