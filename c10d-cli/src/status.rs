//! Reads the status pages of a store server, which answer on the store's own port.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use c10d_inspect::http::{HttpError, HttpRequest, HttpResponse, Target, fetch};
use c10d_socket::{Credentials, Deadline, HostPort, printable, resolve};
use c10d_store::{Store, TcpStore, TcpStoreOptions};
use clap::Args;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::quantity::parse_duration;
use crate::server_address::{ServerArgs, client_options};
use crate::status_error::StatusError;

/// Enough for a loaded server.
const TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// How long a server may think about the first request until it is asked what it is: PyTorch's (2.15, libuv) waits
/// for more bytes without an answer.
const FIRST_TIMEOUT: Duration = Duration::from_millis(500);

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
        StatusPages::open(&self.server, self.timeout)
    }
}

/// The status pages of one server.
#[derive(Debug)]
pub(crate) struct StatusPages {
    server: HostPort,
    credentials: Option<Credentials>,
    addresses: Vec<SocketAddr>,
    timeout: Duration,
    has_answered: AtomicBool,
}

/// What a server is that does not answer HTTP.
enum Kind {
    C10d,
    PyTorch,
    NoStore,
}

impl StatusPages {
    pub(crate) fn open(args: &ServerArgs, timeout: Duration) -> Result<Self, Failure> {
        let (server, credentials) = (args.target_of_pages()?, args.credentials()?);
        Ok(Self::resolved(server, credentials, timeout)?)
    }

    /// The pages of another server of the same job.
    pub(crate) fn of(&self, server: HostPort) -> Result<Self, StatusError> {
        Self::resolved(server, self.credentials.clone(), self.timeout)
    }

    fn resolved(
        server: HostPort,
        credentials: Option<Credentials>,
        timeout: Duration,
    ) -> Result<Self, StatusError> {
        let timeout = timeout.max(TIMEOUT_MIN);
        let deadline = Deadline::after(Instant::now(), timeout);
        match resolve(&server, deadline) {
            Ok(addresses) => Ok(Self {
                server,
                credentials,
                addresses,
                timeout,
                has_answered: AtomicBool::new(false),
            }),
            Err(source) => Err(StatusError::UnknownHost { server, source }),
        }
    }

    /// Whether both have an address in common.
    pub(crate) fn is_of_same_server(&self, other: &Self) -> bool {
        self.addresses.iter().any(|it| other.addresses.contains(it))
    }

    pub(crate) const fn server(&self) -> &HostPort {
        &self.server
    }

    /// The password of the pages of this job's servers.
    pub(crate) fn token(&self) -> Option<String> {
        self.credentials.as_ref().and_then(Credentials::http_token)
    }

    /// The options of a client of the store.
    pub(crate) fn client_options(&self) -> TcpStoreOptions {
        client_options(self.credentials.as_ref())
    }

    /// The JSON at `path`. Blocks for up to the timeout of the options; the first time, as long again to find out
    /// what kind of server does not answer.
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
        let response = if self.has_answered.load(Ordering::Relaxed) {
            self.fetch(path, self.timeout)?
        } else {
            self.fetch_first(path)?
        };
        self.has_answered.store(true, Ordering::Relaxed);
        if response.is_success() {
            return Ok(response.body);
        }
        Err(StatusError::Refused {
            server: self.server.clone(),
            path: path.to_owned(),
            status: response.status,
            reason: printable(response.body.trim_ascii(), REASON_CHARS_MAX).to_string(),
        })
    }

    /// The first answer. If there is none, asks what kind of server this is.
    fn fetch_first(&self, path: &str) -> Result<HttpResponse, StatusError> {
        let server = self.server.clone();
        let source = match self.fetch(path, self.timeout.min(FIRST_TIMEOUT)) {
            Err(
                error @ (HttpError::Closed { .. }
                | HttpError::Truncated { .. }
                | HttpError::NotHttp { .. }
                | HttpError::NoAnswer { .. }),
            ) => error,
            result => return Ok(result?),
        };
        let is_silent = matches!(source, HttpError::NoAnswer { .. });
        match self.kind() {
            Kind::PyTorch => Err(StatusError::PyTorchs { server }),
            Kind::C10d if is_silent => Ok(self.fetch(path, self.timeout)?),
            Kind::C10d => Err(StatusError::TurnedOff { server }),
            Kind::NoStore if is_silent => Err(source.into()),
            Kind::NoStore if matches!(source, HttpError::Closed { .. }) => {
                Err(StatusError::ClosesAtOnce { server })
            }
            Kind::NoStore => Err(StatusError::NotAStore { server, source }),
        }
    }

    /// Asks the addresses of the host in their order, until one accepts a connection. Each has an equal part of the
    /// time: one that swallows packets must not take that of the others.
    fn fetch(&self, path: &str, timeout: Duration) -> Result<HttpResponse, HttpError> {
        let count = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        let share = (timeout / count.max(1)).max(TIMEOUT_MIN);
        let mut first_error = None;
        for address in &self.addresses {
            let request =
                HttpRequest::get(Target::Tcp(*address), path).with_token(self.token().as_deref());
            match fetch(&request, share) {
                Err(error @ (HttpError::Connect { .. } | HttpError::ConnectTimeout { .. })) => {
                    first_error.get_or_insert(error);
                }
                result => return result,
            }
        }
        let no_address = || HttpError::System(io::ErrorKind::NotFound.into());
        Err(first_error.unwrap_or_else(no_address))
    }

    fn kind(&self) -> Kind {
        let options = self.client_options().with_timeout(self.timeout);
        match TcpStore::open(self.server.host(), self.server.port(), options) {
            Ok(store) if store.wakes_on_change() => Kind::C10d,
            Ok(_) => Kind::PyTorch,
            Err(_) => Kind::NoStore,
        }
    }
}
