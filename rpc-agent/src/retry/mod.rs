//! Calls with retries: when the next attempt begins, and with which error a call ends.
//!
//! [`RetryState`] decides, one for each call. It does not know how an attempt is sent.

mod group;
mod options;
mod round_trip;
mod state;

pub use self::group::RetryGroup;
pub(crate) use self::group::RetryMembership;
pub use self::options::{RetryOptions, RetryOptionsError};
pub(crate) use self::state::{RetryState, Verdict};
