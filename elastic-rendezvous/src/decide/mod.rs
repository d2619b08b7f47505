//! What a node does next, as pure functions: state in, action and reason out.
//!
//! One file for each table of `docs/rendezvous.md`, its rows in its order; the names of the rows are
//! the names in the document. Nothing is changed here (`apply`), and no clock is read.

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

/// What a node does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes that this node lives.
    KeepAlive,
    AddToParticipants,
    AddToWaitList,
    AddToRedundancyList,
    RemoveFromParticipants,
    RemoveFromWaitList,
    /// And the time for joining starts anew.
    RemoveFromRedundancyList,
    MarkComplete,
    MarkClosed,
    /// Nothing, until the state changes or time has passed.
    Sync,
    /// The operation has reached its aim.
    Finish,
    ErrorClosed,
    ErrorTimeout,
    /// The job is over, and this node was a spare: not an error.
    GracefulExit,
}

/// An action, the row of the table that asks for it, and why, in words.
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

/// Everything that a decision may depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) state: &'a RendezvousState,
    pub(crate) me: &'a NodeId,
    pub(crate) settings: &'a RendezvousSettings,
    /// The time, and until when the operation should be over, on the monotonic clock.
    pub(crate) now: Duration,
    pub(crate) deadline: Duration,
    /// Whether this node has a heartbeat, and it is at least one interval old.
    pub(crate) heartbeat_due: bool,
    /// Whether a last call is on and its time is over.
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

    /// Whether the ranks of the participants are 0, 1 and so on without a gap.
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
