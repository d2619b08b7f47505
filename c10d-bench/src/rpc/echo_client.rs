//! A client whose server sends back what it gets: over the agents, or over a bare connection.

use std::time::Duration;

use bytes::Bytes;

use super::error::RpcBenchError;
use crate::numbers::PayloadBytes;

/// An agent's default limits allow a few of these in flight.
pub(super) const PAYLOAD_BYTES_MAX: usize = PayloadBytes::MAX.0;

/// A client of an echo server.
pub(super) trait EchoClient {
    /// One round trip.
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, RpcBenchError>;

    /// Makes round trips one after the other for `time`, at least one; returns their times. Checks only the
    /// length of answers.
    fn one_at_a_time(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, RpcBenchError>;

    /// Keeps `in_flight` payloads in flight for `time`, then waits for the remaining answers; returns the
    /// number of answers.
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
