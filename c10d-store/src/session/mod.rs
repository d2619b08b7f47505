//! Sessions: many clients of a store over one connection, which may break and be made again without any of them
//! noticing (docs/spec/wire-extensions.md, section 9.9).
//!
//! Pure: no socket, clock or thread. From the bottom up:
//!
//! - [`SessionStream`] carries bytes in both directions, each exactly once and in order, over one *link* (connection)
//!   after the other. It keeps the bytes that the peer has not acknowledged, and sends them again over the next link.
//! - [`Frame`]s in that stream assign the bytes to clients.
//! - [`Credit`] limits the bytes of one client that one side may send before the other side has used them, so that a
//!   client that does not read delays no other client.
//!
//! Both ends use them: the server, whose clients are connections without a socket, and callers of
//! [`SessionDialer::connect`](crate::unstable::SessionDialer::connect). They do not look into requests, and do not
//! decide when to connect again or to stop.
//!
//! Only the client's side uses the following types. They find the ends of requests and replies, but do not interpret them.
//!
//! - [`Outstanding`] keeps the requests of one client that a server with a journal gets again when it was restarted.
//! - [`Session`] and its [`SessionClient`]s are the session of a program with one client, and of a relay with many.
//!   [`RawRequests`] finds the requests in the bytes of one client.

mod client;
mod credit;
mod fingerprint;
mod frame;
mod hello;
mod id;
mod outstanding;
mod pieces;
mod resent_wait;
mod stream;
#[cfg(test)]
mod tests;

pub use client::{ClientEnd, RawRequest, RawRequests, Session, SessionClient};
pub use credit::{CLIENT_WINDOW_BYTES, Credit};
pub use frame::{Frame, FrameReader, GROUP_BYTES_MAX, GROUP_CLIENTS_MAX, Group};
pub(crate) use hello::{Hello, Welcome};
pub(crate) use id::{SessionId, StoreId, random_seed};
pub use outstanding::{NotCarried, Outstanding, ReplyError};
pub(crate) use pieces::{Piece, SentPieces};
pub use resent_wait::{ResentWait, Restart};
pub use stream::{SESSION_WINDOW_BYTES, SessionStream, Violation};
