//! Calls with retries: when the next attempt begins, and with which error a call ends.
//!
//! [`RetryState`] decides for one call, and the [`Schedule`] keeps the waiting calls. They do not know how an attempt is
//! sent.

mod group;
mod options;
mod schedule;
mod state;

pub use self::group::RetryGroup;
pub(crate) use self::group::RetryMembership;
pub use self::options::{RetryOptions, RetryOptionsError};
pub(crate) use self::schedule::{Due, Retried, Schedule};
pub(crate) use self::state::{RetryState, Verdict};
