//! A server whose store is in etcd: it is a standby while another server leads, and again after another server has
//! taken over.

use std::net::TcpListener;
use std::time::Duration;

use c10d_journal::{EtcdJournal, EtcdOptions};
use c10d_socket::HostPort;
use c10d_store::journal::{JournalError, JournalSource};
use c10d_store::{ServerOptions, TcpStoreServer};

use super::server::{CHECK_INTERVAL, Served};
use crate::end_signals::EndSignals;
use crate::failure::Failure;

/// How often to check whether the server serves by now, to say so.
const STANDBY_CHECK_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Candidate {
    pub(super) etcd: EtcdOptions,
    /// The host at which other servers and clients find the listeners.
    pub(super) host: String,
    pub(super) listeners: Vec<TcpListener>,
}

impl Candidate {
    /// Runs until a signal.
    pub(super) fn run(
        &self,
        options: ServerOptions,
        start: impl Fn(TcpStoreServer) -> Result<Served, Failure>,
        signals: &EndSignals,
    ) -> Result<(), Failure> {
        let options = options.with_journal(self.journal()?);
        loop {
            let copies: std::io::Result<Vec<_>> =
                self.listeners.iter().map(TcpListener::try_clone).collect();
            let listeners = copies.map_err(Failure::system("cannot keep the listening socket"))?;
            let served = start(TcpStoreServer::stand_by(listeners, options.clone())?)?;
            served.announce("standing by on")?;
            let deposed = match serve(&served, signals) {
                Ok(()) => {
                    log::info!(
                        "received {}: stopping; the store is kept in {}",
                        signals.name(),
                        self.etcd
                    );
                    served.stop();
                    return Ok(());
                }
                Err(failure) => match served.server.journal_failure() {
                    Some(deposed @ JournalError::Deposed { .. }) => deposed.to_string(),
                    _ => return Err(failure),
                },
            };
            log::warn!("{deposed}: this server is a standby again");
            served.stop();
        }
    }

    fn journal(&self) -> Result<JournalSource, Failure> {
        let address = self.listeners[0].local_addr();
        let address = address.map_err(Failure::system("cannot read the server's port"))?;
        let address = HostPort::new(self.host.as_str(), address.port());
        Ok(EtcdJournal::source(self.etcd.clone(), address))
    }
}

/// Serves until a signal.
fn serve(served: &Served, signals: &EndSignals) -> Result<(), Failure> {
    while served.server.is_standby() {
        if served.ends(signals, STANDBY_CHECK_INTERVAL)? {
            return Ok(());
        }
    }
    served.announce("listening on")?;
    while !served.ends(signals, CHECK_INTERVAL)? {}
    Ok(())
}
