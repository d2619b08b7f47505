//! A member's side: the actions of a process. Pure.
//!
//! A [`Member`] takes [`MemberInput`]s, from the service and from its process, and returns [`Action`]s. It has no
//! connection, thread, clock or torch: its shell frees blocked calls and runs the steps.

mod input;
mod machine;
mod service;

pub use self::input::{Action, Ending, MemberInput, MemberOptions};
pub use self::machine::Member;
