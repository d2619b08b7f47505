//! A TCP proxy whose connections a test can cut. Other tests include this file, and use a part of it.

#![allow(dead_code, reason = "see above")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Passes connections on to a server until it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    stop: AtomicBool,
    /// New connections are closed at once.
    is_cut: AtomicBool,
    /// It does not pass on received bytes, like a network that drops packets.
    is_silent: AtomicBool,
    /// How long it keeps received bytes, and the end of a connection, in milliseconds.
    delay_ms: AtomicU64,
    /// How many pieces it keeps now.
    kept: AtomicUsize,
    connections: Mutex<Vec<(TcpStream, TcpStream)>>,
    accepted: AtomicUsize,
    cuts: AtomicUsize,
    /// Each connection is cut after a random number of bytes below this, in either direction; 0 for never.
    budget_max: AtomicU64,
    random: Mutex<fastrand::Rng>,
    pumps: Mutex<Vec<JoinHandle<()>>>,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            stop: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            delay_ms: AtomicU64::new(0),
            kept: AtomicUsize::new(0),
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
            budget_max: AtomicU64::new(0),
            random: Mutex::new(fastrand::Rng::with_seed(0)),
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

    /// How many connections it has cut.
    pub(crate) fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::Acquire)
    }

    /// Cuts the present connections, and from now on each new one after a random number of bytes below `bytes_max`; 0
    /// for never.
    pub(crate) fn cut_after(&self, seed: u64, bytes_max: u64) {
        *self.shared.random.lock().expect("no panic") = fastrand::Rng::with_seed(seed);
        self.shared.budget_max.store(bytes_max, Ordering::Release);
        self.cut(false);
    }

    /// Cuts all connections; with `refuse`, also new connections until [`mend`](Self::mend).
    pub(crate) fn cut(&self, refuse: bool) {
        self.shared.is_cut.store(refuse, Ordering::Release);
        for (client, server) in self.shared.connections.lock().expect("no panic").drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Passes new connections on to this server from now on.
    pub(crate) fn set_server(&self, server: SocketAddr) {
        *self.shared.server.lock().expect("no panic") = server;
    }

    /// Passes nothing on any more, over present and new connections, until [`mend`](Self::mend); what arrives until
    /// then is lost.
    pub(crate) fn be_silent(&self) {
        self.shared.is_silent.store(true, Ordering::Release);
    }

    /// Keeps bytes that arrive from now on for this time, in each direction, before it passes them on. The bytes of a
    /// client are passed on later even if the client has closed its connection in the meantime.
    pub(crate) fn delay(&self, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).expect("not years");
        self.shared.delay_ms.store(delay_ms, Ordering::Release);
    }

    /// Whether it keeps nothing that is to be passed on later.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.shared.kept.load(Ordering::Acquire) == 0
    }

    /// Passes new connections on again. Those from before a silence are cut, as bytes are missing.
    pub(crate) fn mend(&self) {
        self.shared.is_cut.store(false, Ordering::Release);
        if self.shared.is_silent.swap(false, Ordering::AcqRel) {
            self.cut(false);
        }
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
        let address = shared.server();
        let Ok(server) = TcpStream::connect(address) else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        shared.accepted.fetch_add(1, Ordering::AcqRel);
        let pair = || -> io::Result<_> { Ok((client.try_clone()?, server.try_clone()?)) };
        let (Ok(up), Ok(down), Ok(kept)) = (pair(), pair(), pair()) else {
            continue;
        };
        let mut connections = shared.connections.lock().expect("no panic");
        if shared.is_cut.load(Ordering::Acquire) || shared.server() != address {
            continue;
        }
        connections.push(kept);
        drop(connections);
        let mut pumps = shared.pumps.lock().expect("no panic");
        let budgets = shared.budgets();
        let (of_up, of_down) = (Arc::clone(shared), Arc::clone(shared));
        pumps.push(thread::spawn(move || of_up.pump(up.0, up.1, budgets.0)));
        pumps.push(thread::spawn(move || {
            of_down.pump(down.1, down.0, budgets.1);
        }));
    }
}

impl Shared {
    fn server(&self) -> SocketAddr {
        *self.server.lock().expect("no panic")
    }

    /// After how many bytes a new connection is cut, in each direction.
    fn budgets(&self) -> (u64, u64) {
        match self.budget_max.load(Ordering::Acquire) {
            0 => (u64::MAX, u64::MAX),
            max => {
                let mut random = self.random.lock().expect("no panic");
                (random.u64(1..max), random.u64(1..max))
            }
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, mut budget: u64) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count) = from.read(&mut buffer) {
            let delay_ms = self.delay_ms.load(Ordering::Acquire);
            if delay_ms > 0 {
                self.kept.fetch_add(1, Ordering::AcqRel);
                thread::sleep(Duration::from_millis(delay_ms));
                self.kept.fetch_sub(1, Ordering::AcqRel);
            }
            if count > 0 && self.is_silent.load(Ordering::Acquire) {
                continue;
            }
            let passes = count.min(usize::try_from(budget).unwrap_or(usize::MAX));
            if count == 0 || to.write_all(&buffer[..passes]).is_err() {
                break;
            }
            budget -= passes as u64;
            if budget == 0 {
                self.cuts.fetch_add(1, Ordering::AcqRel);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}
