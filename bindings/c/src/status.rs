//! The result of every function, by family of failure.

use std::ffi::CStr;

use c10d::GroupError;
use c10d_store::StoreError;

macro_rules! statuses {
    ($($(#[$comment:meta])* $name:ident = $number:literal,)+) => {
        /// The result of a call. Values never change; later versions may add some.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(
            non_camel_case_types,
            reason = "the names of C, so that both sides can be searched"
        )]
        pub enum Status {
            $($(#[$comment])* $name = $number,)+
        }

        impl Status {
            /// The name of a number, for messages.
            pub(crate) const fn name(status: i32) -> &'static CStr {
                match status {
                    $($number => const { c_text(concat!(stringify!($name), "\0")) },)+
                    _ => c"unknown",
                }
            }
        }
    };
}

statuses! {
    /// The call succeeded.
    C10D_OK = 0,
    /// An argument is invalid: null, a host name that is not UTF-8, a negative time. The request was not sent.
    C10D_ERROR_INVALID_ARGUMENT = 1,
    /// The key, the element or the ranks did not appear in time. The handle stays usable, and the call can be
    /// repeated, except an arrival at a barrier, which stays counted.
    C10D_ERROR_TIMEOUT = 2,
    /// A `c10d_cancel` ended the call. The store stays usable.
    C10D_ERROR_INTERRUPTED = 3,
    /// This process closed the handle.
    C10D_ERROR_CLOSED = 4,
    /// The server could not be reached. The request was not sent.
    C10D_ERROR_CONNECT = 5,
    /// The connection was lost: `c10d_last_outcome` tells whether the request can have taken effect. The handle stays
    /// unusable.
    C10D_ERROR_CONNECTION_LOST = 6,
    /// The server did not answer in time: it is stopped, hangs or is cut off. The request can have taken effect.
    C10D_ERROR_NO_REPLY = 7,
    /// The peer does not speak TCPStore's protocol, or speaks another version of it.
    C10D_ERROR_PROTOCOL = 8,
    /// A key, a value or a list exceeds a limit. The request was not sent.
    C10D_ERROR_LIMIT = 9,
    /// The value is not a decimal number. Nothing changed.
    C10D_ERROR_NOT_A_NUMBER = 10,
    /// The store, or this build of the library, does not support the operation. Nothing changed.
    C10D_ERROR_UNSUPPORTED = 11,
    /// The server could not be started: the port is in use, or the machine does not have the address.
    C10D_ERROR_SERVER = 12,
    /// A secret cannot be used.
    C10D_ERROR_CREDENTIALS = 13,
    /// The file of a file store could not be read or written.
    C10D_ERROR_FILE = 14,
    /// The file of a file store contains something else.
    C10D_ERROR_CORRUPT_FILE = 15,
    /// Not all ranks joined or arrived in time: `c10d_last_missing_ranks` names the missing ranks if they are known.
    C10D_ERROR_MISSING_RANKS = 16,
    /// A launcher's environment variable is missing or is not a number.
    C10D_ERROR_ENVIRONMENT = 17,
    /// The ranks of a group do not agree: about the world size, a sub-group, or the length of a value.
    C10D_ERROR_MISMATCH = 18,
    /// An earlier call of the group failed, so that this rank may be out of step with the other ranks: join a group
    /// with a different name.
    C10D_ERROR_BROKEN = 19,
    /// Another process has this rank, or this process has joined a group of this name before.
    C10D_ERROR_TAKEN = 20,
    /// Another operation of the group is not complete: another thread carries it out, or it was abandoned after a
    /// failure that allows to repeat it.
    C10D_ERROR_OUT_OF_STEP = 21,
    /// A forked child used a handle of its parent. The handle is unharmed, and the request was not sent: open a new
    /// handle in the child.
    C10D_ERROR_FORKED = 22,
    /// The directory of a server is in use, damaged, of a newer version, or cannot be read or written.
    C10D_ERROR_JOURNAL = 23,
    /// Another client has ended the waits for names with a prefix, among them this one. The store stays usable.
    C10D_ERROR_WAIT_ENDED = 24,
    /// The server has reached its memory limit and has refused a write. Nothing changed, and the store stays usable.
    C10D_ERROR_MEMORY_FULL = 25,
    /// A failure that this version of the interface has no number for; see its text.
    C10D_ERROR_OTHER = 98,
    /// A bug of the library: it panicked. The handles of the call can still be freed.
    C10D_ERROR_PANIC = 99,
}

/// A text that a NUL byte ends, for C.
pub(crate) const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("one NUL byte, at the end"),
    }
}

impl Status {
    /// The family of a store's error.
    pub(crate) const fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Timeout { .. }
            | StoreError::BarrierTimeout { .. }
            | StoreError::QueueEmpty { .. } => Self::C10D_ERROR_TIMEOUT,
            StoreError::Interrupted { .. } => Self::C10D_ERROR_INTERRUPTED,
            StoreError::Closed { .. } => Self::C10D_ERROR_CLOSED,
            StoreError::Connect { .. } => Self::C10D_ERROR_CONNECT,
            StoreError::ConnectionLost { .. } => Self::C10D_ERROR_CONNECTION_LOST,
            StoreError::NoReply { .. } => Self::C10D_ERROR_NO_REPLY,
            StoreError::Protocol { .. } => Self::C10D_ERROR_PROTOCOL,
            StoreError::LimitExceeded { .. } => Self::C10D_ERROR_LIMIT,
            StoreError::InvalidArgument { .. } => Self::C10D_ERROR_INVALID_ARGUMENT,
            StoreError::NotANumber { .. } => Self::C10D_ERROR_NOT_A_NUMBER,
            StoreError::Unsupported { .. } => Self::C10D_ERROR_UNSUPPORTED,
            StoreError::Listen(_) | StoreError::Server { .. } => Self::C10D_ERROR_SERVER,
            StoreError::Credentials(_) => Self::C10D_ERROR_CREDENTIALS,
            StoreError::File { .. } => Self::C10D_ERROR_FILE,
            StoreError::CorruptFile { .. } => Self::C10D_ERROR_CORRUPT_FILE,
            StoreError::WorkersMissing { .. } => Self::C10D_ERROR_MISSING_RANKS,
            StoreError::Journal(_) => Self::C10D_ERROR_JOURNAL,
            StoreError::MemoryFull { .. } => Self::C10D_ERROR_MEMORY_FULL,
            StoreError::WaitEnded { .. } => Self::C10D_ERROR_WAIT_ENDED,
            StoreError::OtherProcess { .. } => Self::C10D_ERROR_FORKED,
            _ => Self::C10D_ERROR_OTHER,
        }
    }

    /// The family of a group's error.
    pub(crate) fn of_group(error: &GroupError) -> Self {
        match error {
            GroupError::Environment { .. } => Self::C10D_ERROR_ENVIRONMENT,
            GroupError::Missing { .. } => Self::C10D_ERROR_MISSING_RANKS,
            GroupError::Taken { .. } => Self::C10D_ERROR_TAKEN,
            GroupError::Mismatch { .. } => Self::C10D_ERROR_MISMATCH,
            GroupError::TooLarge { .. } => Self::C10D_ERROR_LIMIT,
            GroupError::InvalidArgument { .. } => Self::C10D_ERROR_INVALID_ARGUMENT,
            GroupError::OutOfStep { .. } => Self::C10D_ERROR_OUT_OF_STEP,
            GroupError::Broken { .. } => Self::C10D_ERROR_BROKEN,
            GroupError::Store { source, .. } => Self::of(source),
            _ => Self::C10D_ERROR_OTHER,
        }
    }
}

/// Whether a failed call can have taken effect.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    non_camel_case_types,
    reason = "the names of C, so that both sides can be searched"
)]
pub enum CallOutcome {
    /// The request was not sent, and the store is unchanged: a retry is safe.
    C10D_OUTCOME_NOT_SENT = 0,
    /// The request may have been carried out: a retry of `add`, say, may count twice.
    C10D_OUTCOME_UNKNOWN = 1,
}

impl CallOutcome {
    /// Whether the call that failed with this error can have taken effect.
    pub(crate) const fn of(error: &StoreError) -> Self {
        if error.has_unknown_outcome() {
            Self::C10D_OUTCOME_UNKNOWN
        } else {
            Self::C10D_OUTCOME_NOT_SENT
        }
    }
}
