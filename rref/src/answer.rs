//! The answer to a request for a value or for a function's result: its bytes, and what they mean.
//!
//! The first byte is the kind. A value follows as it is packed, a failure's text as UTF-8. Control messages
//! have answers of their own: [`crate::protocol::Answer`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rpc_agent::{Reply, WorkerId, WorkerInfo};

use crate::carry::{self, Forks, Packed};
use crate::context::Carrier;
use crate::context::FetchError;
use crate::error::RRefError;
use crate::handle::Cell;
use crate::id::RRefId;
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

/// Why there is no value to send.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The function's words.
    Function(String),
    Deleted,
    TimedOut,
    /// The words of the function that should have made the value.
    Creation(Arc<str>),
    /// The type of a value that has no encoding.
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

/// An answer that is ready to be sent. Dropped without, the forks in it are undone.
pub(crate) struct Answered {
    bytes: Vec<u8>,
    forks: Option<Forks>,
}

impl Answered {
    /// A value, with the references in it forked for the worker `to`.
    pub(crate) fn value(runtime: &Arc<Runtime>, to: WorkerId, value: &Value) -> Self {
        let type_name = value.type_name();
        if value.is_opaque() {
            return Self::failure(&Failure::Opaque(type_name.to_owned()));
        }
        let mut bytes = vec![VALUE];
        let what = format!("the encoding of a `{type_name}`");
        let packed = carry::pack_with(runtime, to, None, &mut bytes, || {
            runtime.contained(&what, || value.encode())?
        });
        match packed {
            Ok(forks) => Self {
                bytes,
                forks: Some(forks),
            },
            Err(error) => Self::failure(&Failure::Codec(error.to_string())),
        }
    }

    /// What was waited for is there.
    pub(crate) fn nothing() -> Self {
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

    /// Answers all copies of the request; its sender takes the first one.
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

/// What was asked, for the error.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) on: WorkerInfo,
    pub(crate) function: Arc<str>,
    /// The value that was asked for, or on which the function was to run.
    pub(crate) rref: Option<RRefId>,
    /// Whether it is the value itself that is asked for, or its being there.
    pub(crate) is_for_value: bool,
    pub(crate) timeout: Duration,
}

/// The value's bytes in an answer, with the references that came with it.
pub(crate) fn read<'a>(
    runtime: &Arc<Runtime>,
    question: &Question,
    answer: &'a [u8],
) -> Result<(Vec<Arc<Cell>>, &'a [u8]), RRefError> {
    let Some((&kind, rest)) = answer.split_first() else {
        return Err(RRefError::Codec("the answer is empty".into()));
    };
    if kind == VALUE {
        let packed = Packed::parse(rest)?;
        // Those that came in an answer are used without waiting for their confirmation.
        let received = runtime.receive_forks(&packed.forks)?;
        return Ok((received.cells, packed.values));
    }
    let text: Arc<str> = String::from_utf8_lossy(rest).into();
    let none = "no reference was asked for";
    let rref = question.rref.ok_or_else(|| RRefError::Codec(none.into()));
    Err(match kind {
        FUNCTION => RRefError::Function {
            function: Arc::clone(&question.function),
            on: question.on.clone(),
            message: text,
        },
        DELETED => RRefError::Deleted { rref: rref? },
        TIMED_OUT => RRefError::TimedOut {
            rref: rref?,
            after: question.timeout,
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
