//! Why the context refuses an operation, or has no value.

use std::sync::Arc;

use rpc_agent::WorkerId;

use crate::id::{ForkId, RRefId};

/// Why a user cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UserError {
    /// The owner did not create the value.
    #[error("the value of the reference was not created: {0}")]
    CreationFailed(Arc<str>),
    /// The creation was not answered. The first sentence is PyTorch's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node \
         does not exist.: {0}"
    )]
    CreationUnknown(Arc<str>),
    /// The owner refused the registration: the value was freed, or a limit is reached.
    #[error("the owner refused the reference: {0}")]
    Refused(Arc<str>),
    /// The owner is dead.
    #[error("worker {0}, the owner of the reference, has died")]
    OwnerLost(WorkerId),
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
    /// A value of this worker is created by
    /// [`create_here`](crate::context::RRefContext::create_here).
    #[error("worker asked to create a value for itself")]
    OwnerIsHere,
}

/// Why a value does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FetchError {
    /// The value was freed.
    #[error("the value of reference {0} has been deleted")]
    Deleted(RRefId),
    /// The id has not been assigned by this worker yet.
    #[error("no reference has the id {0}")]
    UnknownId(RRefId),
    /// The value did not exist by the request's deadline.
    #[error("reference {0} had no value by the deadline")]
    TimedOut(RRefId),
    /// The function that should have made it failed with this message.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The request comes from a process that was declared dead.
    #[error("worker {0} was declared dead here; only a new process of it is accepted")]
    PeerDead(WorkerId),
    /// Too many requests wait for values.
    #[error("the limit of {max} requests that wait for values is reached")]
    TooMany {
        /// The most waiting requests.
        max: usize,
    },
}

/// Why a value cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SetValueError {
    /// The reference already has a value or an error.
    #[error("the reference already has a value or an error")]
    AlreadySet,
    /// A function makes its value.
    #[error("cannot set the value of the reference: a function makes it")]
    MadeByFunction,
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
}

/// Why a reference cannot be forked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ForkError {
    /// The user cannot be used.
    #[error(transparent)]
    User(#[from] UserError),
    /// The handle was dropped. The text is PyTorch's.
    #[error("the reference has been deleted. Cannot call fork an UserRRef after deletion.")]
    Deleted,
}

/// Why a received reference is refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ReceiveError {
    /// The reference was received before, or was denied to a probe of its sender.
    #[error("fork {0} was received before, or abandoned by its sender")]
    ReceivedBefore(ForkId),
    /// The id was not assigned by its parent, or has not been assigned by this worker yet.
    #[error("fork {0} was not named by the worker in its id")]
    UnknownId(ForkId),
    /// The value was freed: the sender broke the protocol or was declared dead.
    #[error("the value of reference {0} has been deleted")]
    Deleted(RRefId),
    /// The owner is dead.
    #[error("worker {0}, the owner of the reference, has died")]
    OwnerLost(WorkerId),
    /// The owner has it with another type.
    #[error("reference {rref} is of type `{ours}`, but was received as `{theirs}`")]
    TypeMismatch {
        /// The id of the reference.
        rref: RRefId,
        /// The owner's type.
        ours: Arc<str>,
        /// The type in the message.
        theirs: Arc<str>,
    },
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
    /// Too many references were named here before their creation.
    #[error("the limit of {max} references that wait for their creation is reached")]
    TooMany {
        /// The limit that was exceeded.
        max: usize,
    },
    /// Too many messages about references have no answer yet.
    #[error("the limit of {max} unanswered messages about references is reached")]
    TooManyMessages {
        /// The limit that was exceeded.
        max: usize,
    },
}
