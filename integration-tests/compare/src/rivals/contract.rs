//! What every rival provides: a server that announces its address, and a client whose calls are echoed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::error::CompareError;
use crate::rival::Rival;

/// Longer than any call takes on a working machine.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Larger than any payload: the limit of the servers.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Reports the server's address to the process that started it.
pub(super) type Announce<'a> = &'a mut dyn FnMut(SocketAddr) -> io::Result<()>;

/// Calls over one connection, whose payloads the server echoes.
pub(crate) trait Client {
    /// Makes one call and returns its answer.
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, CompareError>;

    /// Makes calls one after another until `time` has passed, at least one, and returns their latencies.
    fn one_in_flight(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, CompareError>;

    /// Keeps `in_flight` calls in flight until `time` has passed, then waits for the outstanding answers, which
    /// count too.
    fn window(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<Throughput, CompareError>;
}

/// Calls answered, and the time from the first request to the last answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throughput {
    pub(crate) calls: u64,
    pub(crate) elapsed: Duration,
}

/// Checks every measured answer. The warm-up has compared the bytes.
pub(super) fn check_length(
    rival: Rival,
    payload: &[u8],
    answer: &[u8],
) -> Result<(), CompareError> {
    if answer.len() == payload.len() {
        return Ok(());
    }
    Err(CompareError::WrongAnswer {
        rival,
        detail: format!("{} bytes for {}", answer.len(), payload.len()),
    })
}
