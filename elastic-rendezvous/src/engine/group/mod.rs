//! Lets many nodes share a rendezvous on a store of this project: one node writes for all (docs/spec/rendezvous.md,
//! section 10).
//!
//! A [`Station`] is the state machine of one node. It returns the next request to the store and receives the result,
//! without access to clocks, threads or sockets. While its node holds the lease it contains a [`holder::Holder`].
//!
//! The state stays what PyTorch's nodes read and write, and only a write with its token changes it, so a node that
//! believes it still holds the lease does no harm.

mod ask;
mod engine;
mod holder;
mod message;
mod posting;
mod station;
mod timers;

pub(crate) use ask::{Ask, Reply};
pub(crate) use engine::GroupEngine;
