//! Accepts inbound connections and runs the server's side of the handshake.
//!
//! Which of two crossing connections survives is decided by `peer::pair`.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{self, Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{
    AcceptLimits, Listeners, Refusal, SocketOptions, Stage, Step, TlsServer, configure_accepted,
    is_tls,
};
use mio::net::{TcpListener, TcpStream};

use super::driver::{Driver, Served};
use super::membership::AFTER_HELLO_MS;
use super::reader::{self, ReadBuffers};
use super::socket::Socket;
use super::sockets::{Owner, Sockets};
use super::tls::{Received, invalid};
use super::tls::{SECRETS_DIFFER, SealedReads, Tls};
use crate::peer::{
    Effects, Expects, FunctionId, Incoming, IncomingLimits, Message, Reads, Recipient, Watch,
};
use crate::wire::{Frame, Hello, Refuse, RefuseReason, WireError};

/// How long the handshake of a connection may take, including the handshake of TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long a peer of a worker with credentials may take to send its first byte. Workers send it when they are
/// connected, so only strangers need more, and each holds a descriptor.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(5);

/// Connections that have not completed the handshake. One more, and the oldest is closed.
const HANDSHAKES_MAX: usize = 1024;

const READABLE: Watch = Watch {
    readable: true,
    writable: false,
};

/// Which connections are admitted, and how they are set up.
pub(crate) struct AcceptOptions {
    pub(super) socket_options: SocketOptions,
    /// The TLS server. With it, connections without TLS are refused.
    pub(super) tls: Option<TlsServer>,
    pub(super) limits: IncomingLimits,
}

/// The listeners, and the connections that have not completed the handshake.
pub(super) struct Acceptor {
    driver: Arc<Driver>,
    options: AcceptOptions,
    listeners: Listeners<TcpListener, TcpStream>,
    /// Decides which connections are accepted, and which ones make room.
    pub(super) rules: c10d_socket::Acceptor<Key>,
    handshakes: Handshakes,
    reads: SealedReads,
}

/// The handshakes in progress, by token.
type Handshakes = HashMap<usize, Handshake>;

/// The token of a connection, and when it was accepted, because another connection may get the same token.
pub(super) type Key = (usize, Instant);

struct Handshake {
    socket: Arc<Socket>,
    watched: Watch,
    decoder: Incoming,
    accepted_at: Instant,
    /// The connection has not sent anything.
    is_silent: bool,
}

impl Handshake {
    fn time_limit(&self) -> Duration {
        if self.is_silent && self.socket.tls().is_some() {
            FIRST_BYTE_MAX
        } else {
            HANDSHAKE_MAX
        }
    }

    fn until(&self) -> Instant {
        self.accepted_at + self.time_limit()
    }
}

impl Acceptor {
    pub(super) fn new(
        driver: &Arc<Driver>,
        listeners: Vec<net::TcpListener>,
        options: AcceptOptions,
        now: Instant,
    ) -> io::Result<Self> {
        let register = |listener, token| driver.sockets.listen(listener, token);
        let listeners = Listeners::new(listeners, register, TcpListener::accept)?;
        let limits = AcceptLimits {
            connections_max: HANDSHAKES_MAX,
            handshakes_max: HANDSHAKES_MAX,
        };
        Ok(Self {
            driver: Arc::clone(driver),
            options,
            rules: listeners.acceptor(limits, now),
            listeners,
            handshakes: Handshakes::new(),
            reads: SealedReads::default(),
        })
    }

    /// Accepts connections and starts their handshakes. Requests that arrived with the connections that make room go
    /// to `admitted`.
    pub(super) fn accept(&mut self, now: Instant, admitted: &mut impl Extend<Served>) {
        loop {
            let stage = |key| stage_of(&self.handshakes, &self.driver.sockets, key);
            let open = self.handshakes.len();
            match self.listeners.next(&mut self.rules, open, stage) {
                Step::Read((token, _)) => self.readable(token, admitted),
                Step::Close((token, _)) => self.close(token, &Refusal::MakesRoom),
                Step::Admit(stream, _) => {
                    if let Err(error) = self.begin(stream, now) {
                        let me = self.driver.me();
                        log::debug!("{me}: an inbound connection ended at once: {error}");
                    }
                }
                Step::Refused(address, reason) => self.log_refusal(address, &reason),
                Step::Failed(error) => {
                    let text = format_args!("cannot accept connections, retrying soon: {error}");
                    let line = self.rules.line(None, &text, now);
                    self.log(line);
                }
                Step::Wait => return,
            }
        }
    }

    /// Continues the handshake of a connection that is readable, or writable again. Requests that arrived with it go
    /// to `admitted`.
    pub(super) fn readable(&mut self, token: usize, admitted: &mut impl Extend<Served>) {
        let Some(mut handshake) = self.handshakes.remove(&token) else {
            return;
        };
        let was_silent = handshake.is_silent;
        let mut result = read_hello(&mut handshake, &mut self.reads);
        if let Err(error) = self.send_tls(&mut handshake) {
            // A failure in the peer's bytes is more informative.
            result = result.and(Err(error));
        }
        match result {
            Ok(None) => {
                let begins = was_silent && !handshake.is_silent;
                let key = (token, handshake.accepted_at);
                self.handshakes.insert(token, handshake);
                if begins {
                    self.handshake_begun(key);
                }
            }
            Ok(Some(hello)) => self.decide(handshake, &hello, admitted),
            Err(error) => {
                let me = self.driver.me();
                if let Some(WireError::Version { version }) = wire_error(&error) {
                    let text = format!("{me} does not speak protocol version {version}");
                    return self.refuse(&handshake, RefuseReason::Version, 0, text);
                }
                let address = handshake.socket.address;
                if is_stranger(&handshake.socket, &error) {
                    self.log_refusal(address, &error);
                } else {
                    log::debug!("{me}: {address} closed or failed before the handshake: {error}");
                }
                self.release(&handshake);
            }
        }
    }

    /// Closes the connections that have taken too long, and reports refusals that were not logged.
    pub(super) fn expire(&mut self, now: Instant) {
        let line = self.rules.report(now);
        self.log(line);
        let is_late = |_: &usize, handshake: &mut Handshake| handshake.until() <= now;
        let late: Vec<_> = self.handshakes.extract_if(is_late).collect();
        for (_, handshake) in late {
            let (me, address) = (self.driver.me(), handshake.socket.address);
            let limit = handshake.time_limit();
            log::debug!("{me}: closing {address}: no handshake within {limit:?}");
            self.release(&handshake);
        }
    }

    /// Returns when [`expire`](Self::expire) is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let handshakes = self.handshakes.values();
        let first = handshakes.map(Handshake::until).min();
        first.into_iter().chain(self.rules.next_deadline()).min()
    }

    fn handshake_begun(&mut self, key: Key) {
        let stage = |key| stage_of(&self.handshakes, &self.driver.sockets, key);
        for (oldest, _) in self.rules.handshake_begun(key, stage) {
            self.close(oldest, &"handshake limit reached, and it is the oldest");
        }
    }

    fn close(&mut self, token: usize, reason: &dyn fmt::Display) {
        if let Some(handshake) = self.handshakes.remove(&token) {
            self.log_refusal(handshake.socket.address, reason);
            self.release(&handshake);
        }
    }

    fn begin(&mut self, stream: TcpStream, now: Instant) -> io::Result<()> {
        configure_accepted(&stream, &self.options.socket_options)?;
        let tls = match &self.options.tls {
            None => None,
            Some(server) => {
                let address = stream.peer_addr()?;
                if !self.rules.is_handshake_allowed(address.ip(), now) {
                    self.log_refusal(address, &"too many failed handshakes of its address");
                    return Ok(());
                }
                let layer = server.start().map_err(io::Error::other)?;
                Some(Tls::accepted(layer))
            }
        };
        let driver = &self.driver;
        let socket = driver.sockets.adopt(stream, tls, Owner::Handshake)?;
        if let Err(error) = driver.sockets.watch(&socket, Watch::default(), READABLE) {
            driver.sockets.release(&socket, Watch::default());
            return Err(error);
        }
        let key = (socket.token, now);
        self.handshakes.insert(
            socket.token,
            Handshake {
                decoder: Incoming::new(Expects::Hello, self.options.limits),
                accepted_at: now,
                is_silent: true,
                socket,
                watched: READABLE,
            },
        );
        let stage = |key| stage_of(&self.handshakes, &self.driver.sockets, key);
        self.rules.admitted(key, stage);
        Ok(())
    }

    /// Sends what the handshake of TLS has produced, or watches for when the socket takes it.
    fn send_tls(&self, handshake: &mut Handshake) -> io::Result<()> {
        let Some(tls) = handshake.socket.tls() else {
            return Ok(());
        };
        let is_sent = tls.flush(&handshake.socket.stream)?;
        let wanted = Watch {
            readable: true,
            writable: !is_sent,
        };
        if wanted != handshake.watched {
            let before = std::mem::replace(&mut handshake.watched, wanted);
            self.driver
                .sockets
                .watch(&handshake.socket, before, wanted)?;
        }
        Ok(())
    }

    /// Closes a connection that has not completed the handshake.
    fn release(&mut self, handshake: &Handshake) {
        let Handshake {
            socket, watched, ..
        } = handshake;
        if socket.tls().is_some_and(Tls::is_costly_handshake) {
            self.rules
                .on_failed_handshake(socket.address.ip(), Instant::now());
        }
        self.driver.sockets.release(socket, *watched);
    }

    /// Logs why a peer is refused, unless there are too many such lines.
    fn log_refusal(&mut self, address: SocketAddr, reason: &dyn fmt::Display) {
        let line = self.rules.on_refused(address, reason, Instant::now());
        self.log(line);
    }

    fn log(&self, line: Option<String>) {
        if let Some(line) = line {
            log::warn!("{}: {line}", self.driver.me());
        }
    }

    fn decide(&mut self, handshake: Handshake, hello: &Hello, admitted: &mut impl Extend<Served>) {
        let driver = Arc::clone(&self.driver);
        let driver = &*driver;
        let me = driver.me();
        if hello.to != me.id || hello.from.id == me.id || self.is_stranger(hello) {
            let text = format!(
                "refused {}: it expects worker {} here, but this is {me}, or its process is not a member of the group",
                hello.from, hello.to
            );
            return self.refuse(&handshake, RefuseReason::WrongWorker, 0, text);
        }
        let directory = &driver.directory;
        if directory.is_dynamic() && !directory.is_published(&hello.from, hello.incarnation) {
            // It may have joined since the list was read. Then it is accepted when it dials again, in a moment.
            driver.refresh_members(AFTER_HELLO_MS);
            let text = driver.not_listed(&hello.from);
            return self.refuse(&handshake, RefuseReason::NotMember, 0, text);
        }
        let Handshake {
            socket,
            watched,
            mut decoder,
            ..
        } = handshake;
        let peer = driver.peer_of(hello.from.clone());
        decoder.open();
        // It is registered again with the peer, so that bytes that have arrived since are reported again.
        if let Err(error) = driver.sockets.watch(&socket, watched, Watch::default()) {
            log::debug!("{me}: cannot deregister {}: {error}", socket.address);
        }
        driver.sockets.give_to(&socket, &peer);
        let accepted = driver.step_with(&peer, &mut Effects::new(), admitted, |core| {
            let connection = (Arc::clone(&socket), socket.address);
            core.accept(hello, connection, decoder)
        });
        match accepted {
            // The bytes that arrived with the Hello are already in the decoder.
            Ok(connection) => {
                // The list may have changed since it was looked at.
                driver.check_member(&peer);
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
        if !self
            .driver
            .directory
            .may_have(&hello.from, hello.incarnation)
        {
            return true;
        }
        let present = self.driver.peers.get(hello.from.id.get());
        present.is_some_and(|peer| peer.info != hello.from && peer.lock().core.is_connected())
    }

    fn refuse(&mut self, handshake: &Handshake, reason: RefuseReason, links: u32, text: String) {
        let socket = &handshake.socket;
        log::debug!("{}: {}: {text}", self.driver.me(), socket.address);
        send_refusal(&self.driver, socket, reason, links, text);
        self.release(handshake);
    }
}

/// Returns the stage of a connection on its way to be served.
fn stage_of(handshakes: &Handshakes, sockets: &Sockets, (token, accepted_at): Key) -> Stage {
    match handshakes.get(&token) {
        Some(handshake) if handshake.accepted_at == accepted_at => {
            if handshake.is_silent {
                Stage::Silent
            } else {
                Stage::Handshaking
            }
        }
        _ if matches!(sockets.owner(token), Some(Owner::Peer(_))) => Stage::Served,
        _ => Stage::Closed,
    }
}

/// Sends the first and only frame of a connection: the socket's buffer is empty, so all of it is sent at once.
fn send_refusal(driver: &Driver, socket: &Socket, reason: RefuseReason, links: u32, text: String) {
    let mut bytes = Vec::new();
    Frame::Refuse(Refuse {
        reason,
        links,
        text,
    })
    .encode(&mut bytes);
    if let Err(error) = socket.write_bytes(&bytes) {
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
        RefuseReason::NotMember => "this process is not on the list of members",
    }
}

fn read_hello(handshake: &mut Handshake, reads: &mut SealedReads) -> io::Result<Option<Hello>> {
    let mut hellos = Hellos(None);
    let Handshake {
        socket,
        decoder,
        is_silent,
        ..
    } = handshake;
    if *is_silent && socket.tls().is_none() {
        let mut first = [0];
        if matches!(socket.stream.peek(&mut first), Ok(1)) && is_tls(first[0]) {
            // So that the peer does not try again.
            socket.write_bytes(&SECRETS_DIFFER)?;
            return Err(invalid("it uses a secret, and this worker has none"));
        }
    }
    loop {
        let Received { count, failure, .. } = socket.receive(decoder, reads, &mut hellos);
        *is_silent &= count == 0;
        if let Some(error) = failure {
            return Err(error);
        }
        if count == 0 || hellos.0.is_some() {
            return Ok(hellos.0);
        }
    }
}

/// Whether TLS has failed: the peer does not have the secret, or speaks something else.
fn is_stranger(socket: &Socket, error: &io::Error) -> bool {
    socket.tls().is_some()
        && error.kind() == io::ErrorKind::InvalidData
        && wire_error(error).is_none()
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
