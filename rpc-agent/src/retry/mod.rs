//! Calls with retries: the time of the next attempt, and the error of a failed call.
//!
//! [`RetryState`] decides for one call, and the [`Schedule`] keeps the waiting calls. They do not send attempts
//! themselves.

mod group;
mod options;
mod schedule;
mod state;

pub use self::group::RetryGroup;
pub(crate) use self::group::RetryMembership;
pub use self::options::{RetryOptions, RetryOptionsError};
pub(crate) use self::schedule::{Due, Retried, Schedule};
pub(crate) use self::state::{RetryState, Verdict};
