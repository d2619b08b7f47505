//! The event loop's part for sessions that survive the server: what their clients' requests do is recorded, and one that
//! was carried out before a restart is answered from the record (docs/wire-extensions.md, SESSION 12 to 14).

use mio::Token;

use super::EventLoop;
use crate::journal::batch::Effect;
use crate::message::Request;
use crate::server::carried::Again;
use crate::server::connection::{Connection, Connections, conn_id_of};
use crate::server::sessions::Sessions;
use crate::session::{Hello, SessionId, Violation};
use crate::state::{Refusal, StoreState};

/// A client of such a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct CarriedClient {
    token: Token,
    slot: usize,
    session: SessionId,
    number: u32,
}

/// The parts that a request changes.
pub(super) struct Parts<'a> {
    pub(super) state: &'a mut StoreState,
    pub(super) connections: &'a mut Connections,
    pub(super) sessions: &'a mut Sessions,
}

impl Parts<'_> {
    /// The client, if the journal keeps its session.
    pub(super) fn carried(&mut self, token: Token) -> Option<CarriedClient> {
        let client = self.connections.get_mut(token)?.client()?;
        client.numbers.as_ref()?;
        let (slot, number) = (client.slot(), client.number);
        let session = self.sessions.get_mut(slot)?.id();
        Some(CarriedClient {
            token,
            slot,
            session,
            number,
        })
    }

    /// Handles a request of a client of a session that the journal keeps.
    pub(super) fn handle(
        &mut self,
        client: CarriedClient,
        request: Request<'_>,
    ) -> Result<(), Refusal> {
        let conn = conn_id_of(client.token);
        let can_wait = request.outline().command.is_wait();
        let is_barrier = matches!(request, Request::Barrier { .. });
        let Some(number) = self.next_number(client, can_wait) else {
            return Ok(());
        };
        let changes = self.state.changes();
        let mut handled = Ok(());
        let again = self
            .sessions
            .carried
            .again(client.session, client.number, number);
        match (again, &request) {
            (Some(Again::Reply(reply)), _) => {
                if !reply.is_empty() {
                    self.connections.answer_again(client.token, reply);
                    self.replies(client, number);
                }
                return Ok(());
            }
            (Some(Again::Waits), Request::Barrier { key, world_size }) => {
                let (key, world_size) = (*key, *world_size);
                let connections = &mut *self.connections;
                self.state
                    .wait_at_barrier(conn, key, world_size, connections);
            }
            (Some(Again::Waits) | None, _) => {
                handled = self.state.handle(conn, request, self.connections);
            }
        }
        let reply = self.connections.take_captured_of(client.token);
        handled?;
        if reply.is_some() {
            self.replies(client, number);
        }
        let must_record = if can_wait {
            // Others may change what it saw before the reply arrives.
            is_barrier || reply.is_some()
        } else {
            self.state.changes() != changes
        };
        if must_record {
            let waits = can_wait && reply.is_none();
            self.record(client, number, waits, &reply.unwrap_or_default());
        }
        Ok(())
    }

    /// Records the replies with which the waits of other clients have ended.
    pub(super) fn record_woken(&mut self) {
        while let Some((token, reply)) = self.connections.take_captured() {
            if let Some(client) = self.carried(token)
                && let Some(connection) = self.connections.get_mut(token)
                && let Some(numbers) = connection.client().and_then(|it| it.numbers.as_ref())
            {
                let request = numbers.wait_request();
                self.replies(client, request);
                self.record(client, request, false, &reply);
            }
        }
    }

    fn next_number(&mut self, client: CarriedClient, can_wait: bool) -> Option<u32> {
        let connection = self.connections.get_mut(client.token)?;
        let numbers = connection.client()?.numbers.as_mut()?;
        Some(numbers.next(can_wait))
    }

    fn replies(&mut self, client: CarriedClient, request: u32) {
        let connection = self.connections.get_mut(client.token);
        if let Some(numbers) = connection.and_then(|it| it.client()?.numbers.as_mut()) {
            numbers.replies(request);
        }
    }

    fn record(&mut self, client: CarriedClient, request: u32, waits: bool, reply: &[u8]) {
        let session = self.sessions.get_mut(client.slot);
        let acknowledged = session.map_or(0, |session| session.stream.acknowledged());
        let connection = self.connections.get_mut(client.token);
        let numbers = connection.and_then(|it| it.client()?.numbers.as_mut());
        let answered = numbers.map_or(0, |numbers| numbers.answered(acknowledged));
        self.happens(Effect::Executed {
            session: client.session.as_bytes(),
            client: client.number,
            request,
            answered,
            waits,
            reply,
        });
    }

    fn happens(&mut self, effect: Effect<'_>) {
        self.state.record_session(effect);
        self.sessions.carried.apply(effect);
    }
}

impl EventLoop {
    pub(super) const fn parts(&mut self) -> Parts<'_> {
        Parts {
            state: &mut self.state,
            connections: &mut self.connections,
            sessions: &mut self.sessions,
        }
    }

    /// The journal keeps a session from now on, if the peer and the server can carry it over.
    pub(super) fn begin_carrying(&mut self, slot: usize, hello: &Hello) {
        if !hello.carries_over || self.keeping.is_none() {
            return;
        }
        let Some(session) = self.sessions.get_mut(slot) else {
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

    /// A client is opened: those with lower numbers that were not opened after a restart are gone.
    pub(super) fn forget_unopened(&mut self, slot: usize, before: u32) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let (id, from) = (session.id(), session.next_client());
        for client in self.sessions.carried.clients(id, from, before) {
            self.parts().happens(Effect::EndClient {
                session: id.as_bytes(),
                client,
            });
        }
    }

    /// A client that was open before a restart goes on with this request.
    pub(super) fn resume_numbers(&mut self, token: Token, request: u32) -> Result<(), Violation> {
        let connection = self.connections.get_mut(token);
        let numbers = connection.and_then(|it| it.client()?.numbers.as_mut());
        if numbers.is_some_and(|numbers| numbers.resume(request)) {
            return Ok(());
        }
        Err(Violation::new("it resumed a client that was not new"))
    }

    /// A client has gone.
    pub(super) fn end_carried_client(&mut self, slot: usize, client: u32) {
        let Some(id) = self.sessions.get_mut(slot).map(|session| session.id()) else {
            return;
        };
        if self.sessions.carried.has_client(id, client) {
            self.parts().happens(Effect::EndClient {
                session: id.as_bytes(),
                client,
            });
        }
    }

    /// The journal forgets the sessions that have ended.
    pub(super) fn end_carried_sessions(&mut self) {
        while let Some(id) = self.sessions.ended.pop() {
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
        let Some(client) = connection.client() else {
            return;
        };
        let slot = client.slot();
        if let Some(numbers) = client.numbers.as_mut()
            && let Some(session) = self.sessions.get_mut(slot)
        {
            numbers.all_handed(is_waiting, session.stream.end());
        }
    }

    /// Tells the peer that requests without replies are done, once they are durable.
    pub(super) fn tell_done(&mut self, token: Token, received: usize) {
        let is_waiting = self.state.is_waiting(conn_id_of(token));
        let position = self.newest_undurable();
        let connection = self.connections.get_mut(token);
        let Some(numbers) = connection.and_then(|it| it.client()?.numbers.as_mut()) else {
            return;
        };
        numbers.received(received);
        let Some(request) = numbers.take_done(is_waiting) else {
            return;
        };
        match &mut self.keeping {
            Some(keeping) if position > 0 => keeping.tell_later(position, token, request),
            _ => self.say_done(token, request),
        }
    }

    pub(super) fn say_done(&mut self, token: Token, request: u32) {
        let Some(client) = self.connections.get_mut(token).and_then(Connection::client) else {
            return;
        };
        let (slot, number) = (client.slot(), client.number);
        if let Some(session) = self.sessions.get_mut(slot)
            && let Some(numbers) = client.numbers.as_mut()
        {
            session.stream.push_done(number, request);
            numbers.hand(request, session.stream.end());
            self.touch_link(slot);
        }
    }
}
