//! Connected pairs, misbehaving peers, and threads observed to block.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use socket2::{Domain, Socket, Type};

/// Longer than anything that does not hang, on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn within(time: Duration) -> Deadline {
    Deadline::after(Instant::now(), time)
}

/// Runs `work` on its own thread, and fails the test if it hangs.
pub(crate) fn no_hang<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(LONG) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the result was sent before the thread ended"),
        },
    }
}

/// A thread that can be observed to block.
pub(crate) struct Observed<T> {
    thread: JoinHandle<T>,
    /// Its directory below `/proc`; empty on systems without one.
    task: PathBuf,
}

/// Runs `work`, which blocks in one place, on its own thread.
pub(crate) fn observed<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Observed<T> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        sender
            .send(fs::read_link("/proc/thread-self").unwrap_or_default())
            .unwrap();
        work()
    });
    let task = receiver.recv_timeout(LONG).expect("the thread starts");
    Observed { thread, task }
}

impl<T: Send + 'static> Observed<T> {
    /// Returns once the thread is blocked in a system call. Where that cannot be observed it returns
    /// at once, and the test proves less.
    pub(crate) fn wait_until_blocked(&self) {
        let deadline = within(LONG);
        let stat = Path::new("/proc").join(&self.task).join("stat");
        while !self.task.as_os_str().is_empty() {
            let stat = fs::read_to_string(&stat).expect("the thread has not ended");
            // The name before the state is in parentheses and may contain anything.
            if stat.rsplit(") ").next().unwrap().starts_with('S') {
                return;
            }
            assert!(!deadline.has_passed(Instant::now()), "never blocks: {stat}");
            thread::yield_now();
        }
        skipped("this system does not show whether a thread is blocked");
    }

    /// The result of the work; fails the test if it hangs.
    pub(crate) fn join(self) -> T {
        no_hang(move || match self.thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }
}

/// A connection: the end under test, and the peer's.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
}

/// A socket bound to a port of 127.0.0.1 that does not listen: connections are refused, and the port
/// stays reserved.
pub(crate) fn bound() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A peer that runs `behave` on each connection, one after the other, until it returns `false`.
pub(crate) fn server(
    mut behave: impl FnMut(TcpStream) -> bool + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || while behave(listener.accept().unwrap().0) {});
    (address, thread)
}

/// Closes a connection with RST instead of FIN.
pub(crate) fn reset(peer: TcpStream) {
    socket2::SockRef::from(&peer)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(peer);
}

/// Whether this machine has `::1`; reports when part of a test is skipped without it.
pub(crate) fn has_ipv6() -> bool {
    let has = TcpListener::bind((IpAddr::V6(Ipv6Addr::LOCALHOST), 0)).is_ok();
    if !has {
        skipped("this machine has no IPv6");
    }
    has
}

/// Reports why a test, or a part of it, is skipped on this machine.
///
/// Writes directly to standard error, because libtest discards the captured output of tests that pass.
pub(crate) fn skipped(reason: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(io::stderr(), "skipped in {test}: {reason}");
}
