//! A TCP proxy that forwards connections until the test cuts them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Forwards connections to one listener. Dropping it cuts all of them.
#[derive(Debug)]
pub(crate) struct MiddleMan {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Both sides of the connections so far.
    sockets: Mutex<Vec<TcpStream>>,
    /// How many bytes of the dialing sides may still pass.
    allowance: Mutex<Option<u64>>,
    allowance_is_used: Condvar,
    is_ended: AtomicBool,
}

impl MiddleMan {
    /// Passes on to `target` whatever dials [`MiddleMan::port`].
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, target, &shared)
        });
        Self {
            port,
            shared,
            accepting: Some(accepting),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Ends the connections that there are. Later ones are passed on again.
    pub(crate) fn cut(&self) {
        for socket in lock(&self.shared.sockets).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// From now on lets only so many more bytes through to the listener, and takes no others in.
    pub(crate) fn allow(&self, bytes: u64) {
        *lock(&self.shared.allowance) = Some(bytes);
    }

    /// Waits until all bytes that are allowed have passed.
    pub(crate) fn await_allowance_used(&self) {
        let mut allowance = lock(&self.shared.allowance);
        while *allowance != Some(0) {
            allowance = self
                .shared
                .allowance_is_used
                .wait(allowance)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets everything through again on later connections.
    pub(crate) fn cut_and_allow_all(&self) {
        self.cut();
        *lock(&self.shared.allowance) = None;
    }
}

impl Drop for MiddleMan {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::SeqCst);
        // Wakes the one who accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        self.cut();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    let mut passing = Vec::new();
    loop {
        let (near, _) = listener.accept().unwrap();
        if shared.is_ended.load(Ordering::SeqCst) {
            break;
        }
        // With the listener gone, the one who dials finds its connection closed.
        let Ok(far) = TcpStream::connect(target) else {
            continue;
        };
        let clone = |socket: &TcpStream| socket.try_clone().unwrap();
        lock(&shared.sockets).extend([clone(&near), clone(&far)]);
        let (to_far, to_near) = ((clone(&near), clone(&far)), (far, near));
        passing.push(thread::spawn({
            let shared = Arc::clone(shared);
            move || pass(to_far.0, to_far.1, Some(&shared))
        }));
        passing.push(thread::spawn(move || pass(to_near.0, to_near.1, None)));
    }
    for socket in lock(&shared.sockets).drain(..) {
        let _ = socket.shutdown(Shutdown::Both);
    }
    for thread in passing {
        let _ = thread.join();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, limits: Option<&Shared>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut count = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let mut is_held_up = false;
        if let Some(shared) = limits
            && let Some(left) = &mut *lock(&shared.allowance)
        {
            let passes = count.min(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= passes as u64;
            is_held_up = passes < count;
            count = passes;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if let Some(shared) = limits {
            shared.allowance_is_used.notify_all();
        }
        if is_held_up {
            // The rest never arrives, and the connection stays as it is until it is cut.
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
