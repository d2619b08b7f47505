//! Accepts inbound connections and runs the server's side of the handshake.
//!
//! Which of two crossing connections survives is decided by `peer::pair`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{SocketOptions, configure_accepted, recv_into_spare};

use super::driver::{Driver, Served};
use super::reader::{self, ReadBuffers};
use super::socket::{NOT_SENT_LOW_WATER_BYTES, Socket};
use crate::peer::{
    Expects, FunctionId, Incoming, IncomingLimits, Message, Reads, Recipient, Watch,
};
use crate::wire::{Frame, Hello, Refuse, RefuseReason, WireError};

/// How long the handshake of a connection may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Connections that have not completed the handshake. One more, and the oldest is closed.
const HANDSHAKES_MAX: usize = 1024;

const READABLE: Watch = Watch {
    readable: true,
    writable: false,
};

/// The connections that have not completed the handshake.
pub(super) struct Acceptor {
    driver: Arc<Driver>,
    socket_options: SocketOptions,
    limits: IncomingLimits,
    /// Whether workers may join and leave; otherwise only the known ones may connect.
    is_dynamic_group: bool,
    /// By token.
    handshakes: HashMap<usize, Handshake>,
}

struct Handshake {
    socket: Arc<Socket>,
    decoder: Incoming,
    until: Instant,
}

impl Acceptor {
    pub(super) fn new(
        driver: Arc<Driver>,
        socket_options: SocketOptions,
        limits: IncomingLimits,
        is_dynamic_group: bool,
    ) -> Self {
        Self {
            driver,
            socket_options,
            limits,
            is_dynamic_group,
            handshakes: HashMap::new(),
        }
    }

    /// Starts the handshake of a connection that was just accepted.
    pub(super) fn accept(&mut self, stream: TcpStream, now: Instant) {
        if let Err(error) = self.begin(stream, now) {
            log::debug!(
                "{}: an inbound connection ended at once: {error}",
                self.driver.me()
            );
        }
    }

    /// Continues the handshake of a connection that is readable. Requests that came with it go to `admitted`.
    pub(super) fn readable(&mut self, token: usize, admitted: &mut impl Extend<Served>) {
        let Some(mut handshake) = self.handshakes.remove(&token) else {
            return;
        };
        match read_hello(&mut handshake) {
            Ok(None) => {
                self.handshakes.insert(token, handshake);
            }
            Ok(Some(hello)) => self.decide(handshake, &hello, admitted),
            Err(error) => {
                let me = self.driver.me();
                let socket = &handshake.socket;
                if let Some(WireError::Version { version }) = wire_error(&error) {
                    let text = format!("{me} does not speak protocol version {version}");
                    return self.refuse(socket, RefuseReason::Version, 0, text);
                }
                let address = socket.address;
                log::debug!("{me}: {address} closed or failed before the handshake: {error}");
                self.driver.sockets.release(socket, READABLE);
            }
        }
    }

    /// Closes the connections that have taken too long.
    pub(super) fn expire(&mut self, now: Instant) {
        let driver = &self.driver;
        self.handshakes.retain(|_, handshake| {
            let is_late = handshake.until <= now;
            if is_late {
                let (me, address) = (driver.me(), handshake.socket.address);
                log::debug!("{me}: closing {address}: no handshake within {HANDSHAKE_MAX:?}");
                driver.sockets.release(&handshake.socket, READABLE);
            }
            !is_late
        });
    }

    /// When a connection will have taken too long.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let handshakes = self.handshakes.values();
        handshakes.map(|handshake| handshake.until).min()
    }

    fn begin(&mut self, stream: TcpStream, now: Instant) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        configure_accepted(&stream, &self.socket_options)?;
        let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(NOT_SENT_LOW_WATER_BYTES);
        let driver = &self.driver;
        if self.handshakes.len() >= HANDSHAKES_MAX
            && let Some((&oldest, _)) = self.handshakes.iter().min_by_key(|(_, one)| one.until)
            && let Some(oldest) = self.handshakes.remove(&oldest)
        {
            log::warn!(
                "{}: handshake limit reached ({HANDSHAKES_MAX}): closing the oldest connection, from {}",
                driver.me(),
                oldest.socket.address
            );
            driver.sockets.release(&oldest.socket, READABLE);
        }
        let stream = mio::net::TcpStream::from_std(stream);
        let socket = driver.sockets.adopt(stream, None)?;
        if let Err(error) = driver.sockets.watch(&socket, Watch::default(), READABLE) {
            driver.sockets.release(&socket, Watch::default());
            return Err(error);
        }
        self.handshakes.insert(
            socket.token,
            Handshake {
                decoder: Incoming::new(Expects::Hello, self.limits),
                until: now + HANDSHAKE_MAX,
                socket,
            },
        );
        Ok(())
    }

    fn decide(&self, handshake: Handshake, hello: &Hello, admitted: &mut impl Extend<Served>) {
        let Handshake {
            socket,
            mut decoder,
            ..
        } = handshake;
        let driver = &self.driver;
        let me = driver.me();
        if hello.to != me.id || hello.from.id == me.id || self.is_stranger(hello) {
            let text = format!(
                "refused {}: it expects worker {} here, but this is {me}, or it is not in the group under this name",
                hello.from, hello.to
            );
            return self.refuse(&socket, RefuseReason::WrongWorker, 0, text);
        }
        let peer = driver.peer_of(hello.from.clone());
        decoder.open();
        // Registered anew with the peer, so that what has arrived since is reported again.
        if let Err(error) = driver.sockets.watch(&socket, READABLE, Watch::default()) {
            log::debug!("{me}: cannot deregister {}: {error}", socket.address);
        }
        driver.sockets.give_to(&socket, &peer);
        let accepted = driver.step_into(&peer, admitted, |core, effects| {
            let connection = (Arc::clone(&socket), socket.address);
            core.accept(hello, connection, decoder, effects)
        });
        match accepted {
            // What came with the Hello is in the decoder already.
            Ok(connection) => {
                let (reads, mut buffers) = (Reads::ForPoller, ReadBuffers::default());
                reader::read(driver, &peer, connection, reads, &mut buffers, admitted);
            }
            Err((reason, links)) => {
                log::debug!("{me}: refused {}: {}", hello.from, describe(reason));
                let text = describe(reason).to_owned();
                send_refusal(driver, &socket, reason, links, text);
                driver.sockets.release(&socket, Watch::default());
            }
        }
    }

    /// Whether the sender is not a member of the group. In a dynamic group a new name may take the id of a worker that
    /// is not connected any more.
    fn is_stranger(&self, hello: &Hello) -> bool {
        let known = self.driver.peers.get(hello.from.id.get());
        match known {
            Some(peer) if peer.info == hello.from => false,
            Some(peer) => !self.is_dynamic_group || peer.is_connected(),
            None => !self.is_dynamic_group,
        }
    }

    fn refuse(&self, socket: &Socket, reason: RefuseReason, links: u32, text: String) {
        log::debug!("{}: {}: {text}", self.driver.me(), socket.address);
        send_refusal(&self.driver, socket, reason, links, text);
        self.driver.sockets.release(socket, READABLE);
    }
}

/// Sends the first and only frame of a connection: the socket's buffer is empty, so all of it goes at once.
fn send_refusal(driver: &Driver, socket: &Socket, reason: RefuseReason, links: u32, text: String) {
    let mut bytes = Vec::new();
    Frame::Refuse(Refuse {
        reason,
        links,
        text,
    })
    .encode(&mut bytes);
    if let Err(error) = (&socket.stream).write(&bytes) {
        log::debug!("{}: cannot refuse {}: {error}", driver.me(), socket.address);
    }
    let _ = socket.stream.shutdown(Shutdown::Write);
}

fn wire_error(error: &io::Error) -> Option<&WireError> {
    error.get_ref()?.downcast_ref()
}

fn describe(reason: RefuseReason) -> &'static str {
    match reason {
        RefuseReason::UseOther => "another connection is in use or being made",
        RefuseReason::WrongWorker => "another worker has this id",
        RefuseReason::WrongIncarnation => "the worker has been restarted",
        RefuseReason::ShuttingDown => "the worker is shutting down",
        RefuseReason::Version => "the worker speaks another protocol version",
    }
}

fn read_hello(handshake: &mut Handshake) -> io::Result<Option<Hello>> {
    let mut hellos = Hellos(None);
    loop {
        let (buffer, bytes_max) = handshake.decoder.spare();
        match recv_into_spare(&handshake.socket.stream, buffer, bytes_max) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        handshake
            .decoder
            .received(&mut hellos)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(hello) = hellos.0 {
            return Ok(Some(hello));
        }
    }
}

struct Hellos(Option<Hello>);

impl Recipient for Hellos {
    fn find_function(&mut self, _: &str) -> Option<FunctionId> {
        None
    }

    fn wants_response(&mut self, _: u64) -> bool {
        false
    }

    fn take(&mut self, message: Message) {
        if let Message::Hello(hello) = message {
            self.0 = Some(hello);
        }
    }
}
