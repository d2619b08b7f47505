//! The client's side of a session, which a program with one client and a relay with many clients share.
//!
//! [`RawRequests`] finds the requests in the bytes of a client, and its [`SessionClient`] sends them.

use std::convert::Infallible;
use std::time::Instant;

use super::credit::{CLIENT_WINDOW_BYTES, Credit};
use super::frame::{Frame, FrameReader};
use super::outstanding::{NotCarried, Outstanding, ReplyError};
use super::resent_wait::Restart;
use super::stream::{SessionStream, Violation};
use crate::limits::WireLimits;
use crate::request_parser::{Flow, ParseError, RequestParser};
use crate::wire::{Frame as RequestFrame, Opcode, WireError};

/// A client with this many bytes kept for a possible restart of the server sends no more. The server acknowledges
/// earlier than that: it has carried out everything except the bytes for which there is credit, and leaves at most 64
/// KiB of the rest unacknowledged (docs/spec/wire-extensions.md, SESSION 8 and 14).
const KEPT_BYTES_MAX: usize = CLIENT_WINDOW_BYTES as usize + (64 << 10);

/// The client's side of a session, which survives the loss of its links and a restart of a server with a journal.
///
/// Over each new link, call [`SessionClient::go_on`] for each client; or, if the server was restarted,
/// [`restart`](Self::restart) and [`SessionClient::restart`] for each client. Then call [`SessionStream::attach`].
#[derive(Debug, Default)]
pub struct Session {
    /// The bytes of the session.
    pub stream: SessionStream,
    /// Finds the frames in the received bytes.
    pub reader: FrameReader,
    /// Whether the server keeps the session in its journal.
    pub is_kept: bool,
}

impl Session {
    /// Begins both streams again, because the server was restarted with its journal.
    pub fn restart(&mut self) {
        self.stream = SessionStream::default();
        self.reader.restart();
        self.is_kept = true;
    }
}

/// The reason why a client of a session has no further replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientEnd {
    /// The server has closed the client.
    #[error("the store has closed it, and its log has the reason")]
    ByServer,
    /// The bytes of the server are not the expected reply.
    #[error(transparent)]
    Reply(ReplyError),
    /// The server was restarted, and cannot get the requests of this client again.
    #[error("the store was restarted, and {0}")]
    NotCarried(NotCarried),
}

/// One client of a [`Session`]: its unanswered requests, oldest first, and the credit of both directions.
#[derive(Debug, Default)]
pub struct SessionClient {
    number: u32,
    /// The port of the client's end of the connection.
    port: u16,
    /// The requests of the client, and the expected replies.
    pub outstanding: Outstanding,
    /// The credit of both directions.
    pub credit: Credit,
    /// The number of unread bytes of replies that do not belong to the credit: they were not sent by the server,
    /// arrived before its restart, or were withheld and the credit was returned.
    uncounted: usize,
    /// A wait that began before the link, which must be reported to the server after the wait itself
    /// (docs/spec/wire-extensions.md, END_WAITS 4): when the link was made, and
    /// [`ResentWait::starts_ago`](super::ResentWait::starts_ago).
    unreported: Option<(Instant, u32)>,
    /// The reason why the client has no further replies; `None` while it has.
    pub end: Option<ClientEnd>,
}

impl SessionClient {
    /// Opens a client with this number, whose connection has this port.
    #[must_use]
    pub fn open(number: u32, port: u16, session: &mut Session) -> Self {
        session.stream.push_open(number, port);
        Self {
            number,
            port,
            ..Self::default()
        }
    }

    /// Adds a request like [`Outstanding::add`]. `now` is called for a wait only.
    #[must_use]
    pub fn add(&mut self, request: RawRequest<'_>, now: impl FnOnce() -> Instant) -> bool {
        let (opcode, key_count) = (request.opcode, request.key_count);
        let is_added = self.outstanding.add(opcode, key_count, request.bytes);
        if is_added && opcode.is_wait() {
            self.outstanding.sent_at(now());
        }
        is_added
    }

    /// Returns whether the server has to acknowledge requests before this client may add more.
    #[must_use]
    pub fn is_full(&self, session: &Session) -> bool {
        session.is_kept
            && self.outstanding.kept_bytes() >= KEPT_BYTES_MAX
            && self.outstanding.check_carried().is_ok()
            // The server does not acknowledge a refused write before it has the next request (docs/spec/wire-extensions.md,
            // REFUSAL 5).
            && !self.outstanding.is_one_without_reply()
    }

    /// Moves unsent requests into the stream, as far as there are credit and room.
    pub fn fill(&mut self, session: &mut Session) {
        // A server that has taken over knows nothing of a client that had ended before.
        if self.end.is_some() {
            return;
        }
        let count = self.outstanding.unsent_bytes().min(self.credit.to_send());
        let count = count.min(session.stream.room());
        self.outstanding
            .send(&mut session.stream, self.number, count);
        self.credit.sent(count);
        self.forget(session);
        self.report_wait(session);
    }

    /// Reports that the caller puts this many of the next unsent bytes into the stream. There must be credit for
    /// them.
    pub fn sent(&mut self, bytes: usize, session: &Session) {
        self.credit.sent(bytes);
        self.outstanding.sent(bytes);
        self.forget(session);
    }

    /// Carries out a frame for this client, and passes on the bytes of replies that the client should get.
    ///
    /// # Errors
    /// The server breaks the rules of the session.
    pub fn on_frame(
        &mut self,
        frame: &Frame<'_>,
        session: &mut Session,
        pass: impl FnMut(&[u8]),
    ) -> Result<(), Violation> {
        match frame {
            Frame::Data { bytes, .. } => self.on_reply(bytes, session, pass)?,
            Frame::Shared { bytes, .. } => self.on_reply(bytes, session, pass)?,
            Frame::Credit { bytes, .. } => self.credit.returned(*bytes)?,
            Frame::Close { .. } | Frame::End => {
                self.end.get_or_insert(ClientEnd::ByServer);
            }
            Frame::Done { request, .. } => self.outstanding.done(*request),
            // To the server only.
            Frame::Open { .. } | Frame::Group(_) | Frame::Resume { .. } => {}
        }
        Ok(())
    }

    /// Reports that the client has read this many bytes of its replies.
    pub fn was_read(&mut self, bytes: usize, session: &mut Session) {
        let uncounted = self.uncounted.min(bytes);
        self.uncounted -= uncounted;
        self.return_credit(bytes - uncounted, session);
    }

    /// Answers a CANCEL_WAIT for the server: see [`Outstanding::answer_cancel`]. The answer is a byte.
    #[must_use]
    pub fn answer_cancel(&mut self, cancel: u64) -> bool {
        let is_answered = self.outstanding.answer_cancel(cancel);
        self.uncounted += usize::from(is_answered);
        is_answered
    }

    /// Continues with the same server, which learns how long the client has waited.
    pub fn go_on(&mut self, now: Instant, session: &mut Session) {
        if self.end.is_some() {
            return;
        }
        self.unreported = self.outstanding.is_waiting().then_some((now, 0));
        self.report_wait(session);
    }

    /// Sends all unacknowledged requests again to a restarted server, or sets [`end`](Self::end). `unread` is the
    /// number of unread bytes of replies.
    pub fn restart(
        &mut self,
        restart: Restart,
        unread: usize,
        now: Instant,
        session: &mut Session,
    ) {
        self.unreported = None;
        if self.end.is_some() {
            return;
        }
        let first = match self.outstanding.restart() {
            Ok(first) => first,
            Err(reason) => {
                self.end = Some(ClientEnd::NotCarried(reason));
                return;
            }
        };
        self.credit = Credit::default();
        self.uncounted = unread;
        let stream = &mut session.stream;
        stream.push_open(self.number, self.port);
        stream.push_resume(self.number, first);
        if let Some(wait) = self.outstanding.resent_wait(restart, now) {
            stream.push_resent(self.number, wait);
            if self.outstanding.has_earlier_wait() {
                // The server assigns this report to the earlier wait.
                self.unreported = Some((now, wait.starts_ago));
            }
        }
    }

    fn on_reply(
        &mut self,
        bytes: &[u8],
        session: &mut Session,
        mut pass: impl FnMut(&[u8]),
    ) -> Result<(), Violation> {
        self.credit.received(bytes.len())?;
        if self.end.is_some() {
            return Ok(());
        }
        let mut passed = 0;
        let result = self.outstanding.on_reply(bytes, |bytes| {
            passed += bytes.len();
            pass(bytes);
        });
        if let Err(error) = result {
            self.end = Some(ClientEnd::Reply(error));
            session.stream.push_close(self.number);
            return Ok(());
        }
        // Withheld bytes count as used.
        self.uncounted += passed.saturating_sub(bytes.len());
        self.return_credit(bytes.len().saturating_sub(passed), session);
        Ok(())
    }

    /// Drops sent requests beyond a limit, unless a server that keeps sessions may need them.
    fn forget(&mut self, session: &Session) {
        if self.outstanding.kept_bytes() > KEPT_BYTES_MAX
            && (!session.is_kept || self.outstanding.check_carried().is_err())
        {
            self.outstanding.forget_beyond(KEPT_BYTES_MAX);
        }
    }

    fn return_credit(&mut self, used: usize, session: &mut Session) {
        if let Some(returned) = self.credit.used(used)
            && self.end.is_none()
        {
            session.stream.push_credit(self.number, returned);
        }
    }

    /// Reports a wait that began before the link, once the wait itself is in the stream.
    fn report_wait(&mut self, session: &mut Session) {
        if self.outstanding.unsent_bytes() == 0
            && let Some((linked_at, starts_ago)) = self.unreported.take()
            && let Some(mut wait) = self.outstanding.wait_of_same_server(linked_at)
        {
            wait.starts_ago = starts_ago;
            session.stream.push_resent(self.number, wait);
        }
    }
}

/// A request in the bytes in which it was received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawRequest<'a> {
    /// The command of the request.
    pub opcode: Opcode,
    /// The number of keys of a command with a list of keys.
    pub key_count: usize,
    /// The whole request.
    pub bytes: &'a [u8],
}

impl std::fmt::Debug for RawRequest<'_> {
    /// The length only: the bytes can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawRequest")
            .field("opcode", &self.opcode)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// Splits the bytes of one client into requests, the handshake first, without decoding them.
///
/// Any split of the bytes gives the same requests, and memory is reserved only for bytes that have arrived.
#[derive(Debug, Default)]
pub struct RawRequests {
    parser: RequestParser,
}

impl RawRequests {
    /// Creates a splitter for a client of a session, which sends no handshake.
    #[must_use]
    pub const fn of_session() -> Self {
        Self {
            parser: RequestParser::after_handshake(),
        }
    }

    /// Returns whether VALIDATE has been received.
    #[must_use]
    pub const fn is_handshake_done(&self) -> bool {
        self.parser.is_handshake_done()
    }

    /// Takes the next bytes, and passes each complete request except VALIDATE to `handle`, until `handle` returns
    /// false: the rest is then kept for [`resume`](Self::resume). Returns the last result of `handle`.
    ///
    /// # Errors
    /// The bytes are not requests within the limits.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        limits: &WireLimits,
        handle: impl FnMut(RawRequest<'_>) -> bool,
    ) -> Result<bool, WireError> {
        passed_on(self.parser.receive_frames(bytes, limits, flow_of(handle)))
    }

    /// Continues with the kept bytes.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive).
    pub fn resume(
        &mut self,
        limits: &WireLimits,
        handle: impl FnMut(RawRequest<'_>) -> bool,
    ) -> Result<bool, WireError> {
        passed_on(self.parser.resume_frames(limits, flow_of(handle)))
    }
}

fn flow_of(
    mut handle: impl FnMut(RawRequest<'_>) -> bool,
) -> impl FnMut(&RequestFrame<'_>) -> Result<Flow, Infallible> {
    move |frame| {
        let goes_on = handle(RawRequest {
            opcode: frame.opcode(),
            key_count: frame.list_len(),
            bytes: frame.bytes(),
        });
        Ok(if goes_on { Flow::Continue } else { Flow::Pause })
    }
}

fn passed_on(outcome: Result<Flow, ParseError<Infallible>>) -> Result<bool, WireError> {
    match outcome {
        Ok(flow) => Ok(flow == Flow::Continue),
        Err(ParseError::Wire(error)) => Err(error),
        Err(ParseError::Refused(never)) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The server of another process answers a frame of a client that it does not know by closing the session.
    #[test]
    fn a_client_that_has_ended_sends_nothing_to_a_server_that_takes_over() {
        let now = Instant::now();
        let mut session = Session::default();
        let mut client = SessionClient::open(1, 1000, &mut session);
        let wait = RawRequest {
            opcode: Opcode::Wait,
            key_count: 1,
            bytes: &[6; 20],
        };
        assert!(client.add(wait, || now));
        client.fill(&mut session);
        assert!(session.stream.end() > 0);
        client.end = Some(ClientEnd::ByServer);

        session.restart();
        let restart = Restart { from: 1, to: 2 };
        client.restart(restart, 0, now, &mut session);
        client.go_on(now + Duration::from_secs(1), &mut session);
        assert!(client.add(wait, || now));
        client.fill(&mut session);
        assert_eq!(session.stream.end(), 0);
    }
}
