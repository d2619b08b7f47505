//! The event loop's part for connections that end: by their peer, refused, too late or failed.

use std::io::{self, Read};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use c10d_socket::Stage;
use mio::Token;

use super::acceptance::stage_of;
use super::{BYTES_PER_ITERATION, EventLoop};
use crate::message::CloseReason;
use crate::request_parser::{ParseError, RequestParser};
use crate::server::connection::{Accepted, Connection, Phase, conn_id_of};
use crate::state::{Recorder, Refusal};

/// How long a peer that has closed its sending side may take to read its remaining replies.
const FINISHING_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a refused peer may take to read its last replies and to close.
const REFUSING_TIMEOUT: Duration = Duration::from_secs(1);

impl EventLoop {
    /// The peer has closed its sending side. A client does that only when it stops, so its pending wait
    /// is removed; earlier replies are still sent.
    pub(super) fn on_end_of_stream(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        // The unsent bytes of a session go over its next link.
        if !connection.has_unsent() || connection.link().is_some() {
            return self.close_quietly(token, CloseReason::Peer);
        }
        connection.phase = Phase::Finishing;
        self.set_deadline(token, FINISHING_TIMEOUT);
        self.forget(token, CloseReason::Peer);
        self.update_interest(token);
    }

    pub(super) fn refuse(&mut self, token: Token, error: &ParseError<Refusal>) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        connection.phase = Phase::Refusing;
        connection.parser = RequestParser::default();
        let Some(peer) = connection.accepted().map(|accepted| accepted.peer) else {
            return;
        };
        match error {
            ParseError::Wire(error) => self.log_refusal(peer, error),
            ParseError::Refused(error) => {
                self.log_refusal(peer, error);
                let position = self.state.recorder().map_or(0, Recorder::dependency);
                self.connections.hold_end(token, position);
            }
        }
        self.set_deadline(token, REFUSING_TIMEOUT);
        self.forget(token, CloseReason::Refused);
        self.flush(token);
        // Unread input would turn the close into a reset.
        self.discard(token);
    }

    /// Discards the input of a refused peer until it closes.
    pub(super) fn discard(&mut self, token: Token) {
        let mut budget = BYTES_PER_ITERATION;
        while let Some(connection) = self.connections.get_mut(token) {
            let has_unsent = connection.has_unsent();
            let Some(accepted) = connection.accepted_mut() else {
                return;
            };
            match accepted.stream.read(&mut self.read_buffer) {
                Ok(0) if !has_unsent => {
                    return self.close_quietly(token, CloseReason::Refused);
                }
                Ok(0) => return,
                Ok(count) => budget = budget.saturating_sub(count),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => return self.close_quietly(token, CloseReason::Refused),
                },
            }
            if budget == 0 {
                return self.serve_later(token);
            }
        }
    }

    pub(super) fn set_deadline(&mut self, token: Token, timeout: Duration) {
        let deadline = Instant::now().checked_add(timeout);
        let connection = self.connections.get_mut(token);
        if let Some(accepted) = connection.and_then(Connection::accepted_mut) {
            accepted.deadline = deadline;
            if let Some(deadline) = deadline {
                self.timers.add(deadline, token);
            }
        }
    }

    pub(super) fn expire(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((at, token)) = self.timers.pop_due(now) {
            let Some(connection) = self.connections.get(token) else {
                continue;
            };
            let Some(accepted) = connection.accepted() else {
                continue;
            };
            if accepted.deadline != Some(at) {
                continue;
            }
            let peer = accepted.peer;
            match connection.phase {
                Phase::Open => {
                    let limit = match stage_of(&self.connections, token) {
                        Stage::Silent => self.first_byte_timeout(),
                        Stage::Handshaking | Stage::Served | Stage::Closed => {
                            self.options.handshake_timeout()
                        }
                    };
                    self.log_refusal(peer, &format_args!("no handshake within {limit:?}"));
                }
                Phase::Finishing => {
                    let unread = accepted.out.unsent_bytes();
                    let text = format_args!(
                        "closing {peer}: {unread} bytes of replies unread for {FINISHING_TIMEOUT:?}"
                    );
                    self.log_about(peer.ip(), &text);
                }
                Phase::Refusing => {}
            }
            self.close_quietly(token, CloseReason::Refused);
        }
    }

    pub(super) fn close(&mut self, token: Token, reason: CloseReason, error: &io::Error) {
        let connection = self.connections.get(token);
        if let Some(accepted) = connection.and_then(Connection::accepted) {
            log::debug!("{}: {error}", accepted.peer);
        }
        self.close_quietly(token, reason);
    }

    /// Closes a connection. `reason` counts unless the store was given another reason before.
    pub(super) fn close_quietly(&mut self, token: Token, reason: CloseReason) {
        if let Some(connection) = self.connections.remove(token) {
            if let Some(Accepted { peer, tls, .. }) = connection.accepted() {
                log::debug!("closed {peer} ({:?})", conn_id_of(token));
                if let Some(tls) = tls
                    && tls.is_handshaking()
                    && tls.has_computed()
                {
                    // Refused, or ended by the peer, which may have replayed the hello of another.
                    self.acceptor.on_failed_handshake(peer.ip(), Instant::now());
                }
            }
            if let Some(session) = connection.link() {
                self.on_link_closed(session, token);
            }
            // Close the socket before its end wakes other connections.
            drop(connection);
            self.publish_count();
            self.forget(token, reason);
        }
    }

    pub(super) fn publish_count(&self) {
        self.counts
            .connections
            .store(self.connections.len(), Ordering::Release);
    }

    /// Removes a connection from the store: its wait, its keys, and a wakeup that another connection can use. The
    /// next [`flush_touched`](Self::flush_touched) sends to that connection; sending from here would
    /// recurse once for each of thousands of dead peers that wait for one queue.
    pub(super) fn forget(&mut self, token: Token, reason: CloseReason) {
        self.state
            .disconnect(conn_id_of(token), reason, &mut self.connections);
        self.record_woken();
    }
}
