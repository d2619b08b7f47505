//! A client whose server sends back what it gets: over the agents, or over a bare connection.

use std::time::Duration;

use bytes::Bytes;

use super::error::RpcBenchError;

/// A few of these can be under way within what an agent lets wait by default.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Two sides, one of which sends back what the other one sends.
pub(super) trait EchoClient {
    /// One round trip.
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, RpcBenchError>;

    /// Round trips one after the other until `time` is up, at least one; how long each took. Of an answer
    /// only the length is looked at.
    fn one_at_a_time(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, RpcBenchError>;

    /// Keeps `in_flight` payloads under way until `time` is up, then lets the last answers come in; how
    /// many were answered.
    fn many_at_a_time(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<u64, RpcBenchError>;
}

/// The length stands for the whole answer while the clock runs; the warm-up compares each byte.
pub(super) fn check_length(payload: &Bytes, answer_bytes: usize) -> Result<(), RpcBenchError> {
    if answer_bytes == payload.len() {
        return Ok(());
    }
    Err(RpcBenchError::WrongAnswer {
        bytes: payload.len(),
    })
}
