//! The states of a group, each with what exists in it only.

use std::sync::Arc;
use std::time::Duration;

use crate::event::{Cause, EndReason};
use crate::identity::Attempt;
use crate::record::Record;

/// The state of a group. Times are of the clock that its inputs are given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupState {
    /// The group has not made an attempt.
    #[non_exhaustive]
    Forming {
        /// When `size_min` members suffice, or the group closes; `None` until the first member arrives.
        deadline: Option<Duration>,
    },
    /// The previous generation or attempt is over, and no attempt is under way: members are too few, or wait for
    /// replacements.
    #[non_exhaustive]
    Breaking {
        /// The first cause of the break.
        cause: Cause,
        /// From this time on, `size_min` members continue without replacements.
        propose_at: Duration,
        /// The time when fewer than `size_min` members end the group.
        end_at: Duration,
    },
    /// The members leave their old mesh.
    #[non_exhaustive]
    Proposed {
        /// The attempt for which they send that they are ready.
        attempt: Attempt,
        /// The cause of the attempt.
        cause: Cause,
        /// How many of the members that were present when it was proposed are not ready.
        missing: usize,
        /// The time when these members are evicted.
        deadline: Duration,
    },
    /// The members are in torch's call.
    #[non_exhaustive]
    Calling {
        /// The list of the attempt.
        record: Arc<Record>,
        /// How many have not acknowledged.
        missing: usize,
        /// The time when these members are evicted.
        deadline: Duration,
    },
    /// A generation works.
    #[non_exhaustive]
    Committed {
        /// The list of the generation.
        record: Arc<Record>,
        /// The newest step boundary that was passed.
        passed: Passed,
        /// How many of its members have not done their last step.
        working: usize,
        /// The time when the first member has stopped: at a boundary for the change, or after its last step.
        stopped_at: Option<Duration>,
        /// The next attempt, for which members leave at a step boundary.
        change: Option<Change>,
        /// The time when the members of a restarted service that have not sent anything are evicted.
        return_by: Option<Duration>,
    },
    /// The group has ended; this state is final.
    Ended(EndReason),
}

/// The newest step boundary that a member of the generation has passed. The other members must pass it as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Passed {
    /// The generation has just begun.
    Nothing,
    /// The one after this step.
    Step(u64),
    /// The service was restarted and has lost the step: the next requested boundary is passed.
    Unknown,
}

impl Passed {
    /// The first step at whose boundary members can stop.
    pub(super) fn first_stop(self) -> Option<u64> {
        match self {
            Self::Nothing => Some(0),
            Self::Step(step) => Some(step.saturating_add(1)),
            Self::Unknown => None,
        }
    }
}

/// A change at a step boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Change {
    /// The attempt for which members send that they are ready.
    pub attempt: Attempt,
    /// The step at whose boundary all members stop; `None` until a restarted service has learned it.
    pub step: Option<u64>,
    /// The number of members that were present when the change was proposed, and are not ready.
    pub missing: usize,
    /// Whether a member has stopped, so that the other members must stop as well.
    pub is_binding: bool,
    /// The time when the change is withdrawn, or the generation broken if the change is binding.
    pub deadline: Duration,
}

impl Change {
    /// A member has stopped. If it is the first, its generation has until `deadline`.
    pub(super) fn bind(&mut self, deadline: Duration) {
        if !std::mem::replace(&mut self.is_binding, true) {
            self.deadline = deadline;
        }
    }
}
