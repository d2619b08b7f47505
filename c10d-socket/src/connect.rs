//! Connecting, with retries until a deadline.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::dial::{DialPlan, Step};
use crate::resolve::Resolver;
use crate::wait::wait_for_output_by;
use crate::{Backoff, BackoffOptions, ConnectError, Deadline, HostPort, SocketOptions};

/// How to connect.
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
pub struct ConnectOptions {
    backoff: BackoffOptions,
    jitter_seed: Option<u64>,
    rounds_max: Option<u64>,
    socket: SocketOptions,
}

impl ConnectOptions {
    /// Gives up after so many rounds, at least 1, though there be time left. Default: no limit. One
    /// round is for those who know that the server was there a moment ago: if it refuses now, it is
    /// gone.
    #[must_use]
    pub fn with_rounds_max(mut self, rounds: u64) -> Self {
        self.rounds_max = Some(rounds.max(1));
        self
    }

    /// The pauses between rounds of attempts; see [`BackoffOptions`] for the defaults.
    #[must_use]
    pub fn with_backoff(mut self, backoff: BackoffOptions) -> Self {
        self.backoff = backoff;
        self
    }

    /// The seed of the jitter in those pauses. Default: a different one each time, so that clients do
    /// not come in step; a fixed one makes a run repeatable.
    #[must_use]
    pub fn with_jitter_seed(mut self, seed: u64) -> Self {
        self.jitter_seed = Some(seed);
        self
    }

    /// The TCP options of the connection.
    #[must_use]
    pub fn with_socket_options(mut self, socket: SocketOptions) -> Self {
        self.socket = socket;
        self
    }
}

/// Connects to `target`, trying again until `deadline`. The connection is blocking and closed on
/// exec.
///
/// Each round looks the name up anew and tries its addresses in the order of the system (RFC 6724,
/// which PyTorch gets as well), each with an even share of the remaining time, at most 10 s. Refused,
/// reset, unanswered, an unreachable host and a failed lookup are tried again after a pause; a round
/// with only other errors fails at once. The last pause is cut short for one more try just before the
/// deadline (100 ms, less with a short limit), which ends it. With a deadline that has passed one
/// round is made without waiting, so a literal address can still connect on this machine.
///
/// Blocks until the deadline at most and cannot be interrupted. A name lookup that is stuck in the
/// system is left behind on its thread, `c10d-resolve`, which holds nothing and ends when the system
/// answers; there is at most one for each call.
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
/// A [`ConnectError`] that tells everything that was tried.
pub fn connect(
    target: &HostPort,
    options: &ConnectOptions,
    deadline: Deadline,
) -> Result<TcpStream, ConnectError> {
    Dialer::new(target, options, deadline).connect()
}

/// [`connect`] for callers to whom a connection is good only after a first exchange: when that fails
/// they come back, and the attempts go on with the same backoff, deadline and record of failures.
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
}

impl Dialer {
    /// Prepares to connect; does nothing yet, but the time runs.
    pub fn new(target: &HostPort, options: &ConnectOptions, deadline: Deadline) -> Self {
        let seed = options.jitter_seed.unwrap_or_else(|| fastrand::u64(..));
        let backoff = Backoff::new(options.backoff.clone(), seed);
        Self {
            plan: DialPlan::new(target.clone(), backoff, Instant::now(), deadline)
                .with_rounds_max(options.rounds_max.unwrap_or(u64::MAX)),
            resolver: Resolver::new(target.clone()),
            socket: options.socket.clone(),
        }
    }

    /// Connects; see [`connect`](fn@connect) for how, and for how long it blocks.
    ///
    /// # Errors
    /// A [`ConnectError`]; that is final, and calling again repeats it.
    pub fn connect(&mut self) -> Result<TcpStream, ConnectError> {
        loop {
            match self.plan.step(Instant::now()) {
                Step::LookUp { by } => match self.resolver.lookup(by) {
                    Ok(addresses) => self.plan.looked_up(addresses),
                    Err(error) => self.plan.lookup_failed(Instant::now(), error),
                },
                Step::Connect { address, by } => match connect_once(address, &self.socket, by) {
                    Ok(stream) => {
                        self.plan.connected();
                        return Ok(stream);
                    }
                    Err(error) => self.plan.connect_failed(Instant::now(), error),
                },
                Step::Pause { until } => self.pause(until),
                Step::GiveUp(error) => return Err(error),
            }
        }
    }

    /// Says that the last connection was of no use and why, and waits for the time to
    /// [`connect`](Self::connect) again. If the target has a further address that is at once, else
    /// after the next pause of the backoff. Blocks for that pause, until the deadline at most.
    ///
    /// # Errors
    /// A [`ConnectError`] when no time is left for another attempt.
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
        thread::sleep(until.saturating_duration_since(now));
    }
}

/// Connects to one address, once; [`io::ErrorKind::TimedOut`] when there is no answer in time.
fn connect_once(
    address: SocketAddr,
    options: &SocketOptions,
    deadline: Deadline,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    options.apply(&socket)?;
    match socket.connect(&address.into()) {
        // Under way. An interrupted connect goes on as well, and must not be called again.
        Err(error)
            if error.raw_os_error() == Some(libc::EINPROGRESS)
                || error.kind() == io::ErrorKind::Interrupted =>
        {
            if !wait_for_output_by(&socket, deadline)? {
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
/// When nobody listens on a port of this machine, and the system happens to give a connecting socket
/// that very port as its own, TCP connects the two ends of the one socket. Who retries on a local
/// port for long enough meets this; it would then talk to itself and keep the server from its port.
fn refuse_self_connection(socket: &Socket, port: u16) -> io::Result<()> {
    let own = socket.local_addr()?.as_socket();
    // Nearly always the ports differ, which saves asking for the peer. A peer that cannot be told has
    // gone already, and the caller will see that.
    let is_self = own.is_some_and(|own| own.port() == port)
        && socket.peer_addr().is_ok_and(|peer| peer.as_socket() == own);
    if !is_self {
        return Ok(());
    }
    // A reset leaves nothing behind in TIME_WAIT, so the port is free for its server at once.
    socket.set_linger(Some(Duration::ZERO))?;
    Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_connected_to_itself_is_refused_and_frees_the_port() {
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
    fn a_passed_deadline_still_reaches_a_local_listener() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let past = Deadline::at(Instant::now());
        connect_once(address, &SocketOptions::default(), past).unwrap();
    }
}
