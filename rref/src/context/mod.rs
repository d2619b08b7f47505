//! The protocol of references as a state machine: steps in, effects out.
//!
//! Has no socket, clock, thread or randomness, and is independent of functions and of the encoding of values. A step
//! may leave effects, which [`RRefContext::take_effects`] returns to the shell.
//!
//! # The two guarantees
//!
//! 1. The owner is notified of each user's deletion.
//! 2. A user is not deleted before the owner has its children.
//!
//! Therefore, if an owner has no user of a created value, no user exists: a user that is unknown to the owner has a
//! living parent, which is known or has a living parent itself, and the chain ends at a user that the owner forked or
//! at the creator's. Both are known. See PyTorch's `torch/csrc/distributed/rpc/rref_context.h` and
//! `torch/csrc/distributed/rpc/rref_impl.h`.
//!
//! # Beyond PyTorch
//!
//! - A creation is answered when it is registered, not when its function has run. It is sent with retries and
//!   runs once. If no attempt is answered, the owner settles it: it has arrived, or it never has an effect.
//! - Ids of deleted references and users are remembered for a while, so late copies of messages change nothing.
//!   Every handler may run twice.
//! - Messages whose retries are exhausted are kept, and resent when a message from their receiver arrives.
//! - A parent can ask the receiver of a reference whether it has arrived, and the owner.
//! - Users of dead workers are released, and users of their values fail. A user that only a dead worker has
//!   passed on, and that the owner does not know yet, may find its value freed.

mod completion;
mod creation;
mod deletion;
mod effect;
mod error;
mod fetch;
mod fork;
mod free_value;
mod holders;
#[cfg(test)]
mod invariants;
mod outbox;
mod peer_loss;
mod probe;
mod receive;
mod rows;
mod send;
mod shutdown;
mod state;
mod summary;
mod tick;
mod tombstones;
mod user;
mod values;

#[cfg(test)]
mod tests;

pub(crate) use effect::{Carrier, Control, Delivery, Effect, Handle, RequestToken, UserStatus};
pub(crate) use error::{FetchError, ForkError, ReceiveError, SetValueError, UserError};
pub(crate) use peer_loss::LossReport;
pub(crate) use state::{RRefContext, Timing};

pub use rows::{HeldValue, Holder, MissingKind, TableSizes, ValueState};
