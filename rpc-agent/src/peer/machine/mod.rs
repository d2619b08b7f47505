//! The state machine of one peer: how calls, requests, frames, connections and dials act on each other.
//!
//! Each file is one kind of input. Every one changes [`state`], and leaves effects there.

mod calls;
mod dials;
mod end;
mod requests;
mod state;
mod stream;

pub(crate) use self::dials::{AttemptFailure, Welcomed};
pub(crate) use self::state::Peer;
