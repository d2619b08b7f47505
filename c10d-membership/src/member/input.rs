//! The inputs and actions of a member.

use std::sync::Arc;
use std::time::Duration;

use crate::message::{EndReason, Limit, Message, Reason, Reply};
use crate::record::Record;

/// The waits of a [`Member`](crate::Member).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MemberOptions {
    /// The time, after an exception in a step, that the member waits for the service to report that the generation is
    /// broken. Without a report, the exception is considered the program's own. Default 5 s: longer than a launcher
    /// takes to notice the exit of a process. If the service can detect a loss only by silence, for example behind a
    /// relay, this must be longer than that silence. If another server can take over, it must also be longer than
    /// [`RETURN_TIMEOUT_MAX`](crate::RETURN_TIMEOUT_MAX).
    pub verdict_timeout: Duration,
}

impl Default for MemberOptions {
    fn default() -> Self {
        Self {
            verdict_timeout: Duration::from_secs(5),
        }
    }
}

/// An event that a member handles, from its process or from the service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemberInput {
    /// The process wants to take part.
    Join {
        /// The handle of the process in torch's list.
        handle: Arc<str>,
        /// The number of steps that the process has done.
        step: u64,
    },
    /// The service has answered this message.
    Reply(Message, Reply),
    /// Answers [`Action::LeaveMesh`]: no call of the process uses the old mesh any more, torch's own included.
    Left {
        /// Torch's handle now.
        handle: Arc<str>,
        /// The number of steps that the process has done.
        step: u64,
    },
    /// Answers [`Action::Call`]: torch's call has returned.
    Called {
        /// Whether it succeeded.
        is_ok: bool,
    },
    /// The process has done this many steps, and asks whether to continue. Answered by [`Action::Proceed`] or
    /// [`Action::LeaveMesh`].
    Boundary(u64),
    /// A step raised an exception. Answered by [`Action::LeaveMesh`] if the generation is broken, otherwise by
    /// [`Action::StepError`].
    StepFailed,
    /// The process works on until the next boundary, and leaves there.
    Leave,
    /// The process has done its last step of this generation. The group finishes when all members have done theirs. A
    /// loss before that makes the process leave its mesh.
    Finish,
    /// The service answers again, after a request had no answer for longer than usual: its server was lost, or the way to it.
    ServiceReturned,
    /// Time has passed: due at [`Member::wake_at`](crate::Member::wake_at).
    Tick,
}

/// An action for the shell of a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Send this to the service. After a lost connection, send [`Member::owed`](crate::Member::owed) again.
    Send(Message),
    /// Have the process leave the mesh, then input [`MemberInput::Left`].
    LeaveMesh {
        /// Whether the process is at a step boundary and the mesh is whole; otherwise it may be blocked in a call,
        /// and has to be freed.
        is_at_boundary: bool,
    },
    /// Call torch's `_reconfigure` with this uuid and list.
    Call {
        /// The list of the attempt.
        record: Arc<Record>,
        /// The time when the service abandons the attempt, by its clock.
        deadline: Duration,
    },
    /// The generation may be used.
    Enter {
        /// The list of the generation.
        record: Arc<Record>,
        /// This member's rank in it.
        rank: usize,
    },
    /// Begin the next step.
    Proceed,
    /// The exception is the program's own.
    StepError,
    /// The process is no longer a member. This is the last action.
    Over(Ending),
}

/// The reason why a process is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// The service has removed it, at its own wish or not.
    Evicted(Reason),
    /// The group has ended.
    Ended(EndReason),
    /// The service has no room for it.
    Refused(Limit),
}
