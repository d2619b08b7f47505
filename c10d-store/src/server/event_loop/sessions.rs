//! The event loop's part for sessions that survive the server, and for heartbeats (docs/spec/wire-extensions.md, SESSION 12 to 14
//! and 18).

use std::time::{Duration, Instant};

use mio::Token;

use super::EventLoop;
use crate::journal::batch::Effect;
use crate::server::connection::{Connection, conn_id_of};
use crate::server::session_requests::Parts;
use crate::session::{Hello, ResentWait, Violation};
use crate::state::KeptClient;

/// The interval of heartbeats. A client takes four missing heartbeats for the loss of the link.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

impl EventLoop {
    pub(super) const fn parts(&mut self) -> Parts<'_> {
        self.extensions
            .parts(&mut self.state, &mut self.connections)
    }

    /// The journal keeps a session from now on, if the peer and the server can carry it over.
    pub(super) fn begin_carrying(&mut self, slot: usize, hello: &Hello) {
        if !hello.carries_over || self.extensions.journal.is_none() {
            return;
        }
        let Some(session) = self.extensions.sessions.get_mut(slot) else {
            return;
        };
        if session.is_carried || session.had_clients() {
            return;
        }
        session.is_carried = true;
        let id = session.id();
        let keep_millis = u32::try_from(hello.keep.as_millis()).unwrap_or(u32::MAX);
        self.parts().happens(Effect::BeginSession {
            session: id.as_bytes(),
            keep_millis,
        });
    }

    /// A client is opened. The clients with lower numbers that were not opened after a restart are therefore removed.
    pub(super) fn forget_unopened(&mut self, slot: usize, before: u32) {
        let Some(session) = self.extensions.sessions.get_mut(slot) else {
            return;
        };
        let (id, from) = (session.id(), session.next_client());
        for client in self.extensions.sessions.carried.clients(id, from, before) {
            let kept = KeptClient {
                session: id,
                number: client,
            };
            self.state.end_client(kept, &mut self.connections);
            self.parts().record_woken();
            self.parts().happens(Effect::EndClient {
                session: id.as_bytes(),
                client,
            });
        }
    }

    /// A client that was open before a restart continues with this request.
    pub(super) fn resume_numbers(&mut self, token: Token, request: u32) -> Result<(), Violation> {
        let connection = self.connections.get_mut(token);
        let numbers = connection.and_then(|it| it.client()?.numbers.as_mut());
        if numbers.is_some_and(|numbers| numbers.resume(request)) {
            return Ok(());
        }
        Err(Violation::new("it resumed a client that was not new"))
    }

    /// A wait of a client was sent before this time: its next request that can wait, if it is resumed, or else its last one.
    pub(super) fn note_resent(&mut self, slot: usize, token: Token, wait: ResentWait) {
        let Some(accepted) = self.extensions.sessions.get_mut(slot).map(|it| it.accepted) else {
            return;
        };
        let connection = self.connections.get_mut(token);
        let Some(client) = connection.and_then(Connection::client) else {
            return;
        };
        let numbers = client.numbers.as_mut();
        if !numbers.is_some_and(|it| it.set_resent(wait, accepted)) {
            client.resent = Some(Box::new((wait, accepted)));
            self.end_resent(token);
        }
    }

    /// Ends the last request of a client if that is a wait that has missed an END_WAITS, once it is carried out.
    pub(super) fn end_resent(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let has_more = connection.flow.has_waiting();
        let Some(client) = connection.client().filter(|it| it.resent.is_some()) else {
            return;
        };
        let conn = conn_id_of(token);
        if !self.state.has_wait(conn) && has_more {
            return;
        }
        if let Some((wait, accepted)) = client.resent.take().map(|it| *it) {
            let before = self.state.work();
            self.state
                .end_missed_wait(conn, wait, accepted, &mut self.connections);
            let work = self.state.work().wrapping_sub(before);
            self.turn.spend(work, Instant::now);
            self.parts().record_woken();
        }
    }

    /// A client has gone.
    pub(super) fn end_carried_client(&mut self, slot: usize, client: u32) {
        let Some(id) = self
            .extensions
            .sessions
            .get_mut(slot)
            .map(|session| session.id())
        else {
            return;
        };
        if self.extensions.sessions.carried.has_client(id, client) {
            self.parts().happens(Effect::EndClient {
                session: id.as_bytes(),
                client,
            });
        }
    }

    /// The journal drops the sessions that have ended.
    pub(super) fn end_carried_sessions(&mut self) {
        while let Some(id) = self.extensions.sessions.ended.pop() {
            self.state.end_clients_of(id, &mut self.connections);
            self.parts().record_woken();
            self.parts().happens(Effect::EndSession {
                session: id.as_bytes(),
            });
        }
    }

    /// Takes note that all replies of a client are in its session's stream.
    pub(super) fn note_handed(&mut self, token: Token) {
        let is_waiting = self.state.is_waiting(conn_id_of(token));
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if connection.has_unsent() {
            return;
        }
        let is_between = connection.parser.is_between_requests();
        let Some(client) = connection.client() else {
            return;
        };
        let slot = client.slot();
        if let Some(numbers) = client.numbers.as_mut()
            && let Some(session) = self.extensions.sessions.get_mut(slot)
        {
            numbers.all_handed(is_waiting, is_between, session.stream.end());
        }
        self.tell_done(token, 0);
    }

    /// Reports to the peer that requests without replies are done, once they are durable.
    pub(super) fn tell_done(&mut self, token: Token, received: usize) {
        // A refused write is sent again until the client has the refusal.
        let is_refused = self.connections.is_refused(token);
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let has_unsent = connection.has_unsent();
        let is_between = connection.parser.is_between_requests();
        let Some(numbers) = connection.client().and_then(|it| it.numbers.as_mut()) else {
            return;
        };
        numbers.received(received);
        // A request whose reply is on its way is sent again, so it is not done.
        if has_unsent || is_refused || !numbers.is_due() {
            return;
        }
        let is_waiting = self.state.is_waiting(conn_id_of(token));
        let Some(request) = numbers.take_done(is_waiting, is_between) else {
            return;
        };
        let position = self.newest_undurable();
        match &mut self.extensions.journal {
            Some(journal) if position > 0 => journal.tell_later(position, token, request),
            _ => self.say_done(token, request),
        }
    }

    pub(super) fn say_done(&mut self, token: Token, request: u32) {
        let Some(client) = self.connections.get_mut(token).and_then(Connection::client) else {
            return;
        };
        let (slot, number) = (client.slot(), client.number);
        if let Some(session) = self.extensions.sessions.get_mut(slot)
            && let Some(numbers) = client.numbers.as_mut()
        {
            if let Some(journal) = &self.extensions.journal {
                session.tell_position(journal.durable);
            }
            session.stream.push_done(number, request);
            numbers.hand(request, session.stream.end());
            self.touch_link(slot);
        }
    }

    /// A session asks for heartbeats.
    pub(super) fn start_beating(&mut self) {
        self.extensions.beat_at.get_or_insert_with(Instant::now);
    }

    /// Sends a heartbeat over each link that gets them and on which nothing waits to be sent, as that is one itself.
    pub(super) fn beat(&mut self, now: Instant) {
        if self.extensions.beat_at.is_none_or(|at| at > now) {
            return;
        }
        let beating = self.extensions.sessions.beating();
        self.extensions.beat_at = (!beating.is_empty()).then(|| now + HEARTBEAT_INTERVAL);
        for (slot, link) in beating {
            if let Some(connection) = self.connections.get_mut(link)
                && !connection.has_unsent()
                && !connection.is_held()
                && let Some(session) = self.extensions.sessions.get_mut(slot)
            {
                session.stream.beat(connection.out_mut());
                self.connections.touch(link);
            }
        }
    }
}
