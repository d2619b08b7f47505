//! A client for short exchanges with status pages, launchers and PyTorch's debug servers.
//!
//! Each request has a separate connection, a deadline for the whole exchange, and a limit on the answer's size, so that
//! a stopped or hostile server costs its caller a bounded time and amount of memory.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use c10d_socket::{Cancel, printable};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::answer::ANSWERED_AT;
use super::guard::Token;

/// The default limit of an answer: about four times the report on 16,384 ranks.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// The limit of an answer's status line and headers.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// The most characters that are shown of the path of a unix socket.
const PATH_CHARS_MAX: usize = 400;

/// How long a store may take to answer through a relay.
const RELAY_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for an unlimited timeout.
const FAR: Duration = Duration::from_secs(365 * 86_400);

/// How long to wait before connecting again to a unix socket whose queue is full.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(20);

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// An address of TCP.
    Tcp(SocketAddr),
    /// The path of a unix socket on this host.
    Unix(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => {
                let path = path.as_os_str().as_bytes();
                printable(path, PATH_CHARS_MAX).fmt(f)
            }
        }
    }
}

/// A request without parameters in its body.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct HttpRequest {
    target: Target,
    is_post: bool,
    path: String,
    limit: usize,
    token: Option<Token>,
    cancel: Cancel,
}

impl HttpRequest {
    /// Creates a GET of `path`, which starts with `/` and may end in a query.
    pub fn get(target: Target, path: impl Into<String>) -> Self {
        Self {
            target,
            is_post: false,
            path: path.into(),
            limit: ANSWER_BYTES_MAX,
            token: None,
            cancel: Cancel::NEVER,
        }
    }

    /// Creates a POST to `path`, with a body of one byte, because PyTorch 2.9's debug server does not answer a POST
    /// without a body.
    pub fn post(target: Target, path: impl Into<String>) -> Self {
        Self {
            is_post: true,
            ..Self::get(target, path)
        }
    }

    /// Sets the maximum size of the answer's body, in bytes. The default is 32 MiB.
    pub const fn with_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets the token for servers that require one ([`with_token`](super::StatusOptions::with_token)).
    pub fn with_token(mut self, token: Option<&str>) -> Self {
        self.token = token.map(|token| Token::new(token.to_owned()));
        self
    }

    /// Sets a handle that cancels the exchange. Default [`Cancel::NEVER`].
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// The address of the server.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }

    fn to_wire(&self) -> Result<Request<Full<Bytes>>, HttpError> {
        let invalid = |reason: String| HttpError::InvalidRequest { reason };
        if !self.path.starts_with('/') {
            return Err(invalid(format!("the path {:?} has no / first", self.path)));
        }
        let uri: Uri = self
            .path
            .parse()
            .map_err(|error| invalid(format!("the path {:?}: {error}", self.path)))?;
        let host = match &self.target {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(_) => "localhost".to_owned(),
        };
        let method = if self.is_post {
            Method::POST
        } else {
            Method::GET
        };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, host)
            .header(header::CONNECTION, "close");
        let request = match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, token.to_header()),
            None => request,
        };
        request
            .body(Full::from(if self.is_post { "\n" } else { "" }))
            .map_err(|error| invalid(error.to_string()))
    }
}

/// A complete answer of a server.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpResponse {
    /// The status code, such as 200 or 404.
    pub status: u16,
    /// All bytes after the header.
    pub body: Vec<u8>,
    /// The server's own address, if a server of this project reports it. Through a relay, it differs from the requested
    /// address.
    pub answered_at: Option<SocketAddr>,
}

impl HttpResponse {
    /// Creates an answer with this status and body.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            body: body.into(),
            answered_at: None,
        }
    }

    /// Whether the status is 200 to 299.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }
}

impl fmt::Debug for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpResponse")
            .field("status", &self.status)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The caller's request is invalid, and was not sent.
    #[error("invalid HTTP request: {reason}")]
    InvalidRequest {
        /// The problem, as a clause.
        reason: String,
    },

    /// This process cannot open the descriptors for a client, for example because it has too many open files. The
    /// request was not sent.
    #[error("cannot start an HTTP client: {0}")]
    System(#[source] io::Error),

    /// The server does not listen, or cannot be reached in time. The request was not sent.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// The address of the server.
        target: Target,
        /// The error of the operating system, or [`io::ErrorKind::TimedOut`].
        source: io::Error,
    },

    /// The system accepted the connection, and the process behind it did not answer in time.
    #[error("{target} does not answer within {timeout:?}")]
    NoAnswer {
        /// The address of the server.
        target: Target,
        /// The time that the caller gave.
        timeout: Duration,
    },

    /// The server started to answer and did not finish in time.
    #[error("{target} does not finish its answer within {timeout:?}")]
    Unfinished {
        /// The address of the server.
        target: Target,
        /// The time that the caller gave.
        timeout: Duration,
    },

    /// The request's [`Cancel`] has ended the exchange.
    #[error("the request to {target} was cancelled")]
    Cancelled {
        /// The address of the server.
        target: Target,
    },

    /// The server closed the connection without an answer, as PyTorch's store does for HTTP.
    #[error("{target} closed the connection without an answer; it may not support HTTP")]
    Closed {
        /// The address of the server.
        target: Target,
    },

    /// The connection was lost in the middle of the answer.
    #[error("{target} closed the connection in the middle of its answer")]
    Truncated {
        /// The address of the server.
        target: Target,
    },

    /// The answer is not HTTP, or its head is too large.
    #[error("{target} does not answer with HTTP: {reason}")]
    NotHttp {
        /// The address of the server.
        target: Target,
        /// The problem, as a clause.
        reason: String,
    },

    /// The answer is larger than the request allows.
    #[error("the answer of {target} is larger than {limit} bytes")]
    TooLarge {
        /// The address of the server.
        target: Target,
        /// The request's limit, in bytes.
        limit: usize,
    },
}

/// Sends a request and returns the whole answer, whatever its status. Blocks for up to `timeout`. Must not be called inside
/// an async runtime.
///
/// # Errors
/// [`HttpError`] if the request has no answer. Each error names the server.
pub fn fetch(request: &HttpRequest, timeout: Duration) -> Result<HttpResponse, HttpError> {
    let mut answers = fetch_all(std::slice::from_ref(request), timeout, 1);
    answers.pop().unwrap_or_else(|| Err(lost()))
}

/// The address of the store whose pages the relay at this address forwards, with their password; `None` if the store does
/// not answer, or its pages are not of this project. Blocks for up to a second. Must not be called inside an async runtime.
#[must_use]
pub fn store_behind(relay: SocketAddr, token: Option<&str>) -> Option<SocketAddr> {
    let request = HttpRequest::get(Target::Tcp(relay), "/").with_token(token);
    fetch(&request, RELAY_TIMEOUT).ok()?.answered_at
}

/// Sends requests in parallel, at most `at_once` at the same time, and returns an answer for each, in their
/// order. `timeout` is for each exchange, so this blocks for up to `timeout` times the number of requests
/// divided by `at_once`. Must not be called inside an async runtime.
#[must_use]
pub fn fetch_all(
    requests: &[HttpRequest],
    timeout: Duration,
    at_once: usize,
) -> Vec<Result<HttpResponse, HttpError>> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(exchange_all(requests, timeout, at_once.max(1))),
        Err(error) => {
            // An io::Error cannot be cloned.
            let copy = || io::Error::new(error.kind(), error.to_string());
            let failed = requests.iter().map(|_| Err(HttpError::System(copy())));
            failed.collect()
        }
    }
}

async fn exchange_all(
    requests: &[HttpRequest],
    timeout: Duration,
    at_once: usize,
) -> Vec<Result<HttpResponse, HttpError>> {
    let mut answers: Vec<_> = requests.iter().map(|_| None).collect();
    let mut running = JoinSet::new();
    let mut queue = requests.iter().enumerate();
    loop {
        while running.len() < at_once
            && let Some((index, request)) = queue.next()
        {
            let request = request.clone();
            running.spawn(async move { (index, exchange(&request, timeout).await) });
        }
        match running.join_next().await {
            Some(Ok((index, answer))) => answers[index] = Some(answer),
            // The tasks are not aborted and do not panic; their slots would stay empty.
            Some(Err(_)) => {}
            None => break,
        }
    }
    let answers = answers.into_iter();
    let answers = answers.map(|answer| answer.unwrap_or_else(|| Err(lost())));
    answers.collect()
}

fn lost() -> HttpError {
    HttpError::System(io::Error::other("the exchange was lost"))
}

/// Sends a request and receives its whole answer, within `timeout`, or until the request's [`Cancel`] interrupts it.
async fn exchange(request: &HttpRequest, timeout: Duration) -> Result<HttpResponse, HttpError> {
    let mut talk = pin!(connect_and_talk(request, timeout));
    let mut watch = request.cancel.watch();
    poll_fn(|context| {
        if watch.is_due() && watch.ask(|| context.waker().clone()) {
            let target = request.target.clone();
            return Poll::Ready(Err(HttpError::Cancelled { target }));
        }
        talk.as_mut().poll(context)
    })
    .await
}

async fn connect_and_talk(
    request: &HttpRequest,
    timeout: Duration,
) -> Result<HttpResponse, HttpError> {
    let wire = request.to_wire()?;
    let now = Instant::now();
    let until = now.checked_add(timeout).unwrap_or(now + FAR);
    let target = || request.target.clone();
    let failed = |source| HttpError::Connect {
        target: target(),
        source,
    };
    match &request.target {
        Target::Tcp(address) => {
            let stream = timeout_at(until, TcpStream::connect(address)).await;
            let late = |_| {
                Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("no reaction within {timeout:?}"),
                ))
            };
            let stream = stream.unwrap_or_else(late).map_err(failed)?;
            talk(request, wire, stream, timeout, until).await
        }
        Target::Unix(path) => {
            let stream = timeout_at(until, connect_unix(path)).await;
            let late = |_| HttpError::NoAnswer {
                target: target(),
                timeout,
            };
            let stream = stream.map_err(late)?.map_err(failed)?;
            talk(request, wire, stream, timeout, until).await
        }
    }
}

async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            // Linux: the queue of the listening socket is full. TCP would retry automatically.
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(FULL_QUEUE_PAUSE).await,
            result => return result,
        }
    }
}

async fn talk<S>(
    request: &HttpRequest,
    wire: Request<Full<Bytes>>,
    stream: S,
    timeout: Duration,
    until: Instant,
) -> Result<HttpResponse, HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let target = || request.target.clone();
    let answer = async {
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        // Aborted when this set is dropped, so that a deadline also closes the connection.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok((sender.send_request(wire).await?, driver))
    };
    let (answer, _driver) = match timeout_at(until, answer).await {
        Ok(answer) => answer.map_err(|error| without_answer(target(), &error))?,
        Err(_) => {
            let target = target();
            return Err(HttpError::NoAnswer { target, timeout });
        }
    };
    let status = answer.status().as_u16();
    let answered_at = answer.headers().get(ANSWERED_AT);
    let answered_at = answered_at.and_then(|address| address.to_str().ok()?.parse().ok());
    let limit = request.limit;
    let body = timeout_at(until, Limited::new(answer.into_body(), limit).collect()).await;
    let target = target();
    match body {
        Ok(Ok(body)) => Ok(HttpResponse {
            status,
            body: body.to_bytes().into(),
            answered_at,
        }),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(HttpError::TooLarge { target, limit })
        }
        Ok(Err(_)) => Err(HttpError::Truncated { target }),
        Err(_) => Err(HttpError::Unfinished { target, timeout }),
    }
}

/// The error for a connection that ended before the answer's head was complete.
fn without_answer(target: Target, error: &hyper::Error) -> HttpError {
    if error.is_parse() {
        let reason = error.to_string();
        HttpError::NotHttp { target, reason }
    } else {
        // Closed or reset by the server: nothing else ends a connection without a deadline.
        HttpError::Closed { target }
    }
}

#[cfg(test)]
mod tests;
