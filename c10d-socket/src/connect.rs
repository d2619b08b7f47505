//! Connects to a server, with retries until a deadline.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::dial::{DialPlan, Step};
use crate::resolve::Resolver;
use crate::wait::wait_for_output;
use crate::{
    Backoff, BackoffOptions, Cancel, ConnectError, Deadline, HostPort, SocketOptions, sleep,
};

/// Backoff, attempt limit and socket options for [`connect`].
///
/// ```
/// use c10d_socket::{BackoffOptions, ConnectOptions};
/// use std::time::Duration;
///
/// let patient = BackoffOptions::default().with_max(Duration::from_secs(30));
/// let options = ConnectOptions::default().with_backoff(patient);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ConnectOptions {
    backoff: BackoffOptions,
    rounds_max: Option<u64>,
    socket: SocketOptions,
}

impl ConnectOptions {
    /// Sets the most rounds of attempts, at least 1. Default: only the deadline limits them. One round suits a client
    /// whose server was reachable a moment ago: a refusal then means that the server stopped.
    pub fn with_rounds_max(mut self, rounds: u64) -> Self {
        self.rounds_max = Some(rounds.max(1));
        self
    }

    /// Sets the delays between rounds of attempts. Default [`BackoffOptions::default`].
    pub fn with_backoff(mut self, backoff: BackoffOptions) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the TCP options of the connection. Default [`SocketOptions::default`].
    pub fn with_socket_options(mut self, socket: SocketOptions) -> Self {
        self.socket = socket;
        self
    }
}

/// Connects to `target`, with retries until `deadline`. The returned connection is blocking and
/// close-on-exec.
///
/// Each round looks up the name and tries its addresses in the system's order (RFC 6724, as PyTorch
/// does), each for an equal share of the remaining time, at most 10 s. Connections that are refused,
/// reset or unanswered, unreachable hosts and failed lookups are retried after a delay; a round with
/// only other errors fails at once. The last delay is shortened so that a final round starts 100 ms
/// before the deadline (less for a short time limit). With a deadline that has passed, `connect` makes
/// one round without waiting, so a literal address on this machine can still connect.
///
/// Blocks until the deadline at most. A name lookup that does not return in time, or is
/// [cancelled](Dialer::with_cancel), continues on its own thread, `c10d-resolve`, which ends when the
/// system's resolver returns; a call leaves at most one such thread.
///
/// ```
/// use c10d_socket::{ConnectOptions, Deadline, HostPort, connect};
/// use std::net::TcpListener;
/// use std::time::{Duration, Instant};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let target = HostPort::new("127.0.0.1", listener.local_addr()?.port());
/// let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
/// let stream = connect(&target, &ConnectOptions::default(), deadline)?;
/// assert!(stream.nodelay()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A [`ConnectError`] that lists every failure. The call sent nothing.
pub fn connect(
    target: &HostPort,
    options: &ConnectOptions,
    deadline: Deadline,
) -> Result<TcpStream, ConnectError> {
    Dialer::new(target, options, deadline).connect()
}

/// [`connect`] for protocols with a handshake: after a failed handshake the attempts continue with the
/// same backoff, deadline and list of failures.
///
/// ```
/// use c10d_socket::{ConnectOptions, Deadline, Dialer, HostPort};
/// use std::net::{TcpListener, TcpStream};
/// use std::time::{Duration, Instant};
/// # fn greet(_: &TcpStream, _: Deadline) -> std::io::Result<()> { Ok(()) }
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let target = HostPort::new("127.0.0.1", listener.local_addr()?.port());
/// let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
/// let mut dialer = Dialer::new(&target, &ConnectOptions::default(), deadline);
/// let stream = loop {
///     let stream = dialer.connect()?;
///     match greet(&stream, deadline) {
///         Ok(()) => break stream,
///         Err(error) => dialer.handshake_failed(error)?,
///     }
/// };
/// # drop(stream);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a dialer does nothing until it connects"]
pub struct Dialer {
    plan: DialPlan,
    resolver: Resolver,
    socket: SocketOptions,
    cancel: Cancel,
}

impl Dialer {
    /// Prepares to connect. The elapsed time counts from here.
    pub fn new(target: &HostPort, options: &ConnectOptions, deadline: Deadline) -> Self {
        // Random, so that clients do not retry together.
        let seed = fastrand::u64(..);
        let backoff = Backoff::new(options.backoff.clone(), seed);
        Self {
            plan: DialPlan::new(target.clone(), backoff, Instant::now(), deadline)
                .with_rounds_max(options.rounds_max.unwrap_or(u64::MAX)),
            resolver: Resolver::new(target.clone()),
            socket: options.socket.clone(),
            cancel: Cancel::NEVER,
        }
    }

    /// Sets the [`Cancel`] that interrupts the attempts. Default [`Cancel::NEVER`].
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Connects like [`connect`](fn@connect). Blocks until the deadline at most.
    ///
    /// # Errors
    /// A [`ConnectError`]. It is final: further calls return it again.
    pub fn connect(&mut self) -> Result<TcpStream, ConnectError> {
        loop {
            match self.plan.step(Instant::now()) {
                Step::LookUp { by } => match self.resolver.lookup(by, &self.cancel) {
                    Ok(addresses) => self.plan.looked_up(addresses),
                    Err(error) if is_cancel(&error) => self.plan.cancelled(),
                    Err(error) => self.plan.lookup_failed(Instant::now(), error),
                },
                Step::Connect { address, by } => {
                    match connect_once(address, &self.socket, by, &self.cancel) {
                        Ok(stream) => {
                            self.plan.connected();
                            return Ok(stream);
                        }
                        Err(error) if is_cancel(&error) => self.plan.cancelled(),
                        Err(error) => self.plan.connect_failed(Instant::now(), error),
                    }
                }
                Step::Pause { until } => self.pause(until),
                Step::GiveUp(error) => return Err(error),
            }
        }
    }

    /// Records that the handshake on the last connection failed, and waits until it is time to
    /// [`connect`](Self::connect) again: no time if the target has another address, otherwise the
    /// next backoff delay. Blocks until the deadline at most.
    ///
    /// # Errors
    /// A [`ConnectError`] when the deadline leaves no time for another attempt.
    pub fn handshake_failed(&mut self, error: io::Error) -> Result<(), ConnectError> {
        self.plan.handshake_failed(Instant::now(), error);
        loop {
            match self.plan.step(Instant::now()) {
                Step::Pause { until } => self.pause(until),
                Step::LookUp { .. } | Step::Connect { .. } => return Ok(()),
                Step::GiveUp(error) => return Err(error),
            }
        }
    }

    fn pause(&mut self, until: Instant) {
        let now = Instant::now();
        if self.plan.take_notice(now) {
            log::info!("still connecting to {}", self.plan.progress(now));
        } else {
            log::debug!("not connected to {}", self.plan.progress(now));
        }
        if sleep(until.saturating_duration_since(now), [&self.cancel]).is_err() {
            self.plan.cancelled();
        }
    }
}

/// Whether a wait ended by a cancel.
fn is_cancel(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Makes one attempt on one address; [`io::ErrorKind::TimedOut`] without an answer in time.
fn connect_once(
    address: SocketAddr,
    options: &SocketOptions,
    deadline: Deadline,
    cancel: &Cancel,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    options.apply(&socket)?;
    match socket.connect(&address.into()) {
        // In progress. An interrupted connect(2) also continues, and must not be called again.
        Err(error)
            if error.raw_os_error() == Some(libc::EINPROGRESS)
                || error.kind() == io::ErrorKind::Interrupted =>
        {
            if !wait_for_output(&socket, deadline.remaining(Instant::now()), cancel)? {
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
        }
        result => result?,
    }
    refuse_self_connection(&socket, address.port())?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// Refuses a socket that is connected to itself.
///
/// If no server listens on a local port, and the system assigns the connecting socket that same port
/// as its own, TCP connects the socket to itself (simultaneous open). A client that retries on a local
/// port for long enough runs into this; it would talk to itself and keep the port from the server.
fn refuse_self_connection(socket: &Socket, port: u16) -> io::Result<()> {
    let own = socket.local_addr()?.as_socket();
    // The ports nearly always differ, which saves a getpeername(2). If that fails, the peer has
    // disconnected, and the caller's first read reports it.
    let is_self = own.is_some_and(|own| own.port() == port)
        && socket.peer_addr().is_ok_and(|peer| peer.as_socket() == own);
    if !is_self {
        return Ok(());
    }
    // A reset skips TIME_WAIT, so the port is free for the server at once.
    socket.set_linger(Some(Duration::ZERO))?;
    Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_connection_is_refused_and_frees_the_port() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&any.into()).unwrap();
        let own = socket.local_addr().unwrap().as_socket().unwrap();
        socket.connect(&own.into()).unwrap();

        let error = refuse_self_connection(&socket, own.port()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        drop(socket);
        let server = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        server.bind(&own.into()).expect("the port is free again");
    }

    #[test]
    fn a_cancel_ends_the_attempts() {
        // A bound port on which nothing listens, so that no other test gets it.
        let closed = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        closed.bind(&any.into()).unwrap();
        let address = closed.local_addr().unwrap().as_socket().unwrap();
        let target = HostPort::new("127.0.0.1", address.port());
        // It sleeps between two rounds.
        let (began, begins) = crossbeam_channel::unbounded();
        let cancel = Cancel::with_check(move || {
            let _ = began.send(());
            false
        });
        let canceller = std::thread::spawn({
            let cancel = cancel.clone();
            move || {
                begins.recv().unwrap();
                cancel.cancel();
            }
        });
        let mut dialer =
            Dialer::new(&target, &ConnectOptions::default(), Deadline::NEVER).with_cancel(cancel);
        let error = dialer.connect().unwrap_err();
        assert!(error.is_cancelled(), "{error}");
        assert!(error.to_string().contains("; cancelled after "), "{error}");
        canceller.join().unwrap();
    }

    #[test]
    fn a_cancel_ends_an_attempt_without_an_answer() {
        // A full backlog: the system leaves further handshakes unanswered.
        let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        full.bind(&any.into()).unwrap();
        full.listen(0).unwrap();
        let address = full.local_addr().unwrap().as_socket().unwrap();
        let mut connected = Vec::new();
        let cancel = Cancel::new();
        cancel.cancel();
        let error = loop {
            match connect_once(address, &SocketOptions::default(), Deadline::NEVER, &cancel) {
                Ok(stream) => connected.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}
