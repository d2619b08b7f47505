#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod connector;
mod event_loop;
mod hub;
mod link;
mod options;
mod patience;
mod relay;
mod status;
mod tunnel;

// The types of other crates that this one's API takes.
pub use c10d_socket::{Credentials, Deadline, HostPort};

pub use options::RelayOptions;
pub use relay::{Relay, RelayError};
