//! All decisions about one other worker, as pure state machines.
//!
//! [`Peer`] is the state of an agent about one worker of its group: the connection to it, or the attempts to make
//! one; the calls to it that have no answer; the requests from it that have not begun; the messages that wait to be
//! sent. Inputs are method calls, with the present as an argument; actions are returned as [`Effect`]s. The machine
//! is composed of smaller ones, each with its own tests: [`pair`] chooses among crossing connections, [`in_flight`]
//! is the table of calls, [`incoming`] and [`outgoing`] are the two directions of the byte stream, [`connection`]
//! decides which thread reads and writes.
//!
//! Has no socket, clock, thread, lock or random source. `runtime` carries the effects out.

mod call;
mod config;
mod connection;
mod effect;
mod in_flight;
mod incoming;
mod machine;
mod outgoing;
mod pair;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub(crate) use self::call::{NewCall, ReplyRoute, Request};
pub use self::config::RegistryId;
pub(crate) use self::config::{Config, FunctionId, Functions};
pub(crate) use self::connection::{Connection, ConnectionId, ReadNext, Reads, Watch};
pub(crate) use self::effect::{Count, Effect, Effects, Notice};
pub(crate) use self::incoming::{Expects, Incoming, IncomingLimits, Message, Recipient};
pub(crate) use self::machine::{AttemptFailure, Peer, Welcomed};
pub(crate) use self::outgoing::{Batch, WriteProgress};
