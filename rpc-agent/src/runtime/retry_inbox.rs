//! Messages to the retry thread.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};

use super::peers::PeerEntry;
use crate::error::{CallSite, RpcError};
use crate::future::{Job, Promise};
use crate::retry::Retried;
use crate::sync::Lock;

/// The way to the retry thread.
pub(super) struct Inbox {
    /// `None` once the agent ends. Earlier inputs are still received.
    pub(super) sender: Lock<Option<Sender<Input>>>,
    /// `None` once the thread has it.
    pub(super) receiver: Lock<Option<Receiver<Input>>>,
}

/// A message to the retry thread.
pub(super) enum Input {
    /// A job that does not block, and runs no code of the program.
    Job { at: Instant, job: Job },
    /// An attempt of this call has failed.
    Failed { call: Box<Call>, error: RpcError },
    /// A group has abandoned a worker.
    Abandoned,
}

pub(super) type Call = Retried<Attempts>;

/// Makes the attempts of one call.
pub(super) struct Attempts {
    pub(super) peer: Arc<PeerEntry>,
    pub(super) function: Arc<str>,
    pub(super) payload: Bytes,
    pub(super) promise: Promise<Bytes>,
}

impl Attempts {
    pub(super) fn site(&self) -> Box<CallSite> {
        CallSite::of(&self.peer.info, Arc::clone(&self.function))
    }
}

impl Default for Inbox {
    fn default() -> Self {
        let (sender, receiver) = unbounded();
        Self {
            sender: Lock::new(Some(sender)),
            receiver: Lock::new(Some(receiver)),
        }
    }
}

impl Inbox {
    /// Wakes the thread. Returns the input once the agent ends.
    pub(super) fn send(&self, input: Input) -> Result<(), Input> {
        let sender = self.sender.lock();
        match &*sender {
            Some(sender) => sender.send(input).map_err(|failed| failed.0),
            None => Err(input),
        }
    }
}
