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
//! [`context`] is the protocol without sockets, clocks and threads.
#![forbid(unsafe_code)]

pub mod context;
pub mod effect;
mod id;
pub mod protocol;

pub use id::{ForkId, GloballyUniqueId, RRefId};
