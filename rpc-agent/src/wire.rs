//! Encodes and decodes the frames between two workers. docs/spec/rpc.md, section 7, specifies them.
//!
//! A frame is a header of 16 bytes and a body. The header is `u32` length of the body, `u8` kind, `u8`
//! flags, `u16` auxiliary (its meaning depends on the kind) and `u64` call id, all little-endian. Limits
//! that follow from the header are checked before the body is received.
//!
//! Independent of sockets and of the order of frames; see the module `peer::incoming`.

use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian, WriteBytesExt};

use crate::worker::{WORKER_NAME_BYTES_MAX, WorkerId, WorkerInfo, WorkerName};

pub(crate) const HEADER_BYTES: usize = 16;

/// The longest payload of one frame. Longer payloads are split into parts, so that other messages can be
/// sent between them.
pub(crate) const PART_BYTES: usize = 128 << 10;

/// The longest name of a function on the wire. A registry accepts fewer bytes.
pub(crate) const FUNCTION_NAME_BYTES_MAX: usize = 1024;

/// The longest text of an Error frame. Longer texts are cut.
pub(crate) const ERROR_TEXT_BYTES_MAX: usize = 64 << 10;

/// The longest body of a handshake frame.
pub(crate) const HANDSHAKE_BODY_BYTES_MAX: usize = 512;

/// How many large messages may be incomplete at a time in one direction. A sender starts the next one
/// when one is complete.
pub(crate) const LARGE_MESSAGES_MAX: usize = 16;

/// Limit of the total length of incomplete large messages, unless there is only one.
pub(crate) const LARGE_MESSAGES_BYTES_MAX: u64 = 1 << 30;

const MAGIC: [u8; 8] = *b"C10DRPC\0";
const VERSION: u16 = 1;
const FLAG_LARGE: u8 = 1;

const BUDGET_BYTES: usize = 4;
const TOTAL_BYTES: usize = 8;
const HELLO_FIXED_BYTES: usize = 43;
const WELCOME_BYTES: usize = 20;
const REFUSE_FIXED_BYTES: usize = 5;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// First frame of the dialer.
    Hello = 1,
    /// Accepts the connection.
    Welcome = 2,
    /// Refuses the connection, which then closes.
    Refuse = 3,
    /// The request of a call.
    Request = 4,
    /// The value that a call returned.
    Response = 5,
    /// The error of a call.
    Error = 6,
    /// Part of the payload of a large request.
    RequestPart = 7,
    /// Part of the payload of a large response.
    ResponsePart = 8,
    /// The sender shuts down.
    Goodbye = 9,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Welcome,
        Self::Refuse,
        Self::Request,
        Self::Response,
        Self::Error,
        Self::RequestPart,
        Self::ResponsePart,
        Self::Goodbye,
    ];

    /// Whether the frame is a part of a large message.
    pub(crate) const fn is_part(self) -> bool {
        matches!(self, Self::RequestPart | Self::ResponsePart)
    }
}

/// The header of a frame. Decoding has checked that a frame of this kind can have this body length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Whether the payload follows in parts.
    pub(crate) is_large: bool,
    pub(crate) body_bytes: usize,
    /// Length of the function name, number of the error kind, or reason of the Goodbye.
    aux: u16,
    pub(crate) id: u64,
}

impl Header {
    /// The header of a part.
    ///
    /// # Panics
    /// If `payload_bytes` is not in 1 to [`PART_BYTES`].
    pub(crate) fn part(is_response: bool, id: u64, payload_bytes: usize) -> Self {
        assert!(
            (1..=PART_BYTES).contains(&payload_bytes),
            "a part has 1 to {PART_BYTES} bytes, not {payload_bytes}"
        );
        let kind = if is_response {
            Kind::ResponsePart
        } else {
            Kind::RequestPart
        };
        header(kind, payload_bytes, 0, id)
    }

    /// Length of header and body.
    pub(crate) const fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.body_bytes
    }

    /// Decodes the header at the start of `bytes`; `None` if it is not complete.
    ///
    /// # Errors
    /// [`WireError`] for an unknown kind or flag, and for a body length that this kind cannot have.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let byte = bytes[4];
        let kind = Kind::ALL.get(usize::from(byte).wrapping_sub(1));
        let kind = *kind.ok_or(WireError::Kind { byte })?;
        let flags = bytes[5];
        let can_be_large = matches!(kind, Kind::Request | Kind::Response);
        if flags & !FLAG_LARGE != 0 || (flags != 0 && !can_be_large) {
            return Err(WireError::Flags { kind, flags });
        }
        let body = LittleEndian::read_u32(&bytes[..4]);
        let header = Self {
            kind,
            is_large: flags != 0,
            // A length that does not fit in a usize exceeds each limit.
            body_bytes: usize::try_from(body).unwrap_or(usize::MAX),
            aux: LittleEndian::read_u16(&bytes[6..8]),
            id: LittleEndian::read_u64(&bytes[8..]),
        };
        header.check_length()?;
        Ok(Some(header))
    }

    fn check_length(&self) -> Result<(), WireError> {
        let name_bytes = usize::from(self.aux);
        if self.kind == Kind::Request && name_bytes > FUNCTION_NAME_BYTES_MAX {
            return Err(WireError::FunctionNameLength { bytes: name_bytes });
        }
        let (bytes_min, bytes_max) = match (self.kind, self.is_large) {
            (Kind::Hello, _) => (HELLO_FIXED_BYTES, HANDSHAKE_BODY_BYTES_MAX),
            (Kind::Welcome, _) => (WELCOME_BYTES, WELCOME_BYTES),
            (Kind::Refuse, _) => (REFUSE_FIXED_BYTES, HANDSHAKE_BODY_BYTES_MAX),
            (Kind::Request, false) => {
                let least = BUDGET_BYTES + name_bytes;
                (least, least + PART_BYTES)
            }
            (Kind::Request, true) => {
                let exact = BUDGET_BYTES + TOTAL_BYTES + name_bytes;
                (exact, exact)
            }
            (Kind::Response, false) => (0, PART_BYTES),
            (Kind::Response, true) => (TOTAL_BYTES, TOTAL_BYTES),
            (Kind::Error, _) => (0, ERROR_TEXT_BYTES_MAX),
            (Kind::RequestPart | Kind::ResponsePart, _) => (1, PART_BYTES),
            (Kind::Goodbye, _) => (0, 0),
        };
        if (bytes_min..=bytes_max).contains(&self.body_bytes) {
            return Ok(());
        }
        Err(WireError::BodyLength {
            kind: self.kind,
            bytes: self.body_bytes,
            bytes_min,
            bytes_max,
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; HEADER_BYTES];
        let body = u32::try_from(self.body_bytes).expect("limits of bodies are below 4 GiB");
        LittleEndian::write_u32(&mut bytes[..4], body);
        bytes[4] = self.kind as u8;
        bytes[5] = if self.is_large { FLAG_LARGE } else { 0 };
        LittleEndian::write_u16(&mut bytes[6..8], self.aux);
        LittleEndian::write_u64(&mut bytes[8..], self.id);
        out.extend_from_slice(&bytes);
    }
}

/// The dialer introduces itself and names the worker that it expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The worker that sent the frame.
    pub(crate) from: WorkerInfo,
    /// The worker that the dialer expects at this address.
    pub(crate) to: WorkerId,
    /// The sender's incarnation.
    pub(crate) incarnation: u64,
    /// The incarnation of `to` that the sender read from the store; 0 for any.
    pub(crate) incarnation_wanted: u64,
    /// The sender's count of connections of this pair: see the module `peer::pair`.
    pub(crate) links: u32,
    /// The longest payload that the sender accepts.
    pub(crate) message_bytes_max: u64,
}

/// Accepts a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The sender's incarnation.
    pub(crate) incarnation: u64,
    /// The count of connections of this pair, this one included.
    pub(crate) links: u32,
    /// The longest payload that the sender accepts.
    pub(crate) message_bytes_max: u64,
}

/// Refuses a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refuse {
    pub(crate) reason: RefuseReason,
    /// The sender's count of connections of this pair.
    pub(crate) links: u32,
    /// The text for logs. Cut to the length of the frame.
    pub(crate) text: String,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefuseReason {
    /// The dialer expects a different worker here.
    WrongWorker = 1,
    /// The dialer expects another incarnation of this worker.
    WrongIncarnation,
    /// Another connection of this pair exists, or is being made.
    UseOther,
    /// The worker is shutting down.
    ShuttingDown,
    /// The worker does not support the dialer's protocol version.
    Version,
    /// The worker's copy of the list of members does not have the dialer's process.
    NotMember,
}

impl RefuseReason {
    const ALL: [Self; 6] = [
        Self::WrongWorker,
        Self::WrongIncarnation,
        Self::UseOther,
        Self::ShuttingDown,
        Self::Version,
        Self::NotMember,
    ];
}

/// Why a request has no value as its answer. The function ran only for the first two and [`AnswerTooLarge`].
///
/// [`AnswerTooLarge`]: Self::AnswerTooLarge
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The function returned an error.
    Handler(Arc<str>),
    /// The function panicked.
    Panicked(Arc<str>),
    /// The callee has no function of this name.
    NoSuchFunction,
    /// The request did not begin: a limit of the callee was reached.
    Rejected(Arc<str>),
    /// The answer is longer than the caller accepts. Its length travels as the frame's text, in decimal
    /// digits; `None` if the callee sent something else.
    AnswerTooLarge { bytes: Option<u64> },
    /// The request's budget was used up before the function could start.
    DeadlinePassed,
}

/// A frame. Payloads and names borrow from the bytes that it was decoded from.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Frame<'a> {
    Hello(Hello),
    Welcome(Welcome),
    Refuse(Refuse),
    /// A request or a response.
    Message {
        id: u64,
        /// The fields of a request: the time until the caller's deadline in milliseconds, 0 if it has none, and the
        /// function. `None` for a response.
        call: Option<(u32, &'a str)>,
        payload: Payload<'a>,
    },
    Part {
        is_response: bool,
        id: u64,
        payload: &'a [u8],
    },
    /// Texts are cut to [`ERROR_TEXT_BYTES_MAX`].
    Error {
        id: u64,
        failure: Failure,
    },
    Goodbye {
        reason: u16,
    },
}

/// The payload of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    Whole(&'a [u8]),
    /// The body follows in parts, with this number of bytes in all.
    InParts(u64),
}

impl Frame<'_> {
    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// If a payload or a function name is too long for a frame. Both are checked when a call is made.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => encode_hello(hello, out),
            Self::Welcome(welcome) => encode_welcome(*welcome, out),
            Self::Refuse(refuse) => encode_refuse(refuse, out),
            Self::Message { id, call, payload } => match payload {
                Payload::InParts(bytes) => encode_start(*id, *call, *bytes, out),
                Payload::Whole(payload) => {
                    encode_start(*id, *call, payload.len() as u64, out);
                    out.extend_from_slice(payload);
                }
            },
            Self::Part {
                is_response,
                id,
                payload,
            } => {
                Header::part(*is_response, *id, payload.len()).encode(out);
                out.extend_from_slice(payload);
            }
            Self::Error { id, failure } => encode_error(*id, failure, out),
            Self::Goodbye { reason } => header(Kind::Goodbye, 0, *reason, 0).encode(out),
        }
    }
}

/// Appends a request (`call`: its budget in milliseconds and its function) or a response, without its payload. A payload
/// of more than [`PART_BYTES`] follows in parts.
///
/// # Panics
/// If the name is too long for a frame.
pub(crate) fn encode_start(
    id: u64,
    call: Option<(u32, &str)>,
    payload_bytes: u64,
    out: &mut Vec<u8>,
) {
    let is_large = payload_bytes > PART_BYTES as u64;
    let follows = if is_large {
        TOTAL_BYTES
    } else {
        payload_bytes as usize
    };
    let (kind, head_bytes, name) = match call {
        Some((_, name)) => (Kind::Request, BUDGET_BYTES + name.len(), name),
        None => (Kind::Response, 0, ""),
    };
    let header = header(kind, head_bytes + follows, name_length(name), id);
    Header { is_large, ..header }.encode(out);
    if let Some((budget_ms, _)) = call {
        write_u32(out, budget_ms);
    }
    if is_large {
        write_u64(out, payload_bytes);
    }
    out.extend_from_slice(name.as_bytes());
}

/// Decodes the first frame of `bytes`, and returns it with its length; `None` if it is not complete. Only
/// for tests: a receiver decodes header and body apart, because parts are longer than its buffer.
///
/// # Errors
/// [`WireError`] for a frame that no sender of this version writes.
#[cfg(test)]
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, WireError> {
    let Some(header) = Header::decode(bytes)? else {
        return Ok(None);
    };
    let Some(body) = bytes.get(HEADER_BYTES..header.frame_bytes()) else {
        return Ok(None);
    };
    Ok(Some((decode_body(&header, body)?, header.frame_bytes())))
}

/// Decodes the frame of a header and its complete body.
///
/// # Errors
/// [`WireError`] if a frame of this kind cannot have this body.
pub(crate) fn decode_body<'a>(header: &Header, body: &'a [u8]) -> Result<Frame<'a>, WireError> {
    debug_assert_eq!(body.len(), header.body_bytes);
    let id = header.id;
    Ok(match header.kind {
        Kind::Hello => Frame::Hello(decode_hello(body)?),
        Kind::Welcome => Frame::Welcome(Welcome {
            incarnation: LittleEndian::read_u64(&body[..8]),
            links: LittleEndian::read_u32(&body[8..12]),
            message_bytes_max: LittleEndian::read_u64(&body[12..]),
        }),
        Kind::Refuse => Frame::Refuse(decode_refuse(body)?),
        Kind::Request | Kind::Response => {
            let (mut rest, mut call, mut payload) = (body, None, None);
            let mut budget_ms = 0;
            if header.kind == Kind::Request {
                budget_ms = LittleEndian::read_u32(rest);
                rest = &rest[BUDGET_BYTES..];
            }
            if header.is_large {
                payload = Some(Payload::InParts(decode_total(header.kind, rest)?));
                rest = &rest[TOTAL_BYTES..];
            }
            if header.kind == Kind::Request {
                let (function, after) = rest.split_at(usize::from(header.aux));
                call = Some((budget_ms, decode_function(function)?));
                rest = after;
            }
            let payload = payload.unwrap_or(Payload::Whole(rest));
            Frame::Message { id, call, payload }
        }
        Kind::Error => Frame::Error {
            id,
            failure: decode_error(header.aux, body)?,
        },
        Kind::RequestPart | Kind::ResponsePart => Frame::Part {
            is_response: header.kind == Kind::ResponsePart,
            id,
            payload: body,
        },
        Kind::Goodbye => Frame::Goodbye { reason: header.aux },
    })
}

/// How a peer violated the protocol. Its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WireError {
    /// The peer uses another protocol, or a later version.
    #[error("frame of unknown kind {byte}")]
    Kind { byte: u8 },
    #[error("{kind:?} frame with flags {flags:#04x}")]
    Flags { kind: Kind, flags: u8 },
    #[error("{kind:?} frame with a body of {bytes} bytes, not {bytes_min} to {bytes_max}")]
    BodyLength {
        kind: Kind,
        bytes: usize,
        bytes_min: usize,
        bytes_max: usize,
    },
    #[error("function name of {bytes} bytes, limit {FUNCTION_NAME_BYTES_MAX}")]
    FunctionNameLength { bytes: usize },
    #[error("function name is not UTF-8 at byte {valid_bytes}")]
    FunctionNameText { valid_bytes: usize },
    /// The peer uses another protocol.
    #[error("Hello frame without the protocol's magic bytes")]
    Magic,
    #[error("Hello frame of protocol version {version}, this worker has version {VERSION}")]
    Version { version: u16 },
    #[error("Hello frame with an invalid {field}")]
    HelloWorker { field: &'static str },
    #[error("Refuse frame with unknown reason {byte}")]
    RefuseReason { byte: u8 },
    #[error("Error frame with unknown error kind {number}")]
    ErrorKind { number: u16 },
    /// The payload is short enough for one frame.
    #[error("large {kind:?} frame for a payload of {bytes} bytes, not more than {PART_BYTES}")]
    NotLarge { kind: Kind, bytes: u64 },
    #[error("{kind:?} frame while waiting for {expected}")]
    Unexpected { kind: Kind, expected: &'static str },
    #[error("message of {bytes} bytes, limit {bytes_max}")]
    MessageLength { bytes: u64, bytes_max: u64 },
    #[error("{messages} large messages incomplete at a time, limit {messages_max}")]
    Assembling {
        messages: usize,
        messages_max: usize,
    },
    #[error("incomplete large messages of {bytes} bytes in total, limit {bytes_max}")]
    AssemblingBytes { bytes: u64, bytes_max: u64 },
    #[error("{kind:?} frame with call id {id}, whose large message is incomplete")]
    SameCall { kind: Kind, id: u64 },
    #[error("{kind:?} frame with call id {id}, which has no incomplete large message")]
    NoStart { kind: Kind, id: u64 },
    #[error("{kind:?} frame with {bytes} bytes, its message lacks only {missing_bytes}")]
    PartLength {
        kind: Kind,
        bytes: usize,
        missing_bytes: u64,
    },
}

const fn header(kind: Kind, body_bytes: usize, aux: u16, id: u64) -> Header {
    Header {
        kind,
        is_large: false,
        body_bytes,
        aux,
        id,
    }
}

fn name_length(function: &str) -> u16 {
    assert!(
        function.len() <= FUNCTION_NAME_BYTES_MAX,
        "a function's name has at most {FUNCTION_NAME_BYTES_MAX} bytes"
    );
    u16::try_from(function.len()).expect("the limit fits")
}

fn encode_hello(hello: &Hello, out: &mut Vec<u8>) {
    let name = hello.from.name.as_str();
    let name_bytes = u8::try_from(name.len()).expect("a worker's name has at most 127 bytes");
    header(Kind::Hello, HELLO_FIXED_BYTES + name.len(), 0, 0).encode(out);
    out.extend_from_slice(&MAGIC);
    write_u16(out, VERSION);
    write_u16(out, id_number(hello.from.id));
    write_u16(out, id_number(hello.to));
    write_u64(out, hello.incarnation);
    write_u64(out, hello.incarnation_wanted);
    write_u32(out, hello.links);
    write_u64(out, hello.message_bytes_max);
    out.push(name_bytes);
    out.extend_from_slice(name.as_bytes());
}

fn decode_hello(body: &[u8]) -> Result<Hello, WireError> {
    if body[..8] != MAGIC {
        return Err(WireError::Magic);
    }
    let version = LittleEndian::read_u16(&body[8..10]);
    if version != VERSION {
        return Err(WireError::Version { version });
    }
    let worker_id = |bytes: &[u8], field| {
        WorkerId::new(u32::from(LittleEndian::read_u16(bytes)))
            .map_err(|_| WireError::HelloWorker { field })
    };
    let id = worker_id(&body[10..12], "worker id")?;
    let to = worker_id(&body[12..14], "expected worker id")?;
    let (fixed, name) = body.split_at(HELLO_FIXED_BYTES);
    let announced = usize::from(fixed[HELLO_FIXED_BYTES - 1]);
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| name.len() == announced)
        .and_then(|name| WorkerName::new(name).ok())
        .ok_or(WireError::HelloWorker {
            field: "worker name",
        })?;
    Ok(Hello {
        from: WorkerInfo { id, name },
        to,
        incarnation: LittleEndian::read_u64(&body[14..22]),
        incarnation_wanted: LittleEndian::read_u64(&body[22..30]),
        links: LittleEndian::read_u32(&body[30..34]),
        message_bytes_max: LittleEndian::read_u64(&body[34..42]),
    })
}

fn encode_welcome(welcome: Welcome, out: &mut Vec<u8>) {
    header(Kind::Welcome, WELCOME_BYTES, 0, 0).encode(out);
    write_u64(out, welcome.incarnation);
    write_u32(out, welcome.links);
    write_u64(out, welcome.message_bytes_max);
}

fn encode_refuse(refuse: &Refuse, out: &mut Vec<u8>) {
    let text = cut(&refuse.text, HANDSHAKE_BODY_BYTES_MAX - REFUSE_FIXED_BYTES);
    header(Kind::Refuse, REFUSE_FIXED_BYTES + text.len(), 0, 0).encode(out);
    out.push(refuse.reason as u8);
    write_u32(out, refuse.links);
    out.extend_from_slice(text.as_bytes());
}

fn decode_refuse(body: &[u8]) -> Result<Refuse, WireError> {
    let reason = RefuseReason::ALL
        .into_iter()
        .find(|reason| *reason as u8 == body[0])
        .ok_or(WireError::RefuseReason { byte: body[0] })?;
    Ok(Refuse {
        reason,
        links: LittleEndian::read_u32(&body[1..REFUSE_FIXED_BYTES]),
        text: String::from_utf8_lossy(&body[REFUSE_FIXED_BYTES..]).into_owned(),
    })
}

fn encode_error(id: u64, failure: &Failure, out: &mut Vec<u8>) {
    let digits;
    let (number, text) = match failure {
        Failure::Handler(text) => (1, &**text),
        Failure::Panicked(text) => (2, &**text),
        Failure::NoSuchFunction => (3, ""),
        Failure::Rejected(text) => (4, &**text),
        Failure::AnswerTooLarge { bytes } => {
            digits = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
            (5, &*digits)
        }
        Failure::DeadlinePassed => (6, ""),
    };
    let text = cut(text, ERROR_TEXT_BYTES_MAX);
    header(Kind::Error, text.len(), number, id).encode(out);
    out.extend_from_slice(text.as_bytes());
}

fn decode_error(number: u16, body: &[u8]) -> Result<Failure, WireError> {
    let text = || String::from_utf8_lossy(body).into();
    Ok(match number {
        1 => Failure::Handler(text()),
        2 => Failure::Panicked(text()),
        3 => Failure::NoSuchFunction,
        4 => Failure::Rejected(text()),
        5 => {
            let digits = std::str::from_utf8(body).ok();
            let bytes = digits.and_then(|digits| digits.parse().ok());
            Failure::AnswerTooLarge { bytes }
        }
        6 => Failure::DeadlinePassed,
        _ => return Err(WireError::ErrorKind { number }),
    })
}

fn decode_function(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|error| WireError::FunctionNameText {
        valid_bytes: error.valid_up_to(),
    })
}

fn decode_total(kind: Kind, bytes: &[u8]) -> Result<u64, WireError> {
    let bytes = LittleEndian::read_u64(&bytes[..TOTAL_BYTES]);
    if bytes <= PART_BYTES as u64 {
        return Err(WireError::NotLarge { kind, bytes });
    }
    Ok(bytes)
}

fn id_number(id: WorkerId) -> u16 {
    u16::try_from(id.get()).expect("a worker id is at most i16::MAX")
}

/// Cuts `text` to at most `bytes_max` bytes, between two characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn write_u16(out: &mut Vec<u8>, value: u16) {
    out.write_u16::<LittleEndian>(value)
        .expect("writing to a Vec cannot fail");
}

fn write_u32(out: &mut Vec<u8>, value: u32) {
    out.write_u32::<LittleEndian>(value)
        .expect("writing to a Vec cannot fail");
}

fn write_u64(out: &mut Vec<u8>, value: u64) {
    out.write_u64::<LittleEndian>(value)
        .expect("writing to a Vec cannot fail");
}

const _: () = assert!(HELLO_FIXED_BYTES + WORKER_NAME_BYTES_MAX <= HANDSHAKE_BODY_BYTES_MAX);

#[cfg(test)]
pub(crate) mod tests;
