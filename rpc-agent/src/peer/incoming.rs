//! Decodes the bytes received on one connection into messages.
//!
//! The result does not depend on how the stream is split into reads. The payload of a large message is
//! received into its own allocation and not copied again. No socket, no clock, no message semantics.

use std::collections::HashMap;

use bytes::Bytes;

use super::config::FunctionId;
use crate::wire::{
    self, Failure, Frame, HEADER_BYTES, Header, Hello, Kind, LARGE_MESSAGES_BYTES_MAX,
    LARGE_MESSAGES_MAX, Payload, Refuse, Welcome, WireError,
};

/// Capacity of the receive buffer of an idle connection.
const BUFFER_BYTES_MIN: usize = 4 << 10;

/// Capacity of the receive buffer of a busy connection. Larger frames get their own allocation.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// A frame that lacks at least this many bytes is received into its own allocation.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// First allocation for a large message. The rest is allocated when these bytes have arrived, so that an
/// announced length alone costs little memory.
const FIRST_RESERVE_BYTES: usize = 1 << 20;

/// A response is copied out of its batch when the batch is more than this many times as long, so that a
/// response that is kept does not pin the whole batch.
const PINNED_FACTOR_MAX: usize = 4;

/// Limits on the memory that a peer's messages may occupy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IncomingLimits {
    /// Largest payload of one message.
    pub(crate) message_bytes_max: u64,
    /// Largest sum of the payloads of incomplete large messages. One alone may exceed it.
    pub(crate) assembling_bytes_max: u64,
    /// Most incomplete large messages.
    pub(crate) assembling_messages_max: usize,
}

impl Default for IncomingLimits {
    /// 256 MiB per message, and the protocol's limits for incomplete large messages.
    fn default() -> Self {
        Self {
            message_bytes_max: 256 << 20,
            assembling_bytes_max: LARGE_MESSAGES_BYTES_MAX,
            assembling_messages_max: LARGE_MESSAGES_MAX,
        }
    }
}

/// The first frame that a connection must receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expects {
    /// This side accepted the connection. Frames may follow the Hello only after [`Incoming::open`].
    Hello,
    /// This side dialed. Messages follow a Welcome; no frame follows a Refuse.
    WelcomeOrRefuse,
}

/// A complete message.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Message {
    Hello(Hello),
    Welcome(Welcome),
    Refuse(Refuse),
    Request {
        id: u64,
        /// Time left until the caller's deadline; 0 for no deadline.
        budget_ms: u32,
        /// `None` if the recipient has no function of this name.
        function: Option<FunctionId>,
        payload: Bytes,
    },
    Response {
        id: u64,
        payload: Bytes,
    },
    /// The error response to a call.
    Failure {
        id: u64,
        failure: Failure,
    },
    Goodbye {
        reason: u16,
    },
}

/// The fields of a request besides its payload: its budget in milliseconds, and its function.
type Call = (u32, Option<FunctionId>);

impl Message {
    /// A request, or a response.
    fn of(id: u64, call: Option<Call>, payload: Bytes) -> Self {
        match call {
            Some((budget_ms, function)) => Self::Request {
                id,
                budget_ms,
                function,
                payload,
            },
            None => Self::Response { id, payload },
        }
    }
}

/// Receives the decoded messages.
pub(crate) trait Recipient {
    /// The function of this name, if there is one.
    fn find_function(&mut self, name: &str) -> Option<FunctionId>;

    /// Whether a caller still waits for the response to this call. Asked at the start of a large response
    /// and before each part: the decoder skips the rest of an unwanted one and does not deliver it.
    fn wants_response(&mut self, id: u64) -> bool;

    fn take(&mut self, message: Message);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Hello,
    WelcomeOrRefuse,
    /// Frames are forbidden until this side has answered the Hello, or indefinitely after a Refuse.
    Nothing,
    Messages,
}

/// Decoder of one connection.
///
/// The caller appends received bytes to the buffer from [`spare`](Self::spare), then calls
/// [`received`](Self::received).
pub(crate) struct Incoming {
    limits: IncomingLimits,
    stage: Stage,
    /// Between two calls of `received`: the start of a frame.
    buffer: Vec<u8>,
    /// Target capacity of `buffer`.
    buffer_bytes_wanted: usize,
    /// The length of the buffer before the last receive.
    buffer_bytes_before: usize,
    /// The frame that is being received into its own allocation. During that time, `buffer` is empty.
    frame: Option<LongFrame>,
    /// The part whose payload follows. Between two calls, `buffer` is empty during that time.
    part: Option<Part>,
    assembling: HashMap<MessageKey, Assembly>,
    /// Sum of the announced payload lengths of `assembling`.
    assembling_bytes: u64,
    broken: Option<WireError>,
}

struct LongFrame {
    bytes: Vec<u8>,
    frame_bytes: usize,
}

/// The peer assigns the call ids of requests, this side those of responses.
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

/// An incomplete large message.
struct Assembly {
    /// `None` for a response.
    request: Option<Call>,
    /// Empty when unwanted.
    payload: Vec<u8>,
    /// Payload bytes in `payload`. The start of the next frame may follow them until [`Incoming::received`].
    filled_bytes: usize,
    /// Bytes not yet received, including the current part's bytes.
    missing_bytes: u64,
    payload_bytes: u64,
    is_wanted: bool,
}

impl Incoming {
    /// Creates a decoder. Allocates nothing.
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

    /// Allows messages, after this side has accepted the Hello.
    pub(crate) fn open(&mut self) {
        debug_assert_eq!(self.stage, Stage::Nothing);
        self.stage = Stage::Messages;
    }

    /// The buffer to append received bytes to, and how many fit: at least 1.
    pub(crate) fn spare(&mut self) -> (&mut Vec<u8>, usize) {
        if let Some(part) = &self.part
            && part.missing_bytes >= DIRECT_BYTES_MIN
            && let Some(assembly) = self.assembling.get_mut(&part.key)
            && assembly.is_wanted
        {
            assembly.payload.truncate(assembly.filled_bytes);
            // Reading the next header along saves one receive per part.
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

    /// Delivers the messages completed by the bytes appended to [`spare`](Self::spare).
    ///
    /// # Errors
    /// [`WireError`] when the peer violates the protocol or a limit. Messages before the violation have
    /// been delivered. Every later call returns the same error.
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

    /// Delivers the messages completed by bytes that were received elsewhere. Errors as [`received`](Self::received).
    pub(crate) fn receive(
        &mut self,
        mut bytes: &[u8],
        recipient: &mut impl Recipient,
    ) -> Result<(), WireError> {
        while !bytes.is_empty() {
            let (buffer, bytes_max) = self.spare();
            let (first, rest) = bytes.split_at(bytes.len().min(bytes_max));
            buffer.extend_from_slice(first);
            self.received(recipient)?;
            bytes = rest;
        }
        Ok(())
    }

    /// The start of a short frame that is not complete.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.buffer
    }

    /// Bytes allocated for incomplete messages.
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
        let received = buffer.len().saturating_sub(self.buffer_bytes_before);
        let is_filled = received > 0 && buffer.len() == buffer.capacity();
        self.adapt_buffer(received, is_filled);
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

    /// Grows the buffer after a receive that filled it; shrinks it, once empty, after a short receive.
    fn adapt_buffer(&mut self, received_bytes: usize, is_filled: bool) {
        if is_filled {
            self.buffer_bytes_wanted = (self.buffer_bytes_wanted * 4).min(BUFFER_BYTES_MAX);
        } else if received_bytes <= BUFFER_BYTES_MIN {
            self.buffer_bytes_wanted = BUFFER_BYTES_MIN;
        }
    }

    /// Accounts for the bytes received directly into a large message.
    fn take_direct(&mut self, recipient: &mut impl Recipient) {
        let Some(part) = &mut self.part else {
            return;
        };
        let Some(assembly) = self.assembling.get_mut(&part.key) else {
            return;
        };
        let received = assembly.payload.len() - assembly.filled_bytes;
        let of_part = received.min(part.missing_bytes);
        assembly.filled_bytes += of_part;
        assembly.missing_bytes -= of_part as u64;
        part.missing_bytes -= of_part;
        if received > of_part {
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
            is_single_frame: true,
            copy: Some(bytes.clone()),
        };
        match Header::decode(&bytes)? {
            Some(header) => self.take_frame(&header, 0, &mut batch, recipient),
            None => {
                unreachable!("a frame gets its own allocation after its header is decoded")
            }
        }
    }

    /// Consumes all complete frames and the available bytes of a part; returns the number of bytes.
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
            if header.kind.is_part() {
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
                    is_single_frame: batch_end == used + frame_bytes,
                    copy: None,
                };
            }
            let at = used + batch.source.len() - batch_end;
            self.take_frame(&header, at, &mut batch, recipient)?;
            used += frame_bytes;
        }
    }

    /// Moves the start of a long frame into its own allocation. Returns how many bytes it moved; 0 when
    /// the frame stays in the buffer.
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

    /// Consumes the complete frame at `at` in the batch, which is not a part.
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
            Frame::Message { id, call, payload } => {
                let call = call.map(|(ms, name)| (ms, recipient.find_function(name)));
                let payload = match payload {
                    Payload::InParts(bytes) => {
                        let is_wanted = call.is_some() || recipient.wants_response(id);
                        return self.begin_message(header.kind, id, bytes, call, is_wanted);
                    }
                    Payload::Whole(payload) => payload,
                };
                self.check_length(payload.len() as u64)?;
                self.check_no_assembly(header.kind, call.is_none(), id)?;
                let is_short = batch.source.len() > PINNED_FACTOR_MAX * payload.len();
                let payload = if call.is_none() && is_short {
                    Bytes::copy_from_slice(payload)
                } else {
                    batch.slice(end - payload.len(), end)
                };
                Message::of(id, call, payload)
            }
            Frame::Error { id, failure } => {
                self.check_no_assembly(header.kind, true, id)?;
                Message::Failure { id, failure }
            }
            Frame::Part { .. } => unreachable!("`take_part` consumes parts"),
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

    /// Rejects a second request or response of a call whose large message is incomplete.
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
        request: Option<Call>,
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

    /// Consumes the bytes of the current part at the start of `bytes`; returns their number.
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

    /// Delivers a large message when its last part is complete.
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
        recipient.take(Message::of(id, assembly.request, payload));
    }

    /// Checks the counters against the data that they count.
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
    /// Makes room for `more_bytes` of the payload and a header.
    fn reserve(&mut self, more_bytes: usize) {
        let needed = self.filled_bytes + more_bytes + HEADER_BYTES;
        if self.payload.capacity() >= needed {
            return;
        }
        // An accepted message fits in memory, and so in a `usize`.
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

/// Complete frames that were received together. All slices of them share one copy.
struct Batch<'b> {
    source: &'b [u8],
    is_single_frame: bool,
    copy: Option<Bytes>,
}

impl Batch<'_> {
    const EMPTY: Self = Batch {
        source: &[],
        is_single_frame: true,
        copy: None,
    };

    fn slice(&mut self, start: usize, end: usize) -> Bytes {
        if start == end {
            return Bytes::new();
        }
        if self.is_single_frame && self.copy.is_none() {
            return Bytes::copy_from_slice(&self.source[start..end]);
        }
        self.copy
            .get_or_insert_with(|| Bytes::copy_from_slice(self.source))
            .slice(start..end)
    }
}

/// Length of the complete frames at the start of `bytes`, up to a part, an incomplete frame or an error.
fn whole_frames_bytes(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Ok(Some(header)) = Header::decode(&bytes[end..]) {
        let next = end + header.frame_bytes();
        if header.kind.is_part() || next > bytes.len() {
            break;
        }
        end = next;
    }
    end
}

#[cfg(test)]
mod tests;
