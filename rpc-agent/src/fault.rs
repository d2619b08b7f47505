//! Faults for tests: messages that are not sent as they should be.

use std::fmt;
use std::time::Duration;

use crate::error::CallMessage;
use crate::worker::WorkerId;

/// What happens to a message instead of being sent once and at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is not sent, and its call fails with [`NotSent::Injected`](crate::NotSent::Injected). An answer is
    /// lost.
    Fail,
    /// The message is sent otherwise.
    Send {
        /// How often. A request that is lost (0) counts as sent.
        copies: u32,
        /// How much later; the sender does not wait.
        after: Duration,
        /// Whether the connection is closed then.
        cuts: bool,
    },
}

/// Decides which messages of an agent meet a fault, for tests: see
/// [`AgentOptions::with_faults`](crate::AgentOptions::with_faults).
pub trait FaultInjector: fmt::Debug + Send + Sync {
    /// The fault of a message that is about to be sent, if it is to have one. Asked once a send, so once an attempt.
    /// `function` is the one that is or was called. Must not block.
    fn decide(
        &self,
        message: CallMessage,
        function: &str,
        to: WorkerId,
        payload: &[u8],
    ) -> Option<Fault>;
}
