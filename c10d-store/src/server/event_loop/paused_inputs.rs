//! Long requests that wait in part, and the connection whose turn it is.

use std::collections::VecDeque;
use std::time::Instant;

use mio::Token;

/// Requests that have arrived in part while memory is scarce.
#[derive(Debug, Default)]
pub(super) struct PausedInputs {
    /// The connection that got a turn most recently.
    pub(super) turn: Option<Token>,
    /// Waiting connections and clients, each with the time at which it continues at the latest.
    pub(super) waiting: VecDeque<(Instant, Token)>,
}

impl PausedInputs {
    /// The time at which the first waiting request continues at the latest.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.front().map(|(at, _)| *at)
    }
}
