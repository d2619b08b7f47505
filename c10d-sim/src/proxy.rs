//! A TCP proxy whose connections a test can cut.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Passes connections on to a server until it is dropped. Its methods panic without a network.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: Mutex<SocketAddr>,
    stop: AtomicBool,
    /// New connections are closed at once.
    is_cut: AtomicBool,
    /// It drops all bytes, like a network that drops packets.
    is_silent: AtomicBool,
    /// The delay of all bytes, and of the end of a connection, in milliseconds.
    delay_ms: AtomicU64,
    /// How many pieces it keeps now.
    kept: AtomicUsize,
    connections: Mutex<Vec<(TcpStream, TcpStream)>>,
    accepted: AtomicUsize,
    cuts: AtomicUsize,
    /// Each connection is cut after a random number of bytes below this, in either direction; 0 for never.
    budget_max: AtomicU64,
    random: Mutex<fastrand::Rng>,
    /// How many more bytes may pass to the server, over all connections; `None` for no limit.
    allowance: Mutex<Option<u64>>,
    allowance_changed: Condvar,
    pumps: Mutex<Vec<JoinHandle<()>>>,
}

impl Proxy {
    /// Listens on a free port of the loopback interface.
    #[must_use]
    pub fn to(server: SocketAddr) -> Self {
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
            allowance: Mutex::default(),
            allowance_changed: Condvar::new(),
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

    /// The port on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many connections it has passed on so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// How many connections it has cut.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::Acquire)
    }

    /// Cuts the present connections, and from now on each new one after a random number of bytes below `bytes_max`; 0
    /// for never.
    pub fn cut_after(&self, seed: u64, bytes_max: u64) {
        *self.shared.random.lock().expect("no panic") = fastrand::Rng::with_seed(seed);
        self.shared.budget_max.store(bytes_max, Ordering::Release);
        self.cut(false);
    }

    /// Cuts all connections. With `refuse`, it also cuts new connections until [`mend`](Self::mend).
    pub fn cut(&self, refuse: bool) {
        self.shared.is_cut.store(refuse, Ordering::Release);
        for (client, server) in self.shared.connections.lock().expect("no panic").drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Passes new connections on to this server from now on.
    pub fn set_server(&self, server: SocketAddr) {
        *self.shared.server.lock().expect("no panic") = server;
    }

    /// Passes nothing on any more, over present and new connections, until [`mend`](Self::mend); what arrives until
    /// then is lost.
    pub fn be_silent(&self) {
        self.shared.is_silent.store(true, Ordering::Release);
    }

    /// Delays the bytes of each direction by this time. The bytes of a client arrive even if it has closed its connection in the
    /// meantime.
    pub fn delay(&self, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).expect("not years");
        self.shared.delay_ms.store(delay_ms, Ordering::Release);
    }

    /// Passes only this number of bytes on to the server, then stops reading from clients until [`allow_all`](Self::allow_all).
    pub fn allow(&self, bytes: u64) {
        *self.shared.allowance.lock().expect("no panic") = Some(bytes);
    }

    /// Waits until it has passed the allowed bytes on.
    pub fn wait_until_used(&self) {
        let allowance = self.shared.allowance.lock().expect("no panic");
        let is_left = |allowance: &mut Option<u64>| *allowance != Some(0);
        let changed = &self.shared.allowance_changed;
        drop(changed.wait_while(allowance, is_left).expect("no panic"));
    }

    /// Cuts all connections, and passes any number of bytes on over later connections.
    pub fn allow_all(&self) {
        self.cut(false);
        *self.shared.allowance.lock().expect("no panic") = None;
    }

    /// Whether it keeps nothing that is to be passed on later.
    #[must_use]
    pub fn keeps_nothing(&self) -> bool {
        self.shared.kept.load(Ordering::Acquire) == 0
    }

    /// Passes new connections on again. Those from before a silence are cut, as bytes are missing.
    pub fn mend(&self) {
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
        pumps.push(thread::spawn(move || {
            of_up.pump(up.0, up.1, budgets.0, true)
        }));
        pumps.push(thread::spawn(move || {
            of_down.pump(down.1, down.0, budgets.1, false);
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

    /// How many of these bytes may pass to the server.
    fn allowed(&self, count: usize) -> usize {
        let mut allowance = self.allowance.lock().expect("no panic");
        let Some(left) = &mut *allowance else {
            return count;
        };
        let passes = count.min(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= passes as u64;
        passes
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, mut budget: u64, is_up: bool) {
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
            let within = count.min(usize::try_from(budget).unwrap_or(usize::MAX));
            let passes = if is_up { self.allowed(within) } else { within };
            if count == 0 || to.write_all(&buffer[..passes]).is_err() {
                break;
            }
            self.allowance_changed.notify_all();
            if passes < within {
                // The connection stays open, and nothing more passes.
                return;
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
