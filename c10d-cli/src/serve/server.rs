//! A server that serves, and its pages.

use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::http::StatusServer;
use c10d_store::TcpStoreServer;

use crate::end_signals::EndSignals;
use crate::failure::Failure;
use crate::output::announce;

/// How often to check that the server still serves, so that no idle process remains after a failure.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A server and its pages.
pub(super) struct Served {
    pub(super) server: TcpStoreServer,
    pub(super) status: Option<Arc<StatusServer>>,
}

impl Served {
    /// Prints one line, with the first address.
    pub(super) fn announce(&self, what: &str) -> Result<(), Failure> {
        announce(what, self.server.local_addrs())?;
        if self.status.is_some() {
            log::info!("status page: http://{}/", self.server.local_addr());
        }
        Ok(())
    }

    /// Waits for a signal for at most `timeout`; returns whether one arrived.
    ///
    /// # Errors
    /// The server has failed.
    pub(super) fn ends(&self, signals: &EndSignals, timeout: Duration) -> Result<bool, Failure> {
        let ends = signals.wait(timeout)?;
        if !ends && let Some(error) = self.server.journal_failure() {
            return Err(Failure::JournalEnded(error.to_string()));
        }
        if !ends && !self.server.is_running() {
            return Err(Failure::ended("server"));
        }
        Ok(ends)
    }

    pub(super) fn stop(self) {
        if let Some(status) = self.status {
            status.shutdown();
        }
        self.server.shutdown();
    }
}
