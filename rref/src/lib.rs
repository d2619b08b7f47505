#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod call;
mod cell;
mod codec;
mod context;
mod control;
mod drops;
mod error;
mod forks;
mod functions;
mod future;
mod handle;
mod id;
mod liveness;
mod names;
mod options;
mod packing;
mod pending;
mod places;
mod protocol;
mod report;
mod request;
mod response;
mod rrefs;
mod runtime;
mod serving;
mod shutdown;
mod sync;
mod value;

pub use call::RRefCall;
pub use context::{HeldValue, Holder, MissingKind, TableSizes, ValueState};
pub use error::{Missing, RRefError, RegisterError, ShutdownError};
pub use functions::{CallContext, FUNCTION_NAME_BYTES_MAX, FunctionError, Functions};
pub use future::RRefFuture;
pub use handle::RRef;
pub use id::{ForkId, GloballyUniqueId, RRefId};
pub use options::RRefOptions;
pub use report::LeakReport;
pub use rrefs::RRefs;

/// The wire protocol, for this crate's tests and fuzz targets. Not part of the API: it may change at any time.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::protocol::{Answer, DELETES_MAX, DecodeError, ForkData, Message};
}
