//! TCP options of connections.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// The TCP options of a connection.
///
/// ```
/// use c10d_socket::{KeepAlive, SocketOptions};
/// use std::time::Duration;
///
/// let options = SocketOptions::default()
///     .with_keep_alive(Some(KeepAlive::default().with_idle(Duration::from_secs(20))));
/// # let _ = options;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct SocketOptions {
    keep_alive: Option<KeepAlive>,
    user_timeout: Option<Duration>,
}

impl SocketOptions {
    /// Sets the TCP keepalive of idle connections; `None` turns it off. Default on: otherwise a peer that vanished
    /// without closing (power cut, lost network) stays connected forever, and the server keeps its memory for it.
    /// PyTorch does not set it.
    pub fn with_keep_alive(mut self, keep_alive: Option<KeepAlive>) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// Sets how long sent data may stay unacknowledged by the peer's system before the connection fails
    /// (TCP_USER_TIMEOUT, RFC 5482), in whole milliseconds. Without it the system tries for about 15 min on Linux if
    /// a network path is lost with data on it, because keepalive is for idle connections. On Linux and Android;
    /// elsewhere it has no effect. Default: none.
    pub fn with_user_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.user_timeout = timeout.into();
        self
    }

    /// Sets the options on a connection, or on a listener for the connections it accepts (see
    /// [`configure_accepted`]). Sockets made by this crate have them already.
    ///
    /// # Errors
    /// The error of setsockopt(2).
    pub fn apply(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        // As in PyTorch: requests are small and a caller waits for each reply, so batching only adds latency.
        socket.set_tcp_nodelay(true)?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if self.user_timeout.is_some() {
            socket.set_tcp_user_timeout(self.user_timeout)?;
        }
        match &self.keep_alive {
            Some(keep_alive) => socket.set_tcp_keepalive(&keep_alive.to_tcp()),
            None => socket.set_keepalive(false),
        }
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            keep_alive: Some(KeepAlive::default()),
            user_timeout: None,
        }
    }
}

/// The keepalive of idle connections: a connection is considered dead after `idle + interval * probes` without an
/// answer, two minutes by default.
///
/// A stopped or busy process keeps its connections, since its system answers the probes. The system
/// takes whole seconds: times are rounded up, and limited to 1 s to 32767 s (the maximum of Linux).
///
/// ```
/// use std::time::Duration;
///
/// use c10d_socket::{KeepAlive, SocketOptions};
///
/// // Considers an idle connection dead after 30 s + 5 s * 3.
/// let keep_alive = KeepAlive::default()
///     .with_idle(Duration::from_secs(30))
///     .with_interval(Duration::from_secs(5))
///     .with_probes(3);
/// let options = SocketOptions::default().with_keep_alive(Some(keep_alive));
/// # let _ = options;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct KeepAlive {
    idle: Duration,
    interval: Duration,
    probes: u8,
}

impl KeepAlive {
    /// Sets the idle time before the first probe. Default 60 s: less than the few minutes after which common load
    /// balancers and NAT gateways drop an idle connection, at the cost of one packet a minute.
    pub fn with_idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Sets the time between probes. Default 10 s: enough for a network path to be rerouted.
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets how many unanswered probes close the connection, limited to 1 to 127. Default 6: connections survive a
    /// network outage of a minute.
    pub fn with_probes(mut self, probes: u8) -> Self {
        self.probes = probes;
        self
    }

    fn to_tcp(&self) -> TcpKeepalive {
        TcpKeepalive::new()
            .with_time(whole_seconds(self.idle))
            .with_interval(whole_seconds(self.interval))
            .with_retries(u32::from(self.probes.clamp(1, 127)))
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            probes: 6,
        }
    }
}

/// Sets the options of an accepted connection, where it does not inherit them from its listener.
///
/// On Linux it does inherit them, so there this makes no system call.
///
/// ```
/// use c10d_socket::{ListenOptions, SocketOptions, configure_accepted, listen};
/// use std::net::TcpStream;
///
/// let listeners = listen(&ListenOptions::default().with_host("127.0.0.1"))?;
/// let listener = &listeners[0];
/// let _client = TcpStream::connect(listener.local_addr()?)?;
/// c10d_socket::wait_for_input(listener, None, &c10d_socket::Cancel::NEVER)?;
/// let (accepted, _) = listener.accept()?;
/// configure_accepted(&accepted, &SocketOptions::default())?;
/// assert!(accepted.nodelay()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The error of setsockopt(2); some systems fail if the peer has already disconnected.
pub fn configure_accepted(socket: &impl AsFd, options: &SocketOptions) -> io::Result<()> {
    if cfg!(any(target_os = "linux", target_os = "android")) {
        return Ok(());
    }
    options.apply(socket)
}

/// Limits how many bytes the system takes that it cannot send yet (TCP_NOTSENT_LOWAT), for a connection, or for a listener and
/// the connections that it accepts from now on.
///
/// By default the system takes up to 4 MiB for each connection whose peer does not read, and copies them at once,
/// which does not make a reading peer faster. On Linux and Android; elsewhere it has no effect.
///
/// ```
/// let listeners = c10d_socket::listen_at(&["127.0.0.1".parse()?], 0)?;
/// c10d_socket::limit_unsent(&listeners[0], 128 << 10)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The error of setsockopt(2).
pub fn limit_unsent(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    SockRef::from(socket).set_tcp_notsent_lowat(bytes)?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (socket, bytes);
    Ok(())
}

fn whole_seconds(time: Duration) -> Duration {
    let rounded_up = time
        .as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0));
    Duration::from_secs(rounded_up.clamp(1, 32_767))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_limited() {
        let table = [
            (Duration::ZERO, 1),
            (Duration::from_millis(1), 1),
            (Duration::from_millis(1_001), 2),
            (Duration::from_secs(60), 60),
            (Duration::MAX, 32_767),
        ];
        for (time, seconds) in table {
            assert_eq!(
                whole_seconds(time),
                Duration::from_secs(seconds),
                "{time:?}"
            );
        }
    }

    #[test]
    fn options_are_set_on_the_socket() {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let keep_alive = KeepAlive::default()
            .with_idle(Duration::MAX)
            .with_interval(Duration::ZERO)
            .with_probes(u8::MAX);
        SocketOptions::default()
            .with_keep_alive(Some(keep_alive))
            .with_user_timeout(Duration::from_secs(20))
            .apply(&socket)
            .unwrap();
        #[cfg(any(target_os = "linux", target_os = "android"))]
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            Some(Duration::from_secs(20))
        );
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            Duration::from_secs(1)
        );
    }
}
