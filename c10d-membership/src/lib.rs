#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
pub mod codec;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod list_change;
mod member;
mod message;
mod options;
mod record;
mod request;
mod server;
#[cfg(test)]
mod tests;

pub use client::Membership;
pub use group::{
    Change, Effect, Group, GroupStage, GroupState, GroupStatus, Input, Kept, MemberStatus, Outcome,
    Passed,
};
pub use member::{Action, Ending, Member, MemberInput, MemberOptions};
pub use message::{Cause, EndReason, Event, EventNumber, Leave, Limit, Message, Reason, Reply};
pub use options::{GroupOptions, RETURN_TIMEOUT_MAX};
pub use record::{Attempt, Incarnation, MemberId, MemberKey, Nonce, Record, Seat};
pub use server::{groups, status_of};
