//! Connections that others make: who is it, and is it welcome.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{configure_accepted, recv_into_spare};
use mio::Interest;

use super::NOT_SENT_LOW_WATER;
use super::peer::{Link, Request};
use super::poller::Poller;
use super::shared::Shared;
use crate::handshake::Answer;
use crate::incoming::{Expects, Incoming, Message, Recipient};
use crate::wire::{Frame, Hello, Refuse, RefuseReason, Welcome, WireError};

/// How long a connection may take to say whose it is.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Connections that have not said so yet. One more, and the oldest has to go.
const HANDSHAKES_MAX: usize = 1024;

/// A connection that has not said whose it is.
pub(crate) struct Handshake {
    link: Arc<Link>,
    incoming: Incoming,
    pub(crate) until: Instant,
}

impl Shared {
    /// Takes a connection that was just accepted.
    pub(crate) fn begin_shaking(
        &self,
        handshakes: &mut HashMap<usize, Handshake>,
        socket: TcpStream,
    ) {
        if let Err(error) = self.shake(handshakes, socket) {
            log::debug!("{}: a connection ended at once: {error}", self.me);
        }
    }

    fn shake(
        &self,
        handshakes: &mut HashMap<usize, Handshake>,
        socket: TcpStream,
    ) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        configure_accepted(&socket, &self.options.socket)?;
        let _ = socket2::SockRef::from(&socket).set_tcp_notsent_lowat(NOT_SENT_LOW_WATER);
        if handshakes.len() >= HANDSHAKES_MAX
            && let Some((&oldest, _)) = handshakes.iter().min_by_key(|(_, one)| one.until)
            && let Some(oldest) = handshakes.remove(&oldest)
        {
            log::warn!(
                "{}: {HANDSHAKES_MAX} connections have not said whose they are: the oldest, of {}, is \
                 closed",
                self.me,
                oldest.link.address
            );
            self.sockets.release(&oldest.link, Some(Interest::READABLE));
        }
        let link = self
            .sockets
            .adopt(mio::net::TcpStream::from_std(socket), None)?;
        if let Err(error) = self.sockets.change(&link, None, Some(Interest::READABLE)) {
            self.sockets.release(&link, None);
            return Err(error);
        }
        let handshake = Handshake {
            incoming: Incoming::new(Expects::Hello, self.limits),
            until: Instant::now() + HELLO_MAX,
            link: Arc::clone(&link),
        };
        handshakes.insert(link.token, handshake);
        Ok(())
    }

    /// Ends those that have said nothing for too long.
    pub(crate) fn expire_handshakes(&self, poller: &mut Poller, now: Instant) {
        poller.handshakes.retain(|_, handshake| {
            let is_late = handshake.until <= now;
            if is_late {
                log::debug!(
                    "{}: the connection of {} has not said whose it is",
                    self.me,
                    handshake.link.address
                );
                self.sockets
                    .release(&handshake.link, Some(Interest::READABLE));
            }
            !is_late
        });
    }

    /// Reads what a new connection has to say.
    pub(crate) fn go_on_shaking(
        self: &Arc<Self>,
        poller: &mut Poller,
        token: usize,
        found: &mut VecDeque<Request>,
    ) {
        let Some(mut handshake) = poller.handshakes.remove(&token) else {
            return;
        };
        match read_hello(&mut handshake) {
            Ok(None) => {
                poller.handshakes.insert(token, handshake);
            }
            Ok(Some(hello)) => self.on_hello(handshake, &hello, found),
            Err(error) => {
                if let Some(WireError::Version { version }) = wire_error(&error) {
                    let text = format!("version {version} is not spoken here");
                    self.refuse_link(&handshake.link, RefuseReason::Version, 0, text);
                    return;
                }
                log::debug!(
                    "{}: the connection of {} ended before it said whose it is: {error}",
                    self.me,
                    handshake.link.address
                );
                self.sockets
                    .release(&handshake.link, Some(Interest::READABLE));
            }
        }
    }

    fn on_hello(
        self: &Arc<Self>,
        handshake: Handshake,
        hello: &Hello,
        found: &mut VecDeque<Request>,
    ) {
        let Handshake {
            link, mut incoming, ..
        } = handshake;
        let refuse = |reason, links, text: String| {
            log::debug!("{}: {} refused: {text}", self.me, hello.from);
            self.refuse_link(&link, reason, links, text);
        };
        if !self.is_running() {
            return refuse(RefuseReason::ShuttingDown, 0, "the agent ends".into());
        }
        let known = self.peer_by_id(hello.from.id.get());
        let is_stranger = match (self.options.world_size, known) {
            (Some(_), known) => known.is_none_or(|peer| peer.info != hello.from),
            // Members come and go, but nobody takes the place of one who is there.
            (None, Some(peer)) if peer.info != hello.from => peer.lock().link.is_some(),
            (None, _) => false,
        };
        if hello.to != self.me.id || is_stranger || hello.from.id == self.me.id {
            return refuse(
                RefuseReason::WrongWorker,
                0,
                format!(
                    "{} wants worker {}, this is {}, in whose group it is not, or not under this name",
                    hello.from, hello.to, self.me
                ),
            );
        }
        let peer = self.peer_of(hello.from.clone());
        let mut state = peer.lock();
        if state.is_replaced {
            drop(state);
            let text = "another worker has taken its place".to_owned();
            return refuse(RefuseReason::WrongWorker, 0, text);
        }
        let Some(pair) = &mut state.pair else { return };
        match pair.on_hello(hello) {
            Answer::Refuse { reason, links } => {
                drop(state);
                refuse(reason, links, describe(reason).into());
            }
            Answer::Accept { links, .. } => {
                if let Some(old) = state.link.as_ref().map(|old| Arc::clone(&old.link)) {
                    let error = io::Error::new(
                        io::ErrorKind::ConnectionReset,
                        "the worker has made a new one",
                    );
                    self.end_link(&peer, state, &old, error);
                    state = peer.lock();
                }
                let welcome = Frame::Welcome(Welcome {
                    incarnation: self.incarnation,
                    links,
                    message_bytes_max: self.options.message_bytes_max,
                });
                // Under the lock, as the first bytes of the connection: nobody may send on it before. It
                // does not block, and the socket's buffer is empty.
                if let Err(error) = send_first(&link, &welcome) {
                    log::debug!("{}: cannot welcome {}: {error}", self.me, peer.info);
                    if let Some(pair) = &mut state.pair {
                        pair.on_lost();
                    }
                    drop(state);
                    self.sockets.release(&link, Some(Interest::READABLE));
                    return;
                }
                incoming.open();
                // Registered anew, so that what has come since is told again.
                if let Err(error) = self.sockets.change(&link, Some(Interest::READABLE), None) {
                    log::debug!("{}: cannot unwatch a connection: {error}", self.me);
                }
                self.sockets.give_to(&link, &peer);
                let token = link.token;
                peer.takes_at_most(hello.message_bytes_max);
                self.establish(&peer, state, link, incoming, Vec::new());
                // What came with the Hello lies in the buffer already.
                self.read_peer(&peer, token, found);
            }
        }
    }

    fn refuse_link(&self, link: &Link, reason: RefuseReason, links: u32, text: String) {
        let refuse = Frame::Refuse(Refuse {
            reason,
            links,
            text,
        });
        if let Err(error) = send_first(link, &refuse) {
            log::debug!("{}: cannot refuse {}: {error}", self.me, link.address);
        }
        let _ = link.socket.shutdown(Shutdown::Write);
        self.sockets.release(link, Some(Interest::READABLE));
    }
}

/// Sends the first frame of a connection: the socket's buffer is empty, so all of it goes at once.
fn send_first(link: &Link, frame: &Frame<'_>) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    let written = (&link.socket).write(&bytes)?;
    if written < bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

fn wire_error(error: &io::Error) -> Option<&WireError> {
    error.get_ref()?.downcast_ref()
}

fn describe(reason: RefuseReason) -> &'static str {
    match reason {
        RefuseReason::UseOther => "there is another connection, or one on its way",
        RefuseReason::WrongWorker => "another worker is here",
        RefuseReason::WrongIncarnation => "the worker was started anew",
        RefuseReason::ShuttingDown => "the worker ends",
        RefuseReason::Version => "the worker is of another version",
    }
}

fn read_hello(handshake: &mut Handshake) -> io::Result<Option<Hello>> {
    let mut inbox = Hellos(None);
    loop {
        let (buffer, bytes_max) = handshake.incoming.spare();
        match recv_into_spare(&handshake.link.socket, buffer, bytes_max) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        handshake
            .incoming
            .received(&mut inbox)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(hello) = inbox.0 {
            return Ok(Some(hello));
        }
    }
}

struct Hellos(Option<Hello>);

impl Recipient for Hellos {
    fn wants_response(&mut self, _: u64) -> bool {
        false
    }

    fn take(&mut self, message: Message) {
        if let Message::Hello(hello) = message {
            self.0 = Some(hello);
        }
    }
}
