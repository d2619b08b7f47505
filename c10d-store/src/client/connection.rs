//! One connection of a client: sends requests, reads replies, and tracks replies still due.
//!
//! Used by one call at a time. Independent of the meaning of requests and of the store.

use std::fmt;
use std::io::{self, IoSlice};
use std::task::Waker;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};

use super::link::ConnectionEnds;
use super::listener_kind::ListenerKind;
use super::resumed::Channel;
use super::stream::is_closed_by_peer;
use crate::wire::{
    CAPABILITY_MASK, CAPABILITY_NONCE, CHECK_READY, FULL, Opcode, REFUSAL_NONCE, REFUSED_NONCE,
    RequestBuf, STOP_WAITING, WAIT_CANCELED, capability, read_i64, read_u32, read_u64,
};

/// The size of the read buffer. Short replies then cost one receive; long ones bypass the buffer.
const READ_AHEAD_BYTES: usize = 4096;

/// The least time for a request that the server answers at once, even if the timeout is shorter.
pub(super) const ANSWER_TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// After its deadline a wait is cancelled; this is the time limit for the reply to the cancel. Without
/// a reply the call returns, and the next call on the connection reads the reply.
pub(super) const CANCEL_GRACE: Duration = Duration::from_millis(100);

/// The least time for the rest of a reply that has begun to arrive.
const REST_GRACE: Duration = Duration::from_secs(1);

/// The handshake of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hello {
    /// A handshake with a PING that requests the server's capabilities.
    Ping,
    /// The PING alone, in a session.
    InSession,
    /// A handshake without a PING: PyTorch's servers up to 2.4 close the connection on it.
    Plain,
}

/// Why an exchange failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request was not sent completely, so it cannot have been carried out.
    NotSent(io::Error),
    /// The connection broke after the request was sent.
    Lost(io::Error),
    /// No reply by the deadline.
    NoReply,
    /// The process does not wait for the reply any longer.
    Interrupted,
    /// The reply violates the protocol.
    Protocol(String),
    /// The server has no memory for it, and has changed nothing. The connection stays usable.
    Refused { used: u64, limit: u64 },
}

/// Why a server may have closed the connection of a write, which has no reply in most cases.
pub(super) const REFUSED_WRITE: &str = "a server also closes the connection of a write if the memory limit of its store is \
    reached: its log then has the limit, and reads and deletes continue over a new connection";

impl Failure {
    /// Adds a reason as [`with_reason`] does.
    pub(super) fn with_reason(self, reason: &str) -> Self {
        match self {
            Self::NotSent(source) => Self::NotSent(with_reason(source, reason)),
            Self::Lost(source) => Self::Lost(with_reason(source, reason)),
            other => other,
        }
    }
}

/// Adds another possible reason, if the server has closed the connection.
pub(super) fn with_reason(source: io::Error, reason: &str) -> io::Error {
    match is_closed_by_peer(&source) {
        true => io::Error::new(source.kind(), format!("{source}; {reason}")),
        false => source,
    }
}

/// The replies that follow the reply to a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    Nothing,
    /// This number of values.
    Values(usize),
    /// A count of at least 1 and at most this, then that many values.
    Elements(usize),
}

/// How a wait ended.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Waited {
    /// The values that follow the reply, if any.
    Done(Vec<Vec<u8>>),
    TimedOut,
}

/// A wait whose reply has not been read.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The reply to a mark is due first.
    mark_due: bool,
    cancelled: bool,
    follows: Follows,
}

pub(super) struct Connection {
    stream: Channel,
    /// Bytes that were read ahead. Invariant: `start <= end <= ahead.len()`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    capabilities: u32,
    /// A request without a reply was sent since the server's last reply.
    unacknowledged: bool,
    pending: Option<Pending>,
    /// The last wait has ended by END_WAITS, before it was cancelled.
    wait_ended: bool,
    reply_bytes_max: usize,
    /// The allocation of the last request, for reuse.
    request_memory: Vec<u8>,
}

impl Connection {
    /// Runs the handshake on a new connection, beginning with the handshake of TLS.
    pub(super) fn open(
        mut stream: Channel,
        hello: Hello,
        reply_bytes_max: usize,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        stream.shake_hands(deadline).map_err(read_failure)?;
        let mut connection = Self {
            stream,
            ahead: vec![0; READ_AHEAD_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            capabilities: 0,
            unacknowledged: false,
            pending: None,
            wait_ended: false,
            reply_bytes_max,
            request_memory: Vec::new(),
        };
        let mut request = RequestBuf::new();
        match hello {
            Hello::Ping | Hello::InSession => {
                if hello == Hello::Ping {
                    request.hello();
                } else {
                    request.opcode(Opcode::Ping).u32(CAPABILITY_NONCE);
                }
                connection.send(&request, deadline)?;
                let bytes = connection.read_array(deadline)?;
                let answer = read_u32(bytes);
                if answer & !CAPABILITY_MASK != CAPABILITY_NONCE {
                    return Err(Failure::Protocol(format!(
                        "the peer does not speak the TCPStore protocol: its reply to PING was \
                         0x{answer:08x} instead of 0x{CAPABILITY_NONCE:08x}, like the reply of {}",
                        ListenerKind::of_answer(&bytes),
                    )));
                }
                connection.capabilities = answer & CAPABILITY_MASK;
            }
            Hello::Plain => {
                request.plain_hello();
                connection.send(&request, deadline)?;
                connection.read_mark(deadline)?;
            }
        }
        Ok(connection)
    }

    /// The addresses of this end and of the server.
    ///
    /// # Errors
    /// If the connection has already failed.
    pub(super) fn ends(&self) -> io::Result<ConnectionEnds> {
        self.stream.link().ends()
    }

    /// Whether the server has this capability.
    pub(super) const fn has(&self, capability: u32) -> bool {
        self.capabilities & capability != 0
    }

    /// Whether END_WAITS has ended the last wait. True once.
    pub(super) const fn take_wait_ended(&mut self) -> bool {
        std::mem::replace(&mut self.wait_ended, false)
    }

    /// Whether a reply has acknowledged everything sent.
    pub(super) const fn is_acknowledged(&self) -> bool {
        !self.unacknowledged
    }

    /// Whether all replies have been read, so that another request can be sent.
    pub(super) const fn is_in_step(&self) -> bool {
        self.pending.is_none()
    }

    /// A request that reuses the allocation of earlier requests.
    pub(super) fn new_request<'v>(&mut self) -> RequestBuf<'v> {
        RequestBuf::reusing(std::mem::take(&mut self.request_memory))
    }

    /// Reads the reply to a cancelled wait of an earlier call. False if it does not arrive by the deadline; a later
    /// call continues. Until then, nothing else may be sent.
    pub(super) fn settle(&mut self, deadline: Deadline) -> Result<bool, Failure> {
        Ok(self.pending.is_none() || self.advance(deadline, &mut || {})?.is_some())
    }

    /// Sends a request that has no reply.
    pub(super) fn tell(
        &mut self,
        request: RequestBuf<'_>,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        self.check_alive()?;
        self.unacknowledged = true;
        self.send(&request, deadline)?;
        self.request_memory = request.into_memory();
        Ok(())
    }

    /// Waits until the server has acknowledged everything sent so far.
    pub(super) fn acknowledge(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if self.unacknowledged {
            let mark = |request: &mut RequestBuf<'_>| {
                request.mark();
            };
            self.ask(mark, Self::read_mark, deadline)?;
        }
        Ok(())
    }

    /// Sends a request that the server answers at once, and reads the reply, which acknowledges
    /// everything sent before.
    pub(super) fn ask<'v, T>(
        &mut self,
        build: impl FnOnce(&mut RequestBuf<'v>),
        read: impl FnOnce(&mut Self, Deadline) -> Result<T, Failure>,
        deadline: Deadline,
    ) -> Result<T, Failure> {
        let mut request = self.new_request();
        build(&mut request);
        self.send(&request, deadline)?;
        self.request_memory = request.into_memory();
        let answer = read(self, deadline)?;
        self.unacknowledged = false;
        Ok(answer)
    }

    /// Sends a request that the server answers later; with `cancel`, in the same write, a CANCEL_WAIT, so
    /// that the server checks once without waiting. [`await_reply`](Self::await_reply) reads the reply. With
    /// `marks`, everything sent before is acknowledged soon, not only by that reply.
    pub(super) fn start_wait<'v>(
        &mut self,
        build: impl FnOnce(&mut RequestBuf<'v>),
        follows: Follows,
        cancel: bool,
        marks: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let mut request = self.new_request();
        let mark_due = marks && self.unacknowledged;
        if mark_due {
            request.mark();
        }
        build(&mut request);
        if cancel {
            request.opcode(Opcode::CancelWait);
        }
        self.send(&request, deadline)?;
        self.request_memory = request.into_memory();
        self.pending = Some(Pending {
            mark_due,
            cancelled: cancel,
            follows,
        });
        Ok(())
    }

    /// Cancels the pending wait. The connection stays usable.
    pub(super) fn cancel_wait(&mut self) -> Result<(), Failure> {
        let grace = Deadline::after(Instant::now(), CANCEL_GRACE);
        let mut cancel = RequestBuf::new();
        cancel.opcode(Opcode::CancelWait);
        self.send(&cancel, grace)?;
        if let Some(pending) = &mut self.pending {
            pending.cancelled = true;
        }
        Ok(())
    }

    /// Waits for the reply to the pending wait. A reply that crosses a cancel counts. `None` at the
    /// deadline or, unless the wait is cancelled, when the [`waker`](Self::waker) is used; a later call
    /// continues. Calls `acknowledged` once everything sent before the wait has been acknowledged.
    pub(super) fn await_reply(
        &mut self,
        deadline: Deadline,
        acknowledged: &mut dyn FnMut(),
    ) -> Result<Option<Waited>, Failure> {
        let is_cancelled = self.pending.is_some_and(|pending| pending.cancelled);
        self.stream.link_mut().set_wakeable(!is_cancelled);
        let waited = self.advance(deadline, acknowledged);
        self.stream.link_mut().set_wakeable(false);
        waited
    }

    /// Wakes the thread that [awaits a reply](Self::await_reply).
    pub(super) const fn waker(&self) -> Option<&Waker> {
        self.stream.link().waker()
    }

    /// Creates the [`waker`](Self::waker), which takes another descriptor.
    ///
    /// # Errors
    /// The system's error; most likely the process has no descriptor left.
    pub(super) fn make_waker(&mut self) -> io::Result<Waker> {
        self.stream.link_mut().make_waker()
    }

    /// Ends the waits from now on with [`Failure::Interrupted`]; that [for a reply](Self::await_reply) as the waker does.
    pub(super) fn set_cancel(&mut self, cancel: Cancel) {
        self.stream.set_cancel(cancel);
    }

    /// Continues to read the reply to the pending wait. `None` if it does not arrive by the deadline; a
    /// later call continues.
    fn advance(
        &mut self,
        deadline: Deadline,
        acknowledged: &mut dyn FnMut(),
    ) -> Result<Option<Waited>, Failure> {
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        let Pending {
            mark_due,
            cancelled,
            follows,
        } = *pending;
        if mark_due {
            match self.read_mark(deadline) {
                Ok(()) => {}
                Err(Failure::NoReply) => return Ok(None),
                Err(failure) => return Err(failure),
            }
            self.unacknowledged = false;
            if let Some(pending) = &mut self.pending {
                pending.mark_due = false;
            }
            acknowledged();
        }
        let status = match self.read_u8(deadline) {
            Ok(status) => status,
            Err(Failure::NoReply) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        // From here on the reply is being consumed, so after a failure the connection is closed.
        self.stream.link_mut().set_wakeable(false);
        self.unacknowledged = false;
        let waited = match status {
            STOP_WAITING => {
                let values = self.read_rest(follows, cancelled, deadline)?;
                Waited::Done(values)
            }
            WAIT_CANCELED if cancelled => Waited::TimedOut,
            FULL => {
                let refused = self.read_refusal(deadline);
                if cancelled {
                    self.read_u8(deadline)?;
                }
                self.pending = None;
                return Err(refused);
            }
            // docs/spec/wire-extensions.md, END_WAITS 1.
            WAIT_CANCELED if self.has(capability::END_WAITS) => {
                self.wait_ended = true;
                Waited::TimedOut
            }
            other => {
                return Err(Failure::Protocol(format!(
                    "the reply to a wait was 0x{other:02x}"
                )));
            }
        };
        self.pending = None;
        Ok(Some(waited))
    }

    fn read_rest(
        &mut self,
        follows: Follows,
        cancelled: bool,
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let deadline = deadline.at_least(Deadline::after(Instant::now(), REST_GRACE));
        let values = match follows {
            Follows::Nothing => Vec::new(),
            Follows::Values(count) => self.read_blobs(count, deadline)?,
            Follows::Elements(max) => {
                let announced = read_u64(self.read_array(deadline)?);
                match usize::try_from(announced) {
                    Ok(count) if (1..=max).contains(&count) => self.read_blobs(count, deadline)?,
                    _ => {
                        return Err(Failure::Protocol(format!(
                            "QUEUE_TAKE returned {announced} elements, at most {max} were asked for"
                        )));
                    }
                }
            }
        };
        if cancelled {
            let answer = self.read_u8(deadline)?;
            if answer != WAIT_CANCELED {
                return Err(Failure::Protocol(format!(
                    "the reply to CANCEL_WAIT was 0x{answer:02x}"
                )));
            }
        }
        Ok(values)
    }

    /// Reads why a request was refused, after its status, and returns that as the failure.
    pub(super) fn read_refusal(&mut self, deadline: Deadline) -> Failure {
        let mut word = || self.read_array(deadline).map(read_u64);
        match word().and_then(|used| Ok((used, word()?))) {
            Ok((used, limit)) => Failure::Refused { used, limit },
            Err(failure) => failure,
        }
    }

    /// Reads the reply to a PING with [`REFUSAL_NONCE`].
    pub(super) fn read_outcome(&mut self, deadline: Deadline) -> Result<(), Failure> {
        match self.read_array(deadline).map(read_u32)? {
            REFUSAL_NONCE => Ok(()),
            REFUSED_NONCE => Err(self.read_refusal(deadline)),
            other => Err(Failure::Protocol(format!(
                "the reply to a PING after a write was 0x{other:08x}"
            ))),
        }
    }

    /// Reads the reply to a mark.
    pub(super) fn read_mark(&mut self, deadline: Deadline) -> Result<(), Failure> {
        match self.read_u8(deadline)? {
            CHECK_READY => Ok(()),
            other => Err(Failure::Protocol(format!(
                "the reply to a CHECK of no keys was 0x{other:02x}"
            ))),
        }
    }

    fn send(&mut self, request: &RequestBuf<'_>, deadline: Deadline) -> Result<(), Failure> {
        let result = match request.contiguous() {
            Some(bytes) => self
                .stream
                .write_all_by(&mut [IoSlice::new(bytes)], deadline),
            None => self.stream.write_all_by(&mut request.io_slices(), deadline),
        };
        result.map_err(|error| match error.kind() {
            // Part of it may have been sent.
            io::ErrorKind::Interrupted => Failure::Interrupted,
            _ => Failure::NotSent(error),
        })
    }

    /// Fails if the server has closed the connection; does not wait. Without this check, a write without
    /// a reply would succeed on a dead connection.
    pub(super) fn check_alive(&mut self) -> Result<(), Failure> {
        if self.start < self.end {
            return Err(Failure::Protocol("bytes without a request".to_owned()));
        }
        let now = Deadline::at(Instant::now());
        match self.stream.read_by(&mut self.ahead[..1], now) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
            Err(error) => Err(Failure::NotSent(error)),
            Ok(0) => Err(Failure::NotSent(closed_by_server())),
            Ok(_) => Err(Failure::Protocol("bytes without a request".to_owned())),
        }
    }

    /// Returns why the connection cannot be used, if it is between two requests and the reason has already arrived.
    pub(super) fn broken(&mut self) -> Option<io::Error> {
        if !self.is_in_step() {
            return None;
        }
        match self.check_alive() {
            Err(Failure::NotSent(error) | Failure::Lost(error)) => Some(error),
            _ => None,
        }
    }

    /// Reads one byte.
    pub(super) fn read_u8(&mut self, deadline: Deadline) -> Result<u8, Failure> {
        let [byte] = self.read_array::<1>(deadline)?;
        Ok(byte)
    }

    /// Reads a number.
    pub(super) fn read_i64(&mut self, deadline: Deadline) -> Result<i64, Failure> {
        Ok(read_i64(self.read_array(deadline)?))
    }

    /// Reads a length-prefixed value.
    pub(super) fn read_blob(&mut self, deadline: Deadline) -> Result<Vec<u8>, Failure> {
        let announced = read_u64(self.read_array(deadline)?);
        let length = match usize::try_from(announced) {
            Ok(length) if length <= self.reply_bytes_max => length,
            _ => {
                return Err(Failure::Protocol(format!(
                    "a value has {announced} bytes, the limit is {}",
                    self.reply_bytes_max
                )));
            }
        };
        let at_hand = length.min(self.end - self.start);
        let mut blob = self.ahead[self.start..self.start + at_hand].to_vec();
        self.start += at_hand;
        if at_hand < length {
            let rest = length - at_hand;
            self.stream
                .read_exact_into_vec_by(&mut blob, rest, deadline)
                .map_err(read_failure)?;
        }
        Ok(blob)
    }

    /// Reads `count` length-prefixed values which together have at most the bytes of one value.
    pub(super) fn read_blobs_within_limit(
        &mut self,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let mut blobs: Vec<Vec<u8>> = Vec::new();
        let mut left = self.reply_bytes_max;
        for _ in 0..count {
            let blob = self.read_blob(deadline)?;
            // Also an empty one takes memory.
            left = (left.checked_sub(blob.len().max(1))).ok_or_else(|| {
                let limit = self.reply_bytes_max;
                Failure::Protocol(format!("a list has more than {limit} bytes, the limit"))
            })?;
            blobs.push(blob);
        }
        Ok(blobs)
    }

    /// Reads `count` length-prefixed values.
    pub(super) fn read_blobs(
        &mut self,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        (0..count).map(|_| self.read_blob(deadline)).collect()
    }

    /// Reads exactly `N` bytes. If they do not all arrive by the deadline, none is consumed.
    fn read_array<const N: usize>(&mut self, deadline: Deadline) -> Result<[u8; N], Failure> {
        while self.end - self.start < N {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.ahead.len() - self.start < N {
                self.ahead.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            let count = self
                .stream
                .read_by(&mut self.ahead[self.end..], deadline)
                .map_err(read_failure)?;
            if count == 0 {
                return Err(Failure::Lost(closed_by_server()));
            }
            self.end += count;
        }
        let mut array = [0; N];
        array.copy_from_slice(&self.ahead[self.start..self.start + N]);
        self.start += N;
        Ok(array)
    }
}

impl fmt::Debug for Connection {
    /// Shows no received or sent bytes, because they contain values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("stream", &self.stream)
            .field("received_ahead_bytes", &(self.end - self.start))
            .field("capabilities", &self.capabilities)
            .field("unacknowledged", &self.unacknowledged)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

fn closed_by_server() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "closed by the server, which may have stopped",
    )
}

fn read_failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::NoReply,
        io::ErrorKind::Interrupted => Failure::Interrupted,
        io::ErrorKind::UnexpectedEof => Failure::Lost(closed_by_server()),
        // Of TLS: the peer does not have the secret, or bytes were changed.
        io::ErrorKind::InvalidData => Failure::Protocol(error.to_string()),
        _ => Failure::Lost(error),
    }
}
