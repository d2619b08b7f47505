//! The requests of a client as received, for relays.

use std::convert::Infallible;

use crate::limits::WireLimits;
use crate::request_parser::{Flow, ParseError, RequestParser};
use crate::wire::{Frame, Opcode, WireError};

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
) -> impl FnMut(&Frame<'_>) -> Result<Flow, Infallible> {
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
