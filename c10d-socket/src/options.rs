//! TCP options of the connections made and accepted here.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Which TCP options a connection gets.
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
pub struct SocketOptions {
    nodelay: bool,
    keep_alive: Option<KeepAlive>,
}

impl SocketOptions {
    /// Whether small writes leave at once (TCP_NODELAY). Default on, as PyTorch: requests are small
    /// and someone waits for each reply, so collecting them only adds delay.
    #[must_use]
    pub fn with_nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// Whether the system asks an idle peer for a sign of life. Default on: a peer that vanished
    /// without a word (power cut, lost network) otherwise stays connected for ever, and whatever the
    /// server keeps for it stays too. PyTorch sets none.
    #[must_use]
    pub fn with_keep_alive(mut self, keep_alive: Option<KeepAlive>) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// Sets the options on a connection, or on a listener for what it accepts to inherit (see
    /// [`configure_accepted`]). What this crate makes has them already.
    ///
    /// # Errors
    /// What setsockopt(2) reports.
    pub fn apply(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        socket.set_tcp_nodelay(self.nodelay)?;
        match &self.keep_alive {
            Some(keep_alive) => socket.set_tcp_keepalive(&keep_alive.to_tcp()),
            None => socket.set_keepalive(false),
        }
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            nodelay: true,
            keep_alive: Some(KeepAlive::default()),
        }
    }
}

/// When an idle peer counts as gone: after `idle + interval * probes` without a sign of life, two
/// minutes by default.
///
/// A stopped or busy process does not count as gone, since its system answers for it. Times are
/// whole seconds to the system: rounded up, from 1 s to 32767 s (Linux's largest).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepAlive {
    idle: Duration,
    interval: Duration,
    probes: u8,
}

impl KeepAlive {
    /// The quiet time before the first probe. Default 60 s: shorter than the few minutes after which
    /// common load balancers and address translators forget a quiet connection, and one packet a
    /// minute for each connection costs nothing.
    #[must_use]
    pub fn with_idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// The time between probes. Default 10 s: long enough for a network path to be rerouted.
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How many unanswered probes end the connection, from 1 to 127 (cut to that). Default 6, so that
    /// a minute of outage is survived.
    #[must_use]
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

/// Gives an accepted connection the options of its listener, where it does not have them already.
///
/// Linux hands a listener's TCP options on to what it accepts, so there this does nothing and costs
/// no system call; elsewhere it sets them.
///
/// ```
/// use c10d_socket::{ListenOptions, SocketOptions, configure_accepted, listen};
/// use std::net::TcpStream;
///
/// let listeners = listen(&ListenOptions::default().with_host("127.0.0.1"))?;
/// let listener = &listeners[0];
/// let _client = TcpStream::connect(listener.local_addr()?)?;
/// c10d_socket::wait_for_input(listener, None)?;
/// let (accepted, _) = listener.accept()?;
/// configure_accepted(&accepted, &SocketOptions::default())?;
/// assert!(accepted.nodelay()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What setsockopt(2) reports; some systems refuse when the peer has already gone.
pub fn configure_accepted(socket: &impl AsFd, options: &SocketOptions) -> io::Result<()> {
    if cfg!(any(target_os = "linux", target_os = "android")) {
        return Ok(());
    }
    options.apply(socket)
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
    fn times_are_made_what_the_system_takes() {
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
    fn the_options_reach_the_socket() {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let keep_alive = KeepAlive::default()
            .with_idle(Duration::MAX)
            .with_interval(Duration::ZERO)
            .with_probes(u8::MAX);
        SocketOptions::default()
            .with_keep_alive(Some(keep_alive))
            .apply(&socket)
            .unwrap();
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            Duration::from_secs(1)
        );
    }
}
