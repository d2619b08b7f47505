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

/// The receiving side of one connection: two words between requests, as a server has thousands of
/// them that are idle.
#[derive(Debug, Default)]
pub(crate) struct Session {
    greeted: bool,
    partial: Option<Box<Partial>>,
}

/// The start of an unfinished request (or, after a pause, whole ones too).
#[derive(Default)]
struct Partial {
    bytes: Vec<u8>,
    /// How far the bytes have been scanned.
    scan: FrameScan,
    /// Bytes needed at least before there is anything to do.
    needed: usize,
}

impl std::fmt::Debug for Partial {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partial")
            .field("bytes", &self.bytes.len())
            .field("needed", &self.needed)
            .finish_non_exhaustive()
    }
}

/// How far a run over some bytes came.
struct Run {
    used: usize,
    flow: Flow,
    /// How far the request after the used bytes has been scanned, and what it needs.
    scan: FrameScan,
    needed: usize,
}

impl Session {
    /// Whether the peer has said hello.
    pub(crate) const fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// How to read next; reserves the room for a direct read.
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

    /// Where a direct read appends its bytes.
    pub(crate) fn direct_buffer(&mut self) -> &mut Vec<u8> {
        &mut self.partial.get_or_insert_default().bytes
    }

    /// Takes bytes that were read into a buffer of the shell.
    pub(crate) fn receive<E>(
        &mut self,
        bytes: &[u8],
        limits: &WireLimits,
        handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, SessionError<E>> {
        if let Some(partial) = &mut self.partial {
            partial.bytes.extend_from_slice(bytes);
            return self.resume(limits, handle);
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

    /// Goes on after a pause, or after bytes were read onto the end of
    /// [`direct_buffer`](Self::direct_buffer).
    pub(crate) fn resume<E>(
        &mut self,
        limits: &WireLimits,
        mut handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Flow, SessionError<E>> {
        let Some(partial) = &mut self.partial else {
            return Ok(Flow::Continue);
        };
        if partial.bytes.len() < partial.needed {
            return Ok(Flow::Continue);
        }
        let Partial {
            mut bytes,
            mut scan,
            ..
        } = std::mem::take(&mut **partial);
        if self.greeted
            && scan.advance(&bytes, limits)? == Progress::Complete(bytes.len())
            && let Some(start) = scan.frame(&bytes).long_value_start()
        {
            self.partial = None;
            let head = bytes[..start].to_vec();
            let value = Value::from_tail(bytes, start);
            return match scan.request_with_value(&head, value) {
                Some(request) => handle(request).map_err(SessionError::Refused),
                None => unreachable!("only commands that end with a value have a long one"),
            };
        }
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

    /// Hands out the whole requests in `bytes`, the first of which has been scanned as far as `scan`
    /// says.
    fn run<E>(
        &mut self,
        mut scan: FrameScan,
        bytes: &[u8],
        limits: &WireLimits,
        mut handle: impl FnMut(Request<'_>) -> Result<Flow, E>,
    ) -> Result<Run, SessionError<E>> {
        let mut used = 0;
        let mut needed = 0;
        let mut flow = Flow::Continue;
        while used < bytes.len() && flow == Flow::Continue {
            let rest = &bytes[used..];
            if !self.greeted && rest[0] != 0 {
                return Err(refuse(WireErrorKind::NotGreeted(rest[0])).into());
            }
            match scan.advance(rest, limits)? {
                Progress::NeedAtLeast(bytes_min) => {
                    needed = bytes_min;
                    break;
                }
                Progress::Complete(length) => {
                    let request = scan.frame(rest).request();
                    scan.reset();
                    used += length;
                    if let Request::Validate { magic } = request {
                        self.greet(magic)?;
                    } else {
                        flow = handle(request).map_err(SessionError::Refused)?;
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
