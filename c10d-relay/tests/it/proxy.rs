//! A TCP proxy whose connections a test can cut.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Passes connections on to a server until it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    server: SocketAddr,
    stop: AtomicBool,
    /// New connections are closed at once.
    is_cut: AtomicBool,
    connections: Mutex<Vec<(TcpStream, TcpStream)>>,
    accepted: AtomicUsize,
    pumps: Mutex<Vec<JoinHandle<()>>>,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            server,
            stop: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            pumps: Mutex::default(),
        });
        let of_thread = Arc::clone(&shared);
        let acceptor = thread::spawn(move || accept(&listener, &of_thread));
        Self {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many connections it has passed on so far.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// Cuts all connections; with `refuse`, new ones too until [`mend`](Self::mend).
    pub(crate) fn cut(&self, refuse: bool) {
        self.shared.is_cut.store(refuse, Ordering::Release);
        for (client, server) in self.shared.connections.lock().expect("no panic").drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn mend(&self) {
        self.shared.is_cut.store(false, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.cut(true);
        for pump in self.shared.pumps.lock().expect("no panic").drain(..) {
            let _ = pump.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        if shared.is_cut.load(Ordering::Acquire) {
            continue;
        }
        let Ok(server) = TcpStream::connect(shared.server) else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        shared.accepted.fetch_add(1, Ordering::AcqRel);
        let pair = || -> io::Result<_> { Ok((client.try_clone()?, server.try_clone()?)) };
        let (Ok(up), Ok(down), Ok(kept)) = (pair(), pair(), pair()) else {
            continue;
        };
        shared.connections.lock().expect("no panic").push(kept);
        let mut pumps = shared.pumps.lock().expect("no panic");
        pumps.push(thread::spawn(move || pump(up.0, up.1)));
        pumps.push(thread::spawn(move || pump(down.1, down.0)));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
