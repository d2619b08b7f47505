//! One attempt to connect to a peer: its address, the connection, TLS, the client's side of the handshake.
//!
//! Whether and when an attempt is made, and what follows from its result, is decided by `peer`.

use std::io::{self, IoSlice, Write};
use std::mem;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectOptions, Credentials, Deadline, Protocol, SocketOptions, TlsError, TlsLayer,
    recv_into_spare, wait_for_input, wait_for_output,
};

use super::dial_threads::Attempt;
use super::driver::Driver;
use super::peers::PeerEntry;
use super::reader::Inbox;
use super::received::{invalid, received};
use super::sockets::Owner;
use super::tls::{ASKS_FOR_SECRET, Tls};
use crate::future::catch_panic;
use crate::peer::{
    AttemptFailure, Expects, Incoming, IncomingLimits, Message, Recipient, Watch, Welcomed,
};
use crate::segmented_queue::SegmentedQueue;
use crate::wire::{Frame, Hello};
use crate::worker::Destination;

/// How long one attempt may take, from the address to the Welcome.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// What is received at once during the handshake of TLS.
const WIRE_BYTES: usize = 4 << 10;

pub(super) struct Dialer {
    pub(super) driver: Arc<Driver>,
    pub(super) socket_options: SocketOptions,
    /// With them, every connection is TLS.
    pub(super) credentials: Option<Credentials>,
    pub(super) limits: IncomingLimits,
}

impl Attempt for Dialer {
    fn attempt(&self, peer: &Arc<PeerEntry>, dial: u64) {
        let driver = &self.driver;
        let began = Instant::now();
        if !driver.change(peer, |core| core.begin_attempt(dial, began)) {
            return;
        }
        let deadline = Deadline::after(began, ATTEMPT_MAX);
        // The store is the program's.
        let connected = catch_panic(|| self.connect(peer, dial, deadline));
        let connected = connected.unwrap_or_else(|text| {
            let cause = format!("the store panicked: {text}");
            Err(AttemptFailure::Again(cause.into()))
        });
        if let Err(failure) = connected {
            driver.step(peer, |core| {
                core.attempt_failed(dial, failure, Instant::now())
            });
        }
    }
}

impl Dialer {
    fn connect(
        &self,
        peer: &Arc<PeerEntry>,
        dial: u64,
        deadline: Deadline,
    ) -> Result<(), AttemptFailure> {
        let ended = &self.driver.ended;
        let again = |cause: String| AttemptFailure::Again(cause.into());
        let address = match self
            .driver
            .directory
            .address_of(&peer.info, deadline, ended)
        {
            Ok(Some(address)) => address,
            // A worker that has left does not come back.
            Ok(None) if self.driver.directory.is_dynamic() => {
                let error = self.driver.no_such_worker(&Destination::Info(&peer.info));
                return Err(AttemptFailure::Hopeless(error.to_string().into()));
            }
            Ok(None) => return Err(again("the worker has not published its address".to_owned())),
            Err(error) => return Err(again(error.to_string())),
        };
        let options = ConnectOptions::default()
            .with_rounds_max(1)
            .with_socket_options(self.socket_options.clone());
        let connected = c10d_socket::Dialer::new(&address.host_port, &options, deadline)
            .with_cancel(ended.clone())
            .connect();
        let stream = connected.map_err(|error| {
            let cause = error.to_string().into();
            if error.is_refused() {
                // A worker listens from before its address is published until it ends.
                AttemptFailure::Dead(cause)
            } else {
                AttemptFailure::Again(cause)
            }
        })?;
        let failed = |error: io::Error| {
            let cause = format!("{}: no welcome: {error}", address.host_port).into();
            let source = error.get_ref();
            if source.is_some_and(|it| it.is::<TlsError>() || it.is::<NoSecret>()) {
                // It has another secret, or this worker has none, now and later.
                AttemptFailure::Hopeless(cause)
            } else {
                AttemptFailure::Again(cause)
            }
        };
        let mut link = self
            .secure(stream, address.host_port.host(), deadline)
            .map_err(failed)?;
        let incarnation = address.incarnation;
        let hello = self
            .driver
            .change(peer, |core| core.hello(dial, incarnation));
        let Some(hello) = hello else {
            // Without the end of its handshake, the acceptor would take this worker for a stranger.
            return link.send(&[]).map_err(failed);
        };
        self.shake_hands(peer, dial, link, hello).map_err(failed)
    }

    /// Proves to the peer that this worker has the secret, and checks that the peer has it. The last message of that is
    /// left to be sent with the Hello. Does nothing without credentials.
    fn secure(&self, stream: TcpStream, host: &str, deadline: Deadline) -> io::Result<Link> {
        stream.set_nonblocking(true)?;
        let tls = match &self.credentials {
            None => None,
            Some(credentials) => {
                let client = credentials.client(Protocol::Rpc, host);
                let layer = client.and_then(|client| client.start());
                Some(layer.map_err(io::Error::other)?)
            }
        };
        let mut link = Link {
            stream,
            tls,
            opened: Vec::new(),
            deadline,
            cancel: self.driver.ended.clone(),
        };
        link.shake_hands()?;
        Ok(link)
    }

    /// Sends the Hello, and reports the answer.
    fn shake_hands(
        &self,
        peer: &Arc<PeerEntry>,
        dial: u64,
        mut link: Link,
        hello: Hello,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        Frame::Hello(hello).encode(&mut bytes);
        link.send(&bytes)?;
        let mut decoder = Incoming::new(Expects::WelcomeOrRefuse, self.limits);
        let driver = &*self.driver;
        let mut messages = SegmentedQueue::new();
        let first = loop {
            if let Some(first) = messages.pop_front() {
                break first;
            }
            let messages = &mut messages;
            let mut inbox = Inbox {
                driver,
                peer,
                messages,
            };
            link.receive(&mut decoder, &mut inbox)?;
        };
        let now = Instant::now();
        match first {
            Message::Welcome(welcome) => {
                let stream = mio::net::TcpStream::from_std(link.stream);
                let tls = link.tls.map(Tls::established);
                let owner = Owner::Peer(Arc::clone(peer));
                let socket = driver.sockets.adopt(stream, tls, owner)?;
                let connection = (Arc::clone(&socket), socket.address);
                let welcomed = driver.step(peer, |core| {
                    core.welcomed(dial, &welcome, connection, decoder, messages, now)
                });
                if welcomed != Welcomed::Established {
                    driver.sockets.release(&socket, Watch::default());
                }
                Ok(())
            }
            Message::Refuse(refuse) => {
                driver.step(peer, |core| core.refused(dial, &refuse, now));
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The peer asks for a secret.
#[derive(Debug, thiserror::Error)]
#[error(
    "the worker there has a secret, and this one has none: give all workers of the group the same"
)]
struct NoSecret;

/// A connection that is being made.
struct Link {
    /// Non-blocking.
    stream: TcpStream,
    tls: Option<TlsLayer>,
    /// What TLS has opened.
    opened: Vec<u8>,
    deadline: Deadline,
    cancel: Cancel,
}

impl Link {
    fn shake_hands(&mut self) -> io::Result<()> {
        while self.tls.as_ref().is_some_and(TlsLayer::is_handshaking) {
            self.send(&[])?;
            self.open().map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    let text = "closed during the TLS handshake, as a worker without a secret does";
                    io::Error::new(error.kind(), text)
                }
                _ => error,
            })?;
        }
        Ok(())
    }

    /// Sends these bytes, after what TLS has to send.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(layer) = &mut self.tls else {
            return self.write_all(bytes);
        };
        // A Hello is short: it is sealed as a whole.
        layer.seal(&[IoSlice::new(bytes)]);
        let mut sealed = Vec::new();
        layer.send(&mut sealed)?;
        self.write_all(&sealed)
    }

    /// Receives once; `recipient` gets the messages that this completes.
    fn receive(
        &mut self,
        decoder: &mut Incoming,
        recipient: &mut impl Recipient,
    ) -> io::Result<()> {
        if self.tls.is_some() {
            if self.opened.is_empty() {
                self.open()?;
            }
            let opened = mem::take(&mut self.opened);
            return decoder.receive(&opened, recipient).map_err(invalid);
        }
        self.await_input()?;
        let (buffer, bytes_max) = decoder.spare();
        if receive(&self.stream, buffer, bytes_max)? == 0 {
            return Ok(());
        }
        if buffer.starts_with(&ASKS_FOR_SECRET) {
            return Err(io::Error::other(NoSecret));
        }
        decoder.received(recipient).map_err(invalid)
    }

    fn await_input(&self) -> io::Result<()> {
        let left = self.deadline.remaining(Instant::now());
        in_time(wait_for_input(&self.stream, left, &self.cancel))
    }

    fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = self.deadline.remaining(Instant::now());
                    in_time(wait_for_output(&self.stream, left, &self.cancel))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives once, and opens it.
    fn open(&mut self) -> io::Result<()> {
        let mut wire = Vec::with_capacity(WIRE_BYTES);
        self.await_input()?;
        receive(&self.stream, &mut wire, WIRE_BYTES)?;
        match &mut self.tls {
            None => Ok(()),
            Some(layer) => {
                let result = layer.receive(&wire, &mut self.opened);
                if result.is_err() {
                    // Tells the peer why, if the system takes it at once.
                    let _ = layer.send(&mut &self.stream);
                }
                Ok(result?)
            }
        }
    }
}

fn in_time(waited: io::Result<bool>) -> io::Result<()> {
    match waited? {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Receives once: 0 bytes if there was none after all.
fn receive(stream: &TcpStream, buffer: &mut Vec<u8>, bytes_max: usize) -> io::Result<usize> {
    match received(recv_into_spare(stream, buffer, bytes_max)) {
        (_, Some(error)) => Err(error),
        (count, None) => Ok(count),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn the_end_of_the_agent_ends_a_handshake_with_a_silent_peer() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(silent.local_addr().unwrap()).unwrap();
        let cancel = Cancel::new();
        let link = Link {
            stream,
            tls: None,
            opened: Vec::new(),
            deadline: Deadline::NEVER,
            cancel: cancel.clone(),
        };
        let waiting = thread::spawn(move || link.await_input().unwrap_err());
        cancel.cancel();
        let error = waiting.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}
