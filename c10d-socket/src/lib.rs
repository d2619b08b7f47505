//! Sockets for the control plane of distributed training: connect to a server that may not be up yet,
//! listen on the right addresses, and wait, receive and send without surprises.
//!
//! - [`connect`](fn@connect) tries all addresses of a [`HostPort`] again and again until a
//!   [`Deadline`]; a [`Dialer`] goes on where it stopped when the first exchange fails. [`Backoff`]
//!   gives the pauses, here and elsewhere.
//! - [`listen`](fn@listen) opens a port on all interfaces or on one host, [`adopt_listener`] takes
//!   over one that a parent process has opened.
//! - [`resolve`](fn@resolve) looks a name up until a deadline, as those two do.
//! - [`wait_for_input`] waits for a bare socket; [`recv_into_spare`], [`send_vectored`] and [`SendBuf`]
//!   move bytes for callers that run a loop of their own.
//!
//! There is no event loop, no framing, no encryption and no reconnecting of a connection in use, and
//! an address is never looked up backwards to a name. Unix only.
//!
//! ```
//! use c10d_socket::{ConnectOptions, Deadline, HostPort, ListenOptions, connect, listen};
//! use std::time::{Duration, Instant};
//!
//! let listeners = listen(&ListenOptions::default().with_host("localhost"))?;
//! let target = HostPort::new("localhost", listeners[0].local_addr()?.port());
//!
//! let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
//! let stream = connect(&target, &ConnectOptions::default(), deadline)?;
//! assert_eq!(stream.peer_addr()?.port(), target.port());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod addr;
mod backoff;
mod buf;
mod connect;
mod deadline;
mod dial;
mod error;
mod listen;
mod options;
mod resolve;
mod send;
mod sys;
mod wait;

pub use addr::{HostPort, HostPortError, is_loopback_name};
pub use backoff::{Backoff, BackoffOptions};
pub use buf::SendBuf;
pub use connect::{ConnectOptions, Dialer, connect};
pub use deadline::Deadline;
pub use error::{ConnectError, DialFailure, DialStage, ListenError};
pub use listen::{ListenOptions, adopt_listener, adopt_listener_raw, listen, resolve_local};
pub use options::{KeepAlive, SocketOptions, configure_accepted};
pub use resolve::resolve;
pub use send::send_vectored;
pub use sys::recv_into_spare;
pub use wait::{wait_for_either, wait_for_input, wait_for_output};
