//! What can go wrong with a reference.

use std::sync::Arc;
use std::time::Duration;

use rpc_agent::{RpcError, WorkerInfo};

use crate::context::{FetchError, ForkError, GiveError, ReceiveError, UserError};
use crate::id::RRefId;
use crate::leak::LeakReport;

/// Why something asked of a reference has no result. Cheap to clone.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RRefError {
    /// The function that should have made the value failed: every holder is told so.
    #[error("the value of the reference {rref} was not made: {message}")]
    Creation {
        /// The reference.
        rref: RRefId,
        /// In the function's words, or in those of the owner that did not run it.
        message: Arc<str>,
    },
    /// The owner did not answer in time, so whether there is a value is not known. The first sentence is
    /// PyTorch's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node \
         does not exist. ({rref}: {cause})"
    )]
    CreationTimedOut {
        /// The reference.
        rref: RRefId,
        /// What is known of it.
        cause: Arc<str>,
    },
    /// The owner is dead, and the value with it.
    #[error("{owner}, the owner of the reference {rref}, was lost")]
    OwnerLost {
        /// The owner.
        owner: WorkerInfo,
        /// The reference.
        rref: RRefId,
    },
    /// The value is gone.
    #[error("the value of the reference {rref} has been deleted")]
    Deleted {
        /// The reference.
        rref: RRefId,
    },
    /// The value was not there in time. Its making may go on.
    #[error("the value of the reference {rref} was not there after {} ms", after.as_millis())]
    TimedOut {
        /// The reference.
        rref: RRefId,
        /// How long was waited.
        after: Duration,
    },
    /// An operation of the owner was called on a user. The words are PyTorch's.
    #[error("For {rref}, can't call {operation}() on user {me}. Call it on owner {owner}")]
    NotOwner {
        /// The reference, as it is printed.
        rref: Arc<str>,
        /// Which operation, by PyTorch's name if it has one.
        operation: &'static str,
        /// This worker.
        me: WorkerInfo,
        /// Where it is.
        owner: WorkerInfo,
    },
    /// A value or an error is given once. The one that was refused is dropped.
    #[error("the reference {rref} takes no value: it has a value or an error already")]
    AlreadySet {
        /// The reference.
        rref: RRefId,
    },
    /// The function that was run on the value, or with the arguments, failed.
    #[error("`{function}` on {on} failed: {message}")]
    Function {
        /// Its name.
        function: Arc<str>,
        /// Where it ran.
        on: WorkerInfo,
        /// Its words.
        message: Arc<str>,
    },
    /// The value never leaves its owner, as its type has no encoding.
    #[error("a `{type_name}` never leaves its owner")]
    Opaque {
        /// Its type.
        type_name: Arc<str>,
    },
    /// A value or an argument cannot be encoded, or bytes are none of the expected type.
    #[error("{0}")]
    Codec(Arc<str>),
    /// A reference cannot be sent, or one that came is not accepted.
    #[error("{0}")]
    Refused(Arc<str>),
    /// The reference belongs to another agent of this process.
    #[error("the reference {rref} belongs to another agent")]
    Foreign {
        /// The reference.
        rref: RRefId,
    },
    /// There is no agent yet: see [`crate::RRefs::attach`].
    #[error("no agent has been attached")]
    NotAttached,
    /// References are not used any more after the shutdown, whether that went well or not, and after the end
    /// of the agent.
    #[error("the references of this worker were shut down")]
    Shutdown,
    /// The request itself failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for RRefError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl RRefError {
    /// Why a user is of no use.
    pub(crate) fn of_user(error: UserError, rref: RRefId, owner: &WorkerInfo) -> Self {
        match error {
            UserError::CreationFailed(message) => Self::Creation { rref, message },
            UserError::CreationUnknown(cause) => Self::CreationTimedOut { rref, cause },
            UserError::OwnerLost(_) => Self::OwnerLost {
                owner: owner.clone(),
                rref,
            },
            UserError::ShutDown => Self::Shutdown,
            error => Self::Refused(error.to_string().into()),
        }
    }

    /// Why a reference cannot be sent.
    pub(crate) fn of_fork(error: ForkError, rref: RRefId, owner: &WorkerInfo) -> Self {
        match error {
            ForkError::User(error) => Self::of_user(error, rref, owner),
            error => Self::Refused(error.to_string().into()),
        }
    }

    /// Why it takes no value.
    pub(crate) fn of_give(error: GiveError, rref: RRefId) -> Self {
        match error {
            GiveError::AlreadyGiven => Self::AlreadySet { rref },
            GiveError::MadeByFunction => Self::Refused(format!("{rref}: {error}").into()),
            GiveError::ShutDown => Self::Shutdown,
        }
    }

    /// Why this worker has no value of its own.
    pub(crate) fn of_own(error: FetchError, rref: RRefId) -> Self {
        match error {
            FetchError::Failed(message) => Self::Creation { rref, message },
            FetchError::Deleted(_) => Self::Deleted { rref },
            error => Self::Refused(error.to_string().into()),
        }
    }

    /// Why one that came is not accepted.
    pub(crate) fn of_receive(error: &ReceiveError) -> Self {
        match error {
            ReceiveError::Deleted(rref) => Self::Deleted { rref: *rref },
            ReceiveError::ShutDown => Self::Shutdown,
            error => Self::Refused(error.to_string().into()),
        }
    }
}

/// Why the references of a group did not end in order.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// There is no agent.
    #[error("no agent has been attached")]
    NotAttached,
    /// The agent is not the one that was attached. Nothing was ended.
    #[error("the references are {attached}'s, and the agent is another one, {given}")]
    OtherAgent {
        /// Whose references these are.
        attached: WorkerInfo,
        /// Which agent was to end them.
        given: WorkerInfo,
    },
    /// Another thread is at it. Nothing was ended by this one.
    #[error("another thread is ending the references of this worker")]
    InProgress,
    /// The workers of the group did not come together: one is dead, or has not called the shutdown. What could
    /// be freed has been.
    #[error(transparent)]
    Barrier(#[from] rpc_agent::TerminationError),
    /// Something was still missing when the time was over.
    #[error(
        "references are still in use after {} ms: {}",
        after.as_millis(),
        missing.join("; ")
    )]
    Missing {
        /// How long was waited.
        after: Duration,
        /// Who is missing, and what for.
        missing: Vec<String>,
        /// What was still held at the beginning of the shutdown.
        report: Box<LeakReport>,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for ShutdownError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
