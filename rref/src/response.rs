//! The responses to requests for values and results: their bytes and meaning.
//!
//! The first byte is the kind. A packed value or an error text follows. Control messages have separate answers:
//! [`crate::protocol::Answer`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use c10d_socket::Deadline;
use rpc_agent::{Reply, WorkerId, WorkerInfo};

use crate::cell::Cell;
use crate::context::{Carrier, FetchError};
use crate::error::RRefError;
use crate::forks::Forks;
use crate::id::RRefId;
use crate::packing::{self, Packed};
use crate::runtime::Runtime;
use crate::value::Value;

const VALUE: u8 = 0;
const FUNCTION: u8 = 1;
const DELETED: u8 = 2;
const TIMED_OUT: u8 = 3;
const CREATION: u8 = 4;
const OPAQUE: u8 = 5;
const CODEC: u8 = 6;
const REFUSED: u8 = 7;

/// Why a response has no value.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The function's message.
    Function(String),
    Deleted,
    TimedOut,
    /// The message of the function that should have made the value.
    Creation(Arc<str>),
    /// The type of an opaque value.
    Opaque(String),
    Codec(String),
    Refused(String),
}

impl Failure {
    pub(crate) fn of_fetch(error: FetchError) -> Self {
        match error {
            FetchError::Deleted(_) => Self::Deleted,
            FetchError::TimedOut(_) => Self::TimedOut,
            FetchError::Failed(message) => Self::Creation(message),
            error => Self::Refused(error.to_string()),
        }
    }
}

/// A response that is ready to be sent. Dropping it undoes its forks.
pub(crate) struct Response {
    bytes: Vec<u8>,
    forks: Option<Forks>,
}

impl Response {
    /// A value, with the references in it forked for the worker `to`.
    pub(crate) fn value(runtime: &Arc<Runtime>, to: WorkerId, value: &Value) -> Self {
        let type_name = value.type_name();
        if value.is_opaque() {
            return Self::failure(&Failure::Opaque(type_name.to_owned()));
        }
        let mut bytes = vec![VALUE];
        let packed = packing::pack_with(runtime, to, None, &mut bytes, || {
            runtime.contain_panic(format_args!("the encoding of a `{type_name}`"), || {
                value.encode(runtime.agent.message_bytes_max())
            })?
        });
        match packed {
            Ok(forks) => Self {
                bytes,
                forks: Some(forks),
            },
            Err(error) => Self::failure(&Failure::Codec(error.to_string())),
        }
    }

    /// The response to a wait for a value: the value exists.
    pub(crate) fn ready() -> Self {
        Self {
            bytes: vec![VALUE, 0, 0, 0, 0],
            forks: None,
        }
    }

    pub(crate) fn failure(failure: &Failure) -> Self {
        let (kind, text) = match failure {
            Failure::Function(text) => (FUNCTION, &**text),
            Failure::Deleted => (DELETED, ""),
            Failure::TimedOut => (TIMED_OUT, ""),
            Failure::Creation(text) => (CREATION, &**text),
            Failure::Opaque(text) => (OPAQUE, &**text),
            Failure::Codec(text) => (CODEC, &**text),
            Failure::Refused(text) => (REFUSED, &**text),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(text.as_bytes());
        Self { bytes, forks: None }
    }

    /// Answers all copies of the request. Its sender takes the first answer.
    pub(crate) fn send(self, replies: Vec<Reply>) {
        if let Some(forks) = self.forks {
            forks.commit(Carrier::Answer);
        }
        let bytes = Bytes::from(self.bytes);
        for reply in replies {
            reply.send(Ok(bytes.clone()));
        }
    }
}

/// Whether a response reports that the value exists.
pub(crate) fn is_ready(response: &[u8]) -> bool {
    response.first() == Some(&VALUE)
}

/// The parts of a request that its error contains.
#[derive(Debug, Clone)]
pub(crate) struct RequestInfo {
    pub(crate) on: WorkerInfo,
    pub(crate) function: Arc<str>,
    /// The requested value, or the value that a method was to run on.
    pub(crate) rref: Option<RRefId>,
    /// Whether the request waits for the value, so that its timeout is the value's.
    pub(crate) waits_for_value: bool,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Deadline,
}

/// The encoded value of a response, and the references that arrived with it.
pub(crate) fn read<'a>(
    runtime: &Arc<Runtime>,
    info: &RequestInfo,
    response: &'a [u8],
) -> Result<(Vec<Arc<Cell>>, &'a [u8]), RRefError> {
    let Some((&kind, rest)) = response.split_first() else {
        return Err(RRefError::Codec("the response is empty".into()));
    };
    if kind == VALUE {
        let packed = Packed::parse(rest)?;
        // References of a response are used without waiting for their confirmation.
        let received = runtime.receive_forks(&packed.forks)?;
        return Ok((received.cells, packed.values));
    }
    let text: Arc<str> = String::from_utf8_lossy(rest).into();
    let none = "the response is about a reference, and none was requested";
    let rref = info.rref.ok_or_else(|| RRefError::Codec(none.into()));
    Err(match kind {
        FUNCTION => RRefError::Function {
            function: Arc::clone(&info.function),
            on: info.on.clone(),
            message: text,
        },
        DELETED => RRefError::Deleted { rref: rref? },
        TIMED_OUT => RRefError::TimedOut {
            rref: rref?,
            after: info.timeout,
        },
        CREATION => RRefError::Creation {
            rref: rref?,
            message: text,
        },
        OPAQUE => RRefError::Opaque { type_name: text },
        REFUSED => RRefError::Refused(text),
        _ => RRefError::Codec(text),
    })
}
