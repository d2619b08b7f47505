//! How a standby learns that the process of the leader has exited, before its lease expires.
//!
//! A candidate listens at a port that its leader's key names. It sends each connection its random id and the address
//! at the other end of the connection, and then holds the connection. A standby that receives its own address has no
//! proxy or address translation in between. It considers the leader dead if the connection then ends in order (FIN),
//! **and** the same address refuses new connections. Other events do not prove it: a silent leader may be stopped and
//! continue later. A leader whose connection is reset or cut may still answer other clients while its lease gives it
//! the right to.
//!
//! This is a proof because the leader never closes a connection in order, nor the listener, before its journal is
//! dropped, and dropping it withdraws the right to answer first. A panicking thread does not close them either. So
//! the system closes them, once the last thread of the process has exited. A leader without a free place resets a
//! connection when a new connection arrives: the oldest connection of the address that has the most, so that
//! strangers of a few addresses keep out no standby. A standby whose connection was reset tries again later. A
//! firewall can send resets in the name of the host as well, which do not count, and refuse new connections, but it
//! sends no FIN. If a child process has inherited the sockets, or the host is lost, the standby waits until the lease
//! expires.
//!
//! The connection also carries heartbeats: twice a second, while it may answer, the leader sends the position of the
//! log's last batch. A standby that misses heartbeats, or does not read that batch in its time, looks up the leader,
//! perhaps through another member of etcd: a stopped member, or a member on the leader's lost host, sends nothing.
//! This costs etcd nothing at rest. A standby whose heartbeats show a fast-growing log reads the log with each
//! heartbeat, instead of a message of etcd for each batch.
//!
//! A standby holds such connections as well, and sends each of them its position once, for clients that ask for its
//! status.
//!
//! The assumption: nothing between the two hosts sends a FIN in the name of the leader's host, and shows it the
//! standby's address as its own.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectError, ConnectOptions, Deadline, Dialer, HostPort, ListenOptions, Moment,
    Silence, is_loopback_name, listen, sleep, wait_for_input,
};

use c10d_store::journal::Authority;
use rustix::net::sockopt::set_socket_linger;

use super::layout::{Leader, Life};

/// The most connections: each standby has one. A further connection replaces an earlier connection.
const CONNECTIONS_MAX: usize = 64;

/// How long a standby tries to connect. It does not follow the log during this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a standby may take to send its position. Older releases do not send it.
const POSITION_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the listener of an exiting process may stay open after its connections.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause between two attempts.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// The pause after the system has refused to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const GREETING_BYTES_MAX: usize = 128;

/// The time between two of the leader's heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// A log that has grown by as many batches from one heartbeat to the next grows fast.
const FAST_BATCHES: u64 = 16;

/// A standby that reads with the heartbeats watches etcd again if the next heartbeat is later than this.
const LATE_AFTER: Duration = Duration::from_millis(750);

/// A standby without a heartbeat for this time looks up the leader. It is shorter than the leader's lease.
const SILENCE_MAX: Duration = Duration::from_millis(1500);

/// The most reads of one look: a stranger at the port may never stop to send.
const READS_MAX: usize = 16;

/// The position of the log in hexadecimal, and a line end.
const HEARTBEAT_BYTES: usize = 17;

/// The time until a standby without a connection to the leader's process tries again. Each time costs etcd a read, so it doubles with
/// each attempt that fails, up to the longest one.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(320);

/// The leader's side, with the thread `c10d-etcd-life`. Dropping it shows others the end.
#[derive(Debug)]
pub(super) struct LifeLine {
    life: Life,
    cancel: Cancel,
    /// The sockets. The thread holds them as well, but releases them before.
    sockets: Arc<Sockets>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Sockets {
    listener: TcpListener,
    /// The connections, each with the address at the other end; the oldest first.
    held: Mutex<Vec<(IpAddr, TcpStream)>>,
    /// See [`LifeLine::start`].
    position: Arc<AtomicU64>,
    /// The authority of the process, if it leads.
    authority: Mutex<Option<Authority>>,
}

impl LifeLine {
    /// Listens at `address`, or on all interfaces if it is a name, because the name may have another interface's
    /// address on other hosts. `port` is 0 for a free port. `position` is the position of the log's last batch that this
    /// process has.
    pub(super) fn start(
        address: &HostPort,
        port: u16,
        position: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let host = address.host();
        let is_own = host.parse::<IpAddr>().is_ok() || is_loopback_name(host);
        let options = ListenOptions::default()
            .with_host(if is_own { host } else { "::" })
            .with_port(port);
        let listeners = listen(&options).map_err(|error| io::Error::other(error.to_string()))?;
        let listener = listeners.into_iter().next();
        let listener = listener.ok_or(io::ErrorKind::AddrNotAvailable)?;
        listener.set_nonblocking(true)?;
        let life = Life {
            port: listener.local_addr()?.port(),
            id: fastrand::u64(..),
        };
        let sockets = Arc::new(Sockets {
            listener,
            held: Mutex::default(),
            position,
            authority: Mutex::default(),
        });
        let cancel = Cancel::new();
        let (of_thread, ends) = (Arc::clone(&sockets), cancel.clone());
        let thread = thread::Builder::new()
            .name("c10d-etcd-life".to_owned())
            .spawn(move || of_thread.accept(life.id, &ends))?;
        Ok(Self {
            life,
            cancel,
            sockets,
            thread: Some(thread),
        })
    }

    pub(super) const fn life(&self) -> Life {
        self.life
    }

    /// Standbys get heartbeats while this process may answer.
    pub(super) fn leads(&self, authority: Authority) {
        *self.sockets.authority() = Some(authority);
    }
}

impl Drop for LifeLine {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that shows standbys that this process lives panicked");
        }
    }
}

impl Sockets {
    fn accept(&self, id: u64, cancel: &Cancel) {
        let mut due = Instant::now();
        loop {
            if due <= Instant::now() {
                self.send_heartbeats();
                due = Instant::now() + HEARTBEAT_INTERVAL;
            }
            let is_alone = self.held().is_empty();
            let left = (!is_alone).then(|| due.saturating_duration_since(Instant::now()));
            match wait_for_input(&self.listener, left, cancel) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => return,
            }
            let result = self.listener.accept().and_then(|(mut stream, peer)| {
                stream.set_nonblocking(true)?;
                let mut said = greeting(id, peer);
                // A standby is connected to a leader: it would interpret this as a heartbeat.
                if self.authority().is_none() {
                    said.push_str(&self.heartbeat());
                }
                let mut held = self.held();
                held.retain(|(_, stream)| is_there(stream));
                // A new socket takes as much at once.
                if stream.write_all(said.as_bytes()).is_ok() {
                    held.push((peer.ip().to_canonical(), stream));
                }
                if held.len() > CONNECTIONS_MAX {
                    let place = replaced(&held);
                    let (_, stream) = held.remove(place);
                    // The end of a connection would be half of a proof, a reset is not.
                    let _ = set_socket_linger(stream, Some(Duration::ZERO));
                }
                Ok(())
            });
            // The error is, for example, too many open files. An abandoned connection is not an error.
            if result.is_err() && sleep(ACCEPT_PAUSE, [cancel]).is_err() {
                return;
            }
        }
    }

    fn send_heartbeats(&self) {
        let authority = self.authority();
        let leads = authority
            .as_ref()
            .is_some_and(|it| it.is_valid(Moment::now()));
        drop(authority);
        if !leads {
            return;
        }
        let heartbeat = self.heartbeat();
        for (_, stream) in &mut *self.held() {
            // A standby that does not read its heartbeats waits until the lease expires.
            let _ = stream.write(heartbeat.as_bytes());
        }
    }

    fn heartbeat(&self) -> String {
        format!("{:016x}\n", self.position.load(Ordering::Relaxed))
    }

    fn authority(&self) -> MutexGuard<'_, Option<Authority>> {
        self.authority
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Vec<(IpAddr, TcpStream)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the place of the oldest connection of the address that has the most.
fn replaced<T>(held: &[(IpAddr, T)]) -> usize {
    let count = |ip| held.iter().filter(|(of, _)| *of == ip).count();
    // `max_by_key` returns the last of equal places: the oldest.
    let places = (0..held.len()).rev();
    places.max_by_key(|at| count(held[*at].0)).unwrap_or(0)
}

/// Whether the other end has not closed it.
fn is_there(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(count) => count > 0,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

fn greeting(id: u64, seen: SocketAddr) -> String {
    let seen = SocketAddr::new(seen.ip().to_canonical(), seen.port());
    format!("c10d-life {id:016x} {seen}\n")
}

/// Returns the position up to which a standby has read, if it sends it. Blocks for at most 1.3 s.
pub(super) fn position_of(candidate: &Leader, cancel: &Cancel) -> Option<u64> {
    let mut vigil = Vigil::begin(candidate, candidate.life?, cancel).ok()?;
    let deadline = Deadline::after(Instant::now(), POSITION_TIMEOUT);
    while vigil.hear(Instant::now()) && vigil.last.is_none() {
        let left = deadline.remaining(Instant::now());
        if !wait_for_input(&vigil, left, cancel).ok()? || vigil.look(cancel) != Seen::Nothing {
            return None;
        }
    }
    vigil.last.map(|(position, _)| position)
}

/// The standby's side: a connection to the leader's process.
#[derive(Debug)]
pub(super) struct Vigil {
    id: u64,
    stream: TcpStream,
    leader: SocketAddr,
    /// A part of a heartbeat.
    received: Vec<u8>,
    /// The silence since the last heartbeat; `None` before the first one.
    heartbeats: Option<Silence>,
    /// The position of the log in a heartbeat, and the silence of etcd about batches up to that position.
    ahead: Option<(u64, Silence)>,
    /// Where the log was at the last heartbeat, and how much it had grown since the one before.
    last: Option<(u64, u64)>,
}

/// The observations of a vigil.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    /// The process has ended.
    Death,
    /// The connection is of no use any more.
    Doubt,
}

impl Vigil {
    /// Connects once. Blocks for at most a second.
    ///
    /// # Errors
    /// Why the end of this leader's process cannot be seen from here.
    pub(super) fn begin(leader: &Leader, life: Life, cancel: &Cancel) -> Result<Self, String> {
        let address: HostPort = leader.address.parse().map_err(|_| "it has no address")?;
        let target = HostPort::new(address.host(), life.port);
        let deadline = Deadline::after(Instant::now(), CONNECT_TIMEOUT);
        let once = ConnectOptions::default().with_rounds_max(1);
        let stream = Dialer::new(&target, &once, deadline)
            .with_cancel(cancel.clone())
            .connect()
            .map_err(|error| error.to_string())?;
        let failed = |error: io::Error| format!("{target}: {error}");
        let (own, leader) = stream
            .local_addr()
            .and_then(|own| Ok((own, stream.peer_addr()?)))
            .map_err(failed)?;
        let mut vigil = Self {
            id: life.id,
            stream,
            leader,
            received: Vec::new(),
            heartbeats: None,
            ahead: None,
            last: None,
        };
        vigil.stream.set_nonblocking(true).map_err(failed)?;
        let said = vigil.read_greeting(deadline, cancel).map_err(failed)?;
        if said != greeting(life.id, own).as_bytes() {
            return Err(format!(
                "{target} is another process, or sees this one at another address than {own}"
            ));
        }
        Ok(vigil)
    }

    fn read_greeting(&mut self, deadline: Deadline, cancel: &Cancel) -> io::Result<Vec<u8>> {
        let mut said = Vec::new();
        let mut bytes = [0; GREETING_BYTES_MAX];
        while !said.contains(&b'\n') && said.len() < GREETING_BYTES_MAX {
            let left = deadline.remaining(Instant::now());
            if !wait_for_input(&self.stream, left, cancel)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => said.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        // A heartbeat may have arrived with it.
        if let Some(end) = said.iter().position(|byte| *byte == b'\n') {
            self.received = said.split_off(end + 1);
        }
        Ok(said)
    }

    /// Returns the id of the process that it watches.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// When to look up the leader, as far as is known now: when heartbeats are missing, or the log is longer than
    /// this position and the batches in between do not arrive.
    pub(super) fn doubts_at(&mut self, position: u64) -> Option<Instant> {
        self.lacks(position);
        let batches = self.ahead.map(|(_, silence)| silence);
        let silences = [self.heartbeats, batches].into_iter().flatten();
        silences.filter_map(|silence| silence.lost_at()).min()
    }

    /// Whether a standby that has read up to this position lacks a batch that a heartbeat has announced.
    pub(super) fn lacks(&mut self, position: u64) -> bool {
        self.ahead = self.ahead.filter(|(until, _)| position < *until);
        self.ahead.is_some()
    }

    /// Returns by when the next heartbeat must arrive, if the log grows fast.
    pub(super) fn is_fast_until(&self) -> Option<Instant> {
        let (_, grown) = self.last?;
        let silence = self.heartbeats.filter(|_| grown >= FAST_BATCHES);
        silence?.suspect_at()
    }

    /// Begins again, because the leader has been looked up.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        self.heartbeats = self.heartbeats.map(|_| silence_since(now));
        self.ahead = None;
        self.last = None;
    }

    /// Checks the connection. Blocks for at most half a second, if it has ended.
    pub(super) fn look(&mut self, cancel: &Cancel) -> Seen {
        if !self.hear(Instant::now()) {
            return Seen::Doubt;
        }
        let mut bytes = [0; HEARTBEAT_BYTES * 4];
        for _ in 0..READS_MAX {
            match self.stream.read(&mut bytes) {
                Ok(0) if self.is_refused(cancel) => return Seen::Death,
                Ok(0) => return Seen::Doubt,
                Ok(count) => {
                    self.received.extend_from_slice(&bytes[..count]);
                    if !self.hear(Instant::now()) {
                        return Seen::Doubt;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Seen::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Seen::Doubt,
            }
        }
        // There is more, so that the next wait ends at once.
        Seen::Nothing
    }

    /// Takes the heartbeats that were received; `false` if it is something else.
    fn hear(&mut self, now: Instant) -> bool {
        while let Some((heartbeat, rest)) = self.received.split_first_chunk::<HEARTBEAT_BYTES>() {
            let digits = heartbeat.strip_suffix(b"\n");
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let Some(position) = digits.and_then(|it| u64::from_str_radix(it, 16).ok()) else {
                return false;
            };
            let rest = rest.to_vec();
            self.received = rest;
            self.heartbeats = Some(silence_since(now));
            let before = self.last.map_or(position, |(before, _)| before);
            self.last = Some((position, position.saturating_sub(before)));
            // Until the standby has read this batch, later batches do not count.
            self.ahead = self.ahead.or(Some((position, silence_since(now))));
        }
        true
    }

    /// Whether the address takes no connections any more. The system closes a process' sockets one after another.
    fn is_refused(&self, cancel: &Cancel) -> bool {
        let target = HostPort::new(
            self.leader.ip().to_canonical().to_string(),
            self.leader.port(),
        );
        let deadline = Deadline::after(Instant::now(), REFUSAL_TIMEOUT);
        let once = ConnectOptions::default().with_rounds_max(1);
        while !deadline.has_passed(Instant::now()) {
            let connected = Dialer::new(&target, &once, deadline)
                .with_cancel(cancel.clone())
                .connect();
            if connected.is_err_and(|error| is_refusal(&error)) {
                return true;
            }
            if sleep(REFUSAL_PAUSE, [cancel]).is_err() {
                return false;
            }
        }
        false
    }
}

/// The silence of a leader, or of etcd about its batches, that has sent something at `now`.
fn silence_since(now: Instant) -> Silence {
    Silence::new(now, SILENCE_MAX).suspect_after(LATE_AFTER)
}

fn is_refusal(error: &ConnectError) -> bool {
    let last = error.failures().last();
    last.is_some_and(|it| it.error().kind() == io::ErrorKind::ConnectionRefused)
}

impl AsFd for Vigil {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Whether the end of a leader's process can be seen.
#[derive(Debug, Default)]
pub(super) enum Watching {
    #[default]
    Nobody,
    Process(Vigil),
    NotNow(Retry),
}

/// The end of a process cannot be seen now: it has ended, its place was needed, or the network is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    id: u64,
    /// The number of failed attempts since the last vigil.
    failures: u32,
    pub(super) at: Instant,
}

impl Retry {
    /// The vigil over the process with this id is over.
    pub(super) fn after_vigil(id: u64, now: Instant) -> Self {
        Self::new(id, 0, now)
    }

    /// An attempt to watch over the process with this id has failed, perhaps not the first one.
    pub(super) fn after_failure(before: Option<Self>, id: u64, now: Instant) -> Self {
        let before = before.filter(|before| before.id == id);
        let failures = before.map_or(0, |before| before.failures);
        Self::new(id, failures.saturating_add(1), now)
    }

    fn new(id: u64, failures: u32, now: Instant) -> Self {
        let doublings = failures.saturating_sub(1).min(u32::BITS - 1);
        let pause = RETRY_PAUSE
            .saturating_mul(1 << doublings)
            .min(RETRY_PAUSE_MAX);
        let at = now + pause;
        Self { id, failures, at }
    }

    /// Whether the process with this id is not to be tried yet.
    pub(super) fn holds_back(&self, id: u64, now: Instant) -> bool {
        self.id == id && now < self.at
    }

    /// Whether the attempt that failed is the first one.
    pub(super) const fn is_news(&self) -> bool {
        self.failures == 1
    }
}

#[cfg(test)]
mod tests;
