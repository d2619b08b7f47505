//! Sockets for the control plane of distributed training.
#![deny(unsafe_code)]

mod addr;
mod backoff;
mod buf;
mod deadline;
mod error;
mod listen;
mod options;
mod resolve;
mod stream;
mod sys;
mod wait;

pub use addr::{HostPort, HostPortError, is_loopback_name};
pub use backoff::{Backoff, BackoffOptions};
pub use buf::SendBuf;
pub use deadline::Deadline;
pub use error::{ConnectError, DialFailure, DialStage, ListenError, WriteError};
pub use listen::{ListenOptions, adopt_listener, adopt_listener_raw, listen, resolve_local};
pub use options::{KeepAlive, SocketOptions, configure_accepted};
pub use stream::DeadlineStream;
pub use sys::recv_into_spare;
pub use wait::{wait_for_input, wait_for_output};
