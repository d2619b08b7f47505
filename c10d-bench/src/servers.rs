//! The measured servers, each in a separate process: `c10d store serve` and `c10d relay` without the additions of the
//! commands (a status page, limits of memory, signals).

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use c10d_journal::{EtcdDirectory, EtcdJournal, EtcdOptions, SqliteJournal};
use c10d_relay::{Relay, RelayOptions};
use c10d_socket::{Credentials, HostPort, ListenOptions, Secret, listen};
use c10d_store::{ServerOptions, StoreAddress, TcpStoreServer};
use clap::Args;

use crate::child::{announce, end_with_measurement, park};
use crate::failure::Failure;

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
    /// The arguments that [`ServerChild`](super::child::ServerChild) uses to start it.
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
