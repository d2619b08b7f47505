//! The HTTP server: one thread that serves connections within limits, whatever their source and whatever it answers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::io::{self, Cursor, Read, Write};
use std::net;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use c10d_store::HttpConnection;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::select;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet, LocalSet, spawn_blocking, yield_now};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::answer::{ANSWERED_AT, Answer};
use super::guard::Guard;

/// The most connections and questions that wait for the thread.
const INBOX_MAX: usize = 128;

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The most answers that are made by blocking work at a time. Further requests wait.
const WORK_MAX: usize = 8;

/// How long to wait before accepting again when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections there may be, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most connections at a time. One without an accepted request makes room for the next.
    pub(super) connections_max: usize,
    /// Whether a connection may have several requests: a page that renews itself has.
    pub(super) keep_alive: bool,
    /// How long a connection has for its request before it makes room.
    pub(super) newcomer: Duration,
    /// How long a client may take to send a request, and how long a connection may be idle between two.
    pub(super) header: Duration,
    /// How long a connection may last. An open page connects again once a minute.
    pub(super) lifetime: Duration,
    /// How long a client may take to read the rest of an answer when its connection ends.
    pub(super) grace: Duration,
}

impl Limits {
    pub(super) const DEFAULT: Self = Self {
        connections_max: 64,
        keep_alive: true,
        newcomer: Duration::ZERO,
        header: Duration::from_secs(10),
        lifetime: Duration::from_secs(60),
        grace: Duration::from_secs(1),
    };
}

/// The source of connections.
#[derive(Debug)]
pub(super) enum Source {
    /// Connections beyond the limit wait in the listener's queue.
    Listener(net::TcpListener),
    /// [`Server::take`]: a store passes them on. Connections beyond the limit get 503.
    HandedOver,
}

/// Answers the requests that a server's [`Guard`] lets through.
pub(super) trait Routes: Send + 'static {
    /// Called on the server's thread, which answers no other request in the meantime.
    fn answer(&mut self, request: &Parts) -> Reply;
}

/// The reply to a request.
pub(super) enum Reply {
    Now(Answer),
    /// Blocking work makes the answer, on another thread.
    Work(Box<dyn FnOnce() -> Answer + Send>),
}

/// A running server. Dropping it shuts it down.
pub(super) struct Server<R> {
    name: String,
    inbox: mpsc::Sender<Message<R>>,
    end: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An entry of the inbox.
pub(super) enum Message<R> {
    Connection(HttpConnection),
    Question(Box<dyn FnOnce(&mut R) + Send>),
}

impl<R: Routes> Server<R> {
    /// Starts a thread with this name.
    ///
    /// # Errors
    /// The system has no room for another thread or poll descriptor.
    pub(super) fn start(
        name: &str,
        source: Source,
        guard: Guard,
        limits: Limits,
        routes: R,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(WORK_MAX)
            .thread_name(name)
            .build()?;
        let listener = match source {
            Source::HandedOver => None,
            Source::Listener(listener) => {
                listener.set_nonblocking(true)?;
                let _context = runtime.enter();
                Some(TcpListener::from_std(listener)?)
            }
        };
        let (inbox, messages) = mpsc::channel(INBOX_MAX);
        let end = Arc::new(Notify::new());
        let is_ended = Arc::clone(&end);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let serving = serve(listener, messages, &is_ended, guard, limits, routes);
                LocalSet::new().block_on(&runtime, serving);
                // Work that is still running has had its time.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            name: name.to_owned(),
            inbox,
            end,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Serves a connection, or closes it if too many wait for the thread. Does not block.
    pub(super) fn take(&self, connection: HttpConnection) {
        let message = Message::Connection(connection);
        if self.inbox.try_send(message).is_err() {
            log::debug!("closing an HTTP connection: the HTTP server is busy or has ended");
        }
    }

    /// Runs this on the server's thread, between two requests. Does not block.
    ///
    /// # Errors
    /// Too much waits for the thread, or it has exited.
    pub(super) fn ask(
        &self,
        question: impl FnOnce(&mut R) + Send + 'static,
    ) -> Result<(), TrySendError<Message<R>>> {
        self.inbox.try_send(Message::Question(Box::new(question)))
    }
}

impl<R> Server<R> {
    /// Ends all connections and joins the thread. Blocks while it answers a request, and for up to 1 s more if clients
    /// have not read their answers.
    pub(super) fn shutdown(&self) {
        self.end.notify_one();
        let thread = {
            let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            thread.take()
        };
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread {} panicked", self.name);
        }
    }
}

impl<R> Drop for Server<R> {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl<R> fmt::Debug for Server<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.name).finish()
    }
}

async fn serve<R: Routes>(
    listener: Option<TcpListener>,
    inbox: mpsc::Receiver<Message<R>>,
    end: &Notify,
    guard: Guard,
    limits: Limits,
    routes: R,
) {
    let (closing, closes) = watch::channel(());
    let mut serving = Serving {
        shared: Rc::new(Shared {
            guard,
            routes: RefCell::new(routes),
            limits,
        }),
        connections: JoinSet::new(),
        newcomers: VecDeque::new(),
        closes,
    };
    select! {
        biased;
        () = end.notified() => {}
        () = serving.run(listener, inbox) => {}
    }
    drop(closing);
    let ended = async { while serving.connections.join_next().await.is_some() {} };
    // Those that take longer are aborted.
    drop(timeout(limits.grace, ended).await);
}

/// The shared state of a server's connections.
struct Shared<R> {
    guard: Guard,
    routes: RefCell<R>,
    limits: Limits,
}

struct Serving<R> {
    shared: Rc<Shared<R>>,
    connections: JoinSet<()>,
    /// The new connections, in the order of their arrival.
    newcomers: VecDeque<Newcomer>,
    /// Reports the shutdown, when its sender is dropped.
    closes: watch::Receiver<()>,
}

/// A connection that has not sent a request with the password, if the server has one. Such a connection costs nothing to
/// make, so it must not keep other connections out.
struct Newcomer {
    is_accepted: Rc<Cell<bool>>,
    task: AbortHandle,
    arrived: Instant,
}

impl Newcomer {
    fn is_one(&self) -> bool {
        !self.is_accepted.get() && !self.task.is_finished()
    }
}

impl<R: Routes> Serving<R> {
    async fn run(&mut self, listener: Option<TcpListener>, mut inbox: mpsc::Receiver<Message<R>>) {
        loop {
            let connection = select! {
                biased;
                Some(_) = self.connections.join_next() => continue,
                message = inbox.recv() => match message {
                    None => return,
                    Some(Message::Connection(connection)) => connection,
                    Some(Message::Question(question)) => {
                        question(&mut self.shared.routes.borrow_mut());
                        continue;
                    }
                },
                accepted = accept(listener.as_ref()) => match accepted {
                    Ok(connection) => connection,
                    Err(_) => {
                        sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            if self.make_room(listener.is_some()).await {
                self.start(connection);
            } else {
                refuse(&connection.stream, self.shared.limits.connections_max);
            }
        }
    }

    /// Makes room for a connection. Returns whether there is some, for which it waits if `may_wait`.
    async fn make_room(&mut self, may_wait: bool) -> bool {
        let limits = &self.shared.limits;
        if self.connections.len() >= limits.connections_max {
            // Those that have sent their requests get their answers.
            yield_now().await;
            while self.connections.try_join_next().is_some() {}
        }
        while self.connections.len() >= limits.connections_max {
            self.newcomers.retain(Newcomer::is_one);
            match self.newcomers.front() {
                Some(oldest) => {
                    let until = oldest.arrived + limits.newcomer;
                    if timeout_at(until, self.connections.join_next())
                        .await
                        .is_ok()
                    {
                        continue;
                    }
                    oldest.task.abort();
                    self.newcomers.pop_front();
                }
                None if may_wait => {}
                None => return false,
            }
            let _ = self.connections.join_next().await;
        }
        true
    }

    fn start(&mut self, connection: HttpConnection) {
        let is_accepted = Rc::new(Cell::new(false));
        let shared = Rc::clone(&self.shared);
        let of_task = Rc::clone(&is_accepted);
        let closes = self.closes.clone();
        let task = self.connections.spawn_local(async move {
            // An error is the client's: it left, was too slow, or does not speak HTTP.
            drop(serve_connection(connection, shared, &of_task, closes).await);
        });
        self.newcomers.retain(Newcomer::is_one);
        self.newcomers.push_back(Newcomer {
            is_accepted,
            task,
            arrived: Instant::now(),
        });
    }
}

/// The next connection of the listener, if there is one.
async fn accept(listener: Option<&TcpListener>) -> io::Result<HttpConnection> {
    let Some(listener) = listener else {
        return pending().await;
    };
    let (stream, peer) = listener.accept().await?;
    Ok(HttpConnection {
        stream: stream.into_std()?,
        peer,
        received: Vec::new(),
    })
}

/// Tells a client that there are too many.
fn refuse(mut stream: &net::TcpStream, connections_max: usize) {
    let text = format!("too many connections ({connections_max}): close some pages\n");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nRetry-After: 1\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    // Unread bytes would turn the end of the connection into a reset, which discards the answer. The socket does not
    // block; if a call fails, the client detects a closed connection.
    let _ = stream.read(&mut [0; HEAD_BYTES_MAX]);
    let _ = stream.write(answer.as_bytes());
}

/// Serves one connection. Sets `is_accepted` with the first accepted request.
async fn serve_connection<R: Routes>(
    connection: HttpConnection,
    shared: Rc<Shared<R>>,
    is_accepted: &Cell<bool>,
    mut closes: watch::Receiver<()>,
) -> io::Result<()> {
    let limits = shared.limits;
    let stream = TcpStream::from_std(connection.stream)?;
    // In the form of IPv4 even if the listener has both kinds of addresses.
    let own = stream.local_addr()?;
    let own = net::SocketAddr::new(own.ip().to_canonical(), own.port());
    let own = HeaderValue::from_str(&own.to_string()).map_err(io::Error::other)?;
    let (reader, writer) = stream.into_split();
    let reader = AsyncReadExt::chain(Cursor::new(connection.received), reader);
    let service = service_fn(|request: Request<Incoming>| {
        let (request, _) = request.into_parts();
        let (reply, own) = match shared.guard.check(&request) {
            Ok(()) => {
                is_accepted.set(true);
                let reply = shared.routes.borrow_mut().answer(&request);
                (reply, Some(own.clone()))
            }
            Err(refusal) => (Reply::Now(refusal), None),
        };
        async { Ok::<_, Infallible>(respond(reply, own).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(limits.keep_alive)
        // A client that has sent its last request may close its sending side at once.
        .half_close(true)
        .serve_connection(TokioIo::new(tokio::io::join(reader, writer)), service);
    let mut connection = pin!(connection);
    select! {
        _ = connection.as_mut() => return Ok(()),
        () = sleep(limits.lifetime) => {}
        _ = closes.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(timeout(limits.grace, connection).await);
    Ok(())
}

/// Makes the response. An accepted request is told the address of this server, which a relay in between hides.
async fn respond(reply: Reply, own_address: Option<HeaderValue>) -> Response<Full<Bytes>> {
    let failed = |_| {
        Answer::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "this answer cannot be made: a panic",
        )
    };
    let answer = match reply {
        Reply::Now(answer) => answer,
        Reply::Work(work) => spawn_blocking(work).await.unwrap_or_else(failed),
    };
    let mut response = answer.into_response();
    if let Some(address) = own_address {
        response.headers_mut().insert(ANSWERED_AT, address);
    }
    response
}

#[cfg(test)]
mod tests;
