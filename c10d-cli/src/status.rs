//! Reads the status pages of a store server, which answer on the store's own port.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_inspect::http::{HttpError, HttpRequest, HttpResponse, Target, fetch};
use c10d_socket::{Deadline, HostPort, resolve};
use c10d_store::{Store, TcpStore, TcpStoreOptions};
use clap::Args;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::printable::printable;
use crate::quantity::parse_duration;
use crate::server_address::ServerArgs;
use crate::status_error::StatusError;

/// Enough for a loaded server, and for finding out what kind of server does not answer.
const TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// The part of an error page that is shown.
const REASON_CHARS_MAX: usize = 200;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// The time for one answer of the server: 5s, 250ms, 2m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    timeout: Duration,
}

impl StatusArgs {
    /// Looks up the server's name. Does not connect.
    pub(crate) fn open(&self) -> Result<StatusPages, Failure> {
        StatusPages::open(self.server.target()?, self.timeout)
    }
}

/// The status pages of one server.
#[derive(Debug, Clone)]
pub(crate) struct StatusPages {
    server: HostPort,
    addresses: Vec<SocketAddr>,
    timeout: Duration,
}

impl StatusPages {
    pub(crate) fn open(server: HostPort, timeout: Duration) -> Result<Self, Failure> {
        let timeout = timeout.max(TIMEOUT_MIN);
        let deadline = Deadline::after(Instant::now(), timeout);
        match resolve(&server, deadline) {
            Ok(addresses) => Ok(Self {
                server,
                addresses,
                timeout,
            }),
            Err(source) => Err(StatusError::UnknownHost { server, source }.into()),
        }
    }

    pub(crate) const fn server(&self) -> &HostPort {
        &self.server
    }

    /// The JSON at `path`. Blocks for up to the timeout of the options, and as long again to find out why a
    /// server that accepts connections has no status pages.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, StatusError> {
        serde_json::from_slice(&self.body(path)?).map_err(|error| self.not_understood(path, error))
    }

    /// The error for an answer of `path` that has another form than expected.
    pub(crate) fn not_understood(&self, path: &str, source: serde_json::Error) -> StatusError {
        StatusError::NotUnderstood {
            server: self.server.clone(),
            path: path.to_owned(),
            source,
        }
    }

    fn body(&self, path: &str) -> Result<Vec<u8>, StatusError> {
        let response = self.fetch(path).map_err(|error| match error {
            HttpError::Closed { .. }
            | HttpError::Truncated { .. }
            | HttpError::NotHttp { .. }
            | HttpError::NoAnswer { .. } => self.without_pages(error),
            error => error.into(),
        })?;
        if response.is_success() {
            return Ok(response.body);
        }
        let reason = String::from_utf8_lossy(&response.body);
        let reason = reason.trim().chars().take(REASON_CHARS_MAX);
        Err(StatusError::Refused {
            server: self.server.clone(),
            path: path.to_owned(),
            status: response.status,
            reason: printable(&reason.collect::<String>()),
        })
    }

    /// Asks the addresses of the host in their order, until one accepts a connection.
    fn fetch(&self, path: &str) -> Result<HttpResponse, HttpError> {
        let deadline = Deadline::after(Instant::now(), self.timeout);
        let mut last = None;
        for (index, address) in self.addresses.iter().enumerate() {
            // An address that swallows packets must not take the time of the others.
            let left = deadline.remaining(Instant::now()).unwrap_or(self.timeout);
            let share = left / u32::try_from(self.addresses.len() - index).unwrap_or(u32::MAX);
            let request = HttpRequest::get(Target::Tcp(*address), path);
            match fetch(&request, share.max(TIMEOUT_MIN)) {
                Err(error @ (HttpError::Connect { .. } | HttpError::ConnectTimeout { .. })) => {
                    last.get_or_insert(error);
                }
                result => return result,
            }
        }
        let no_address = || HttpError::System(std::io::ErrorKind::NotFound.into());
        Err(last.unwrap_or_else(no_address))
    }

    /// What kind of server does not answer HTTP.
    fn without_pages(&self, source: HttpError) -> StatusError {
        let options = TcpStoreOptions::default().with_timeout(self.timeout);
        let server = self.server.clone();
        match TcpStore::open(server.host(), server.port(), options) {
            // It is a store, so it is only slow.
            Ok(_) if matches!(source, HttpError::NoAnswer { .. }) => source.into(),
            Ok(store) if store.wakes_on_change() => StatusError::TurnedOff { server },
            Ok(_) => StatusError::PyTorchs { server },
            Err(_) => StatusError::NotAStore { server, source },
        }
    }
}
