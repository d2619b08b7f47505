//! Calls with retries: when the next attempt begins, and with which error a call ends.
//!
//! [`RetryState`] decides, one for each call. The [`RetryThread`] holds the attempts to come in order of
//! time. Neither knows how an attempt is sent.

mod group;
mod options;
mod round_trip;
mod state;
mod thread;

pub use self::group::RetryGroup;
pub(crate) use self::group::RetryMembership;
pub use self::options::{RetryOptions, RetryOptionsError};
pub(crate) use self::state::{RetryState, Verdict};
pub(crate) use self::thread::RetryThread;
