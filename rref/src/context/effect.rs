//! What the context asks of the shell that drives it, and how the shell reports back.

use std::sync::Arc;

use bytes::Bytes;
use rpc_agent::WorkerId;

use super::error::{FetchError, UserError};
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, Message};

/// Names a request that waits for its answer. Drawn by the shell; unique among those that are open.
pub(crate) type RequestToken = u64;

/// Which of the context's own messages it is, in the report of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Control {
    /// The creation of a value, by the creator's user.
    Create(ForkId),
    /// A child's registration.
    ForkRequest(ForkId),
    /// The release of a child's parent.
    ChildAccept(ForkId),
    /// The end of a creation whose outcome is unknown.
    Abandon(ForkId),
    /// The question whether a child has arrived.
    Probe(ForkId),
    /// The question whether the owner knows a child.
    Query(ForkId),
    /// Deletions; one such message to an owner is under way at a time.
    Deletes {
        /// The owner.
        owner: WorkerId,
        /// Counts the batches of this context.
        batch: u64,
    },
}

/// What the shell does, outside of its lock and in this order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Effect<V> {
    /// Send, with retries (each message may run twice at its receiver), and report the end once by
    /// [`control_finished`](crate::context::RRefContext::control_finished).
    Send {
        /// To whom; another worker.
        to: WorkerId,
        /// For the report.
        control: Control,
        /// What.
        message: Message,
    },
    /// Answer a request.
    Reply {
        /// Which.
        token: RequestToken,
        /// With what.
        answer: Answer,
    },
    /// Run a function, then report its result by
    /// [`function_finished`](crate::context::RRefContext::function_finished). Asked once for a reference.
    RunFunction {
        /// The reference that gets the result.
        rref: RRefId,
        /// Who asked.
        from: WorkerId,
        /// Which function.
        function: Arc<str>,
        /// Its arguments, encoded.
        arguments: Bytes,
    },
    /// Answer a request for a value.
    AnswerFetch {
        /// Which.
        token: RequestToken,
        /// The value.
        result: Result<V, FetchError>,
    },
    /// The owner knows this user.
    Confirmed {
        /// Which.
        fork: ForkId,
    },
    /// This user is of no use. After [`UserError::CreationUnknown`] it may still be confirmed.
    Failed {
        /// Which.
        fork: ForkId,
        /// Why.
        error: UserError,
    },
    /// Drop a value: nobody refers to it.
    Free(V),
}

impl<V: std::fmt::Debug> std::fmt::Debug for Effect<V> {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Send {
                to,
                control,
                message,
            } => f
                .debug_struct("Send")
                .field("to", to)
                .field("control", control)
                .field("message", message)
                .finish(),
            Self::Reply { token, answer } => f
                .debug_struct("Reply")
                .field("token", token)
                .field("answer", answer)
                .finish(),
            Self::RunFunction {
                rref,
                from,
                function,
                arguments,
            } => f
                .debug_struct("RunFunction")
                .field("rref", rref)
                .field("from", from)
                .field("function", function)
                .field("arguments_bytes", &arguments.len())
                .finish(),
            Self::AnswerFetch { token, result } => f
                .debug_struct("AnswerFetch")
                .field("token", token)
                .field("result", result)
                .finish(),
            Self::Confirmed { fork } => f.debug_struct("Confirmed").field("fork", fork).finish(),
            Self::Failed { fork, error } => f
                .debug_struct("Failed")
                .field("fork", fork)
                .field("error", error)
                .finish(),
            Self::Free(it) => f.debug_tuple("Free").field(it).finish(),
        }
    }
}

/// How a message that was sent with retries has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The peer answered.
    Answered {
        /// The incarnation of who answered.
        incarnation: u64,
        /// What.
        answer: Answer,
    },
    /// It is certain that no attempt has arrived.
    NotDelivered(Arc<str>),
    /// The peer answered with an error.
    Refused(Arc<str>),
    /// No attempt was answered; each may have arrived.
    Unknown(Arc<str>),
}

/// What a reference travels in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Carrier {
    /// A call, of which the sender learns how it ends. While it goes on its references are not asked for: it
    /// may wait for a thread of its receiver for long.
    Call,
    /// An answer, of which nobody says whether it has arrived.
    Answer,
}

/// What a program holds: all clones of an `RRef` together hold one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Handle {
    /// Of a value of this worker.
    Owner(RRefId),
    /// Of a value of another worker.
    User(ForkId),
}

/// A reference that came in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// To be given back by [`RRefContext::drop_handle`].
    pub(crate) handle: Handle,
    /// Whether the owner knows it; if not, [`Effect::Confirmed`] or [`Effect::Failed`] comes.
    pub(crate) is_confirmed: bool,
}

/// How far a user is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UserStatus {
    /// The owner has not answered.
    Pending,
    /// The owner knows it.
    Confirmed,
    /// It is of no use.
    Failed(UserError),
}
