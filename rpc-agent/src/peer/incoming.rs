//! The receiving side of one connection: bytes to messages.
//!
//! Whatever way the bytes are cut, the same messages come out. A payload of a large message is received
//! into its own memory and not copied again. Knows neither the socket, nor the clock, nor what a message
//! means.

use std::collections::HashMap;

use bytes::Bytes;

use super::failure::Failure;
use crate::wire::{
    self, Frame, HEADER_BYTES, Header, Hello, Kind, LARGE_MESSAGES_BYTES_MAX, LARGE_MESSAGES_MAX,
    Refuse, Welcome, WireError,
};

/// The buffer of a connection that is idle.
const BUFFER_BYTES_MIN: usize = 4 << 10;

/// The buffer of a busy one. It has room for any frame that is not received into its own memory.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// From this many missing bytes on, a frame is received into its own memory.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// A large message reserves so much when it begins, and the whole when that has arrived: an announced
/// length alone reserves little.
const FIRST_RESERVE_BYTES: usize = 1 << 20;

/// An answer is cut out of what was received with it when that is so many times as long: who keeps the
/// answer shall not keep the rest.
const PINNED_FACTOR_MAX: usize = 4;

/// What a peer may make this side keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IncomingLimits {
    /// The greatest payload of a message.
    pub(crate) message_bytes_max: u64,
    /// The payloads of all messages under way in parts, unless there is only one.
    pub(crate) assembling_bytes_max: u64,
    /// The number of messages under way in parts.
    pub(crate) assembling_messages_max: usize,
}

impl Default for IncomingLimits {
    /// 256 MiB a message, and what the protocol allows to be under way in parts.
    fn default() -> Self {
        Self {
            message_bytes_max: 256 << 20,
            assembling_bytes_max: LARGE_MESSAGES_BYTES_MAX,
            assembling_messages_max: LARGE_MESSAGES_MAX,
        }
    }
}

/// What a connection's first frame has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expects {
    /// This side was dialed. After the Hello nothing may come until [`Incoming::open`].
    Hello,
    /// This side dialed. After a Welcome come messages, after a Refuse comes nothing.
    WelcomeOrRefuse,
}

/// A whole message.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Message {
    Hello(Hello),
    Welcome(Welcome),
    Refuse(Refuse),
    Request {
        id: u64,
        /// The time that the caller still waits; 0 for no limit.
        budget_ms: u32,
        function: FunctionName,
        payload: Bytes,
    },
    Response {
        id: u64,
        payload: Bytes,
    },
    /// The answer to a call that failed at the callee.
    Failure {
        id: u64,
        failure: Failure,
    },
    Goodbye {
        reason: u16,
    },
}

/// A function's name as it was received: a slice of the received bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FunctionName(Bytes);

impl FunctionName {
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("the decoder checked it")
    }
}

/// Who takes the messages.
pub(crate) trait Recipient {
    /// Whether somebody still waits for the answer to this call. Asked for large answers, when they
    /// begin and before each part: the rest of an unwanted one is skipped, and it is never handed out.
    fn wants_response(&mut self, id: u64) -> bool;

    /// Takes a message.
    fn take(&mut self, message: Message);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Hello,
    WelcomeOrRefuse,
    /// Until this side has answered the Hello, or for ever after a Refuse.
    Nothing,
    Messages,
}

/// The receiving side of one connection.
///
/// The shell receives onto the end of what [`spare`](Self::spare) gives, then calls
/// [`received`](Self::received).
pub(crate) struct Incoming {
    limits: IncomingLimits,
    stage: Stage,
    /// The start of a frame, between two calls of `received`.
    buffer: Vec<u8>,
    /// What the buffer grows to when it has been filled.
    buffer_bytes_wanted: usize,
    /// The length of the buffer before the last receive.
    buffer_bytes_before: usize,
    /// A frame that is received into its own memory: the buffer is empty then.
    frame: Option<LongFrame>,
    /// The part whose payload comes next: the buffer is empty then, between two calls.
    part: Option<Part>,
    assembling: HashMap<MessageKey, Assembly>,
    /// The payloads of `assembling`, as announced.
    assembling_bytes: u64,
    broken: Option<WireError>,
}

impl std::fmt::Debug for Incoming {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("buffer_bytes", &self.buffer.len())
            .field("frame", &self.frame)
            .field("assembling", &self.assembling)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

struct LongFrame {
    bytes: Vec<u8>,
    frame_bytes: usize,
}

impl std::fmt::Debug for LongFrame {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LongFrame")
            .field("bytes", &self.bytes.len())
            .field("frame_bytes", &self.frame_bytes)
            .finish()
    }
}

/// Call ids of requests are the peer's, those of responses are this side's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MessageKey {
    is_response: bool,
    id: u64,
}

#[derive(Debug)]
struct Part {
    key: MessageKey,
    missing_bytes: usize,
}

/// A large message of which a part is missing.
struct Assembly {
    /// What to make of it; `None` for an answer that nobody waits for.
    request: Option<RequestHead>,
    /// Empty when nobody waits for it.
    payload: Vec<u8>,
    /// Of `payload`. Beyond may lie the start of the next frame, until [`Incoming::received`].
    filled_bytes: usize,
    /// What is still to come, that of the present part included.
    missing_bytes: u64,
    payload_bytes: u64,
    is_wanted: bool,
}

impl std::fmt::Debug for Assembly {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembly")
            .field("filled_bytes", &self.filled_bytes)
            .field("missing_bytes", &self.missing_bytes)
            .field("is_wanted", &self.is_wanted)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct RequestHead {
    budget_ms: u32,
    function: FunctionName,
}

impl Incoming {
    /// Before the first byte. Allocates nothing.
    pub(crate) fn new(expects: Expects, limits: IncomingLimits) -> Self {
        Self {
            limits,
            stage: match expects {
                Expects::Hello => Stage::Hello,
                Expects::WelcomeOrRefuse => Stage::WelcomeOrRefuse,
            },
            buffer: Vec::new(),
            buffer_bytes_wanted: BUFFER_BYTES_MIN,
            buffer_bytes_before: 0,
            frame: None,
            part: None,
            assembling: HashMap::new(),
            assembling_bytes: 0,
            broken: None,
        }
    }

    /// The Hello has been accepted: messages may come.
    pub(crate) fn open(&mut self) {
        debug_assert_eq!(self.stage, Stage::Nothing);
        self.stage = Stage::Messages;
    }

    /// Where to append the next bytes, and at most how many: never 0, and there is room for them.
    pub(crate) fn spare(&mut self) -> (&mut Vec<u8>, usize) {
        if let Some(part) = &self.part
            && part.missing_bytes >= DIRECT_BYTES_MIN
            && let Some(assembly) = self.assembling.get_mut(&part.key)
            && assembly.is_wanted
        {
            assembly.payload.truncate(assembly.filled_bytes);
            // The next header may come along: it saves a receive for each part.
            let bytes_max = part.missing_bytes + HEADER_BYTES;
            assembly.reserve(part.missing_bytes);
            return (&mut assembly.payload, bytes_max);
        }
        if let Some(frame) = &mut self.frame {
            let bytes_max = frame.frame_bytes - frame.bytes.len();
            return (&mut frame.bytes, bytes_max);
        }
        let filled = self.buffer.len();
        if self.buffer.capacity() < self.buffer_bytes_wanted {
            self.buffer.reserve_exact(self.buffer_bytes_wanted - filled);
        }
        self.buffer_bytes_before = filled;
        let bytes_max = self.buffer.capacity() - filled;
        (&mut self.buffer, bytes_max)
    }

    /// Hands out the messages that are complete with the bytes appended to [`spare`](Self::spare).
    ///
    /// # Errors
    /// [`WireError`] when the peer does not keep to the protocol or to the limits; what came before the
    /// fault has been handed out. The connection is of no use then, and the error stays.
    pub(crate) fn received(&mut self, recipient: &mut impl Recipient) -> Result<(), WireError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let result = self.take_received(recipient);
        if let Err(error) = result {
            self.broken = Some(error);
            self.buffer = Vec::new();
            self.frame = None;
            self.part = None;
            self.assembling = HashMap::new();
            self.assembling_bytes = 0;
        }
        result
    }

    /// The memory held for what is not complete.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        let assembling = self
            .assembling
            .values()
            .map(|assembly| assembly.payload.capacity());
        let frame = self
            .frame
            .as_ref()
            .map_or(0, |frame| frame.bytes.capacity());
        self.buffer.capacity() + frame + assembling.sum::<usize>()
    }

    fn take_received(&mut self, recipient: &mut impl Recipient) -> Result<(), WireError> {
        self.take_direct(recipient);
        if let Some(frame) = self
            .frame
            .take_if(|frame| frame.bytes.len() == frame.frame_bytes)
        {
            return self.take_long_frame(frame, recipient);
        }
        if self.frame.is_some() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let came = buffer.len().saturating_sub(self.buffer_bytes_before);
        let is_filled = came > 0 && buffer.len() == buffer.capacity();
        self.adapt_buffer(came, is_filled);
        let used = self.take_buffer(&buffer, recipient)?;
        if used < buffer.len() {
            buffer.drain(..used);
        } else {
            buffer.clear();
            if buffer.capacity() > self.buffer_bytes_wanted {
                buffer = Vec::new();
            }
        }
        self.buffer_bytes_before = buffer.len();
        self.buffer = buffer;
        Ok(())
    }

    /// A receive that filled the buffer makes it grow, a short one makes it shrink once it is empty.
    fn adapt_buffer(&mut self, came_bytes: usize, is_filled: bool) {
        if is_filled {
            self.buffer_bytes_wanted = (self.buffer_bytes_wanted * 4).min(BUFFER_BYTES_MAX);
        } else if came_bytes <= BUFFER_BYTES_MIN {
            self.buffer_bytes_wanted = BUFFER_BYTES_MIN;
        }
    }

    /// What was received into a large message's own memory.
    fn take_direct(&mut self, recipient: &mut impl Recipient) {
        let Some(part) = &mut self.part else {
            return;
        };
        let Some(assembly) = self.assembling.get_mut(&part.key) else {
            return;
        };
        let came = assembly.payload.len() - assembly.filled_bytes;
        let of_part = came.min(part.missing_bytes);
        assembly.filled_bytes += of_part;
        assembly.missing_bytes -= of_part as u64;
        part.missing_bytes -= of_part;
        if came > of_part {
            debug_assert!(self.buffer.is_empty());
            let next = &assembly.payload[assembly.filled_bytes..];
            self.buffer.extend_from_slice(next);
            assembly.payload.truncate(assembly.filled_bytes);
        }
        self.end_part(recipient);
    }

    fn take_long_frame(
        &mut self,
        frame: LongFrame,
        recipient: &mut impl Recipient,
    ) -> Result<(), WireError> {
        let bytes = Bytes::from(frame.bytes);
        let mut batch = Batch {
            source: &bytes,
            copy: Some(bytes.clone()),
        };
        match Header::decode(&bytes)? {
            Some(header) => self.take_frame(&header, 0, &mut batch, recipient),
            None => {
                unreachable!("a frame is received into its own memory once its header is known")
            }
        }
    }

    /// Takes all whole frames and what there is of a part; returns how many bytes that were.
    fn take_buffer(
        &mut self,
        buffer: &[u8],
        recipient: &mut impl Recipient,
    ) -> Result<usize, WireError> {
        let mut used = 0;
        let mut batch = Batch::EMPTY;
        let mut batch_end = 0;
        loop {
            used += self.take_part(&buffer[used..], recipient);
            if self.part.is_some() {
                return Ok(used);
            }
            let rest = &buffer[used..];
            let Some(header) = Header::decode(rest)? else {
                return Ok(used);
            };
            self.check_stage(header.kind)?;
            if is_part(header.kind) {
                self.begin_part(&header, recipient)?;
                used += HEADER_BYTES;
                continue;
            }
            let frame_bytes = header.frame_bytes();
            if rest.len() < frame_bytes {
                return Ok(used + self.keep_start(rest, frame_bytes));
            }
            if used >= batch_end {
                batch_end = used + whole_frames_bytes(rest);
                batch = Batch {
                    source: &buffer[used..batch_end],
                    copy: None,
                };
            }
            let at = used + batch.source.len() - batch_end;
            self.take_frame(&header, at, &mut batch, recipient)?;
            used += frame_bytes;
        }
    }

    /// Where to keep the start of a frame: a long one goes into its own memory. Returns how many bytes
    /// need not stay in the buffer.
    fn keep_start(&mut self, start: &[u8], frame_bytes: usize) -> usize {
        let missing_bytes = frame_bytes - start.len();
        if missing_bytes < DIRECT_BYTES_MIN && frame_bytes <= BUFFER_BYTES_MAX {
            self.buffer_bytes_wanted = self.buffer_bytes_wanted.max(frame_bytes);
            return 0;
        }
        let mut bytes = Vec::with_capacity(frame_bytes);
        bytes.extend_from_slice(start);
        self.frame = Some(LongFrame { bytes, frame_bytes });
        start.len()
    }

    fn check_stage(&self, kind: Kind) -> Result<(), WireError> {
        let (is_expected, expected) = match self.stage {
            Stage::Hello => (kind == Kind::Hello, "Hello"),
            Stage::WelcomeOrRefuse => (
                matches!(kind, Kind::Welcome | Kind::Refuse),
                "Welcome or Refuse",
            ),
            Stage::Nothing => (false, "nothing"),
            Stage::Messages => (
                !matches!(kind, Kind::Hello | Kind::Welcome | Kind::Refuse),
                "messages",
            ),
        };
        if is_expected {
            Ok(())
        } else {
            Err(WireError::Unexpected { kind, expected })
        }
    }

    /// Takes the whole frame at `at` in the batch, which is no part.
    fn take_frame(
        &mut self,
        header: &Header,
        at: usize,
        batch: &mut Batch<'_>,
        recipient: &mut impl Recipient,
    ) -> Result<(), WireError> {
        let end = at + header.frame_bytes();
        let message = match wire::decode_body(header, &batch.source[at + HEADER_BYTES..end])? {
            Frame::Hello(hello) => {
                self.stage = Stage::Nothing;
                Message::Hello(hello)
            }
            Frame::Welcome(welcome) => {
                self.stage = Stage::Messages;
                Message::Welcome(welcome)
            }
            Frame::Refuse(refuse) => {
                self.stage = Stage::Nothing;
                Message::Refuse(refuse)
            }
            Frame::Request {
                id,
                budget_ms,
                function,
                payload,
            } => {
                self.check_length(payload.len() as u64)?;
                self.check_no_assembly(header.kind, false, id)?;
                let payload_start = end - payload.len();
                let function_start = payload_start - function.len();
                Message::Request {
                    id,
                    budget_ms,
                    function: FunctionName(batch.slice(function_start, payload_start)),
                    payload: batch.slice(payload_start, end),
                }
            }
            Frame::Response { id, payload } => {
                self.check_length(payload.len() as u64)?;
                self.check_no_assembly(header.kind, true, id)?;
                let payload = if batch.source.len() > PINNED_FACTOR_MAX * payload.len() {
                    Bytes::copy_from_slice(payload)
                } else {
                    batch.slice(end - payload.len(), end)
                };
                Message::Response { id, payload }
            }
            Frame::Error { id, kind, text } => {
                self.check_no_assembly(header.kind, true, id)?;
                let failure = Failure::received(kind, text.into());
                Message::Failure { id, failure }
            }
            Frame::LargeRequest {
                id,
                budget_ms,
                function,
                payload_bytes,
            } => {
                let request = RequestHead {
                    budget_ms,
                    // Not a slice: what it was received with is not to be kept until the last part.
                    function: FunctionName(Bytes::copy_from_slice(function.as_bytes())),
                };
                return self.begin_message(header.kind, id, payload_bytes, Some(request), true);
            }
            Frame::LargeResponse { id, payload_bytes } => {
                let is_wanted = recipient.wants_response(id);
                return self.begin_message(header.kind, id, payload_bytes, None, is_wanted);
            }
            Frame::RequestPart { .. } | Frame::ResponsePart { .. } => {
                unreachable!("parts are taken piece by piece")
            }
            Frame::Goodbye { reason } => Message::Goodbye { reason },
        };
        recipient.take(message);
        Ok(())
    }

    fn check_length(&self, bytes: u64) -> Result<(), WireError> {
        let bytes_max = self.limits.message_bytes_max;
        if bytes > bytes_max {
            return Err(WireError::MessageLength { bytes, bytes_max });
        }
        Ok(())
    }

    /// A call has one request and one answer.
    fn check_no_assembly(&self, kind: Kind, is_response: bool, id: u64) -> Result<(), WireError> {
        if !self.assembling.is_empty()
            && self
                .assembling
                .contains_key(&MessageKey { is_response, id })
        {
            return Err(WireError::SameCall { kind, id });
        }
        Ok(())
    }

    fn begin_message(
        &mut self,
        kind: Kind,
        id: u64,
        payload_bytes: u64,
        request: Option<RequestHead>,
        is_wanted: bool,
    ) -> Result<(), WireError> {
        self.check_length(payload_bytes)?;
        let is_response = request.is_none();
        self.check_no_assembly(kind, is_response, id)?;
        let messages = self.assembling.len() + 1;
        let messages_max = self.limits.assembling_messages_max;
        if messages > messages_max {
            return Err(WireError::Assembling {
                messages,
                messages_max,
            });
        }
        let bytes = self.assembling_bytes.saturating_add(payload_bytes);
        let bytes_max = self.limits.assembling_bytes_max;
        if messages > 1 && bytes > bytes_max {
            return Err(WireError::AssemblingBytes { bytes, bytes_max });
        }
        self.assembling_bytes = bytes;
        self.assembling.insert(
            MessageKey { is_response, id },
            Assembly {
                request,
                payload: Vec::new(),
                filled_bytes: 0,
                missing_bytes: payload_bytes,
                payload_bytes,
                is_wanted,
            },
        );
        Ok(())
    }

    fn begin_part(
        &mut self,
        header: &Header,
        recipient: &mut impl Recipient,
    ) -> Result<(), WireError> {
        let Header { kind, id, .. } = *header;
        let key = MessageKey {
            is_response: kind == Kind::ResponsePart,
            id,
        };
        let Some(assembly) = self.assembling.get_mut(&key) else {
            return Err(WireError::NoStart { kind, id });
        };
        if header.body_bytes as u64 > assembly.missing_bytes {
            return Err(WireError::PartLength {
                kind,
                bytes: header.body_bytes,
                missing_bytes: assembly.missing_bytes,
            });
        }
        if key.is_response && assembly.is_wanted && !recipient.wants_response(id) {
            assembly.is_wanted = false;
            assembly.filled_bytes = 0;
            assembly.payload = Vec::new();
        }
        self.part = Some(Part {
            key,
            missing_bytes: header.body_bytes,
        });
        Ok(())
    }

    /// Takes what `bytes` has of the present part, and returns how many bytes that were.
    fn take_part(&mut self, bytes: &[u8], recipient: &mut impl Recipient) -> usize {
        let Some(part) = &mut self.part else {
            return 0;
        };
        let of_part = bytes.len().min(part.missing_bytes);
        part.missing_bytes -= of_part;
        if let Some(assembly) = self.assembling.get_mut(&part.key) {
            assembly.missing_bytes -= of_part as u64;
            if assembly.is_wanted {
                assembly.reserve(of_part);
                assembly.payload.extend_from_slice(&bytes[..of_part]);
                assembly.filled_bytes += of_part;
            }
        }
        self.end_part(recipient);
        of_part
    }

    /// Hands a large message out when its last part is complete.
    fn end_part(&mut self, recipient: &mut impl Recipient) {
        let Some(part) = self.part.take_if(|part| part.missing_bytes == 0) else {
            return;
        };
        let is_whole = |assembly: &Assembly| assembly.missing_bytes == 0;
        if !self.assembling.get(&part.key).is_some_and(is_whole) {
            return;
        }
        let Some(assembly) = self.assembling.remove(&part.key) else {
            return;
        };
        self.assembling_bytes -= assembly.payload_bytes;
        if !assembly.is_wanted {
            return;
        }
        let id = part.key.id;
        let payload = Bytes::from(assembly.payload);
        recipient.take(match assembly.request {
            Some(RequestHead {
                budget_ms,
                function,
            }) => Message::Request {
                id,
                budget_ms,
                function,
                payload,
            },
            None => Message::Response { id, payload },
        });
    }

    /// The sums agree with what they sum up.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn check_invariants(&self) {
        let announced = self
            .assembling
            .values()
            .map(|assembly| assembly.payload_bytes);
        assert_eq!(self.assembling_bytes, announced.sum::<u64>());
        assert!(self.assembling.len() <= self.limits.assembling_messages_max);
        assert!(self.frame.is_none() || self.part.is_none());
        if self.frame.is_some() || self.part.is_some() {
            assert!(self.buffer.is_empty());
        }
        if let Some(part) = &self.part {
            assert!(part.missing_bytes > 0);
            assert!(self.assembling[&part.key].missing_bytes >= part.missing_bytes as u64);
        }
        for assembly in self.assembling.values() {
            assert!(assembly.missing_bytes > 0);
            assert!(assembly.filled_bytes <= assembly.payload.len());
            let filled = assembly.filled_bytes as u64;
            if assembly.is_wanted {
                assert_eq!(filled + assembly.missing_bytes, assembly.payload_bytes);
            } else {
                assert_eq!((filled, assembly.payload.capacity()), (0, 0));
            }
        }
        assert!(self.buffer.capacity() <= BUFFER_BYTES_MAX.max(self.buffer.len()));
    }
}

impl Assembly {
    /// Makes room for so many more bytes of the payload and a header.
    fn reserve(&mut self, more_bytes: usize) {
        let needed = self.filled_bytes + more_bytes + HEADER_BYTES;
        if self.payload.capacity() >= needed {
            return;
        }
        // A message that was accepted fits in memory, and so in a usize.
        let whole = usize::try_from(self.payload_bytes).unwrap_or(usize::MAX - HEADER_BYTES);
        let wanted = if needed <= FIRST_RESERVE_BYTES {
            whole.min(FIRST_RESERVE_BYTES)
        } else {
            whole
        };
        let wanted = needed.max(wanted.saturating_add(HEADER_BYTES));
        self.payload.reserve_exact(wanted - self.payload.len());
    }
}

/// Whole frames that were received together, and one copy of them for all that is cut out of it.
struct Batch<'b> {
    source: &'b [u8],
    copy: Option<Bytes>,
}

impl Batch<'_> {
    const EMPTY: Self = Batch {
        source: &[],
        copy: None,
    };

    fn slice(&mut self, start: usize, end: usize) -> Bytes {
        if start == end {
            return Bytes::new();
        }
        self.copy
            .get_or_insert_with(|| Bytes::copy_from_slice(self.source))
            .slice(start..end)
    }
}

const fn is_part(kind: Kind) -> bool {
    matches!(kind, Kind::RequestPart | Kind::ResponsePart)
}

/// How far the whole frames reach that `bytes` begins with, up to a part, an unfinished frame or a fault.
fn whole_frames_bytes(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Ok(Some(header)) = Header::decode(&bytes[end..]) {
        let next = end + header.frame_bytes();
        if is_part(header.kind) || next > bytes.len() {
            break;
        }
        end = next;
    }
    end
}

#[cfg(test)]
mod tests;
