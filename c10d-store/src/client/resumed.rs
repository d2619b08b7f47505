//! The carrier of a client's bytes: a connection, or a session with one client, which survives the loss of its sockets.
//!
//! A session has no threads: a call that finds the link lost makes another link. It tracks the ends of requests and replies,
//! because requests without a reply are sent again to a server that was restarted with its journal.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Cancel, Deadline, SendBuf, sleep};

use super::link::SessionLink;
use super::session_dialer::{SILENCE_MAX, SessionDialer, SessionError, seed};
use super::stream::Stream;
use crate::limits::WireLimits;
use crate::session::{
    ClientEnd, Frame, FrameReader, RawRequests, Restart, Session, SessionClient, SessionStream,
    Violation,
};

/// The number of the session's only client.
const CLIENT: u32 = 0;

/// The most bytes received from the link at once.
const WIRE_BYTES: usize = 16 << 10;

/// The longest delay between two attempts: the end of the store does not end it.
const DELAY_MAX: Duration = Duration::from_millis(500);

/// The server checks the lengths.
const ANY_LENGTH: WireLimits = WireLimits::unlimited();

/// The carrier of a lane's bytes.
#[derive(Debug)]
pub(super) enum Channel {
    Plain(Stream),
    Resumed(Box<Resumed>),
}

impl From<Stream> for Channel {
    fn from(stream: Stream) -> Self {
        Self::Plain(stream)
    }
}

impl Channel {
    /// See [`Stream::shake_hands`].
    pub(super) fn shake_hands(&mut self, deadline: Deadline) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.shake_hands(deadline),
            // Each link has shaken hands.
            Self::Resumed(_) => Ok(()),
        }
    }

    /// The connection. For a session, it is the last link.
    pub(super) const fn link(&self) -> &Stream {
        match self {
            Self::Plain(stream) => stream,
            Self::Resumed(resumed) => &resumed.link,
        }
    }

    /// As [`link`](Self::link).
    pub(super) const fn link_mut(&mut self) -> &mut Stream {
        match self {
            Self::Plain(stream) => stream,
            Self::Resumed(resumed) => &mut resumed.link,
        }
    }

    /// See [`Stream::set_cancel`].
    pub(super) fn set_cancel(&mut self, cancel: Cancel) {
        match self {
            Self::Plain(stream) => stream.set_cancel(cancel),
            Self::Resumed(resumed) => resumed.set_cancel(cancel),
        }
    }

    /// See [`Stream::read_by`].
    pub(super) fn read_by(&mut self, buf: &mut [u8], deadline: Deadline) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_by(buf, deadline),
            Self::Resumed(resumed) => resumed.read_by(buf, deadline),
        }
    }

    /// See [`Stream::read_exact_into_vec_by`].
    pub(super) fn read_exact_into_vec_by(
        &mut self,
        buf: &mut Vec<u8>,
        len: usize,
        deadline: Deadline,
    ) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.read_exact_into_vec_by(buf, len, deadline),
            Self::Resumed(resumed) => resumed.read_exact_into_vec_by(buf, len, deadline),
        }
    }

    /// See [`Stream::write_all_by`].
    pub(super) fn write_all_by(
        &mut self,
        pieces: &mut [IoSlice<'_>],
        deadline: Deadline,
    ) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all_by(pieces, deadline),
            Self::Resumed(resumed) => resumed.write_all_by(pieces, deadline),
        }
    }
}

#[derive(Debug)]
pub(super) struct Resumed {
    link: Stream,
    /// The link cannot be used any more.
    is_lost: bool,
    /// Why no link can help.
    over: Option<String>,
    lost_at: Option<Instant>,
    resume_timeout: Duration,
    dialer: SessionDialer,
    backoff: Backoff,
    session: Session,
    /// Splits what the client sends.
    requests: RawRequests,
    client: SessionClient,
    /// See [`SessionLink::has_heartbeats`].
    has_heartbeats: bool,
    /// The time when the first call began to read since anything has arrived.
    silent_since: Option<Instant>,
    /// The bytes that the server has sent to the client, read up to `start`.
    opened: Vec<u8>,
    start: usize,
    wire: Box<[u8]>,
}

impl Resumed {
    /// Takes the first link of the dialer's session.
    pub(super) fn new(
        dialer: SessionDialer,
        link: SessionLink,
        resume_timeout: Duration,
    ) -> io::Result<Self> {
        let port = link.socket.local_addr().map_or(0, |local| local.port());
        let received_by_server = link.received_by_server;
        let has_heartbeats = link.has_heartbeats;
        let mut session = Session {
            stream: SessionStream::default(),
            reader: FrameReader::default().taking_positions(),
            is_kept: link.is_kept,
        };
        let client = SessionClient::open(CLIENT, port, &mut session);
        let link = Stream::of_link(link)?;
        let mut resumed = Self {
            link,
            is_lost: false,
            over: None,
            lost_at: None,
            resume_timeout,
            dialer,
            backoff: new_backoff(),
            session,
            requests: RawRequests::of_session(),
            client,
            has_heartbeats,
            silent_since: None,
            opened: Vec::new(),
            start: 0,
            wire: vec![0; WIRE_BYTES].into_boxed_slice(),
        };
        resumed.attach(received_by_server)?;
        Ok(resumed)
    }

    pub(super) fn set_cancel(&mut self, cancel: Cancel) {
        self.link.set_cancel(cancel.clone());
        self.dialer.set_cancel(cancel);
    }

    /// See [`Stream::read_by`].
    fn read_by(&mut self, buf: &mut [u8], deadline: Deadline) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        while self.start == self.opened.len() {
            if self.client.end == Some(ClientEnd::ByServer) {
                return Ok(0);
            }
            self.opened.clear();
            self.start = 0;
            self.receive(deadline)?;
        }
        let opened = &self.opened[self.start..];
        let count = opened.len().min(buf.len());
        buf[..count].copy_from_slice(&opened[..count]);
        self.start += count;
        self.client.was_read(count, &mut self.session);
        Ok(count)
    }

    /// See [`Stream::read_exact_into_vec_by`].
    fn read_exact_into_vec_by(
        &mut self,
        buf: &mut Vec<u8>,
        len: usize,
        deadline: Deadline,
    ) -> io::Result<()> {
        let mut piece = [0; 4096];
        let mut missing = len;
        while missing > 0 {
            let room = missing.min(piece.len());
            let count = self.read_by(&mut piece[..room], deadline)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buf.extend_from_slice(&piece[..count]);
            missing -= count;
        }
        Ok(())
    }

    /// Like [`Stream::write_all_by`]; but if the link is then lost, the bytes are sent over the next link. An error
    /// means that the server never gets all of them.
    fn write_all_by(&mut self, pieces: &[IoSlice<'_>], deadline: Deadline) -> io::Result<()> {
        while self.client.is_full(&self.session) {
            self.receive(deadline)?;
        }
        for piece in pieces {
            self.add(piece)?;
        }
        if let Err(error) = self.send(deadline) {
            // The rest must not follow when the caller no longer expects it.
            self.end("a request was sent in part".to_owned());
            return Err(error);
        }
        self.flush(deadline);
        if self.is_lost {
            // There may be no later call to send this.
            self.reconnect(deadline).or_else(only_later)?;
        }
        Ok(())
    }

    /// Keeps the requests in these bytes, and the start of the next one.
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        let client = &mut self.client;
        let added = self.requests.receive(bytes, &ANY_LENGTH, |request| {
            // It is false only if the caller had answered for the server.
            client.add(request, Instant::now)
        });
        match added {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::InvalidInput.into()),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
        }
    }

    /// Moves the requests into the session, as the server gives credit for them.
    fn send(&mut self, deadline: Deadline) -> io::Result<()> {
        self.client.fill(&mut self.session);
        while self.client.outstanding.unsent_bytes() > 0 {
            self.receive(deadline)?;
        }
        Ok(())
    }

    /// Receives once, if necessary over another link. The received bytes may contain nothing for the client.
    fn receive(&mut self, deadline: Deadline) -> io::Result<()> {
        if self.is_lost {
            self.reconnect(deadline)?;
        }
        self.flush(deadline);
        let mut wire = std::mem::take(&mut self.wire);
        let silent_at = self
            .has_heartbeats
            .then(|| {
                let since = *self.silent_since.get_or_insert_with(Instant::now);
                Deadline::after(since, SILENCE_MAX)
            })
            .filter(|at| at.instant() < deadline.instant() || deadline.instant().is_none());
        let received = self.link.read_by(&mut wire, silent_at.unwrap_or(deadline));
        let result = match received {
            Ok(count) if count > 0 => {
                self.silent_since = None;
                self.take(&wire[..count])
            }
            // A wake ends a wait in the same way, earlier.
            Err(error)
                if silent_at.is_some_and(|at| at.has_passed(Instant::now()))
                    && error.kind() == io::ErrorKind::TimedOut =>
            {
                log::info!(
                    "{} has sent no heartbeat for {SILENCE_MAX:?}",
                    self.dialer.target()
                );
                self.lose();
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) =>
            {
                Err(error)
            }
            // The next call makes another link.
            Ok(_) | Err(_) => {
                self.lose();
                Ok(())
            }
        };
        self.wire = wire;
        result
    }

    fn take(&mut self, mut link: &[u8]) -> io::Result<()> {
        self.take_frames(&mut link)
            .map_err(|violation| self.end(violation.to_string()))?;
        match self.client.end {
            None | Some(ClientEnd::ByServer) => Ok(()),
            Some(reason) => Err(self.end(reason.to_string())),
        }
    }

    fn take_frames(&mut self, link: &mut &[u8]) -> Result<(), Violation> {
        let opened = &mut self.opened;
        while let Some(mut bytes) = self.session.stream.next_bytes(link)? {
            while let Some(frame) = self.session.reader.next(&mut bytes)? {
                let pass = |bytes: &[u8]| opened.extend_from_slice(bytes);
                self.client.on_frame(&frame, &mut self.session, pass)?;
                if matches!(frame, Frame::Credit { .. }) {
                    self.client.fill(&mut self.session);
                }
            }
        }
        Ok(())
    }

    /// Sends the unsent bytes of the session. If that fails, the link is lost.
    fn flush(&mut self, deadline: Deadline) {
        while !self.is_lost && self.session.stream.has_unsent() {
            let mut frames = SendBuf::new();
            self.session.stream.fill(&mut frames, 2 * WIRE_BYTES);
            let mut wire = Vec::with_capacity(frames.unsent_bytes());
            // Memory takes everything.
            let _ = frames.flush(&mut wire);
            let by = match self.has_heartbeats {
                true => deadline.min(Deadline::after(Instant::now(), SILENCE_MAX)),
                false => deadline,
            };
            let written = self.link.write_all_by(&mut [IoSlice::new(&wire)], by);
            if written.is_err() {
                // Perhaps in the middle of a frame.
                self.lose();
            }
        }
    }

    fn lose(&mut self) {
        self.is_lost = true;
        self.lost_at.get_or_insert_with(Instant::now);
    }

    /// Makes another link. [`io::ErrorKind::TimedOut`] if there is none at the deadline; later calls may make one.
    fn reconnect(&mut self, deadline: Deadline) -> io::Result<()> {
        loop {
            if let Some(over) = &self.over {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    over.clone(),
                ));
            }
            let now = Instant::now();
            let lost_at = *self.lost_at.get_or_insert(now);
            let give_up = Deadline::after(lost_at, self.resume_timeout);
            let attempt = self.dialer.attempt_by(deadline.min(give_up));
            self.dialer.set_position(self.session.reader.position());
            match self.dialer.connect(self.session.stream.received(), attempt) {
                Ok(link) => {
                    let received_by_server = link.received_by_server;
                    let restart = link.restart;
                    self.has_heartbeats = link.has_heartbeats;
                    self.go_on(restart, link.is_kept)?;
                    self.link.replace(link)?;
                    self.attach(received_by_server)?;
                    self.client.fill(&mut self.session);
                    log::info!(
                        "{} {} again after {:.1} s; nothing is lost",
                        if restart.is_some() {
                            "the store was restarted; connected to"
                        } else {
                            "connected to"
                        },
                        self.dialer.target(),
                        lost_at.elapsed().as_secs_f64()
                    );
                    self.flush(deadline);
                    if !self.is_lost {
                        return Ok(());
                    }
                }
                Err(_) if self.dialer.cancel().is_cancelled() => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Err(error) if !error.is_transient() => return Err(self.end(error.to_string())),
                Err(error) => {
                    let now = Instant::now();
                    if give_up.has_passed(now) {
                        return Err(self.end(error.to_string()));
                    }
                    if deadline.has_passed(now) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    let delay = self.backoff.next_delay().min(DELAY_MAX);
                    let left = deadline.min(give_up).remaining(now).unwrap_or(delay);
                    // The next attempt finds out why the pause has ended.
                    let cancels = [self.dialer.cancel(), self.dialer.closer().closed()];
                    let _ = sleep(delay.min(left), cancels);
                }
            }
        }
    }

    /// Continues with the same server, or sends all unacknowledged requests again to a server that was restarted with its
    /// journal.
    fn go_on(&mut self, restart: Option<Restart>, is_kept: bool) -> io::Result<()> {
        let (now, session) = (Instant::now(), &mut self.session);
        if let Some(restart) = restart {
            session.restart();
            let unread = self.opened.len() - self.start;
            self.client.restart(restart, unread, now, session);
        } else {
            session.is_kept = is_kept;
            self.client.go_on(now, session);
        }
        match self.client.end {
            Some(reason @ ClientEnd::NotCarried(_)) => Err(self.end(reason.to_string())),
            _ => Ok(()),
        }
    }

    /// Continues over a new link.
    fn attach(&mut self, received_by_server: u64) -> io::Result<()> {
        if let Err(violation) = self.session.stream.attach(received_by_server) {
            return Err(self.end(violation.to_string()));
        }
        if !self.link.register_with(self.dialer.closer()) {
            return Err(self.end(SessionError::Cancelled.to_string()));
        }
        self.is_lost = false;
        self.silent_since = None;
        self.lost_at = None;
        self.backoff = new_backoff();
        Ok(())
    }

    fn end(&mut self, reason: String) -> io::Error {
        self.is_lost = true;
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, reason.clone());
        self.over = Some(reason);
        error
    }
}

impl Drop for Resumed {
    /// Lets the server drop the session at once, if it can be reached.
    fn drop(&mut self) {
        self.session.stream.push_end();
        self.flush(Deadline::at(Instant::now()));
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(BackoffOptions::default(), seed())
}

/// A timeout is no error: the bytes are in the session, and are sent over a later link.
fn only_later(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}
