//! One connection of a client: requests out, answers in, and what is still owed.
//!
//! Used by one call at a time. Does not know what a request means, nor which store it belongs to.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::stream::Stream;
use crate::wire::{
    CAPABILITY_COMPARE_EXCHANGE, CAPABILITY_MASK, CAPABILITY_NONCE, CAPABILITY_TRY_ADD,
    CAPABILITY_WAIT_CHANGE, CAPABILITY_WAIT_GET, CHECK_READY, Opcode, RequestBuf, STOP_WAITING,
    WAIT_CANCELED, read_i64, read_u32, read_u64,
};

/// Bytes received ahead. Short replies then cost one receive; long ones bypass the buffer.
const READ_AHEAD_BYTES: usize = 4096;

/// After its deadline a wait is cancelled, and the server's answer to that is waited for so long.
/// When it does not come the call returns all the same, and the next call on the connection takes
/// the answer in.
const CANCEL_GRACE: Duration = Duration::from_millis(100);

/// Once an answer has begun to arrive, its rest gets at least so long.
const REST_GRACE: Duration = Duration::from_secs(1);

/// How to begin a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hello {
    /// With a PING that asks for the server's capabilities.
    Ping,
    /// Without one: PyTorch's servers up to 2.4 close on it.
    Plain,
}

/// How an exchange failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request cannot have been carried out, as not all of it was sent.
    NotSent(io::Error),
    /// The connection broke after the request was sent.
    Lost(io::Error),
    /// No answer by the deadline.
    NoReply,
    /// The answer makes no sense.
    Protocol(String),
}

/// What comes with the answer to a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    Nothing,
    /// So many values.
    Values(usize),
}

/// How a wait ended.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Waited {
    /// With the values that follow the answer, if any.
    Done(Vec<Vec<u8>>),
    TimedOut,
}

/// A wait whose answer has not been read.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The answer to a mark comes first.
    mark_due: bool,
    cancelled: bool,
    follows: Follows,
}

pub(super) struct Connection {
    stream: Stream,
    /// Invariant: `start <= end <= ahead.len()`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    capabilities: u32,
    /// Something that the server does not answer was sent since its last answer.
    unacknowledged: bool,
    pending: Option<Pending>,
    reply_bytes_max: usize,
    /// Memory of the last request, for the next.
    request_memory: Vec<u8>,
}

impl Connection {
    /// Says hello on a new connection.
    pub(super) fn greet(
        stream: Stream,
        hello: Hello,
        reply_bytes_max: usize,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let mut connection = Self {
            stream,
            ahead: vec![0; READ_AHEAD_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            capabilities: 0,
            unacknowledged: false,
            pending: None,
            reply_bytes_max,
            request_memory: Vec::new(),
        };
        let mut request = RequestBuf::new();
        match hello {
            Hello::Ping => {
                request.hello();
                connection.send(&request, deadline)?;
                let answer = connection.read_u32(deadline)?;
                if answer & !CAPABILITY_MASK != CAPABILITY_NONCE {
                    return Err(Failure::Protocol(format!(
                        "the peer does not speak the TCPStore protocol: it answered PING by \
                         0x{answer:08x} instead of 0x{CAPABILITY_NONCE:08x}"
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

    /// The address of the server.
    ///
    /// # Errors
    /// When the connection has already failed.
    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Whether the server has WAIT_GET.
    pub(super) const fn has_wait_get(&self) -> bool {
        self.capabilities & CAPABILITY_WAIT_GET != 0
    }

    /// Whether the server has WAIT_CHANGE.
    pub(super) const fn has_wait_change(&self) -> bool {
        self.capabilities & CAPABILITY_WAIT_CHANGE != 0
    }

    /// Whether the server has TRY_ADD.
    pub(super) const fn has_try_add(&self) -> bool {
        self.capabilities & CAPABILITY_TRY_ADD != 0
    }

    /// Whether the server has COMPARE_EXCHANGE.
    pub(super) const fn has_compare_exchange(&self) -> bool {
        self.capabilities & CAPABILITY_COMPARE_EXCHANGE != 0
    }

    /// Whether everything sent has been acknowledged by an answer.
    pub(super) const fn is_acknowledged(&self) -> bool {
        !self.unacknowledged
    }

    /// Whether the answers to everything asked have been read, so that something else can be asked
    /// at once.
    pub(super) const fn is_in_step(&self) -> bool {
        self.pending.is_none()
    }

    /// A request in memory of earlier ones.
    pub(super) fn new_request<'v>(&mut self) -> RequestBuf<'v> {
        RequestBuf::reusing(std::mem::take(&mut self.request_memory))
    }

    /// Takes in the answer to a cancelled wait that an earlier call left behind. To be called
    /// before anything else is sent.
    pub(super) fn settle(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if self.pending.is_some() && self.advance(deadline, &mut || {})?.is_none() {
            return Err(Failure::NoReply);
        }
        Ok(())
    }

    /// Sends a request that the server does not answer.
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

    /// Has everything sent so far acknowledged.
    pub(super) fn acknowledge(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if self.unacknowledged {
            let mark = |request: &mut RequestBuf<'_>| {
                request.mark();
            };
            self.ask(mark, Self::read_mark, deadline)?;
        }
        Ok(())
    }

    /// Sends a request that the server answers at once, and reads the answer, which acknowledges
    /// whatever was sent before.
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

    /// Sends a request that the server answers when it is time, and waits for the answer until the
    /// deadline; then cancels it, which leaves the connection in step. An answer that crosses the
    /// cancel counts as an answer. `acknowledged` is called once everything sent earlier is known to
    /// have been carried out.
    pub(super) fn wait<'v>(
        &mut self,
        build: impl FnOnce(&mut RequestBuf<'v>),
        follows: Follows,
        deadline: Deadline,
        mut acknowledged: impl FnMut(),
    ) -> Result<Waited, Failure> {
        let mut request = self.new_request();
        let mark_due = self.unacknowledged;
        if mark_due {
            request.mark();
        }
        build(&mut request);
        self.send(&request, deadline)?;
        self.request_memory = request.into_memory();
        self.pending = Some(Pending {
            mark_due,
            cancelled: false,
            follows,
        });
        if let Some(waited) = self.advance(deadline, &mut acknowledged)? {
            return Ok(waited);
        }
        let grace = Deadline::after(Instant::now(), CANCEL_GRACE);
        let mut cancel = RequestBuf::new();
        cancel.opcode(Opcode::CancelWait);
        self.send(&cancel, grace)?;
        if let Some(pending) = &mut self.pending {
            pending.cancelled = true;
        }
        let waited = self.advance(grace, &mut acknowledged)?;
        Ok(waited.unwrap_or(Waited::TimedOut))
    }

    /// Reads on in the answer to the pending wait. `None` when it is not there by the deadline;
    /// nothing is lost then.
    fn advance(
        &mut self,
        deadline: Deadline,
        acknowledged: &mut impl FnMut(),
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
        // From here on the answer is being consumed, so a failure ends the connection.
        self.unacknowledged = false;
        let waited = match status {
            STOP_WAITING => {
                let values = self.read_rest(follows, cancelled, deadline)?;
                Waited::Done(values)
            }
            WAIT_CANCELED if cancelled => Waited::TimedOut,
            other => {
                return Err(Failure::Protocol(format!(
                    "a wait was answered by 0x{other:02x}"
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
        };
        if cancelled {
            let answer = self.read_u8(deadline)?;
            if answer != WAIT_CANCELED {
                return Err(Failure::Protocol(format!(
                    "CANCEL_WAIT was answered by 0x{answer:02x}"
                )));
            }
        }
        Ok(values)
    }

    /// The answer to a mark.
    pub(super) fn read_mark(&mut self, deadline: Deadline) -> Result<(), Failure> {
        match self.read_u8(deadline)? {
            CHECK_READY => Ok(()),
            other => Err(Failure::Protocol(format!(
                "a CHECK of no keys was answered by 0x{other:02x}"
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
        result.map_err(Failure::NotSent)
    }

    /// Whether the server has closed the connection, found out without waiting. Without this, a
    /// write that nobody answers would succeed into a dead connection.
    fn check_alive(&mut self) -> Result<(), Failure> {
        if self.start < self.end {
            return Err(Failure::Protocol("bytes that nobody asked for".to_owned()));
        }
        let now = Deadline::at(Instant::now());
        match self.stream.read_by(&mut self.ahead[..1], now) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
            Err(error) => Err(Failure::NotSent(error)),
            Ok(0) => Err(Failure::NotSent(closed_by_server())),
            Ok(_) => Err(Failure::Protocol("bytes that nobody asked for".to_owned())),
        }
    }

    /// One byte of an answer.
    pub(super) fn read_u8(&mut self, deadline: Deadline) -> Result<u8, Failure> {
        let [byte] = self.read_array::<1>(deadline)?;
        Ok(byte)
    }

    /// A nonce of an answer.
    pub(super) fn read_u32(&mut self, deadline: Deadline) -> Result<u32, Failure> {
        Ok(read_u32(self.read_array(deadline)?))
    }

    /// A number of an answer.
    pub(super) fn read_i64(&mut self, deadline: Deadline) -> Result<i64, Failure> {
        Ok(read_i64(self.read_array(deadline)?))
    }

    /// A length-prefixed value of an answer.
    pub(super) fn read_blob(&mut self, deadline: Deadline) -> Result<Vec<u8>, Failure> {
        let announced = read_u64(self.read_array(deadline)?);
        let length = match usize::try_from(announced) {
            Ok(length) if length <= self.reply_bytes_max => length,
            _ => {
                return Err(Failure::Protocol(format!(
                    "a value of {announced} bytes is announced, the limit is {}",
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

    /// So many length-prefixed values.
    pub(super) fn read_blobs(
        &mut self,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        (0..count).map(|_| self.read_blob(deadline)).collect()
    }

    /// Exactly `N` bytes; when they are not all there by the deadline, none is consumed.
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
    /// Without the bytes that were received or sent: they hold values.
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

/// Whether the peer ended the connection: with a FIN or, when it left something unread, an RST.
pub(super) fn is_closed_by_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

fn closed_by_server() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "closed by the server; was it shut down?",
    )
}

fn read_failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::NoReply,
        io::ErrorKind::UnexpectedEof => Failure::Lost(closed_by_server()),
        _ => Failure::Lost(error),
    }
}
