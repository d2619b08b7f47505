//! Turns a failure of a connection into the error of a call.

use std::io;
use std::time::Duration;

use super::connection::{Failure, REFUSED_WRITE, with_reason};
use super::pool::{Ended, PoolError};
use crate::error::{ErrorContext, Operation, Outcome, StoreError};

pub(super) fn explain(
    error: PoolError,
    context: ErrorContext,
    timeout: Option<Duration>,
) -> StoreError {
    // An error that names a limit is from a call with a limit.
    let timeout = timeout.unwrap_or(Duration::MAX);
    let failure = match error {
        PoolError::Connect(source) if source.is_cancelled() => {
            return StoreError::interrupted(context, Outcome::NotSent);
        }
        PoolError::Connect(source) => {
            let source = source.with_limit(timeout);
            return StoreError::Connect { context, source };
        }
        PoolError::Ended(Ended::Closed) => return StoreError::Closed { context },
        PoolError::OtherProcess(source) => return StoreError::OtherProcess { context, source },
        PoolError::Ended(Ended::Lost { kind, text }) => {
            let source = io::Error::new(kind, format!("earlier: {text}"));
            return StoreError::ConnectionLost {
                context,
                outcome: Outcome::NotSent,
                source,
            };
        }
        PoolError::Interrupted => return StoreError::interrupted(context, Outcome::NotSent),
        PoolError::WaitEnded => return StoreError::WaitEnded { context },
        PoolError::TimedOut => return StoreError::Timeout { context, timeout },
        PoolError::Failure(failure) => failure,
    };
    match failure {
        // Part of it may have taken effect: PyTorch's server applies a request of several pairs pair by
        // pair.
        Failure::NotSent(source) if source.kind() == io::ErrorKind::TimedOut => {
            StoreError::NoReply { context, timeout }
        }
        Failure::NotSent(source) => StoreError::ConnectionLost {
            context,
            outcome: Outcome::NotSent,
            source,
        },
        Failure::Lost(source) => {
            let source = match hint(context.operation) {
                Some(hint) => with_reason(source, hint),
                None => source,
            };
            StoreError::ConnectionLost {
                context,
                outcome: Outcome::Unknown,
                source,
            }
        }
        Failure::NoReply => StoreError::NoReply { context, timeout },
        Failure::Interrupted => StoreError::interrupted(context, Outcome::Unknown),
        Failure::Protocol(detail) => StoreError::Protocol { context, detail },
        Failure::Refused { used, limit } => StoreError::MemoryFull {
            context,
            used,
            limit,
        },
    }
}

/// Other reasons for a server to close the connection: the protocol has no error replies.
const fn hint(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::Add => Some("a server also closes the connection if the value is not a number"),
        Operation::Barrier => Some(
            "a server also closes the connection if the value is not a number, and PyTorch's servers \
             before 2.10 do not support the operation",
        ),
        Operation::ListKeys => Some("PyTorch's servers before 2.10 do not support the operation"),
        Operation::QueuePush | Operation::QueuePop | Operation::QueueTake | Operation::QueueLen => {
            Some(
                "PyTorch's older server back end, use_libuv=False, and early releases have no queues",
            )
        }
        Operation::Get | Operation::MultiGet | Operation::WaitChange => Some(
            "PyTorch's older server back end also closes the connection if the key is deleted in the meantime",
        ),
        Operation::CompareSet => Some(REFUSED_WRITE),
        _ => None,
    }
}
