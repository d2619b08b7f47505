//! The shell around the peers' state machines: threads, sockets and locks.
//!
//! Each file here is one part: [`driver`] locks a peer's machine, passes it an input, unlocks it, and carries out the
//! effects; [`poller`] waits for all sockets; [`acceptor`] and [`dialer`] make connections; [`reader`] reads them;
//! [`caller`] makes calls and [`retrier`] repeats them on the retry thread; [`start`] makes everything, and
//! [`lifecycle`] ends it. Each part holds only the values that it needs.
//!
//! All decisions about calls, requests and connections are in `peer`. The registered functions and the public API are
//! in `agent`.
//!
//! # Locks
//!
//! A thread holds at most one lock of this crate at a time, with one exception that does not wait: the events that
//! the poller watches are changed under the peer's lock (`epoll_ctl`), so that two changes cannot cross. A thread
//! that reads or writes a socket, or runs a function or a callback, holds no lock.

mod acceptor;
mod activity;
mod caller;
mod dialer;
mod driver;
mod lifecycle;
mod membership;
mod peers;
mod poller;
mod reader;
mod retrier;
mod retry_inbox;
mod sender;
mod socket;
mod sockets;
mod start;
mod tls;

pub(crate) use self::activity::Activity;
pub(crate) use self::driver::Served;
pub(crate) use self::lifecycle::Runtime;
pub(crate) use self::sender::ReplyTo;
