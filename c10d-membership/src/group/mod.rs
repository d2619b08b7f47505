//! The service's side: one group, from its first member to its end. Pure.
//!
//! A [`Group`] takes [`Input`]s and returns a reply and [`Effect`]s. It has no store, connection, thread or clock,
//! and does not interpret handles. Its rules are in docs/spec/membership.md.

mod attempts;
mod depart;
mod machine;
mod messages;
mod recover;
mod report;
mod roster;
mod settle;
mod state;

pub use self::machine::{Effect, Group, Input, Kept, Outcome};
pub use self::state::{Change, GroupState, Passed};
