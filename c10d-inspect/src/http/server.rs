//! The status server: one thread that serves the HTTP connections of a store.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::io::{self, Cursor, Read, Write};
use std::net;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use c10d_socket::host_name;
use c10d_store::{HttpConnection, HttpHandler, SnapshotError};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::select;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, LocalSet, yield_now};
use tokio::time::{sleep, timeout};

use super::looker::Looker;
use super::newcomers::Newcomers;
use super::options::StatusOptions;
use super::routes::route;
use super::source::StatusSource;
use super::timeline::Timeline;
use crate::Report;

/// How many connections there may be, and for how long.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// The most connections at a time: a few people and a Prometheus. Each holds a descriptor that a rank may need. One
    /// without an accepted request makes room for the next.
    connections_max: usize,
    /// How long a client may take to send a request, and how long a connection may be idle between two.
    header: Duration,
    /// How long a connection may last. An open page connects again once a minute.
    lifetime: Duration,
    /// How long a client may take to read the rest of an answer when its connection ends.
    grace: Duration,
}

const LIMITS: Limits = Limits {
    connections_max: 64,
    header: Duration::from_secs(10),
    lifetime: Duration::from_secs(60),
    grace: Duration::from_secs(1),
};

/// The most connections and requests for reports that wait for the thread.
const INBOX_MAX: usize = 128;

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What connections beyond the limit get.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 51\r\n\
    Retry-After: 1\r\nConnection: close\r\n\r\ntoo many status connections (64): close some pages\n";

/// Serves a page, JSON and metrics about a store, on connections that the store hands over. Install it with
/// [`TcpStoreServer::set_http_handler`](c10d_store::TcpStoreServer::set_http_handler).
///
/// It reads only. While nobody asks, it does nothing. Dropping it shuts it down.
pub struct StatusServer {
    inbox: mpsc::Sender<Message>,
    end: Arc<Notify>,
    timeline: Arc<Timeline>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Message {
    Connection(HttpConnection),
    Report(SyncSender<Result<Arc<Report>, SnapshotError>>),
}

impl StatusServer {
    /// Starts the thread `c10d-status`.
    ///
    /// # Errors
    /// The system has no room for another thread or for its poll descriptor.
    pub fn start(source: impl StatusSource, options: StatusOptions) -> io::Result<Arc<Self>> {
        Self::start_with(source, options, LIMITS)
    }

    fn start_with(
        source: impl StatusSource,
        options: StatusOptions,
        limits: Limits,
    ) -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (inbox, messages) = mpsc::channel(INBOX_MAX);
        let server = Self {
            inbox,
            end: Arc::default(),
            timeline: Arc::default(),
            thread: Mutex::default(),
        };
        let end = Arc::clone(&server.end);
        let timeline = Arc::clone(&server.timeline);
        let options = with_own_host_names(options);
        let source = Box::new(source);
        let thread = thread::Builder::new()
            .name("c10d-status".to_owned())
            .spawn(move || {
                let looker = Looker::new(source, options, timeline);
                let serving = serve(looker, messages, &end, limits);
                LocalSet::new().block_on(&runtime, serving);
            })?;
        *server.thread() = Some(thread);
        Ok(Arc::new(server))
    }

    /// The newest report: a new one, unless one was made within the last second (longer if reports are expensive, see
    /// [`Report::taken_unix_ms`]). Blocks for up to `timeout`.
    ///
    /// # Errors
    /// The store has ended, or does not answer in time.
    pub fn report(&self, timeout: Duration) -> Result<Arc<Report>, SnapshotError> {
        let (reply, answer) = sync_channel(1);
        self.inbox
            .try_send(Message::Report(reply))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SnapshotError::TimedOut {
                    timeout: Duration::ZERO,
                },
                mpsc::error::TrySendError::Closed(_) => SnapshotError::Stopped,
            })?;
        match answer.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(SnapshotError::TimedOut { timeout }),
            Err(RecvTimeoutError::Disconnected) => Err(SnapshotError::Stopped),
        }
    }

    /// The events that the page shows. The metrics count the events of a launcher.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Ends all HTTP connections and joins the thread. Blocks for up to 3 s, if the store does not answer a request
    /// for a snapshot.
    pub fn shutdown(&self) {
        self.end.notify_one();
        let thread = self.thread().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread c10d-status panicked");
        }
    }

    fn thread(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpHandler for StatusServer {
    fn serve(&self, connection: HttpConnection) {
        if self
            .inbox
            .try_send(Message::Connection(connection))
            .is_err()
        {
            log::debug!("closing an HTTP connection: the status server is busy or has ended");
        }
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for StatusServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusServer").finish_non_exhaustive()
    }
}

/// The name of this machine, with and without its domain.
fn with_own_host_names(options: StatusOptions) -> StatusOptions {
    let name = host_name();
    let short = name.split('.').next().unwrap_or_default().to_owned();
    options.with_host_name(name).with_host_name(short)
}

async fn serve(looker: Looker, mut inbox: mpsc::Receiver<Message>, end: &Notify, limits: Limits) {
    let looker = Rc::new(RefCell::new(looker));
    let (closing, closes) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut newcomers = Newcomers::default();
    loop {
        let message = select! {
            biased;
            () = end.notified() => break,
            Some(_) = connections.join_next() => continue,
            message = inbox.recv() => message,
        };
        match message {
            None => break,
            Some(Message::Report(reply)) => {
                let report = looker.borrow_mut().look();
                // The caller may have stopped waiting.
                let _ = reply.try_send(report.map(|look| Arc::clone(&look.report)));
            }
            Some(Message::Connection(connection)) => {
                if connections.len() >= limits.connections_max {
                    // Those that have sent their requests get their answers.
                    yield_now().await;
                    while connections.try_join_next().is_some() {}
                }
                if connections.len() >= limits.connections_max {
                    if !newcomers.end_oldest() {
                        refuse(&connection.stream);
                        continue;
                    }
                    // Its end, or that of another one.
                    let _ = connections.join_next().await;
                }
                let Ok(stream) = TcpStream::from_std(connection.stream) else {
                    continue;
                };
                let looker = Rc::clone(&looker);
                let is_accepted = Rc::new(Cell::new(false));
                let received = connection.received;
                let work = serve_connection(
                    stream,
                    received,
                    looker,
                    Rc::clone(&is_accepted),
                    closes.clone(),
                    limits,
                );
                let task = connections.spawn_local(work);
                newcomers.add(is_accepted, task, limits.connections_max);
            }
        }
    }
    drop(closing);
    drop(
        timeout(limits.grace, async {
            while connections.join_next().await.is_some() {}
        })
        .await,
    );
}

/// Tells a client that there are too many.
fn refuse(mut stream: &net::TcpStream) {
    // Unread bytes would turn the end of the connection into a reset, which discards the answer. The socket does not
    // block; if either fails, the client sees a closed connection.
    let _ = stream.read(&mut [0; HEAD_BYTES_MAX]);
    let _ = stream.write(BUSY);
}

/// Serves one connection. `received` has been read from it already. Sets `is_accepted` with the first accepted request.
async fn serve_connection(
    stream: TcpStream,
    received: Vec<u8>,
    looker: Rc<RefCell<Looker>>,
    is_accepted: Rc<Cell<bool>>,
    mut closes: watch::Receiver<()>,
    limits: Limits,
) {
    let (reader, writer) = stream.into_split();
    let reader = AsyncReadExt::chain(Cursor::new(received), reader);
    let service = service_fn(|request: Request<Incoming>| {
        let (request, _) = request.into_parts();
        let mut looker = looker.borrow_mut();
        let answer = match route(&request, looker.options()) {
            Ok(wanted) => {
                is_accepted.set(true);
                looker.answer(&wanted)
            }
            Err(refusal) => refusal,
        };
        async { Ok::<_, Infallible>(answer.into_response()) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(tokio::io::join(reader, writer)), service);
    let mut connection = pin!(connection);
    select! {
        // An error is the client's: it left, was too slow, or does not speak HTTP.
        _ = connection.as_mut() => return,
        () = sleep(limits.lifetime) => {}
        _ = closes.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(timeout(limits.grace, connection).await);
}

#[cfg(test)]
mod tests;
