//! A small HTTP server on a listener of its own, for answers that take blocking work.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};
use tokio::time;

use super::client::HttpResponse;
use super::hosts;
use super::newcomers::Newcomers;
use super::token::Token;

/// The most connections at a time: as many as `c10d stacks` makes at once. One without an accepted request makes room for
/// the next; if there is none, others wait in the listener's queue.
const CONNECTIONS_MAX: usize = 128;

/// How long a connection has for its request before it makes room. A burst of clients takes less for each.
const NEWCOMER_MIN: Duration = Duration::from_millis(100);

/// The most requests that are answered at a time. Others wait.
const ANSWERS_MAX: usize = 8;

/// How long a client may take to send a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may last.
const LIFETIME: Duration = Duration::from_secs(60);

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long to wait before accepting again when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long the shutdown waits for answers that are being made.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes the answer for the path and the query of a GET. May block for as long as the client should wait.
pub type RequestHandler = Arc<dyn Fn(&str) -> HttpResponse + Send + Sync>;

/// Answers GET requests on a listener, from up to 128 connections at a time, each for 60 s at most. Accepts only
/// requests whose Host is an address or `localhost`, as other names can be those of a stranger's web page. Dropping
/// it shuts it down.
pub struct RequestServer {
    address: SocketAddr,
    end: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RequestServer {
    /// Starts a thread with this name. With a token, answers only requests that have it, as of
    /// [`HttpRequest::with_token`](super::HttpRequest::with_token).
    ///
    /// # Errors
    /// The listener has no address, or the system has no room for another thread or poll descriptor.
    pub fn start(
        listener: TcpListener,
        name: &str,
        token: Option<String>,
        handler: RequestHandler,
    ) -> io::Result<Self> {
        Self::start_with(listener, name, token, handler, HEADER_TIMEOUT)
    }

    fn start_with(
        listener: TcpListener,
        name: &str,
        token: Option<String>,
        handler: RequestHandler,
        header_timeout: Duration,
    ) -> io::Result<Self> {
        let token = token.map(Token::new);
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(ANSWERS_MAX)
            .thread_name(name)
            .build()?;
        let end = Arc::new(Notify::new());
        let is_ended = Arc::clone(&end);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let serving = serve(listener, token, handler, &is_ended, header_timeout);
                LocalSet::new().block_on(&runtime, serving);
                runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
            })?;
        Ok(Self {
            address,
            end,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections and joins the thread. Blocks for up to 1 s, if answers are being made.
    pub fn shutdown(&self) {
        self.end.notify_one();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A panic has been reported by its thread.
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for RequestServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for RequestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

async fn serve(
    listener: TcpListener,
    token: Option<Token>,
    handler: RequestHandler,
    end: &Notify,
    header_timeout: Duration,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let accept_all = async {
        // Aborted when this set is dropped.
        let mut connections = JoinSet::new();
        let mut newcomers = Newcomers::default();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            while connections.try_join_next().is_some() {}
            while connections.len() >= CONNECTIONS_MAX {
                if let Some(arrived) = newcomers.oldest_arrived() {
                    let until = arrived + NEWCOMER_MIN;
                    if time::timeout_at(until, connections.join_next())
                        .await
                        .is_ok()
                    {
                        continue;
                    }
                    newcomers.end_oldest();
                }
                // Its end, or that of another one.
                let _ = connections.join_next().await;
            }
            let is_accepted = Rc::new(Cell::new(false));
            let work = serve_connection(
                stream,
                token.clone(),
                Arc::clone(&handler),
                Rc::clone(&is_accepted),
                header_timeout,
            );
            // An error is the client's: it left, was too slow, or does not speak HTTP.
            let task = connections.spawn_local(async { drop(time::timeout(LIFETIME, work).await) });
            newcomers.add(is_accepted, task, CONNECTIONS_MAX);
        }
    };
    let mut accept_all = pin!(accept_all);
    let mut ended = pin!(end.notified());
    std::future::poll_fn(|context| {
        let is_ended = ended.as_mut().poll(context).is_ready();
        if is_ended || accept_all.as_mut().poll(context).is_ready() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// Serves one connection. Sets `is_accepted` with the first accepted request.
async fn serve_connection(
    stream: TcpStream,
    token: Option<Token>,
    handler: RequestHandler,
    is_accepted: Rc<Cell<bool>>,
    header_timeout: Duration,
) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let handler = Arc::clone(&handler);
        let path = accepted_path(&request, token.as_ref());
        is_accepted.set(is_accepted.get() || path.is_ok());
        async move { Ok::<_, Infallible>(answer(path, handler).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// The path and the query of a request that may be answered, or why it is refused.
fn accepted_path(
    request: &Request<Incoming>,
    token: Option<&Token>,
) -> Result<String, (StatusCode, &'static str)> {
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    if !host.is_some_and(|host| hosts::is_accepted(host, &[])) {
        let text = "the Host header must be an address or localhost\n";
        return Err((StatusCode::MISDIRECTED_REQUEST, text));
    }
    if token.is_some_and(|token| !token.is_in(request.headers())) {
        let text = "this job has a secret: use --secret-file\n";
        return Err((StatusCode::UNAUTHORIZED, text));
    }
    if request.method() != Method::GET {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n"));
    }
    let path = request.uri().path_and_query().map(ToString::to_string);
    Ok(path.unwrap_or_default())
}

async fn answer(
    path: Result<String, (StatusCode, &'static str)>,
    handler: RequestHandler,
) -> Response<Full<Bytes>> {
    let refused = |(status, text): (StatusCode, &str)| {
        response(&HttpResponse {
            status: status.as_u16(),
            body: text.into(),
        })
    };
    let path = match path {
        Ok(path) => path,
        Err(refusal) => return refused(refusal),
    };
    match tokio::task::spawn_blocking(move || handler(&path)).await {
        Ok(answer) => response(&answer),
        Err(_) => refused((StatusCode::INTERNAL_SERVER_ERROR, "the answer failed\n")),
    }
}

fn response(answer: &HttpResponse) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(&answer.body)));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    let plain = header::HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, plain);
    let nosniff = header::HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

#[cfg(test)]
mod tests;
