//! What can go wrong with a store, and for whom.
//!
//! Every error names the operation, the key, the store and the time spent; an operation that may
//! have taken effect all the same is told apart from one that was never sent.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use c10d_socket::{ConnectError, ListenError};

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
    QueueLen,
    ListKeys,
    Barrier,
    Ping,
    Close,
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
            Self::QueueLen => "queue_len",
            Self::ListKeys => "list_keys",
            Self::Barrier => "barrier",
            Self::Ping => "ping",
            Self::Close => "close",
        })
    }
}

/// Which call failed, on what, where, and how long it had been going on.
///
/// Shown as `get "model/epoch" at TCP store 10.0.0.1:29500 after 1.250s`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorContext {
    /// The call.
    pub operation: Operation,
    /// The key or keys it was about, shortened for display; empty when it is about none.
    pub keys: String,
    /// Which store, with its address or path.
    pub store: String,
    /// How long the call had been going on.
    pub elapsed: Duration,
}

impl ErrorContext {
    /// Describes a call about any number of keys. Long keys and long lists are shortened.
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

    /// The same call, told as being about these keys only.
    #[must_use]
    pub fn with_keys<'a>(self, keys: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            keys: summarize_keys(keys),
            ..self
        }
    }

    /// The same place and time, told as another operation on another key: for an operation that is
    /// built from simpler ones.
    #[must_use]
    pub fn for_operation(self, operation: Operation, key: &str) -> Self {
        Self {
            operation,
            keys: summarize_keys([key]),
            ..self
        }
    }
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if !self.keys.is_empty() {
            write!(f, " {}", self.keys)?;
        }
        write!(
            f,
            " at {} after {:.3}s",
            self.store,
            self.elapsed.as_secs_f64()
        )
    }
}

/// Whether an operation that failed on the way can have taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing reached the store: repeating is safe.
    NotSent,
    /// The request may or may not have been carried out. Only the caller knows whether repeating
    /// is harmless (a `get` is, an `add` is not).
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

/// Why a store operation failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The keys did not appear (or nothing was pushed) in time. Nothing changed and the store
    /// stays usable: wait again, with a longer timeout, or find out who should have written them.
    #[error(
        "{context}: timed out (limit {:.3}s){}",
        timeout.as_secs_f64(),
        what_is_missing(context.operation)
    )]
    Timeout {
        /// The call.
        context: ErrorContext,
        /// The limit that was in force.
        timeout: Duration,
    },

    /// Not all workers arrived at the barrier in time. The arrival has been counted by the store,
    /// so a second try under the same key counts twice: use another key.
    #[error(
        "{context}: timed out (limit {:.3}s) with {} of {world_size} workers arrived, this one \
         included",
        timeout.as_secs_f64(),
        OrUnknown(*arrived)
    )]
    BarrierTimeout {
        /// The call.
        context: ErrorContext,
        /// The limit that was in force.
        timeout: Duration,
        /// How many workers the barrier waits for.
        world_size: usize,
        /// How many had arrived, repeated tries included; `None` when that could not be found out.
        arrived: Option<i64>,
    },

    /// The store's server could not be reached. Nothing was sent.
    #[error("{context}: {source}")]
    Connect {
        /// The call; a later call than the opening one connects when it needs a further connection.
        context: ErrorContext,
        /// What was tried.
        source: ConnectError,
    },

    /// The server could not listen.
    #[error(transparent)]
    Listen(#[from] ListenError),

    /// The server could not be started.
    #[error("cannot start the store's server: {source}")]
    Server {
        /// What the system said.
        source: io::Error,
    },

    /// The connection broke during the call, or had broken before it. The handle is of no further
    /// use: a server that comes back is a new, empty store.
    #[error("{context}: the connection to the server was lost ({source}); {outcome}")]
    ConnectionLost {
        /// The call.
        context: ErrorContext,
        /// Whether it can have taken effect.
        outcome: Outcome,
        /// What the system said.
        source: io::Error,
    },

    /// The server did not answer in time an operation that it answers at once: it is stopped, stuck
    /// or cut off. Later calls use a new connection.
    #[error(
        "{context}: no answer from the server (limit {:.3}s); whether it took effect is unknown",
        timeout.as_secs_f64()
    )]
    NoReply {
        /// The call.
        context: ErrorContext,
        /// The limit that was in force.
        timeout: Duration,
    },

    /// The peer's bytes are not the protocol: probably not a store's server, or another version.
    #[error("{context}: unexpected answer from the server: {detail}")]
    Protocol {
        /// The call.
        context: ErrorContext,
        /// What was received.
        detail: String,
    },

    /// A key, a value or a list of keys is longer than the store takes. Nothing was sent.
    #[error("{context}: {what} is {actual}, the limit is {limit}; nothing was sent")]
    LimitExceeded {
        /// The call.
        context: ErrorContext,
        /// What is too long: `key bytes`, `value bytes`, `keys in one request`.
        what: &'static str,
        /// Its length.
        actual: usize,
        /// The longest allowed.
        limit: usize,
    },

    /// The caller asked for something that has no meaning. Nothing was sent.
    #[error("{context}: {detail}")]
    InvalidArgument {
        /// The call.
        context: ErrorContext,
        /// What is wrong with it.
        detail: String,
    },

    /// The queue was not empty a moment ago, but another worker took its last element.
    #[error("{context}: queue is empty")]
    QueueEmpty {
        /// The call.
        context: ErrorContext,
    },

    /// `add` on a value that is not a decimal number. Nothing changed.
    #[error("{context}: the present value {value:?} is not a number; nothing changed")]
    NotANumber {
        /// The call.
        context: ErrorContext,
        /// The value, shortened.
        value: String,
    },

    /// This store, or the server's version, does not have the operation. Nothing changed.
    #[error("{context}: not supported by this store")]
    Unsupported {
        /// The call.
        context: ErrorContext,
    },

    /// Not all workers joined in time.
    #[error(
        "{context}: {joined} of {world_size} workers joined within {:.3}s",
        context.elapsed.as_secs_f64()
    )]
    WorkersMissing {
        /// The call.
        context: ErrorContext,
        /// How many joined.
        joined: i64,
        /// How many were expected.
        world_size: usize,
    },

    /// A file store's file could not be used.
    #[error("{context}: {source}")]
    File {
        /// The call.
        context: ErrorContext,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file store's file does not hold whole records. Nothing was changed.
    #[error("{context}: corrupt at byte {offset}: {detail}")]
    CorruptFile {
        /// The call.
        context: ErrorContext,
        /// The file.
        path: PathBuf,
        /// Where the bad record starts.
        offset: u64,
        /// What is wrong with it.
        detail: &'static str,
    },

    /// The handle was closed by this process.
    #[error("{context}: the store has been closed")]
    Closed {
        /// The call.
        context: ErrorContext,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StoreError {
    /// A wait that ran out of time. Only one that has a limit can.
    pub(crate) fn timeout(context: ErrorContext, timeout: Option<Duration>) -> Self {
        let timeout = timeout.unwrap_or(Duration::MAX);
        Self::Timeout { context, timeout }
    }

    /// Whether a wait ran out of time (as opposed to anything being broken).
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::BarrierTimeout { .. })
    }

    /// Whether the operation may have taken effect although it failed.
    #[must_use]
    pub const fn outcome_is_unknown(&self) -> bool {
        match self {
            Self::ConnectionLost { outcome, .. } => matches!(outcome, Outcome::Unknown),
            Self::NoReply { .. }
            | Self::Protocol { .. }
            | Self::BarrierTimeout { .. }
            | Self::File { .. }
            | Self::WorkersMissing { .. } => true,
            Self::Timeout { .. }
            | Self::Connect { .. }
            | Self::Listen(_)
            | Self::Server { .. }
            | Self::LimitExceeded { .. }
            | Self::InvalidArgument { .. }
            | Self::QueueEmpty { .. }
            | Self::NotANumber { .. }
            | Self::Unsupported { .. }
            | Self::CorruptFile { .. }
            | Self::Closed { .. } => false,
        }
    }
}

/// What a wait that timed out was for.
const fn what_is_missing(operation: Operation) -> &'static str {
    match operation {
        Operation::Get => ": the key is missing",
        Operation::Wait | Operation::MultiGet => ": not all keys exist",
        Operation::WaitChange => ": no new value",
        Operation::QueuePop => ": the queue is empty",
        _ => "",
    }
}

/// A number, or that it is not known.
struct OrUnknown(Option<i64>);

impl fmt::Display for OrUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number}"),
            None => f.write_str("an unknown number"),
        }
    }
}

/// Keys shown of a list, and characters shown of a key.
const KEYS_SHOWN_MAX: usize = 8;
const KEY_CHARS_SHOWN_MAX: usize = 80;

fn summarize_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> String {
    let mut keys = keys.into_iter();
    let mut summary = String::new();
    for key in keys.by_ref().take(KEYS_SHOWN_MAX) {
        if !summary.is_empty() {
            summary.push_str(", ");
        }
        if key.chars().nth(KEY_CHARS_SHOWN_MAX).is_some() {
            let head: String = key.chars().take(KEY_CHARS_SHOWN_MAX).collect();
            summary.push_str(&format!("{head:?}... ({} bytes)", key.len()));
        } else {
            summary.push_str(&format!("{key:?}"));
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

    /// What a `main` that returns the error prints.
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
            "get \"epoch\" at TCP store node0:29500 after 1.250s: timed out (limit 1.000s): the key is \
             missing"
        );
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
