//! How a standby learns that the process of the leader has ended, sooner than its lease does.
//!
//! A candidate listens at a port that its leader's key names. It tells each connection which process it is, and which
//! address it sees at the other end, and then holds the connection in silence. A standby that was told its own address
//! has no proxy or address translation in between. It takes the leader for dead if the connection then ends in order (FIN),
//! **and** the same address refuses new ones. Nothing else is a proof: a silent leader may be stopped and go on, and one whose
//! connection is reset or cut may still answer others for as long as its lease gives it the right to.
//!
//! Why this is one: the leader never closes a connection whose other end is there, nor the listener, before its journal is
//! dropped, which has first withdrawn the right to answer. Neither does a thread that panics. So it is the system that
//! closes them, once the last thread of the process has ended. A firewall can send resets in the name of the host, which do
//! not count, and refuse new connections, but it sends no FIN. A child process that has inherited the sockets, and a host that
//! is lost, only mean that the standby waits for the end of the lease.
//!
//! The assumption: nothing between the two hosts sends a FIN in the name of the leader's host, and shows it the standby's
//! address as its own.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectError, ConnectOptions, Deadline, Dialer, HostPort, ListenOptions,
    is_loopback_name, listen, sleep, wait_for_input,
};

use super::layout::{Leader, Life};

/// The most connections: each standby has one.
const CONNECTIONS_MAX: usize = 64;

/// How long a standby tries to connect. It does not follow meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the listener of a process that ends may be open after its connections.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause between two attempts.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// The pause after the system has refused to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const GREETING_BYTES_MAX: usize = 128;

/// The leader's side, with the thread `c10d-etcd-life`. Dropping it shows others the end.
#[derive(Debug)]
pub(super) struct LifeLine {
    life: Life,
    cancel: Cancel,
    /// Also held by the thread, but it is the last to let go.
    _sockets: Arc<Sockets>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Sockets {
    listener: TcpListener,
    held: Mutex<Vec<TcpStream>>,
}

impl LifeLine {
    /// Listens at the address, or at all if it is a name, which may be that of another interface to others.
    pub(super) fn start(address: &HostPort) -> io::Result<Self> {
        let host = address.host();
        let is_own = host.parse::<IpAddr>().is_ok() || is_loopback_name(host);
        let options = ListenOptions::default()
            .with_host(if is_own { host } else { "::" })
            .with_port(0);
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
        });
        let cancel = Cancel::new();
        let (of_thread, ends) = (Arc::clone(&sockets), cancel.clone());
        let thread = thread::Builder::new()
            .name("c10d-etcd-life".to_owned())
            .spawn(move || of_thread.accept(life.id, &ends))?;
        Ok(Self {
            life,
            cancel,
            _sockets: sockets,
            thread: Some(thread),
        })
    }

    pub(super) const fn life(&self) -> Life {
        self.life
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
        while wait_for_input(&self.listener, None, cancel).is_ok() {
            let result = self.listener.accept().and_then(|(mut stream, peer)| {
                stream.set_nonblocking(true)?;
                let mut held = self.held();
                held.retain(is_there);
                // A new socket takes as much at once.
                if held.len() < CONNECTIONS_MAX
                    && stream.write_all(greeting(id, peer).as_bytes()).is_ok()
                {
                    held.push(stream);
                }
                Ok(())
            });
            // Such as too many open files. A connection that was given up is no failure.
            if result.is_err() && sleep(ACCEPT_PAUSE, [cancel]).is_err() {
                return;
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

/// The standby's side: a connection to the leader's process.
#[derive(Debug)]
pub(super) struct Vigil {
    id: u64,
    stream: TcpStream,
    leader: SocketAddr,
}

/// What a vigil has seen.
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
        while !said.ends_with(b"\n") && said.len() < GREETING_BYTES_MAX {
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
        Ok(said)
    }

    /// Of the process that it watches.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Looks at the connection. Blocks for at most half a second, if it has ended.
    pub(super) fn look(&mut self, cancel: &Cancel) -> Seen {
        match self.stream.read(&mut [0]) {
            Ok(0) if self.is_refused(cancel) => Seen::Death,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Seen::Nothing
            }
            _ => Seen::Doubt,
        }
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

fn is_refusal(error: &ConnectError) -> bool {
    let last = error.failures().last();
    last.is_some_and(|it| it.error().kind() == io::ErrorKind::ConnectionRefused)
}

impl AsFd for Vigil {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(port: u16, life: Life) -> Leader {
        Leader {
            address: format!("127.0.0.1:{port}"),
            process: 1,
            host: "host".to_owned(),
            since: 0,
            writer: 1,
            life: Some(life),
        }
    }

    fn vigil(life: Life) -> Result<Vigil, String> {
        Vigil::begin(&leader(1, life), life, &Cancel::NEVER)
    }

    fn end_of(vigil: &mut Vigil) -> Seen {
        wait_for_input(vigil, Duration::from_secs(60), &Cancel::NEVER).expect("no cancel");
        vigil.look(&Cancel::NEVER)
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let line = LifeLine::start(&HostPort::new("127.0.0.1", 1)).expect("a port");
        let mut vigils: Vec<_> = (0..3)
            .map(|_| vigil(line.life()).expect("it lives"))
            .collect();
        for vigil in &mut vigils {
            assert_eq!(vigil.look(&Cancel::NEVER), Seen::Nothing);
        }
        drop(line);
        for vigil in &mut vigils {
            assert_eq!(end_of(vigil), Seen::Death);
        }
    }

    #[test]
    fn another_process_and_a_proxy_are_no_proof() {
        let line = LifeLine::start(&HostPort::new("127.0.0.1", 1)).expect("a port");
        let Life { port, id } = line.life();
        let other = vigil(Life { port, id: id ^ 1 });
        assert!(other.expect_err("another id").contains("another process"));
        // Passes on what it receives: the leader sees the proxy.
        let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = proxy.local_addr().expect("it is bound").port();
        let passes = thread::spawn(move || {
            let (mut near, _) = proxy.accept().expect("a standby");
            let mut far = TcpStream::connect(("127.0.0.1", port)).expect("the leader");
            let mut said = [0; GREETING_BYTES_MAX];
            let count = far.read(&mut said).expect("a greeting");
            near.write_all(&said[..count]).expect("it waits");
        });
        vigil(Life { port: at, id }).expect_err("a proxy");
        passes.join().expect("no panic");
    }

    /// A leader whose connection is reset, or ends while it still listens, may live.
    #[test]
    fn a_reset_and_an_open_listener_are_no_proof() {
        for resets in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("it is bound").port();
            let accepts = thread::spawn(move || {
                let (mut stream, peer) = listener.accept().expect("a standby");
                stream
                    .write_all(greeting(7, peer).as_bytes())
                    .expect("it waits");
                (listener, stream)
            });
            let mut vigil = vigil(Life { port, id: 7 }).expect("it lives");
            let (listener, stream) = accepts.join().expect("no panic");
            let listener = if resets {
                // What is not read resets the connection.
                (&vigil.stream).write_all(b"x").expect("sent");
                wait_for_input(&stream, None, &Cancel::NEVER).expect("no cancel");
                drop(listener);
                None
            } else {
                Some(listener)
            };
            drop(stream);
            assert_eq!(end_of(&mut vigil), Seen::Doubt);
            drop(listener);
        }
    }

    #[test]
    fn connections_have_a_limit_and_are_given_back() {
        let line = LifeLine::start(&HostPort::new("127.0.0.1", 1)).expect("a port");
        let all: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| vigil(line.life()).expect("a place"))
            .collect();
        vigil(line.life()).expect_err("no place");
        drop(all);
        let end = Instant::now() + Duration::from_secs(60);
        while vigil(line.life()).is_err() {
            assert!(Instant::now() < end);
        }
    }
}
