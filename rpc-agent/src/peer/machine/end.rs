//! How a connection ends, and what becomes of its calls.

use std::io;
use std::sync::Arc;

use super::state::{Absence, Peer, Phase};
use crate::error::{NotSent, Outcome, RpcError};
use crate::peer::effect::{Count, Effect, End, Notice};
use crate::peer::outgoing::Outgoing;
use crate::wire::Frame;

pub(super) const REPLACED: &str = "another worker has taken its place";

impl<P, S: Clone> Peer<P, S> {
    /// Another worker has taken the id of this worker: closes the connection, and fails all present and later calls.
    pub(crate) fn replaced(&mut self) {
        if self.is_connected() {
            let error = io::Error::new(io::ErrorKind::ConnectionReset, REPLACED);
            self.end_connection(End::Failed(error));
        } else {
            self.fail_calls(false, &NotSent::Connect(REPLACED.into()));
        }
        self.phase = Phase::Replaced;
    }

    /// A later process of this worker is published: closes the connection. The next call connects again.
    pub(crate) fn superseded(&mut self) {
        let error = io::Error::new(io::ErrorKind::ConnectionReset, REPLACED);
        self.end_connection(End::Failed(error));
    }

    /// The agent shuts down: takes no more calls and connections, and informs the peer.
    pub(crate) fn say_goodbye(&mut self) {
        self.is_closing = true;
        if self.is_connected() {
            self.outgoing.push_frame(&Frame::Goodbye { reason: 0 });
            self.send_now();
        }
    }

    /// The agent has shut down: closes the connection, and fails what is left.
    pub(crate) fn end(&mut self) {
        self.is_closing = true;
        let had_connection = self.close_connection(Absence::NeverConnected);
        if let Phase::Dialing { before, .. } = self.phase {
            self.phase = Phase::Absent(before);
        }
        self.admission.connection_ended();
        self.fail_calls(had_connection, &NotSent::Connect("shut down".into()));
    }

    /// Ends the connection in use.
    pub(super) fn end_connection(&mut self, end: End) {
        let Phase::Connected(current) = &self.phase else {
            return;
        };
        let has_left = matches!(end, End::Left);
        let error = Arc::new(match end {
            End::Left => io::Error::new(io::ErrorKind::ConnectionAborted, "the worker has left"),
            End::Failed(error) => error,
        });
        let cause: Arc<str> = format!("connection to {} lost: {error}", current.address).into();
        self.last_failure = Some(Arc::clone(&cause));
        // The incarnation of the lost process: another process may be connected when the callback of the program runs.
        let incarnation = self.peer_incarnation();
        if has_left {
            self.left = incarnation;
            self.close_connection(Absence::Left);
        } else {
            self.close_connection(Absence::Lost);
        }
        for _ in 0..self.admission.connection_ended() {
            self.effects.push(Effect::Count(Count::RequestRefused));
        }
        let calls_failed = self.in_flight.len();
        self.fail_calls(true, &NotSent::ConnectionLost(error));
        self.effects.push(Effect::Notify(if has_left {
            Notice::Left { incarnation }
        } else {
            Notice::Lost {
                cause,
                calls_failed,
            }
        }));
    }

    /// Whether there was a connection, which is closed now.
    fn close_connection(&mut self, absence: Absence) -> bool {
        if !self.is_connected() {
            return matches!(self.phase, Phase::Own);
        }
        let before = std::mem::replace(&mut self.phase, Phase::Absent(absence));
        if let Phase::Connected(current) = before {
            self.effects.push(Effect::Close {
                socket: current.socket,
                watched: current.watched,
            });
        }
        true
    }

    /// Fails all calls: for this cause, or as shut down. A request without a sent byte has not been executed.
    pub(super) fn fail_calls(&mut self, had_connection: bool, cause: &NotSent) {
        let mut unsent = self.outgoing.unsent_requests();
        unsent.sort_unstable();
        self.outgoing = Outgoing::held();
        for (id, call) in self.in_flight.drain() {
            let is_unsent =
                !had_connection || !call.is_repeated && unsent.binary_search(&id.get()).is_ok();
            let outcome = Outcome::of_request(is_unsent);
            let site = self.site(&call.function);
            let error = match cause {
                _ if self.is_closing => RpcError::Shutdown {
                    call: site,
                    outcome,
                },
                NotSent::ConnectionLost(cause) if !is_unsent => RpcError::ConnectionLost {
                    call: site,
                    cause: Arc::clone(cause),
                },
                cause => RpcError::NotSent {
                    call: site,
                    cause: cause.clone(),
                },
            };
            self.complete(call, Err(error));
        }
    }
}
