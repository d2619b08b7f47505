//! A client whose server sends back what it gets: over the agents, or over a bare connection.

use std::time::Duration;

use bytes::Bytes;

use crate::failure::Failure;
use crate::numbers::PayloadBytes;

/// An agent's default limits allow a few of these in flight.
pub(super) const PAYLOAD_BYTES_MAX: usize = PayloadBytes::MAX.0;

/// A client of an echo server.
pub(super) trait EchoClient {
    /// One round trip.
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, Failure>;

    /// Makes round trips one after the other for `time`, at least one; returns their times. Checks only the
    /// length of answers.
    fn one_at_a_time(&mut self, payload: &Bytes, time: Duration) -> Result<Vec<Duration>, Failure>;
}

/// A figure for wrong answers would be worthless.
pub(super) fn wrong_answer(payload: &Bytes) -> Failure {
    let bytes = payload.len();
    Failure::new(format!(
        "the answer differs from the {bytes} bytes that were sent"
    ))
}

/// The length stands for the whole answer while the clock runs; the warm-up compares each byte.
pub(crate) fn check_length(payload: &Bytes, answer_bytes: usize) -> Result<(), Failure> {
    if answer_bytes == payload.len() {
        return Ok(());
    }
    Err(wrong_answer(payload))
}
