//! A relay between a client and a server that can hold back the server's replies and the client's CANCEL_WAIT.
//!
//! With it a test reproduces a reply that crosses the cancel on the network.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::raw_client::command::CANCEL_WAIT;

/// Forwards one connection to a server, and refuses further ones.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    holding: bool,
    held: Vec<u8>,
    /// The number of request bytes forwarded since the hold began.
    requested: usize,
    may_cancel: bool,
    closed: bool,
    streams: Vec<TcpStream>,
}

impl Relay {
    /// Listens on loopback, and forwards the first connection to `server`.
    ///
    /// # Errors
    /// When the socket or the thread cannot be created.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                // The client sees an error as a closed connection.
                let _ = run(listener, server, &for_thread);
                for_thread.close();
            })?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// The address for the client.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds back the server's replies and the client's next CANCEL_WAIT.
    pub fn hold(&self) {
        let mut state = self.shared.lock();
        state.holding = true;
        state.requested = 0;
        state.may_cancel = false;
    }

    /// Waits until a part of a request was forwarded since the start or the last [`hold`](Self::hold).
    ///
    /// # Panics
    /// When this takes longer than `limit`.
    pub fn wait_requested(&self, limit: Duration) {
        let state = self.shared.lock();
        let (_state, waited) = self
            .shared
            .changed
            .wait_timeout_while(state, limit, |state| state.requested == 0)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "no request within {limit:?}");
    }

    /// Forwards the CANCEL_WAIT that is held back, or the next one.
    pub fn pass_cancel(&self) {
        self.shared.lock().may_cancel = true;
        self.shared.changed.notify_all();
    }

    /// Waits until at least `bytes` bytes of replies are held back.
    ///
    /// # Panics
    /// When this takes longer than `limit`, or the connection is closed.
    pub fn wait_held(&self, bytes: usize, limit: Duration) {
        let started = Instant::now();
        let mut state = self.shared.lock();
        while state.held.len() < bytes {
            let left = limit.saturating_sub(started.elapsed());
            assert!(
                !left.is_zero() && !state.closed,
                "expected {bytes} bytes of replies, received {:?}",
                state.held
            );
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Ends the hold: forwards the replies held back, and returns them.
    ///
    /// # Errors
    /// When the client has disconnected.
    pub fn release(&self) -> io::Result<Vec<u8>> {
        let mut state = self.shared.lock();
        state.holding = false;
        let held = std::mem::take(&mut state.held);
        match state.streams.first_mut() {
            Some(client) => client.write_all(&held)?,
            None => return Err(io::ErrorKind::NotConnected.into()),
        }
        Ok(held)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.close();
        // Ends the accept if no client has connected.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_requested(&self, bytes: usize) {
        self.lock().requested += bytes;
        self.changed.notify_all();
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for stream in &state.streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }
}

fn run(listener: TcpListener, server: SocketAddr, shared: &Arc<Shared>) -> io::Result<()> {
    let (client, _) = listener.accept()?;
    drop(listener);
    let mut server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    {
        let mut state = shared.lock();
        if state.closed {
            return Ok(());
        }
        state.streams = vec![client.try_clone()?, server.try_clone()?];
    }
    let requests = {
        let (mut from, mut to) = (client, server.try_clone()?);
        let shared = Arc::clone(shared);
        thread::Builder::new()
            .name("relay-requests".to_owned())
            .spawn(move || {
                let _ = pass_requests(&mut from, &mut to, &shared);
                let _ = to.shutdown(Shutdown::Write);
            })?
    };
    let result = pass_replies(&mut server, shared);
    shared.close();
    let _ = requests.join();
    result
}

fn pass_requests(
    client: &mut TcpStream,
    server: &mut TcpStream,
    shared: &Shared,
) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let count = client.read(&mut buffer)?;
        let Some((last, others)) = buffer[..count].split_last() else {
            return Ok(());
        };
        server.write_all(others)?;
        if !others.is_empty() {
            shared.count_requested(others.len());
        }
        // In these tests only a CANCEL_WAIT ends with this byte.
        if *last == CANCEL_WAIT {
            let state = shared.lock();
            let is_held = |state: &mut State| state.holding && !state.may_cancel && !state.closed;
            let _state = shared
                .changed
                .wait_while(state, is_held)
                .unwrap_or_else(PoisonError::into_inner);
        }
        server.write_all(&[*last])?;
        shared.count_requested(1);
    }
}

fn pass_replies(server: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let count = server.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let mut state = shared.lock();
        if state.holding {
            state.held.extend_from_slice(&buffer[..count]);
            shared.changed.notify_all();
        } else if let Some(client) = state.streams.first_mut() {
            // Under the lock, so that the replies follow those that `release` writes. The write does not block:
            // replies in these tests are a few bytes.
            client.write_all(&buffer[..count])?;
        }
    }
}
