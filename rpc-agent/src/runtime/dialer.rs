//! One attempt to connect to a peer: its address, the connection, TLS, the client's side of the handshake.
//!
//! `peer` decides whether and when an attempt is made, and handles its result.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectOptions, Deadline, Protocol, TlsError, wait_for_input, wait_for_output,
};

use super::driver::Driver;
use super::peers::PeerEntry;
use super::reader::Inbox;
use super::socket::Socket;
use super::sockets::Owner;
use super::tls::{SECRETS_DIFFER, SealedReads, Tls};
use crate::future::catch_panic;
use crate::peer::{AttemptFailure, Expects, Incoming, Message, Recipient, Watch, Welcomed};
use crate::segmented_queue::SegmentedQueue;
use crate::wire::Frame;
use crate::worker::Destination;

/// How long one attempt may take, from the address to the Welcome.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

impl Driver {
    /// Makes one attempt to connect, for the dial of this number.
    pub(super) fn attempt(&self, peer: &Arc<PeerEntry>, dial: u64) {
        let began = Instant::now();
        if !self.change(peer, |core| core.begin_attempt(dial, began)) {
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
            self.step(peer, |core| {
                core.attempt_failed(dial, failure, Instant::now())
            });
        }
    }

    fn connect(
        &self,
        peer: &Arc<PeerEntry>,
        dial: u64,
        deadline: Deadline,
    ) -> Result<(), AttemptFailure> {
        let ended = &self.ended;
        let again = |cause: String| AttemptFailure::Again(cause.into());
        let address = self.directory.address_of(&peer.info, deadline, ended);
        self.check_members();
        if let Some(why) = self.exclusion() {
            return Err(AttemptFailure::Excluded(why));
        }
        let address = match address {
            Ok(Some(address)) => address,
            // A worker that has left does not come back.
            Ok(None) if self.directory.is_dynamic() => {
                let error = self.no_such_worker(&Destination::Info(&peer.info));
                return Err(AttemptFailure::Hopeless(error.to_string().into()));
            }
            Ok(None) => return Err(again("the worker has not published its address".to_owned())),
            Err(error) => return Err(again(error.to_string())),
        };
        let options = ConnectOptions::default()
            .with_rounds_max(1)
            .with_socket_options(self.dials.socket_options.clone());
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
            if source.is_some_and(|it| it.is::<TlsError>() || it.is::<OnlyOneSecret>()) {
                // It has another secret, or only one of the two workers has one, now and later.
                AttemptFailure::Hopeless(cause)
            } else {
                AttemptFailure::Again(cause)
            }
        };
        let host = address.host_port.host();
        let link = self.link(stream, host, peer, deadline).map_err(failed)?;
        let socket = Arc::clone(&link.socket);
        let established = self.shake_hands(peer, dial, link, address.incarnation);
        if !matches!(established, Ok(true)) {
            self.sockets.release(&socket, Watch::default());
        }
        established.map(drop).map_err(failed)
    }

    fn link(
        &self,
        stream: TcpStream,
        host: &str,
        peer: &Arc<PeerEntry>,
        deadline: Deadline,
    ) -> io::Result<Link> {
        stream.set_nonblocking(true)?;
        let tls = match &self.dials.credentials {
            None => None,
            Some(credentials) => {
                let client = credentials.client(Protocol::Rpc, host);
                let layer = client.and_then(|client| client.start());
                Some(Tls::dialed(layer.map_err(io::Error::other)?))
            }
        };
        let stream = mio::net::TcpStream::from_std(stream);
        let owner = Owner::Peer(Arc::clone(peer));
        Ok(Link {
            socket: self.sockets.adopt(stream, tls, owner)?,
            decoder: Incoming::new(Expects::WelcomeOrRefuse, self.dials.limits),
            reads: SealedReads::default(),
            deadline,
            cancel: self.ended.clone(),
        })
    }

    /// Proves to the peer that this worker has the secret, if there is one, and checks that the peer has it; sends
    /// the Hello, and reports the answer. Returns whether the connection is then in use.
    fn shake_hands(
        &self,
        peer: &Arc<PeerEntry>,
        dial: u64,
        mut link: Link,
        incarnation: u64,
    ) -> io::Result<bool> {
        let mut messages = SegmentedQueue::new();
        let mut inbox = Inbox {
            driver: self,
            peer,
            messages: &mut messages,
        };
        while link.is_handshaking() {
            link.send(&[])?;
            link.receive(&mut inbox)?;
        }
        let hello = self.change(peer, |core| core.hello(dial, incarnation));
        let Some(hello) = hello else {
            // Without the end of its handshake, the acceptor would consider this worker a stranger.
            return link.send(&[]).map(|()| false);
        };
        // With the last message of the handshake of TLS.
        let mut bytes = Vec::new();
        Frame::Hello(hello).encode(&mut bytes);
        link.send(&bytes)?;
        let first = loop {
            if let Some(first) = inbox.messages.pop_front() {
                break first;
            }
            link.receive(&mut inbox)?;
        };
        let now = Instant::now();
        match first {
            Message::Welcome(welcome) => {
                let connection = (Arc::clone(&link.socket), link.socket.address);
                let welcomed = self.step(peer, |core| {
                    core.welcomed(dial, &welcome, connection, link.decoder, messages, now)
                });
                // The list may have changed since the address was read.
                self.check_member(peer);
                Ok(welcomed == Welcomed::Established)
            }
            Message::Refuse(refuse) => {
                self.step(peer, |core| core.refused(dial, &refuse, now));
                Ok(false)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// One of the two workers has a secret.
#[derive(Debug, thiserror::Error)]
enum OnlyOneSecret {
    #[error(
        "the worker there has a secret, and this one has none: give all workers of the group the same"
    )]
    Theirs,
    #[error(
        "this worker has a secret, and the one there has none: give all workers of the group the same"
    )]
    Ours,
}

/// A connection that is being made.
struct Link {
    socket: Arc<Socket>,
    decoder: Incoming,
    reads: SealedReads,
    deadline: Deadline,
    cancel: Cancel,
}

impl Link {
    fn is_handshaking(&self) -> bool {
        self.socket.tls().is_some_and(Tls::is_handshaking)
    }

    /// Sends these bytes, after what TLS has to send.
    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.socket.write_bytes(bytes) {
                Ok(count) if count == bytes.len() => return Ok(()),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = self.deadline.remaining(Instant::now());
                    in_time(wait_for_output(&self.socket.stream, left, &self.cancel))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives once; `recipient` gets the messages that this completes.
    fn receive(&mut self, recipient: &mut impl Recipient) -> io::Result<()> {
        let left = self.deadline.remaining(Instant::now());
        in_time(wait_for_input(&self.socket.stream, left, &self.cancel))?;
        let received = self
            .socket
            .receive(&mut self.decoder, &mut self.reads, recipient);
        let Some(error) = received.failure else {
            return Ok(());
        };
        let Some(tls) = self.socket.tls() else {
            return Err(if self.decoder.unfinished() == SECRETS_DIFFER {
                io::Error::other(OnlyOneSecret::Theirs)
            } else {
                error
            });
        };
        if tls.is_handshaking() && self.reads.received(&SECRETS_DIFFER) {
            return Err(io::Error::other(OnlyOneSecret::Ours));
        }
        // Sends the reason to the peer, if the system takes it at once.
        let _ = tls.flush(&self.socket.stream);
        if error.kind() == io::ErrorKind::UnexpectedEof && tls.is_handshaking() {
            let text = "closed during the TLS handshake, as a worker without a secret does";
            return Err(io::Error::new(error.kind(), text));
        }
        Err(error)
    }
}

fn in_time(waited: io::Result<bool>) -> io::Result<()> {
    match waited? {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::peer::{FunctionId, IncomingLimits};

    struct Nobody;

    impl Recipient for Nobody {
        fn find_function(&mut self, _: &str) -> Option<FunctionId> {
            None
        }

        fn wants_response(&mut self, _: u64) -> bool {
            false
        }

        fn take(&mut self, _: Message) {}
    }

    #[test]
    fn the_end_of_the_agent_ends_a_handshake_with_a_silent_peer() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let cancel = Cancel::new();
        let mut link = Link {
            socket: Arc::new(Socket {
                token: 0,
                stream: mio::net::TcpStream::from_std(stream),
                address,
                tls: None,
            }),
            decoder: Incoming::new(Expects::WelcomeOrRefuse, IncomingLimits::default()),
            reads: SealedReads::default(),
            deadline: Deadline::NEVER,
            cancel: cancel.clone(),
        };
        let waiting = thread::spawn(move || link.receive(&mut Nobody).unwrap_err());
        cancel.cancel();
        let error = waiting.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}
