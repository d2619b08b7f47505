//! A client for the status pages of a store server, which answer on the store's own port.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Credentials, Deadline, HostPort, resolve};
use c10d_store::unstable::{LeaderSearch, NotReached, at_leader};
use c10d_store::{Lookup, Store, StoreAddress, StoreError, TcpStore, TcpStoreOptions};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::{HttpError, HttpRequest, HttpResponse, Target, fetch};
use super::rows::KeyRow;
use super::status_error::StatusError;
use crate::text::shown_up_to;

/// Enough for a loaded server.
const TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// How long a server may think about the first request until it is asked what it is: PyTorch's (2.15, libuv) waits
/// for more bytes without an answer.
const FIRST_TIMEOUT: Duration = Duration::from_millis(500);

/// The rows in one answer of the server.
const ROWS_AT_ONCE: usize = 4096;

/// The status of the response to a request without the password of the pages.
const UNAUTHORIZED: u16 = 401;

/// The part of an error page that is shown.
const REASON_CHARS_MAX: usize = 200;

/// A client of the status pages of one store, for programs that watch jobs.
///
/// The server must be a [`StatusServer`](super::StatusServer) of this project; for a different server, the error
/// reports its kind. An address that is looked up is followed: if a request fails, it is repeated at the next leading
/// server.
///
/// ```no_run
/// use std::time::Duration;
///
/// use c10d_inspect::Report;
/// use c10d_inspect::http::StatusPages;
///
/// let server: c10d_socket::HostPort = "node0:29500".parse()?;
/// let pages = StatusPages::open(server, None, Duration::from_secs(5))?;
/// let report: Report = pages.get("/why.json?ranks=all")?;
/// println!("{}", report.headline);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StatusPages {
    store: StoreAddress,
    credentials: Option<Credentials>,
    asked: Mutex<Asked>,
    /// The search for the leader by the last request to a store that moves.
    search: Mutex<Option<LeaderSearch>>,
    timeout: Duration,
    /// The deadline of all answers together.
    deadline: Deadline,
    has_answered: AtomicBool,
}

/// The server that was asked last.
#[derive(Debug, Clone)]
struct Asked {
    server: HostPort,
    addresses: Vec<SocketAddr>,
}

/// A part of a list.
#[derive(Debug, Deserialize)]
struct Page<T> {
    rows: Vec<T>,
}

/// The kind of a server that does not answer HTTP.
enum Kind {
    C10d,
    PyTorch,
    NoStore,
}

impl StatusPages {
    /// Looks up the name of a server at a fixed address; does not connect. Blocks for up to `timeout`, which is also the time for
    /// each answer, and 250 ms at least. A server with credentials answers only clients that have them; they need the feature
    /// `tls` of `c10d-store`.
    ///
    /// # Errors
    /// [`StatusError::UnknownHost`] if the name has no address.
    pub fn open(
        store: impl Into<StoreAddress>,
        credentials: Option<Credentials>,
        timeout: Duration,
    ) -> Result<Self, StatusError> {
        let store = store.into();
        let timeout = timeout.max(TIMEOUT_MIN);
        let deadline = Deadline::after(Instant::now(), timeout);
        let asked = match &store {
            StoreAddress::At(server) => Asked::find(server, deadline, &Cancel::NEVER)?,
            StoreAddress::LookedUp(lookup) => Asked {
                server: HostPort::new(lookup.name(), 0),
                addresses: Vec::new(),
            },
        };
        Ok(Self {
            store,
            credentials,
            asked: Mutex::new(asked),
            search: Mutex::default(),
            timeout,
            deadline: Deadline::NEVER,
            has_answered: AtomicBool::new(false),
        })
    }

    /// Limits the time for all answers together, including the answers of stores that [`follow`](Self::follow) asks. Default
    /// [`Deadline::NEVER`].
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// The pages of another server of the same job, which has the `share`th part of the remaining time.
    pub(super) fn open_other(&self, server: HostPort, share: u32) -> Result<Self, StatusError> {
        let now = Instant::now();
        let left = self.deadline.remaining(now);
        let deadline = left.map_or(Deadline::NEVER, |left| Deadline::after(now, left / share));
        let timeout = left.map_or(self.timeout, |left| self.timeout.min(left / share));
        let pages = Self::open(server, self.credentials.clone(), timeout)?;
        Ok(pages.with_deadline(deadline))
    }

    /// The time for the next answer.
    fn time(&self) -> Duration {
        let left = self.deadline.remaining(Instant::now());
        left.map_or(self.timeout, |left| self.timeout.min(left))
    }

    /// Whether both have an address in common.
    pub(super) fn is_of_same_server(&self, other: &Self) -> bool {
        let (own, others) = (self.asked().addresses, other.asked().addresses);
        own.iter().any(|it| others.contains(it))
    }

    /// Whether the store may move: then a request that fails with a [transient error](StatusError::is_transient) may succeed after the next takeover.
    #[must_use]
    pub const fn is_following(&self) -> bool {
        matches!(self.store, StoreAddress::LookedUp(_))
    }

    /// The server, as it was named. Of an address that is looked up the server that was asked last, or before the first request
    /// the name of the directory.
    #[must_use]
    pub fn server(&self) -> HostPort {
        self.asked().server
    }

    /// The first address of the server.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.asked().addresses.first().copied()
    }

    fn asked(&self) -> Asked {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        // No code panics while it holds the lock.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn search(&self) -> MutexGuard<'_, Option<LeaderSearch>> {
        self.search.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The password of the pages of this job's servers.
    pub(crate) fn token(&self) -> Option<String> {
        self.credentials.as_ref().and_then(Credentials::http_token)
    }

    /// A client of the store itself.
    pub(crate) fn open_store(&self, timeout: Duration) -> Result<TcpStore, StoreError> {
        let options = TcpStoreOptions::default().with_timeout(timeout);
        let options = match &self.credentials {
            Some(credentials) => options.with_credentials(credentials.clone()),
            None => options,
        };
        TcpStore::open_at(&self.store, options)
    }

    /// The JSON at `path`, as [`Report`](crate::Report) of `/why.json`. Blocks for up to the timeout; the first time for as
    /// long again, to find out what kind of server does not answer.
    ///
    /// # Errors
    /// [`StatusError`] if there is no page. Each error names the server.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, StatusError> {
        serde_json::from_slice(&self.body(path)?).map_err(|error| self.not_understood(path, error))
    }

    /// Returns all rows of `/clients.json` (as [`ClientRow`](super::ClientRow)) or `/keys.json` (as
    /// [`KeyRow`](super::KeyRow)), which a server sends in several answers. `path` may end in a query. Blocks for up to
    /// the timeout per 4,096 rows.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn rows<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, StatusError> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut rows = Vec::new();
        loop {
            let from = rows.len();
            let page: Page<T> = self.get(&format!(
                "{path}{separator}from={from}&count={ROWS_AT_ONCE}"
            ))?;
            let is_last = page.rows.len() < ROWS_AT_ONCE;
            rows.extend(page.rows);
            if is_last {
                return Ok(rows);
            }
        }
    }

    /// Returns the keys that begin with `prefix`, as they are on the wire. Blocks for up to the timeout per 4,096 keys.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn keys(&self, prefix: &str) -> Result<Vec<KeyRow>, StatusError> {
        let prefix: String = form_urlencoded::byte_serialize(prefix.as_bytes()).collect();
        self.rows(&format!("/keys.json?prefix={prefix}"))
    }

    /// The error for an answer of `path` that has another form than expected.
    #[must_use]
    pub fn not_understood(&self, path: &str, source: serde_json::Error) -> StatusError {
        StatusError::NotUnderstood {
            server: self.server(),
            path: path.to_owned(),
            source,
        }
    }

    fn body(&self, path: &str) -> Result<Vec<u8>, StatusError> {
        let response = if self.has_answered.load(Ordering::Relaxed) {
            self.fetch(path, self.time())?
        } else {
            self.fetch_first(path)?
        };
        self.has_answered.store(true, Ordering::Relaxed);
        self.check(path, response).map(|response| response.body)
    }

    fn check(&self, path: &str, response: HttpResponse) -> Result<HttpResponse, StatusError> {
        if response.is_success() {
            return Ok(response);
        }
        if response.status == UNAUTHORIZED {
            return Err(StatusError::WrongSecret {
                server: self.server(),
                has_secret: self.credentials.is_some(),
            });
        }
        Err(StatusError::Refused {
            server: self.server(),
            path: path.to_owned(),
            status: response.status,
            reason: shown_up_to(response.body.trim_ascii(), REASON_CHARS_MAX),
        })
    }

    /// The first answer. If there is none, asks what kind of server this is.
    fn fetch_first(&self, path: &str) -> Result<HttpResponse, StatusError> {
        let timeout = match self.store {
            StoreAddress::At(_) => self.time().min(FIRST_TIMEOUT),
            StoreAddress::LookedUp(_) => self.time(),
        };
        let source = match self.fetch(path, timeout) {
            Err(StatusError::Http(error @ HttpError::NoAnswer { .. })) if !self.is_following() => {
                error
            }
            Err(StatusError::Http(
                error @ (HttpError::Closed { .. } | HttpError::NotHttp { .. }),
            )) => error,
            result => return result,
        };
        let is_silent = matches!(source, HttpError::NoAnswer { .. });
        let server = self.server();
        match self.kind() {
            Kind::PyTorch => Err(StatusError::PyTorchs { server }),
            Kind::C10d if is_silent => self.fetch(path, self.time()),
            Kind::C10d => Err(StatusError::TurnedOff { server }),
            Kind::NoStore if is_silent => Err(source.into()),
            Kind::NoStore if matches!(source, HttpError::Closed { .. }) => {
                Err(StatusError::ClosesAtOnce { server })
            }
            Kind::NoStore => Err(StatusError::NotAStore { server, source }),
        }
    }

    fn fetch(&self, path: &str, timeout: Duration) -> Result<HttpResponse, StatusError> {
        match &self.store {
            StoreAddress::At(_) => {
                Ok(self.fetch_of(&self.asked().addresses, path, timeout, &Cancel::NEVER)?)
            }
            StoreAddress::LookedUp(lookup) => self.fetch_of_leader(lookup, path, timeout),
        }
    }

    fn fetch_of_leader(
        &self,
        lookup: &Arc<dyn Lookup>,
        path: &str,
        timeout: Duration,
    ) -> Result<HttpResponse, StatusError> {
        // A concurrent request makes another search.
        let kept = self.search().take();
        let new = || LeaderSearch::new(u64::from(std::process::id())).beginning_at_tried();
        let mut search = kept.unwrap_or_else(new);
        let found = at_leader(
            lookup,
            &mut search,
            Deadline::after(Instant::now(), timeout),
            &Cancel::NEVER,
            |leader, by, cancel| {
                let asked = Asked::find(&leader.address, by, cancel)?;
                self.lock().clone_from(&asked);
                let left = by.remaining(Instant::now()).unwrap_or(timeout);
                let response = self.fetch_of(&asked.addresses, path, left, cancel)?;
                self.check(path, response)
            },
            StatusError::is_transient,
        );
        *self.search() = Some(search);
        let not_found = |reason: String| StatusError::NoServer {
            store: lookup.name(),
            reason,
        };
        found.map_err(|error| match error {
            NotReached::Attempt(error) => error,
            NotReached::DataLost(lost) => lost.into(),
            NotReached::Lookup(error) => not_found(error.to_string()),
            NotReached::NoLeader | NotReached::Cancelled => {
                not_found("no process serves it at the moment".to_owned())
            }
        })
    }

    /// Tries the addresses of the host in their order, until one accepts a connection. Each address has an equal part
    /// of the time, so that an address which drops packets does not use up the time of the other addresses.
    fn fetch_of(
        &self,
        addresses: &[SocketAddr],
        path: &str,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<HttpResponse, HttpError> {
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let share = (timeout / count.max(1)).max(TIMEOUT_MIN);
        let mut first_error = None;
        for address in addresses {
            let request = HttpRequest::get(Target::Tcp(*address), path)
                .with_token(self.token().as_deref())
                .with_cancel(cancel.clone());
            match fetch(&request, share) {
                Err(error @ HttpError::Connect { .. }) => {
                    first_error.get_or_insert(error);
                }
                result => return result,
            }
        }
        let no_address = || HttpError::System(io::ErrorKind::NotFound.into());
        Err(first_error.unwrap_or_else(no_address))
    }

    fn kind(&self) -> Kind {
        match self.open_store(self.time()) {
            Ok(store) if store.has_prompt_watch() => Kind::C10d,
            Ok(_) => Kind::PyTorch,
            Err(_) => Kind::NoStore,
        }
    }
}

impl Asked {
    fn find(server: &HostPort, deadline: Deadline, cancel: &Cancel) -> Result<Self, StatusError> {
        let server = server.clone();
        match resolve(&server, deadline, cancel) {
            Ok(addresses) => Ok(Self { server, addresses }),
            Err(source) => Err(StatusError::UnknownHost { server, source }),
        }
    }
}
