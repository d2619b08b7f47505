//! The shell around the peers' state machines: threads, sockets and locks.
//!
//! Each file here is one part: [`driver`] locks a peer's machine, gives it an input, unlocks it, and carries out what
//! follows; [`poller`] waits for all sockets; [`acceptor`] and [`dialer`] make connections; [`reader`] reads them;
//! [`caller`] makes calls and [`retrier`] repeats them on the retry thread; [`start`] makes everything, and [`lifecycle`]
//! ends it. What each one needs it holds; nothing holds everything.
//!
//! Decides nothing about calls, requests and connections: that is `peer`. Knows neither the registered functions nor
//! the public API, which are `agent`.
//!
//! # Locks
//!
//! A thread holds at most one lock of this crate at a time, with one exception, without a wait: under a peer's lock the
//! poller is told what to watch (`epoll_ctl`), so that two changes cannot cross. No lock is held while a socket is read
//! or written, or while a function or a callback runs.

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
