//! Turns the bytes of one peer into requests.
//!
//! Pure: finds the handshake and the ends of requests, without a socket and without the meaning of a request. Any
//! split of the bytes gives the same requests.

use crate::limits::WireLimits;
use crate::message::Request;
use crate::stored_value::Value;
use crate::wire::{Frame, FrameScan, Opcode, Progress, VALIDATION_MAGIC, WireError, WireErrorKind};

/// If at least this many bytes are missing, the next read goes directly into the unfinished request.
const DIRECT_READ_BYTES_MIN: usize = 32 << 10;

/// The memory reserved for an unfinished request is at most this plus [`GROWTH`] times the bytes that
/// have arrived: an announced length alone reserves no more.
const RESERVE_BYTES_MIN: usize = 64 << 10;
const GROWTH: usize = 7;

/// Where the event loop reads the next bytes of this peer into.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextRead {
    /// Any buffer; pass the bytes to [`RequestParser::receive`].
    Anywhere,
    /// The end of [`RequestParser::direct_buffer`], which has capacity for `bytes_max`; then call
    /// [`RequestParser::resume`].
    Direct { bytes_max: usize },
}

/// Whether to continue with the requests that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// The peer has enough unread replies: the remaining bytes are kept for [`RequestParser::resume`].
    Pause,
}

/// Why a connection ends: the peer's bytes are invalid, or the handler refused a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParseError<E> {
    Wire(WireError),
    Refused(E),
}

impl<E> From<WireError> for ParseError<E> {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// The receiving side of one connection. Two words of memory between requests, since a server has
/// thousands of idle connections.
#[derive(Debug, Default)]
pub(crate) struct RequestParser {
    handshake_done: bool,
    partial: Option<Box<Partial>>,
}

/// The start of an unfinished request; after a pause, also whole requests.
#[derive(Default)]
struct Partial {
    bytes: Vec<u8>,
    /// The scanned part of the bytes.
    scan: FrameScan,
    /// Bytes needed before anything can be done.
    needed: usize,
}

impl Partial {
    /// Appends received bytes. Reserves a quarter more than has arrived, but not more than the request needs: many requests can
    /// arrive at the same time, and wait in part.
    fn append(&mut self, bytes: &[u8]) {
        let have = self.bytes.len();
        let end = have + bytes.len();
        if end > self.bytes.capacity() {
            let capacity = (have + have / 4).min(self.needed).max(end);
            self.bytes.reserve_exact(capacity - have);
        }
        self.bytes.extend_from_slice(bytes);
    }
}

impl std::fmt::Debug for Partial {
    /// Lengths only: the bytes can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partial")
            .field("bytes", &self.bytes.len())
            .field("needed", &self.needed)
            .finish_non_exhaustive()
    }
}

/// The result of [`RequestParser::run`].
struct Run {
    used: usize,
    flow: Flow,
    /// The scan of the request after the used bytes, and the bytes it needs.
    scan: FrameScan,
    needed: usize,
}

impl RequestParser {
    /// Creates a parser for a peer whose handshake was with another process.
    pub(crate) const fn after_handshake() -> Self {
        Self {
            handshake_done: true,
            partial: None,
        }
    }

    /// Keeps bytes for [`resume`](Self::resume), after a [`Flow::Pause`].
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        let partial = self.partial.get_or_insert_default();
        partial.bytes.extend_from_slice(bytes);
    }

    /// The memory of received bytes that were not handled, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let partial = self.partial.as_ref();
        partial.map_or(0, |partial| partial.bytes.capacity())
    }

    /// Returns how many bytes of an incomplete request have arrived.
    pub(crate) fn partial_bytes(&self) -> usize {
        self.partial
            .as_ref()
            .map_or(0, |partial| partial.bytes.len())
    }

    /// Gives back the memory that the arrived bytes do not take, because the rest arrives later.
    pub(crate) fn shrink(&mut self) {
        if let Some(partial) = &mut self.partial {
            partial.bytes.shrink_to_fit();
        }
    }

    /// Whether no part of another request has arrived.
    pub(crate) const fn is_between_requests(&self) -> bool {
        self.partial.is_none()
    }

    /// Whether the peer has completed the handshake.
    pub(crate) const fn is_handshake_done(&self) -> bool {
        self.handshake_done
    }

    /// Whether nothing has been received.
    pub(crate) const fn is_new(&self) -> bool {
        !self.handshake_done && self.partial.is_none()
    }

    /// Returns where to read next; reserves the capacity for a direct read.
    pub(crate) fn next_read(&mut self) -> NextRead {
        let Some(partial) = &mut self.partial else {
            return NextRead::Anywhere;
        };
        let have = partial.bytes.len();
        let missing = partial.needed.saturating_sub(have);
        if missing < DIRECT_READ_BYTES_MIN {
            return NextRead::Anywhere;
        }
        if partial.bytes.capacity() - have < DIRECT_READ_BYTES_MIN {
            let more = missing.min(RESERVE_BYTES_MIN.max(GROWTH * have));
            partial.bytes.reserve_exact(more);
        }
        let room = partial.bytes.capacity() - have;
        NextRead::Direct {
            bytes_max: room.min(missing),
        }
    }

    /// The buffer to which a direct read appends.
    pub(crate) fn direct_buffer(&mut self) -> &mut Vec<u8> {
        &mut self.partial.get_or_insert_default().bytes
    }

    /// Handles bytes that were read into a buffer of the event loop.
    pub(crate) fn receive<E>(
        &mut self,
        bytes: &[u8],
        limits: &WireLimits,
        mut handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, ParseError<E>> {
        if let Some(partial) = &mut self.partial {
            partial.append(bytes);
            return self.resume(limits, handle);
        }
        self.receive_frames(bytes, limits, |frame| handle(frame.request()))
    }

    /// [`receive`](Self::receive) for callers that do not decode requests.
    pub(crate) fn receive_frames<E>(
        &mut self,
        bytes: &[u8],
        limits: &WireLimits,
        handle: impl FnMut(&Frame<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, ParseError<E>> {
        if let Some(partial) = &mut self.partial {
            partial.append(bytes);
            return self.resume_frames(limits, handle);
        }
        let run = self.run(FrameScan::default(), bytes, limits, handle)?;
        if run.used < bytes.len() {
            self.partial = Some(Box::new(Partial {
                bytes: bytes[run.used..].to_vec(),
                scan: run.scan,
                needed: run.needed,
            }));
        }
        Ok(run.flow)
    }

    /// Continues after a pause, or after bytes were read into [`direct_buffer`](Self::direct_buffer).
    pub(crate) fn resume<E>(
        &mut self,
        limits: &WireLimits,
        mut handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, ParseError<E>> {
        let Some(partial) = &mut self.partial else {
            return Ok(Flow::Continue);
        };
        if partial.bytes.len() < partial.needed {
            return Ok(Flow::Continue);
        }
        let bytes = &partial.bytes;
        if self.handshake_done
            && partial.scan.advance(bytes, limits)? == Progress::Complete(bytes.len())
            && let Some(start) = partial.scan.frame(bytes).long_value_start()
        {
            let Partial { bytes, scan, .. } = std::mem::take(&mut **partial);
            self.partial = None;
            let head = bytes[..start].to_vec();
            let value = Value::from_tail(bytes, start);
            return match scan.request_with_value(&head, value) {
                Some(request) => handle(request).map_err(ParseError::Refused),
                None => unreachable!("only commands that end with a value have a long value"),
            };
        }
        self.resume_frames(limits, |frame| handle(frame.request()))
    }

    /// [`resume`](Self::resume) for callers that do not decode requests.
    pub(crate) fn resume_frames<E>(
        &mut self,
        limits: &WireLimits,
        handle: impl FnMut(&Frame<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, ParseError<E>> {
        let Some(partial) = &mut self.partial else {
            return Ok(Flow::Continue);
        };
        if partial.bytes.len() < partial.needed {
            return Ok(Flow::Continue);
        }
        let Partial {
            mut bytes, scan, ..
        } = std::mem::take(&mut **partial);
        let run = self.run(scan, &bytes, limits, handle)?;
        if run.used == bytes.len() {
            self.partial = None;
        } else if let Some(partial) = &mut self.partial {
            bytes.drain(..run.used);
            **partial = Partial {
                bytes,
                scan: run.scan,
                needed: run.needed,
            };
        }
        Ok(run.flow)
    }

    /// Passes the whole requests in `bytes` to `handle`. `scan` is the progress in the first one.
    fn run<E>(
        &mut self,
        mut scan: FrameScan,
        bytes: &[u8],
        limits: &WireLimits,
        mut handle: impl FnMut(&Frame<'_>) -> Result<Flow, E>,
    ) -> Result<Run, ParseError<E>> {
        let mut used = 0;
        let mut needed = 0;
        let mut flow = Flow::Continue;
        while used < bytes.len() && flow == Flow::Continue {
            let rest = &bytes[used..];
            if !self.handshake_done && rest[0] != 0 {
                return Err(refuse(WireErrorKind::HandshakeMissing(rest[0])).into());
            }
            match scan.advance(rest, limits)? {
                Progress::NeedAtLeast(bytes_min) => {
                    needed = bytes_min;
                    break;
                }
                Progress::Complete(length) => {
                    let frame = scan.frame(rest);
                    scan.reset();
                    used += length;
                    if frame.opcode() != Opcode::Validate {
                        flow = handle(&frame).map_err(ParseError::Refused)?;
                    } else if let Request::Validate { magic } = frame.request() {
                        self.validate(magic)?;
                    }
                }
            }
        }
        Ok(Run {
            used,
            flow,
            scan,
            needed,
        })
    }

    /// docs/spec/wire.md, section 3: VALIDATE must be the first command, and occurs once.
    fn validate(&mut self, magic: u32) -> Result<(), WireError> {
        if self.handshake_done {
            return Err(refuse(WireErrorKind::SecondValidate));
        }
        if magic != VALIDATION_MAGIC {
            return Err(refuse(WireErrorKind::WrongMagic(magic)));
        }
        self.handshake_done = true;
        Ok(())
    }
}

const fn refuse(kind: WireErrorKind) -> WireError {
    WireError {
        opcode: None,
        offset: 0,
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RequestBuf;

    /// A long request takes hardly more memory than has arrived, while it arrives and while it waits.
    #[test]
    fn a_request_that_arrives_in_pieces_takes_little_more_memory() {
        const VALUE_BYTES: usize = 8 << 20;
        const PIECE_BYTES: usize = 16 << 10;
        let mut request = RequestBuf::new();
        request.opcode(Opcode::Set).user_key("k").count(VALUE_BYTES);
        let mut bytes = request.to_bytes();
        bytes.resize(bytes.len() + VALUE_BYTES, 7);
        let mut parser = RequestParser::after_handshake();
        let mut handled = 0;
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let received = parser.receive(piece, &WireLimits::default(), |_| {
                handled += 1;
                Ok::<_, ()>(Flow::Continue)
            });
            assert!(received.is_ok());
            let arrived = parser.partial_bytes();
            assert!(
                parser.memory_bytes() <= (arrived + arrived / 4).max(PIECE_BYTES) + PIECE_BYTES
            );
            assert!(parser.memory_bytes() <= bytes.len().next_multiple_of(PIECE_BYTES));
            if index % 100 == 99 {
                parser.shrink();
                assert_eq!(parser.memory_bytes(), parser.partial_bytes());
            }
        }
        assert_eq!((handled, parser.partial_bytes()), (1, 0));
    }
}
