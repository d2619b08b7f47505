//! References to values on other workers, counted by their owners and freed on time.
//!
//! One worker, the *owner*, has the value; *users* on other workers refer to it. A reference that is sent
//! in a message is *forked*: the sender's user is the parent of a new one at the receiver.
//!
//! ```text
//!            user f1 on A ──sent──► user f2 on B ──sent──► user f3 on C
//!                 │                     │                     │
//!           registers f1          registers f2          registers f3
//!                 └──────────────► owner: value, {f1, f2, f3} ◄┘
//! ```
//!
//! Two rules keep the value exactly as long as somebody refers to it: the owner is told of each user that
//! goes, and a user does not go before the owner knows its children.
//!
//! [`context`] is the protocol without sockets, clocks and threads; [`RRefs`] drives it over an agent.
#![forbid(unsafe_code)]

mod answer;
mod calls;
mod carry;
pub mod context;
mod drops;
pub mod effect;
mod error;
mod functions;
mod future;
mod handle;
mod id;
mod leak;
mod options;
pub mod protocol;
mod runtime;
mod serving;
mod sync;
mod value;

pub use error::{RRefError, ShutdownError};
pub use functions::{CallContext, FUNCTION_NAME_BYTES_MAX, FunctionError, Functions};
pub use future::RRefFuture;
pub use handle::RRef;
pub use id::{ForkId, GloballyUniqueId, RRefId};
pub use leak::{HeldValue, Holder, LeakReport};
pub use options::RRefOptions;
pub use runtime::RRefs;
