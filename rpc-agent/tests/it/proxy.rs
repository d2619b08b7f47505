//! A TCP proxy that forwards connections until the test cuts them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Forwards connections to one listener. Dropping it cuts all of them.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Both sockets of each forwarded connection.
    sockets: Mutex<Vec<TcpStream>>,
    /// How many more bytes may pass from the dialers to the listener; `None` for no limit.
    allowance: Mutex<Option<u64>>,
    allowance_changed: Condvar,
    is_ended: AtomicBool,
}

impl Proxy {
    /// Listens on [`Proxy::port`] and forwards connections to `target`.
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, target, &shared)
        });
        Self {
            port,
            shared,
            acceptor: Some(acceptor),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections. Later connections are forwarded again.
    pub(crate) fn cut(&self) {
        for socket in lock(&self.shared.sockets).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Forwards only `bytes` more bytes to the listener, then stops reading from the dialers.
    pub(crate) fn allow(&self, bytes: u64) {
        *lock(&self.shared.allowance) = Some(bytes);
    }

    /// Waits until the allowed bytes have been forwarded.
    pub(crate) fn await_allowance_used(&self) {
        let mut allowance = lock(&self.shared.allowance);
        while *allowance != Some(0) {
            allowance = self
                .shared
                .allowance_changed
                .wait(allowance)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes all connections and removes the limit for later connections.
    pub(crate) fn cut_and_allow_all(&self) {
        self.cut();
        *lock(&self.shared.allowance) = None;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::SeqCst);
        // Wakes the acceptor thread.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        self.cut();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    let mut forwarding = Vec::new();
    loop {
        let (near, _) = listener.accept().unwrap();
        if shared.is_ended.load(Ordering::SeqCst) {
            break;
        }
        // Without a listener at the target, the dialer's connection is closed.
        let Ok(far) = TcpStream::connect(target) else {
            continue;
        };
        let clone = |socket: &TcpStream| socket.try_clone().unwrap();
        lock(&shared.sockets).extend([clone(&near), clone(&far)]);
        let (to_far, to_near) = ((clone(&near), clone(&far)), (far, near));
        forwarding.push(thread::spawn({
            let shared = Arc::clone(shared);
            move || forward(to_far.0, to_far.1, Some(&shared))
        }));
        forwarding.push(thread::spawn(move || forward(to_near.0, to_near.1, None)));
    }
    for socket in lock(&shared.sockets).drain(..) {
        let _ = socket.shutdown(Shutdown::Both);
    }
    for thread in forwarding {
        let _ = thread.join();
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, limits: Option<&Shared>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut count = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let mut is_limit_reached = false;
        if let Some(shared) = limits
            && let Some(left) = &mut *lock(&shared.allowance)
        {
            let allowed = count.min(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= allowed as u64;
            is_limit_reached = allowed < count;
            count = allowed;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if let Some(shared) = limits {
            shared.allowance_changed.notify_all();
        }
        if is_limit_reached {
            // The connection stays open without forwarding until the test cuts it.
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
