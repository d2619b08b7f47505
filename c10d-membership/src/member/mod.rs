//! A member's side: what a process does, and when. Pure.
//!
//! A [`Member`] takes [`MemberInput`]s, from the service and from its process, and returns [`Action`]s. It knows no
//! connection, thread, clock or torch: it does not know how a blocked call is freed, nor how a step is done.

mod input;
mod machine;
mod service;
mod state;

pub use self::input::{Action, Ending, MemberInput, MemberOptions};
pub use self::machine::Member;
