//! The protocol of references as a state machine: events in, effects out.
//!
//! Knows no socket, clock, thread or randomness, and neither functions nor the encoding of values. Every
//! method may leave effects, which [`RRefContext::take_effects`] hands to the shell.
//!
//! # The two guarantees
//!
//! 1. The owner is told when any user is gone.
//! 2. A user is not deleted before the owner knows its children.
//!
//! So an owner that knows no user of a value that was created has none: each unknown user has a living
//! parent, that one is known or has a living parent itself, and the chain ends at a user that the owner
//! has made, or at the creator's, which both are known. See PyTorch's
//! `torch/csrc/distributed/rpc/rref_context.h` and `torch/csrc/distributed/rpc/rref_impl.h`.
//!
//! # Beyond PyTorch
//!
//! - A creation is answered when it is registered, not when its function has run; it is sent with retries
//!   and runs once. If it was not answered at all, the owner is asked to settle it: either it has come
//!   meanwhile, or it never counts, for nobody. So no user waits for what will not come.
//! - Ids of what is gone are kept for a while: late copies of messages change nothing. All handlers can
//!   run twice; numbers and windows for messages are not needed for that.
//! - Messages that could not be sent are kept, and sent when their receiver is heard of again.
//! - Whether a reference has arrived can be asked at its receiver, which then refuses it if it has not,
//!   and at its owner.
//! - Dead workers are no guarantee's end: their users are released, and users of their values fail. A user
//!   that only a dead worker has passed on, and that the owner does not know yet, may find its value gone.

mod complete;
mod create;
mod delete_user;
mod effect;
mod error;
mod fetch;
mod fork;
mod free_value;
mod invariants;
mod outbox;
mod owned;
mod peer;
mod peer_lost;
mod probe;
mod receive;
mod rows;
mod send;
mod shutdown;
mod snapshot;
mod state;
mod tick;
mod tombstones;
mod user;

#[cfg(test)]
mod tests;

pub(crate) use effect::{Carrier, Control, Delivery, Effect, Handle, RequestToken, UserStatus};
pub(crate) use error::{FetchError, ForkError, ReceiveError, SetValueError, UserError};
pub(crate) use peer_lost::LossReport;
pub(crate) use state::{RRefContext, Timing};

pub use rows::{
    ChildRow, ForkRow, MessageKind, MessageRow, MissingKind, OwnedRow, Snapshot, TableSizes,
    UserRow, UserState, ValueState,
};
