//! Errors of the stores.
//!
//! Every error names the operation, the key, the store and the elapsed time, and distinguishes an unsent request from
//! a request whose outcome is unknown.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use c10d_socket::{ConnectError, CredentialsError, ListenError, OtherProcess, printable};

#[cfg(feature = "extensions")]
use crate::journal::JournalError;
use crate::key::key_to_bytes;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the method of the same name")]
pub enum Operation {
    Open,
    Set,
    Get,
    Add,
    CompareSet,
    Check,
    Wait,
    WaitChange,
    DeleteKey,
    NumKeys,
    Append,
    MultiGet,
    MultiSet,
    QueuePush,
    QueuePop,
    QueueTake,
    QueueLen,
    ListKeys,
    Barrier,
    Ping,
    Close,
    Announce,
    SetEphemeral,
    KeepAlive,
    DeletePrefix,
    EndWaits,
    Membership,
}

impl Operation {
    /// The operation of a write of this many pairs.
    pub(crate) const fn set_of(pairs: usize) -> Self {
        if pairs == 1 {
            Self::Set
        } else {
            Self::MultiSet
        }
    }

    /// The operation of a read of this many keys.
    pub(crate) const fn get_of(keys: usize) -> Self {
        if keys == 1 { Self::Get } else { Self::MultiGet }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Set => "set",
            Self::Get => "get",
            Self::Add => "add",
            Self::CompareSet => "compare_set",
            Self::Check => "check",
            Self::Wait => "wait",
            Self::WaitChange => "wait_change",
            Self::DeleteKey => "delete_key",
            Self::NumKeys => "num_keys",
            Self::Append => "append",
            Self::MultiGet => "multi_get",
            Self::MultiSet => "multi_set",
            Self::QueuePush => "queue_push",
            Self::QueuePop => "queue_pop",
            Self::QueueTake => "queue_take",
            Self::QueueLen => "queue_len",
            Self::ListKeys => "list_keys",
            Self::Barrier => "barrier",
            Self::Ping => "ping",
            Self::Close => "close",
            Self::Announce => "announce",
            Self::SetEphemeral => "set_ephemeral",
            Self::KeepAlive => "keep_alive",
            Self::DeletePrefix => "delete_prefix",
            Self::EndWaits => "end_waits",
            Self::Membership => "membership",
        })
    }
}

/// The operation, key, store and elapsed time of a failed call.
///
/// `Display` shows `get "model/epoch" at TCP store 10.0.0.1:29500 after 1.250s`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorContext {
    /// The failed operation.
    pub operation: Operation,
    /// The keys of the operation, shortened for display; empty without keys.
    pub keys: String,
    /// The store, with its address or path.
    pub store: String,
    /// The time from the start of the call to the failure.
    pub elapsed: Duration,
}

impl ErrorContext {
    /// Creates the description of a call with any number of keys. Long keys and long lists are shortened.
    pub fn new<'a>(
        operation: Operation,
        keys: impl IntoIterator<Item = &'a str>,
        store: impl Into<String>,
        elapsed: Duration,
    ) -> Self {
        Self {
            operation,
            keys: summarize_keys(keys),
            store: store.into(),
            elapsed,
        }
    }

    /// Returns the operation, the keys and the store, without the time.
    pub(crate) fn call(&self) -> String {
        let Self {
            operation,
            keys,
            store,
            ..
        } = self;
        match (operation, keys.as_str()) {
            (Operation::Open, "") => format!("cannot open {store}"),
            (_, "") => format!("{operation} at {store}"),
            _ => format!("{operation} {keys} at {store}"),
        }
    }

    /// Returns the description of the same call with other keys.
    #[must_use]
    pub fn with_keys<'a>(self, keys: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            keys: summarize_keys(keys),
            ..self
        }
    }

    /// Describes the same store and time with another operation and key, for an operation that is built from simpler
    /// operations.
    #[must_use]
    pub(crate) fn for_operation(self, operation: Operation, key: &str) -> Self {
        Self {
            operation,
            keys: summarize_keys([key]),
            ..self
        }
    }
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = self.elapsed.as_secs_f64();
        write!(f, "{} after {elapsed:.3}s", self.call())
    }
}

/// Whether a failed operation can have taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request was not sent, or was taken back: a retry is safe.
    NotSent,
    /// The request may have been carried out. The caller decides whether a retry is safe (a `get` is,
    /// an `add` is not).
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "the request was not sent",
            Self::Unknown => "whether it took effect is unknown",
        })
    }
}

/// How a detail begins that describes the peer in a sentence, instead of its reply.
const PEER: &str = "the peer ";

/// The error of a failed store operation.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The keys did not appear, or nothing was pushed, in time. Nothing changed, and the store stays
    /// usable: wait again with a longer timeout, or find out which worker should have written them.
    #[error(
        "{} timed out after {:.3}s{}",
        context.call(),
        timeout.as_secs_f64(),
        what_is_missing(context.operation)
    )]
    Timeout {
        /// The failed call.
        context: ErrorContext,
        /// The time limit of the call.
        timeout: Duration,
    },

    /// Some workers did not arrive at the barrier in time. This arrival stays counted, so a retry with the same key
    /// counts twice: use another key.
    #[error(
        "{} timed out after {:.3}s: {} of {world_size} workers arrived, including this one",
        context.call(),
        timeout.as_secs_f64(),
        OrUnknown(*arrived)
    )]
    BarrierTimeout {
        /// The failed call.
        context: ErrorContext,
        /// The time limit of the call.
        timeout: Duration,
        /// The number of workers that the barrier waits for.
        world_size: usize,
        /// The number of arrivals, including retries; `None` if the store did not report it.
        arrived: Option<i64>,
    },

    /// Another client, or this process, has ended the wait with [`end_waits`](crate::Store::end_waits). Nothing changed,
    /// except that an arrival at a barrier stays counted. The store stays usable.
    #[error("{context}: the wait was ended by end_waits, perhaps of another process")]
    WaitEnded {
        /// The failed call.
        context: ErrorContext,
    },

    /// The store's server could not be reached. The call sent nothing.
    #[error("{}{source}", if context.operation == Operation::Open { String::new() } else { format!("{context}: ") })]
    Connect {
        /// The failed call: opening the store, or a call that needed another connection.
        context: ErrorContext,
        /// The failed attempts.
        source: ConnectError,
    },

    /// The server could not listen.
    #[error(transparent)]
    Listen(#[from] ListenError),

    /// The server could not be started.
    #[error("cannot start the store's server: {source}")]
    Server {
        /// The system's error.
        source: io::Error,
    },

    /// The journal of a server cannot be read.
    #[cfg(feature = "extensions")]
    #[error(transparent)]
    Journal(#[from] JournalError),

    /// The credentials of a server or a client cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),

    /// The connection was lost, during the call or earlier. The handle stays unusable, since a server that restarts is a new, empty
    /// store, unless it [reconnects](crate::TcpStoreOptions::with_reconnect).
    #[error("{context}: the connection to the server was lost ({source}); {outcome}")]
    ConnectionLost {
        /// The failed call.
        context: ErrorContext,
        /// Whether the call can have taken effect.
        outcome: Outcome,
        /// The system's error.
        source: io::Error,
    },

    /// The server did not answer a request that it answers at once: it is stopped, hangs, or is cut
    /// off. Later calls use a new connection.
    #[error(
        "{}: no answer from the server within {:.3}s; whether it took effect is unknown",
        context.call(),
        timeout.as_secs_f64()
    )]
    NoReply {
        /// The failed call.
        context: ErrorContext,
        /// The time limit of the call.
        timeout: Duration,
    },

    /// The peer does not speak the TCPStore protocol, or speaks another version of it.
    #[error("{context}: {}{detail}", if detail.starts_with(PEER) { "" } else { "unexpected reply from the server: " })]
    Protocol {
        /// The failed call.
        context: ErrorContext,
        /// The received bytes, in words.
        detail: String,
    },

    /// A key, a value or a list of keys exceeds a limit of the store. The call sent nothing.
    #[error("{context}: {what} is {actual}, the limit is {limit}; nothing was sent")]
    LimitExceeded {
        /// The failed call.
        context: ErrorContext,
        /// The limited quantity: `key bytes`, `value bytes`, `keys in one request`, `request bytes`.
        what: &'static str,
        /// The actual number.
        actual: usize,
        /// The most that is allowed.
        limit: usize,
    },

    /// The server has no memory for the write, or for the wait. Nothing changed, and the store stays usable for reads and
    /// deletes, and for writes once keys were deleted.
    #[error(
        "{context}: the store's data takes {used} bytes and may take {limit} (memory limit of the server); nothing changed. \
         Delete keys or raise the limit"
    )]
    MemoryFull {
        /// The failed call.
        context: ErrorContext,
        /// The size of the store's data, in bytes.
        used: u64,
        /// The limit on it, in bytes.
        limit: u64,
    },

    /// An argument is invalid. The call sent nothing.
    #[error("{context}: {detail}")]
    InvalidArgument {
        /// The failed call.
        context: ErrorContext,
        /// The problem with the argument.
        detail: String,
    },

    /// Another worker took the last element of the queue before this call could.
    #[error("{}: the queue is empty", context.call())]
    QueueEmpty {
        /// The failed call.
        context: ErrorContext,
    },

    /// The value for `add` or `barrier` is not a decimal number. It was not changed.
    #[error("{context}: the value \"{value}\" is not a number; nothing changed")]
    NotANumber {
        /// The failed call.
        context: ErrorContext,
        /// The value, shortened and [printable](c10d_socket::printable).
        value: String,
    },

    /// The store does not support the operation. Nothing changed.
    #[error(
        "{}: not supported by this store{}",
        context.call(),
        what_is_needed(context.operation)
    )]
    Unsupported {
        /// The failed call.
        context: ErrorContext,
    },

    /// Some workers did not join in time.
    #[error(
        "{}: {joined} of {world_size} workers joined within {:.3}s",
        context.call(),
        context.elapsed.as_secs_f64()
    )]
    WorkersMissing {
        /// The failed call.
        context: ErrorContext,
        /// The number of workers that joined.
        joined: i64,
        /// The expected number of workers.
        world_size: usize,
    },

    /// Reading or writing the file of a file store failed.
    #[error("{context}: {source}")]
    File {
        /// The failed call.
        context: ErrorContext,
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// The file of a file store contains other data than records. The call did not change it.
    #[error("{context}: corrupt at byte {offset}: {detail}")]
    CorruptFile {
        /// The failed call.
        context: ErrorContext,
        /// The path of the file.
        path: PathBuf,
        /// The byte offset of the first bad record.
        offset: u64,
        /// The problem with the file.
        detail: &'static str,
    },

    /// This process interrupted the call: see [`StoreHandle::with_cancel`](crate::StoreHandle::with_cancel). The
    /// store stays usable. After a wait nothing changed, except that an arrival at a barrier stays counted.
    #[error(
        "{context}: interrupted by this process{}",
        if *outcome == Outcome::Unknown { "; whether it took effect is unknown" } else { "" }
    )]
    Interrupted {
        /// The failed call.
        context: ErrorContext,
        /// Whether the operation may have taken effect.
        outcome: Outcome,
    },

    /// This process closed the handle.
    #[error("{context}: the store has been closed")]
    Closed {
        /// The failed call.
        context: ErrorContext,
    },

    /// A forked child used a store of its parent. This has no effect on the parent's store. The child must open
    /// another store.
    #[error("{context}: {source}")]
    OtherProcess {
        /// The failed call.
        context: ErrorContext,
        /// The two processes.
        source: OtherProcess,
    },
}

c10d_socket::debug_as_display!(StoreError);

impl StoreError {
    /// [`Timeout`](Self::Timeout) of a call, which has a time limit since it timed out.
    pub(crate) fn timeout(context: ErrorContext, timeout: Option<Duration>) -> Self {
        let timeout = timeout.unwrap_or(Duration::MAX);
        Self::Timeout { context, timeout }
    }

    /// [`Interrupted`](Self::Interrupted), where the arrival at a barrier counts as sent.
    pub(crate) fn interrupted(context: ErrorContext, outcome: Outcome) -> Self {
        let outcome = match context.operation {
            Operation::Barrier => Outcome::Unknown,
            _ => outcome,
        };
        Self::Interrupted { context, outcome }
    }

    /// Returns whether a wait timed out, and the store is still usable.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::BarrierTimeout { .. })
    }

    /// Returns whether the failed operation may have taken effect.
    #[must_use]
    pub const fn has_unknown_outcome(&self) -> bool {
        match self {
            Self::ConnectionLost { outcome, .. } | Self::Interrupted { outcome, .. } => {
                matches!(outcome, Outcome::Unknown)
            }
            Self::NoReply { .. }
            | Self::Protocol { .. }
            | Self::BarrierTimeout { .. }
            | Self::File { .. }
            | Self::WorkersMissing { .. } => true,
            Self::Timeout { .. }
            | Self::WaitEnded { .. }
            | Self::Connect { .. }
            | Self::Listen(_)
            | Self::Server { .. }
            | Self::Credentials(_)
            | Self::LimitExceeded { .. }
            | Self::MemoryFull { .. }
            | Self::InvalidArgument { .. }
            | Self::QueueEmpty { .. }
            | Self::NotANumber { .. }
            | Self::Unsupported { .. }
            | Self::CorruptFile { .. }
            | Self::Closed { .. }
            | Self::OtherProcess { .. } => false,
            #[cfg(feature = "extensions")]
            Self::Journal(_) => false,
        }
    }
}

/// The reason of a timeout.
const fn what_is_missing(operation: Operation) -> &'static str {
    match operation {
        Operation::Get => ": the key does not exist",
        Operation::Wait | Operation::MultiGet => ": not all keys exist",
        Operation::WaitChange => ": no new value",
        Operation::QueuePop | Operation::QueueTake => ": the queue is empty",
        _ => "",
    }
}

/// The capability that a server of this crate has for an operation, and PyTorch's has not.
const fn what_is_needed(operation: Operation) -> &'static str {
    match operation {
        Operation::SetEphemeral | Operation::KeepAlive => {
            ", only by a TCP store whose server has the capability EPHEMERAL: one of c10d"
        }
        Operation::DeletePrefix => {
            ", only by a TCP store whose server has the capability DELETE_PREFIX: one of c10d"
        }
        Operation::Membership => {
            ", only by a TCP store whose server has the capability MEMBERSHIP: one of c10d"
        }
        Operation::EndWaits => {
            ", only by a TCP store whose server has the capability END_WAITS: one of c10d"
        }
        _ => "",
    }
}

struct OrUnknown(Option<i64>);

impl fmt::Display for OrUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number}"),
            None => f.write_str("an unknown number"),
        }
    }
}

/// The most keys shown of a list, and characters shown of a key.
const KEYS_SHOWN_MAX: usize = 8;
const KEY_CHARS_SHOWN_MAX: usize = 80;

fn summarize_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> String {
    let mut keys = keys.into_iter();
    let mut summary = String::new();
    for key in keys.by_ref().take(KEYS_SHOWN_MAX) {
        if !summary.is_empty() {
            summary.push_str(", ");
        }
        let key = key_to_bytes(key);
        summary.push_str(&format!("\"{}\"", printable(&key, KEY_CHARS_SHOWN_MAX)));
        if key.len() > KEY_CHARS_SHOWN_MAX {
            summary.push_str(&format!(" ({} bytes)", key.len()));
        }
    }
    let more = keys.count();
    if more > 0 {
        summary.push_str(&format!(" and {more} more"));
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_is_the_text() {
        let context = ErrorContext::new(
            Operation::Get,
            ["epoch"],
            "TCP store node0:29500",
            Duration::from_millis(1250),
        );
        let timeout = Duration::from_secs(1);
        let error = StoreError::Timeout { context, timeout };
        assert_eq!(
            format!("{error:?}"),
            "get \"epoch\" at TCP store node0:29500 timed out after 1.000s: the key does not exist"
        );
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
