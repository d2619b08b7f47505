//! The options that all client commands share: server, timeout, prefix, output.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_inspect::http::StatusPages;
use c10d_store::{PrefixStore, Store, StoreError, StoreHandle, TcpStore};
use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::output::{print_json, print_line, print_of_others};
use crate::quantity::parse_duration;
use crate::server_address::{ServerArgs, client_options};
use crate::status::pages_of;

#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Limit the time for connecting and the operation together: 5s, 250ms, 2m.
    ///
    /// With 0, the command checks once: connecting gets 2s. An operation that does not wait gets at least 250ms. A refused
    /// connection is retried within the limit, and reported on standard error after a second.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    timeout: Duration,

    /// Put PREFIX/ before every key, as PyTorch's PrefixStore does.
    #[arg(long)]
    pub(super) prefix: Option<String>,

    /// Print the answer as one JSON object.
    ///
    /// A value is text, for example {"key": "k", "value": "text"}, or base64 if it is not UTF-8, for example {"key": "k",
    /// "base64": "//4="}. Errors are still lines on standard error.
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// Enough for a running server, and the minimum of the store for operations that do not wait.
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// Enough for a running server on a busy machine, if no limit for connecting is given.
const CONNECT_TIMEOUT_ONCE: Duration = Duration::from_secs(2);

/// A connected store.
#[derive(Debug)]
pub(super) struct Client {
    tcp: Arc<TcpStore>,
    prefixed: Option<PrefixStore>,
}

impl TargetArgs {
    pub(super) fn connect(&self) -> Result<Client, Failure> {
        let started = Instant::now();
        let credentials = self.server.credentials()?;
        let target = self.server.target(credentials.as_ref())?;
        let connecting = match self.timeout.is_zero() {
            true => CONNECT_TIMEOUT_ONCE,
            false => self.timeout.max(CONNECT_TIMEOUT_MIN),
        };
        let options = client_options(credentials.as_ref()).with_timeout(connecting);
        let tcp = TcpStore::open_at(&target, options)?;
        tcp.set_timeout(Some(self.timeout.saturating_sub(started.elapsed())));
        let tcp = Arc::new(tcp);
        let prefixed = self
            .prefix
            .as_ref()
            .map(|prefix| PrefixStore::new(prefix.as_str(), tcp.clone()));
        Ok(Client { tcp, prefixed })
    }

    /// The status pages of the same server.
    pub(super) fn pages(&self) -> Result<StatusPages, Failure> {
        pages_of(&self.server, self.timeout)
    }

    /// Prints the object with --json, otherwise the bytes.
    pub(super) fn answer(&self, json: Value, bytes: &[u8]) -> Result<(), Failure> {
        if self.json {
            print_json(json)
        } else {
            print_of_others(bytes)
        }
    }

    /// Prints the object with --json, otherwise the text and a newline.
    pub(super) fn answer_line(&self, json: Value, text: impl Display) -> Result<(), Failure> {
        if self.json {
            print_json(json)
        } else {
            print_line(text)
        }
    }
}

impl Client {
    pub(super) fn store(&self) -> &dyn Store {
        match &self.prefixed {
            Some(prefixed) => prefixed,
            None => &*self.tcp,
        }
    }

    /// The store without the option --prefix.
    pub(super) fn tcp(&self) -> &TcpStore {
        &self.tcp
    }

    /// Executes a write, which the protocol does not answer, and confirms it: the answer to a PING behind it
    /// on the same connection proves that the server did not reject it.
    pub(super) fn write(
        &self,
        what: String,
        write: impl FnOnce(&dyn Store) -> Result<(), StoreError>,
    ) -> Result<(), Failure> {
        write(self.store())?;
        match self.tcp.ping() {
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::Unconfirmed {
                what,
                source: Box::new(error),
            }),
        }
    }
}
