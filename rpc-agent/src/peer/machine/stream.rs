//! The bytes of the connection: the threads that read and write them, and the messages in them.

use std::io;
use std::time::Instant;

use super::state::{Peer, Phase};
use crate::peer::call::ReplyRoute;
use crate::peer::connection::{ConnectionId, Watch, Writer};
use crate::peer::effect::{Count, Effect, End};
use crate::peer::incoming::Message;
use crate::peer::outgoing::{Batch, WriteProgress};

/// Bytes written in one go, before others may put theirs in between. With a quarter of a MiB a call of 1 MiB takes
/// twice as long.
const WRITE_BYTES_MAX: usize = 512 << 10;

/// With more unsent bytes than this, queued messages do not wait for more to leave together with them.
const CORKED_BYTES_MAX: u64 = 32 << 10;

/// With at least this many calls in flight, a further one waits for more to leave with it: until its caller waits for
/// an answer, an answer arrives, or the standby thread looks, 0.25 ms later at most. A write costs as much as the rest
/// of a small call.
const GATHERED_CALLS_MIN: usize = 4;

impl<P, S: Clone> Peer<P, S> {
    /// The messages that a read of the connection gave. False when the connection is not, or no longer, in use.
    pub(crate) fn received(
        &mut self,
        connection: ConnectionId,
        messages: impl IntoIterator<Item = Message>,
        now: Instant,
    ) -> bool {
        let mut has_left = false;
        let mut messages = messages.into_iter();
        while let Some(message) = messages.next() {
            if !self.is_connected_by(connection) {
                self.discard([message].into_iter().chain(messages));
                return false;
            }
            match message {
                Message::Request {
                    id,
                    budget_ms,
                    function,
                    payload,
                } => {
                    let route = ReplyRoute {
                        connection: Some(connection),
                        call: id,
                    };
                    self.request(route, budget_ms, function, payload, now);
                }
                Message::Response { id, payload } => self.answered(id, Ok(payload)),
                Message::Failure { id, failure } => self.answered(id, Err(failure)),
                Message::Goodbye { .. } => has_left = true,
                Message::Hello(_) | Message::Welcome(_) | Message::Refuse(_) => {
                    debug_assert!(false, "the decoder lets none of them through here");
                }
            }
        }
        if has_left && self.is_connected_by(connection) {
            self.end_connection(End::Left);
        }
        self.is_connected_by(connection)
    }

    /// Messages of a connection that is not in use: they are not answered. The reader has counted the requests.
    pub(super) fn discard(&mut self, messages: impl IntoIterator<Item = Message>) {
        for message in messages {
            if matches!(message, Message::Request { .. }) {
                self.effects.push(Effect::Count(Count::RequestRefused));
            }
        }
    }

    /// The connection is of no use any more, and everything that has arrived is read: its calls fail.
    pub(crate) fn connection_lost(&mut self, connection: ConnectionId, error: io::Error) {
        if let Some(current) = self.connected_by(connection) {
            let error = current.write_failure.take().unwrap_or(error);
            self.end_connection(End::Failed(error));
        }
    }

    /// The thread that had to [`Effect::Send`] has written so far. After a failure, answers may still have to be
    /// read, so the socket must be shut down: its reader then finds the end behind them.
    pub(crate) fn written(
        &mut self,
        connection: ConnectionId,
        batch: Batch,
        result: io::Result<WriteProgress>,
    ) {
        let Some(current) = self.connected_by(connection) else {
            // The bytes belong to an earlier connection, whose calls have failed.
            return;
        };
        current.writer = match result {
            Ok(WriteProgress::Blocked) => Writer::Blocked,
            Ok(WriteProgress::Done) => Writer::Idle,
            Err(_) => Writer::Failed,
        };
        current.write_failure = result.err();
        self.outgoing.put_back(batch);
        self.send_now();
        if self.outgoing.unsent_bytes() <= self.config.backlog_bytes_max / 2 {
            for request in self.admission.unpark() {
                self.effects.push(Effect::Admit(request));
            }
        }
    }

    /// The socket takes bytes again.
    pub(crate) fn writable(&mut self, connection: ConnectionId) {
        if let Some(current) = self.connected_by(connection)
            && current.writer == Writer::Blocked
        {
            current.writer = Writer::Idle;
            self.send_now();
        }
    }

    /// Carries out an [`Effect::SendSoon`].
    pub(crate) fn flush(&mut self) {
        self.sends_soon = false;
        self.send_now();
    }

    /// Lends the connection to a caller that waits for its answer and will read it. `None` when it cannot be lent.
    pub(crate) fn lend(&mut self) -> Option<(ConnectionId, S)> {
        let Phase::Connected(current) = &mut self.phase else {
            return None;
        };
        current.lend().then(|| (current.id, current.socket.clone()))
    }

    /// The new events for the poller to watch, if the last input changed them: before and after.
    pub(crate) fn watch_change(&mut self) -> Option<(S, Watch, Watch)> {
        let Phase::Connected(current) = &mut self.phase else {
            return None;
        };
        let (before, after) = current.watch_change()?;
        Some((current.socket.clone(), before, after))
    }

    /// The connection in use, and its socket.
    pub(crate) fn connection(&self) -> Option<(ConnectionId, &S)> {
        match &self.phase {
            Phase::Connected(current) => Some((current.id, &current.socket)),
            _ => None,
        }
    }

    /// Whether a thread is writing to the connection.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(&self.phase, Phase::Connected(current) if current.writer == Writer::Busy)
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected(_))
    }

    /// Sends what is queued: at once, or together with what else this thread produces.
    pub(super) fn send_queued(&mut self) {
        let Phase::Connected(current) = &self.phase else {
            return;
        };
        if current.writer == Writer::Busy {
            return;
        }
        let is_urgent = self.outgoing.unsent_bytes() >= CORKED_BYTES_MAX
            || !self.thread_flushes && self.in_flight.len() < GATHERED_CALLS_MIN;
        if is_urgent {
            return self.send_now();
        }
        if !std::mem::replace(&mut self.sends_soon, true) {
            self.effects.push(Effect::SendSoon);
        }
    }

    pub(super) fn send_now(&mut self) {
        let Phase::Connected(current) = &mut self.phase else {
            return;
        };
        if current.writer != Writer::Idle {
            return;
        }
        if let Some(batch) = self.outgoing.take_batch(WRITE_BYTES_MAX) {
            current.writer = Writer::Busy;
            self.effects.push(Effect::Send {
                connection: current.id,
                socket: current.socket.clone(),
                batch,
            });
        }
    }
}
