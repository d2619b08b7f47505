//! The event loop's part for our extensions: their due times, and their work in each turn. `plain.rs` has the methods of this
//! file and of those beside it that the rest of the event loop calls, for a server without extensions.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use mio::Token;

use super::EventLoop;
use crate::server::connection::{Carrier, Peer, RequestFlow, conn_id_of, token_of};
use crate::server::http::{HttpConnection, is_http};
use crate::state::Recorder;

impl EventLoop {
    /// Whether an extension has something to do at once.
    pub(super) fn have_extensions_work(&self) -> bool {
        let has_batch = self.state.recorder().is_some_and(Recorder::has_batch);
        let of_journal = self.extensions.journal.as_ref().is_some_and(|journal| {
            journal.has_work()
                || journal.has_withheld()
                || has_batch && journal.hold.until().is_none()
        });
        of_journal
            || self.state.can_sweep()
            || self.state.is_in_snapshot()
            || self.is_snapshot_due()
    }

    /// The time when an extension has something to do.
    pub(super) fn next_of_extensions(&mut self) -> Option<Instant> {
        let state = &self.state;
        let of_state = [
            state.next_silence(),
            state.next_sweep(),
            state.next_group_timer(),
        ];
        let of_state = of_state.into_iter().flatten().min();
        let journal = self.extensions.journal.as_ref();
        let has_batch = state.recorder().is_some_and(Recorder::has_batch);
        let next = [
            of_state.map(|at| self.started + at.since_start()),
            self.extensions.sessions.next_expiry(),
            self.extensions.beat_at,
            journal.and_then(|it| it.ends_until),
            journal.and_then(|it| it.hold.until()).filter(|_| has_batch),
        ];
        next.into_iter().flatten().min()
    }

    /// Carries out what the time has brought.
    pub(super) fn advance_extensions(&mut self, now: Instant) {
        self.expire_sessions(now);
        self.forget_ends(now);
        self.state.end_silent(&mut self.connections);
        self.record_woken();
        self.state.tick_groups(&mut self.connections);
        self.record_woken();
        self.continue_sweep();
        self.beat(now);
    }

    /// Ends a turn, after the replies were sent.
    pub(super) fn finish_extensions(&mut self, has_events: bool, now: Instant) {
        self.use_budgets();
        // Without `ready`: the rest of earlier turns may take long.
        self.keep_gathered(has_events && self.ready.is_empty(), now);
        self.watch_announcements();
        self.answer_observers();
        self.extensions.observed.turn_done();
    }

    /// Whether a new connection is not for the store: HTTP is handed over, and a client is refused while another server
    /// leads. Its first bytes are in the shared read buffer.
    pub(super) fn is_not_for_the_store(
        &mut self,
        token: Token,
        first: u8,
        received: usize,
    ) -> bool {
        if is_http(first)
            && let Some(handler) = self.counts.http_handler.get()
        {
            if let Some(connection) = self.hand_over(token, received) {
                handler.serve(connection);
            }
            return true;
        }
        let stands_by = self.extensions.standby.is_some();
        if stands_by {
            let reason = "this server is a standby: another server serves the store, or will soon";
            self.refuse_stranger(token, &reason);
        }
        stands_by
    }

    /// Removes an HTTP connection, so that it can be handed over. Its first bytes are in the shared read buffer.
    fn hand_over(&mut self, token: Token, received: usize) -> Option<HttpConnection> {
        let connection = self.connections.remove(token)?;
        self.publish_count();
        self.state.hand_over(conn_id_of(token));
        let Carrier::Socket(accepted) = connection.carrier else {
            return None;
        };
        let (mut stream, peer) = (accepted.stream, accepted.peer);
        let registry = self.poll.registry();
        if let Err(error) = registry.deregister(&mut stream) {
            log::warn!("{peer}: cannot hand over the connection: {error}");
            return None;
        }
        log::debug!("{peer} speaks HTTP ({:?})", conn_id_of(token));
        Some(HttpConnection {
            stream: stream.into(),
            peer,
            received: self.read_buffer[..received].to_vec(),
        })
    }

    /// The link of the session in this slot has closed.
    pub(super) fn on_link_closed(&mut self, slot: usize, link: Token) {
        if self
            .extensions
            .sessions
            .link_closed(slot, link, Instant::now())
        {
            self.set_away(slot, true);
        }
    }

    /// Records the replies that have ended the waits of clients whose sessions the journal keeps.
    pub(super) fn record_woken(&mut self) {
        self.parts().record_woken();
    }

    /// Adds the memory of sessions to the memory of their clients.
    pub(super) fn add_sessions(&self, peers: &mut BTreeMap<Peer, usize>) {
        for (slot, bytes) in self.extensions.sessions.kept() {
            *peers.entry(Peer::Session(slot)).or_default() += bytes;
        }
    }

    /// The address of a session's peer.
    pub(super) fn session_peer(&mut self, slot: usize) -> Option<IpAddr> {
        self.extensions
            .sessions
            .get_mut(slot)
            .map(|session| session.peer)
    }

    /// Deletes names for less than a millisecond.
    fn continue_sweep(&mut self) {
        let complete = self.state.continue_sweep(&mut self.connections);
        self.record_woken();
        if let Some(conn) = complete {
            let token = token_of(conn);
            if let Some(connection) = self.connections.get_mut(token) {
                connection.set_flow(RequestFlow::Paused);
                self.resume(token);
            }
        }
    }
}
