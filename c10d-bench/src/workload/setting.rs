//! The setting of a measurement of a workload, and the numbers of its options.

use std::net::SocketAddr;
use std::time::Duration;

use c10d_socket::{ConnectOptions, Credentials};
use c10d_store::{TcpStore, TcpStoreOptions};

use super::requests;
use crate::affinity::Cores;
use crate::failure::Failure;
use crate::fleet::{Ask, Fleet, SILENCE_MAX};
use crate::process::Process;

/// Opens a store with the client library. Does not repeat a failed attempt to connect.
pub(crate) fn open_store(
    address: SocketAddr,
    credentials: Option<&Credentials>,
) -> Result<TcpStore, Failure> {
    let mut options = TcpStoreOptions::default()
        .with_timeout(SILENCE_MAX)
        .with_connect_options(ConnectOptions::default().with_rounds_max(1));
    if let Some(credentials) = credentials {
        options = options.with_credentials(credentials.clone());
    }
    Ok(TcpStore::open(
        &address.ip().to_string(),
        address.port(),
        options,
    )?)
}

/// The settings of all workloads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// The measured server.
    pub(crate) server: SocketAddr,
    /// The server's process, if it is known and on this machine.
    pub(crate) process: Option<Process>,
    /// The cores of this thread and of the servers that it starts.
    pub(crate) cores: Option<Cores>,
    /// How often each figure is measured.
    pub(crate) rounds: usize,
    /// How long a round lasts, for workloads without a natural end.
    pub(crate) round_time: Duration,
}

impl Setting {
    /// Opens a fleet of plain connections that have completed the handshake.
    pub(crate) fn fleet(&self, connections: usize) -> Result<Fleet, Failure> {
        let mut fleet = Fleet::new(self.server, None, None)?;
        let hello = requests::hello();
        let greeting = Ask {
            requests: &[&hello],
            reply_bytes: requests::HELLO_REPLY.len(),
        };
        fleet.connect(connections, greeting, |reply| {
            if reply == requests::HELLO_REPLY {
                return Ok(());
            }
            let detail = format!("{reply:02x?}");
            Err(Failure::wrong_answer(self.server, "PING", detail))
        })?;
        Ok(fleet)
    }
}

/// A count of at least 1.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// A count from 1 to `max`.
pub(crate) fn at_most(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match at_least_one(text)? {
        count if count <= max => Ok(count),
        _ => Err(format!("must be from 1 to {max}")),
    }
}

/// The length of one round, in seconds.
pub(crate) fn round_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("must be from 0.001 to 3600".to_owned()),
        Err(error) => Err(format!("{error}")),
    }
}
