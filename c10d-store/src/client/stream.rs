//! The socket of a connection: reads and writes with a deadline, on mio readiness.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, Process, TlsLayer, recv_into_spare, send_vectored};
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::closer::Closer;
use super::lanes::GRACE;
use super::link::ConnectionEnds;
#[cfg(feature = "extensions")]
use super::link::SessionLink;

/// A connected socket and the [`Poll`] that it is registered with: two descriptors.
///
/// Used by one thread at a time. Another thread interrupts it with a [`Closer`], which every platform reports as
/// readiness. A thread that waits long can also be woken without harm to the connection, by a waker: a third
/// descriptor on Linux, which [`make_waker`](Self::make_waker) creates and the stream then keeps.
///
/// Readiness is edge-triggered: an event is reported once, when the state changes. So the stream
/// remembers it until a call would block. A request and its reply cost three system calls: send, poll,
/// receive. A deadline that has passed checks once without waiting.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<TcpStream>,
    tls: Option<Tls>,
    poll: Poll,
    events: Events,
    /// A receive may find input. False only if an event will report the next input.
    may_receive: bool,
    /// The peer has closed its side, or the connection has failed: no further event may follow.
    has_ended: bool,
    waker: Option<Waker>,
    /// Interrupts waits.
    cancel: Cancel,
    /// A wake ends a wait early, as if the deadline had passed.
    is_wakeable: bool,
    /// A wake that has not ended a wait yet. It may be an old one.
    is_woken: bool,
    /// The check of a cancel may fork: its child must neither take events of the poll nor send, which are its parent's.
    process: Process,
}

/// The TLS layer between the socket and the protocol.
#[derive(Debug)]
struct Tls {
    layer: TlsLayer,
    /// Received bytes in the form that they had on the wire.
    wire: Box<[u8]>,
    /// The bytes of the protocol in them. Read up to `start`.
    opened: Vec<u8>,
    start: usize,
}

impl Tls {
    /// The peer has sent `opened` already.
    fn new(layer: TlsLayer, opened: Vec<u8>) -> Self {
        Self {
            layer,
            wire: vec![0; WIRE_BYTES].into_boxed_slice(),
            opened,
            start: 0,
        }
    }
}

impl Stream {
    /// Takes a connection and makes it non-blocking. With `tls`, call [`shake_hands`](Self::shake_hands) first.
    ///
    /// # Errors
    /// The system's error; most likely the process has no descriptor left.
    pub(super) fn new(stream: std::net::TcpStream, tls: Option<TlsLayer>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let tls = tls.map(|layer| Tls::new(layer, Vec::new()));
        Self::with_socket(TcpStream::from_std(stream), tls)
    }

    /// Lets the closer close the connection. False if [`Closer::close`] was already called.
    #[must_use]
    pub(super) fn register_with(&self, closer: &Closer) -> bool {
        closer.watch(&self.socket)
    }

    fn with_socket(mut socket: TcpStream, tls: Option<Tls>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let both = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut socket, SOCKET, both)?;
        Ok(Self {
            socket: Arc::new(socket),
            tls,
            poll,
            // kqueue reports the two directions as an event each; the third is the waker's.
            events: Events::with_capacity(3),
            may_receive: false,
            has_ended: false,
            waker: None,
            cancel: Cancel::NEVER,
            is_wakeable: false,
            is_woken: false,
            process: Process::this(),
        })
    }

    /// Wakes the thread that waits on this stream, if the stream [is wakeable](Self::set_wakeable).
    pub(super) const fn waker(&self) -> Option<&Waker> {
        self.waker.as_ref()
    }

    /// Creates the [`waker`](Self::waker), if there is none.
    ///
    /// # Errors
    /// The system's error; most likely the process has no descriptor left.
    pub(super) fn make_waker(&mut self) -> io::Result<Waker> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let bell = Bell(mio::Waker::new(self.poll.registry(), WAKER)?);
        Ok(self.waker.insert(Arc::new(bell).into()).clone())
    }

    /// Interrupts the waits from now on, if they are longer than [`ANSWER_GRACE`], with
    /// [`io::ErrorKind::Interrupted`]. If the stream [is wakeable](Self::set_wakeable), interrupts all except the
    /// shortest waits like a wake. Default [`Cancel::NEVER`].
    pub(super) fn set_cancel(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    /// Whether a wake ends a wait early with [`io::ErrorKind::TimedOut`]. Input that arrives
    /// at the same time has precedence. False at first.
    pub(super) const fn set_wakeable(&mut self, is_wakeable: bool) {
        self.is_wakeable = is_wakeable;
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// If the connection has already failed.
    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// The addresses of this end and of the peer.
    ///
    /// # Errors
    /// If the connection has already failed.
    pub(super) fn ends(&self) -> io::Result<ConnectionEnds> {
        Ok(ConnectionEnds {
            local: self.socket.local_addr()?,
            remote: self.socket.peer_addr()?,
        })
    }

    /// Reads at least one byte and at most `buf.len()`, waiting until the deadline. Returns the number
    /// of bytes; 0 at the end of the stream, or when `buf` is empty.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if nothing arrived by the deadline; otherwise the error of the
    /// connection.
    pub(super) fn read_by(&mut self, buf: &mut [u8], deadline: Deadline) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.tls.is_some() {
            return self.read_opened(buf.len(), deadline, |opened| {
                buf[..opened.len()].copy_from_slice(opened);
            });
        }
        let room = buf.len();
        self.receive(room, deadline, |mut socket| socket.read(buf))
    }

    /// Appends exactly `len` bytes to `buf`, waiting until the deadline; never reads more from the
    /// stream.
    ///
    /// Reserves memory as the bytes arrive: at most 64 KiB plus eight times the received bytes, not
    /// zeroed. So a peer that announces much and sends little costs little, and a large value is moved
    /// a few times only.
    ///
    /// # Errors
    /// As [`read_by`](Self::read_by), and [`io::ErrorKind::UnexpectedEof`] if the stream ends early. The
    /// received bytes are at the end of `buf`.
    pub(super) fn read_exact_into_vec_by(
        &mut self,
        buf: &mut Vec<u8>,
        len: usize,
        deadline: Deadline,
    ) -> io::Result<()> {
        let mut received = 0;
        while received < len {
            let missing = len - received;
            if self.tls.is_some() {
                let count =
                    self.read_opened(missing, deadline, |opened| buf.extend_from_slice(opened))?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                received += count;
                continue;
            }
            if buf.len() == buf.capacity() {
                let ahead = READ_AHEAD_BYTES.saturating_add(received.saturating_mul(8));
                buf.reserve_exact(missing.min(ahead));
            }
            let room = missing.min(buf.capacity() - buf.len());
            let count = self.receive(room, deadline, |socket| {
                recv_into_spare(socket, buf, missing)
            })?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            received += count;
        }
        Ok(())
    }

    /// Writes all pieces in order, waiting for buffer space until the deadline. Success means that the
    /// system has accepted them, not that the peer has received them. The content of `pieces` is
    /// unspecified afterwards.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the system did not accept everything by the deadline; otherwise the
    /// error of the connection.
    pub(super) fn write_all_by(
        &mut self,
        mut pieces: &mut [IoSlice<'_>],
        deadline: Deadline,
    ) -> io::Result<()> {
        self.process.check().map_err(io::Error::other)?;
        // With empty pieces in front, a send of 0 bytes would look like a closed connection.
        IoSlice::advance_slices(&mut pieces, 0);
        if self.tls.is_some() {
            return self.write_sealed(pieces, deadline);
        }
        while !pieces.is_empty() {
            match self.socket.try_io(|| send_vectored(&*self.socket, pieces)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut pieces, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for(is_writable, deadline)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Proves to the peer that this side has the secret, and checks that the peer has it. Does nothing without TLS.
    ///
    /// # Errors
    /// As [`read_by`](Self::read_by); [`io::ErrorKind::InvalidData`] if the peer has not.
    pub(super) fn shake_hands(&mut self, deadline: Deadline) -> io::Result<()> {
        while self
            .tls
            .as_ref()
            .is_some_and(|tls| tls.layer.is_handshaking())
        {
            self.send_sealed(deadline)?;
            if self.fill_opened(deadline)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.send_sealed(deadline)
    }

    /// Passes on at least one byte that TLS has opened, and at most `most`; returns how many, 0 at the end of the
    /// stream.
    fn read_opened(
        &mut self,
        most: usize,
        deadline: Deadline,
        take: impl FnOnce(&[u8]),
    ) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else {
                return Ok(0);
            };
            let opened = &tls.opened[tls.start..];
            if !opened.is_empty() {
                let count = most.min(opened.len());
                take(&opened[..count]);
                tls.start += count;
                return Ok(count);
            }
            tls.opened.clear();
            tls.start = 0;
            if self.fill_opened(deadline)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Receives once, and opens the bytes. Returns the number of received bytes; the protocol may get none of them.
    fn fill_opened(&mut self, deadline: Deadline) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return Ok(0);
        };
        let mut wire = std::mem::take(&mut tls.wire);
        let received = self.receive(wire.len(), deadline, |mut socket| socket.read(&mut wire));
        let Some(tls) = &mut self.tls else {
            return Ok(0);
        };
        let result = match received {
            Ok(count) => tls
                .layer
                .receive(&wire[..count], &mut tls.opened)
                .map(|()| count),
            Err(error) => {
                tls.wire = wire;
                return Err(error);
            }
        };
        tls.wire = wire;
        if result.is_err() {
            // Sends the reason to the peer, if the system takes it at once.
            let _ = tls.layer.send(&mut Sender(&self.socket));
        }
        Ok(result?)
    }

    fn write_sealed(
        &mut self,
        mut pieces: &mut [IoSlice<'_>],
        deadline: Deadline,
    ) -> io::Result<()> {
        while !pieces.is_empty() {
            self.send_sealed(deadline)?;
            let Some(tls) = &mut self.tls else { break };
            let count = tls.layer.seal(pieces);
            IoSlice::advance_slices(&mut pieces, count);
        }
        self.send_sealed(deadline)
    }

    fn send_sealed(&mut self, deadline: Deadline) -> io::Result<()> {
        while let Some(tls) = &mut self.tls {
            let mut sender = Sender(&self.socket);
            if tls.layer.send(&mut sender)? {
                break;
            }
            self.wait_for(is_writable, deadline)?;
        }
        Ok(())
    }

    /// Repeats `receive_once`, which has capacity for `room` bytes, until it would not block.
    fn receive(
        &mut self,
        room: usize,
        deadline: Deadline,
        mut receive_once: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            if !self.may_receive {
                self.wait_for(is_readable, deadline)?;
            }
            match self.socket.try_io(|| receive_once(&self.socket)) {
                Ok(count) => {
                    let is_drained = SHORT_RECEIVE_DRAINS && count < room;
                    self.may_receive = self.has_ended || !is_drained;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_receive = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for an event that `is_wanted`. Records every other event, since it is not reported again.
    fn wait_for(&mut self, is_wanted: fn(&Event) -> bool, deadline: Deadline) -> io::Result<()> {
        let cancel = self.cancel.clone();
        let mut watch = cancel.watch();
        let pause = if self.is_wakeable {
            GRACE
        } else {
            ANSWER_GRACE
        };
        let mut patience = Deadline::after(Instant::now(), pause);
        loop {
            self.process.check().map_err(io::Error::other)?;
            if self.is_wakeable && std::mem::take(&mut self.is_woken) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let now = Instant::now();
            let until = if watch.is_due() {
                deadline.min(patience)
            } else {
                deadline
            };
            match self.poll.poll(&mut self.events, until.remaining(now)) {
                // After a signal only the remaining time is waited.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            let mut wanted = false;
            for event in &self.events {
                if event.token() == WAKER {
                    self.is_woken = true;
                    continue;
                }
                self.may_receive |= is_readable(event);
                self.has_ended |= event.is_read_closed() || event.is_error();
                wanted |= is_wanted(event);
            }
            if wanted {
                return Ok(());
            }
            let now = Instant::now();
            if deadline.has_passed(now) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Not at once after another event: a stale wake, or room to send.
            if watch.is_due() && patience.has_passed(now) {
                let is_cancelled = match self.make_waker() {
                    Ok(waker) => watch.ask(|| waker),
                    Err(_) => {
                        patience = Deadline::after(now, CHECK_INTERVAL);
                        cancel.is_cancelled()
                    }
                };
                if is_cancelled {
                    return Err(if self.is_wakeable {
                        io::ErrorKind::TimedOut.into()
                    } else {
                        io::ErrorKind::Interrupted.into()
                    });
                }
            }
        }
    }
}

#[cfg(feature = "extensions")]
impl Stream {
    /// Takes the link of a session.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub(super) fn of_link(link: SessionLink) -> io::Result<Self> {
        let tls = link.tls.map(|layer| Tls::new(layer, link.received));
        Self::with_socket(link.socket, tls)
    }

    /// Takes another link in the place of the connection. The [`waker`](Self::waker) stays.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn replace(&mut self, mut link: SessionLink) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut link.socket, SOCKET, both)?;
        // Closing the old socket removes its registration.
        self.socket = Arc::new(link.socket);
        self.tls = link.tls.map(|layer| Tls::new(layer, link.received));
        self.may_receive = false;
        self.has_ended = false;
        Ok(())
    }

    /// The connection, its TLS, and the received bytes that are unread.
    ///
    /// # Errors
    /// If a [`Closer`] can still close it, or the system fails.
    pub(super) fn into_parts(self) -> io::Result<(TcpStream, Option<TlsLayer>, Vec<u8>)> {
        let in_use = |_| io::Error::other("another thread is about to shut down the connection");
        let mut socket = Arc::try_unwrap(self.socket).map_err(in_use)?;
        self.poll.registry().deregister(&mut socket)?;
        let (tls, received) = match self.tls {
            Some(mut tls) => {
                tls.opened.drain(..tls.start);
                (Some(tls.layer), tls.opened)
            }
            None => (None, Vec::new()),
        };
        Ok((socket, tls, received))
    }
}

/// Ends a poll.
struct Bell(mio::Waker);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Err(error) = self.0.wake() {
            log::warn!("cannot wake a call that waits: {error}");
        }
    }
}

/// Whether the peer closed the connection: with FIN or, if it left data unread, with RST.
pub(super) fn is_closed_by_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

/// Sends without raising SIGPIPE.
struct Sender<'s>(&'s TcpStream);

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_io(|| send_vectored(self.0, pieces))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_readable(event: &Event) -> bool {
    event.is_readable() || event.is_read_closed() || event.is_error()
}

fn is_writable(event: &Event) -> bool {
    event.is_writable() || event.is_write_closed() || event.is_error()
}

/// How long a request waits for its answer before it notices a cancel, which costs the connection and leaves the outcome
/// unknown. Nearly every server answers sooner.
const ANSWER_GRACE: Duration = Duration::from_millis(100);

/// How often a wait checks whether it must end, if the process has no descriptor left for a waker.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The registrations of the poll.
const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);

/// The most bytes received at once with TLS: the longest record and its head.
const WIRE_BYTES: usize = (16 << 10) + 256 + 5;

/// The memory that is reserved for an announced length alone.
const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Whether a receive that does not fill its buffer has emptied the socket, and the next input causes an
/// event: epoll(7) and kqueue(2) guarantee that. mio's other selectors report again only after a
/// receive that would block.
const SHORT_RECEIVE_DRAINS: bool = cfg!(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_os = "netbsd",
    target_os = "openbsd",
    target_os = "dragonfly",
    target_vendor = "apple",
));

#[cfg(test)]
mod tests;
