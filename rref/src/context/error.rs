//! Why the context refuses an operation, or has no value.

use std::sync::Arc;

use rpc_agent::WorkerId;

use crate::id::{ForkId, RRefId};

/// Why a user is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UserError {
    /// The owner did not create the value.
    #[error("the creation of the reference's value failed: {0}")]
    CreationFailed(Arc<str>),
    /// No answer came. The first sentence is PyTorch's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node \
         does not exist.: {0}"
    )]
    CreationUnknown(Arc<str>),
    /// The owner refused the user: the value is gone, or there is too much of something.
    #[error("the owner refused the reference: {0}")]
    Refused(Arc<str>),
    /// The owner is dead.
    #[error("worker {0}, the owner of the reference, was lost")]
    OwnerLost(WorkerId),
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
    /// A worker cannot be asked to create for itself; see
    /// [`create_here`](crate::context::RRefContext::create_here).
    #[error("the value is to be created here")]
    OwnerIsHere,
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FetchError {
    /// Nobody referred to it any more.
    #[error("the value of the reference {0} has been deleted")]
    Deleted(RRefId),
    /// It is named as one of this worker's making, and none has this name.
    #[error("no reference was named {0} here")]
    UnknownId(RRefId),
    /// It was not there by the request's deadline.
    #[error("the value of the reference {0} was not there by the deadline")]
    TimedOut(RRefId),
    /// The function that should have made it failed, in its words.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The request comes from a process that was declared dead.
    #[error("worker {0} was given up as dead here")]
    PeerDead(WorkerId),
    /// Too many requests wait for values.
    #[error("{max} requests wait for values already")]
    TooMany {
        /// The limit.
        max: usize,
    },
}

/// Why a reference does not take a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SetValueError {
    /// It has a value or an error.
    #[error("the reference has a value or an error already")]
    AlreadySet,
    /// A function makes its value.
    #[error("the value of the reference is made by a function")]
    MadeByFunction,
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
}

/// Why a reference cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ForkError {
    /// The user is of no use.
    #[error(transparent)]
    User(#[from] UserError),
    /// The handle was given back. The words are PyTorch's.
    #[error("the reference has been deleted. Cannot call fork an UserRRef after deletion.")]
    Deleted,
}

/// Why a reference that came in a message is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ReceiveError {
    /// A message is decoded once, and not after its sender was told that it had not come.
    #[error("the fork {0} was received before, or given up by its sender")]
    ReceivedBefore(ForkId),
    /// It is not named by its parent, or as something of this worker's making that has no such name.
    #[error("the fork {0} was not named by whom it says")]
    UnknownId(ForkId),
    /// Its value is gone: the sender did not keep to the protocol, or was given up as dead.
    #[error("the value of the reference {0} has been deleted")]
    Deleted(RRefId),
    /// The owner is dead.
    #[error("worker {0}, the owner of the reference, was lost")]
    OwnerLost(WorkerId),
    /// The owner has it with another type.
    #[error("the reference {rref} is of type `{ours}`, and came as `{theirs}`")]
    TypeMismatch {
        /// The reference.
        rref: RRefId,
        /// The owner's type.
        ours: Arc<str>,
        /// The message's.
        theirs: Arc<str>,
    },
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
    /// There are too many references whose creation has not come.
    #[error("{max} references wait for their creation already")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// Too many messages about references have no answer yet.
    #[error("{max} messages about references have no answer yet")]
    TooManyMessages {
        /// The limit.
        max: usize,
    },
}
