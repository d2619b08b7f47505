//! One peer's bytes, turned into requests.
//!
//! Knows the handshake and where requests end; knows neither the socket nor what a request means.
//! Whatever way the bytes are cut, the same requests come out.

use crate::limits::WireLimits;
use crate::message::Request;
use crate::stored_value::Value;
use crate::wire::{FrameScan, Progress, VALIDATION_MAGIC, WireError, WireErrorKind};

/// From this many missing bytes on, the next read goes straight into the unfinished request.
const DIRECT_READ_BYTES_MIN: usize = 32 << 10;

/// Memory reserved for an unfinished request is at most this, plus [`GROWTH`] times what has
/// arrived of it: an announced length reserves nothing by itself.
const RESERVE_BYTES_MIN: usize = 64 << 10;
const GROWTH: usize = 7;

/// The room that an emptied buffer keeps.
const CAPACITY_KEPT_MAX: usize = 256;

/// Where the shell should put the next bytes of this peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextRead {
    /// Into any buffer; hand them to [`Session::receive`].
    Anywhere,
    /// Up to so many bytes onto the end of [`Session::direct_buffer`], which has room for them;
    /// then call [`Session::resume`].
    Direct { bytes_max: usize },
}

/// Whether to go on with the requests that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// The peer has enough replies to read: what has arrived besides is kept for
    /// [`Session::resume`].
    Pause,
}

/// Why a session ends: the peer's bytes are wrong, or the handler refused a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionError<E> {
    Wire(WireError),
    Refused(E),
}

impl<E> From<WireError> for SessionError<E> {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// The receiving side of one connection. Empty and without an allocation between requests.
#[derive(Debug, Default)]
pub(crate) struct Session {
    greeted: bool,
    /// The start of an unfinished request (or, after a pause, whole ones too).
    partial: Vec<u8>,
    /// How far `partial` has been scanned.
    scan: FrameScan,
    /// Bytes that `partial` needs at least before there is anything to do.
    needed: usize,
}

impl Session {
    /// Whether the peer has said hello.
    pub(crate) const fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// How to read next; reserves the room for a direct read.
    pub(crate) fn next_read(&mut self) -> NextRead {
        let have = self.partial.len();
        let missing = self.needed.saturating_sub(have);
        if have == 0 || missing < DIRECT_READ_BYTES_MIN {
            return NextRead::Anywhere;
        }
        if self.partial.capacity() - have < DIRECT_READ_BYTES_MIN.min(missing) {
            let more = missing.min(RESERVE_BYTES_MIN.max(GROWTH * have));
            self.partial.reserve_exact(more);
        }
        let room = self.partial.capacity() - have;
        NextRead::Direct {
            bytes_max: room.min(missing),
        }
    }

    /// Where a direct read appends its bytes.
    pub(crate) const fn direct_buffer(&mut self) -> &mut Vec<u8> {
        &mut self.partial
    }

    /// Takes bytes that were read into a buffer of the shell.
    pub(crate) fn receive<E>(
        &mut self,
        bytes: &[u8],
        limits: &WireLimits,
        handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, SessionError<E>> {
        if self.partial.is_empty() {
            let (used, flow) = self.run(bytes, limits, handle)?;
            self.partial.extend_from_slice(&bytes[used..]);
            return Ok(flow);
        }
        self.partial.extend_from_slice(bytes);
        self.run_partial(limits, handle)
    }

    /// Goes on after a pause, or after bytes were read onto the end of
    /// [`direct_buffer`](Self::direct_buffer).
    pub(crate) fn resume<E>(
        &mut self,
        limits: &WireLimits,
        handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, SessionError<E>> {
        self.run_partial(limits, handle)
    }

    fn run_partial<E>(
        &mut self,
        limits: &WireLimits,
        mut handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, SessionError<E>> {
        if self.partial.len() < self.needed {
            return Ok(Flow::Continue);
        }
        let mut bytes = std::mem::take(&mut self.partial);
        if self.greeted && self.scan.advance(&bytes, limits)? == Progress::Complete(bytes.len()) {
            if let Some(start) = self.scan.frame(&bytes).long_value_start() {
                let head = bytes[..start].to_vec();
                let value = Value::from_tail(bytes, start);
                let scan = std::mem::take(&mut self.scan);
                self.needed = 0;
                return match scan.request_with_value(&head, value) {
                    Some(request) => handle(request).map_err(SessionError::Refused),
                    None => unreachable!("only commands that end with a value have a long one"),
                };
            }
        }
        let (used, flow) = self.run(&bytes, limits, handle)?;
        bytes.drain(..used);
        if !bytes.is_empty() || bytes.capacity() <= CAPACITY_KEPT_MAX {
            self.partial = bytes;
        }
        Ok(flow)
    }

    /// Hands out the whole requests in `bytes`, which start where the scan's request starts.
    /// Returns how many bytes they took.
    fn run<E>(
        &mut self,
        bytes: &[u8],
        limits: &WireLimits,
        mut handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<(usize, Flow), SessionError<E>> {
        let mut used = 0;
        self.needed = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            if !self.greeted && rest[0] != 0 {
                return Err(refuse(WireErrorKind::NotGreeted(rest[0])).into());
            }
            match self.scan.advance(rest, limits)? {
                Progress::NeedAtLeast(needed) => {
                    self.needed = needed;
                    break;
                }
                Progress::Complete(length) => {
                    let request = self.scan.frame(rest).request();
                    self.scan.reset();
                    used += length;
                    if let Request::Validate { magic } = request {
                        self.greet(magic)?;
                    } else if handle(request).map_err(SessionError::Refused)? == Flow::Pause {
                        return Ok((used, Flow::Pause));
                    }
                }
            }
        }
        Ok((used, Flow::Continue))
    }

    /// docs/wire.md, section 3: VALIDATE is legal once, as the first command.
    fn greet(&mut self, magic: u32) -> Result<(), WireError> {
        if self.greeted {
            return Err(refuse(WireErrorKind::SecondValidate));
        }
        if magic != VALIDATION_MAGIC {
            return Err(refuse(WireErrorKind::WrongMagic(magic)));
        }
        self.greeted = true;
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
