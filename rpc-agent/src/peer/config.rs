//! What all peers of an agent have in common.

use std::time::Duration;

use super::functions::Functions;
use crate::worker::WorkerInfo;

/// The limits and names that decisions about a peer depend on. Fixed when the agent starts.
#[derive(Debug)]
pub(crate) struct Config {
    /// This agent's own worker.
    pub(crate) me: WorkerInfo,
    /// The number of this process; never 0, which stands for "any" on the wire.
    pub(crate) incarnation: u64,
    /// The largest request or answer that this agent takes, in bytes.
    pub(crate) message_bytes_max: u64,
    /// With more unsent bytes than this a call fails, and requests of the peer are parked.
    pub(crate) backlog_bytes_max: u64,
    /// Requests of one peer that may wait for a thread.
    pub(crate) requests_queued_max: usize,
    /// How long attempts to connect go on, from the first one, before the waiting calls fail.
    pub(crate) connect_timeout: Duration,
    /// The functions that peers may call.
    pub(crate) functions: Functions,
}
