//! Decides what a node does next, as pure functions from the state to an action and its reason.
//!
//! One file for each table of `docs/rendezvous.md`, section 5, with the same row names in the same order.

mod amend;
mod close;
mod exit;
mod join;
mod keep_alive;
mod leave;

use std::time::Duration;

use crate::node::NodeId;
use crate::settings::RendezvousSettings;
use crate::state::RendezvousState;

pub(crate) use amend::amend;
pub(crate) use close::close;
pub(crate) use exit::exit;
pub(crate) use join::join;
pub(crate) use keep_alive::keep_alive;
pub(crate) use leave::leave;

/// The next action of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes a heartbeat.
    KeepAlive,
    AddToParticipants,
    AddToWaitList,
    AddToRedundancyList,
    RemoveFromParticipants,
    RemoveFromWaitList,
    /// Also restarts the join timeout.
    RemoveFromRedundancyList,
    MarkComplete,
    MarkClosed,
    /// Waits until the state changes or time has passed.
    Sync,
    /// The operation has succeeded.
    Finish,
    ErrorClosed,
    ErrorTimeout,
    /// The job ended while this node was a spare; not an error.
    GracefulExit,
}

/// An action, the table row that selected it, and the reason for log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) rule: &'static str,
    pub(crate) action: Action,
    pub(crate) reason: &'static str,
}

impl Decision {
    const fn new(rule: &'static str, action: Action, reason: &'static str) -> Self {
        Self {
            rule,
            action,
            reason,
        }
    }
}

/// Everything that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) state: &'a RendezvousState,
    pub(crate) me: &'a NodeId,
    pub(crate) settings: &'a RendezvousSettings,
    /// The current time on the monotonic clock.
    pub(crate) now: Duration,
    /// When the operation times out, on the same clock.
    pub(crate) deadline: Duration,
    /// Whether this node has a heartbeat that is at least one interval old.
    pub(crate) heartbeat_due: bool,
    /// Whether a last call began and is over.
    pub(crate) last_call_over: bool,
}

impl Context<'_> {
    fn is_participant(&self) -> bool {
        self.state.participants.contains_key(self.me)
    }

    fn is_waiting(&self) -> bool {
        self.state.wait_list.contains(self.me)
    }

    fn is_redundant(&self) -> bool {
        self.state.redundancy_list.contains(self.me)
    }

    /// Whether the ranks of the participants are 0, 1, ... without a gap.
    fn has_every_rank(&self) -> bool {
        let mut ranks: Vec<i64> = self.state.participants.values().copied().collect();
        ranks.sort_unstable();
        ranks
            .into_iter()
            .eq((0..).take(self.state.participants.len()))
    }
}

#[cfg(test)]
mod tests;
