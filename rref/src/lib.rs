#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod async_functions;
mod call;
mod cell;
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
mod options;
mod packing;
mod places;
mod protocol;
mod request;
mod response;
mod rrefs;
mod runtime;
mod service;
mod shutdown;
mod value;

pub use call::RRefCall;
pub use context::{HeldValue, Holder, MissingKind, TableSizes, ValueState};
pub use error::{LeakReport, Missing, RRefError, RegisterError, ShutdownError};
pub use functions::{CallContext, FUNCTION_NAME_BYTES_MAX, FunctionError, Functions};
pub use future::RRefFuture;
pub use handle::RRef;
pub use id::{ForkId, GloballyUniqueId, RRefId};
pub use options::RRefOptions;
pub use rrefs::RRefs;

/// The wire protocol, for this crate's tests and fuzz targets. Not part of the API: it may change at any time.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::protocol::{Answer, DELETES_MAX, DecodeError, ForkData, Message};
}
