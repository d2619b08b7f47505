//! The requests of sessions that survive the server: what they do is recorded, and one that was carried out before a
//! restart is answered from the record (docs/wire-extensions.md, SESSION 13 and 14).

use mio::Token;

use super::carried::Again;
use super::connection::{Connections, conn_id_of};
use super::sessions::Sessions;
use crate::journal::batch::Effect;
use crate::message::Request;
use crate::session::SessionId;
use crate::state::{KeptClient, Refusal, StoreState};
use crate::wire::{Opcode, WAIT_CANCELED};

/// A client of such a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct CarriedClient {
    token: Token,
    slot: usize,
    session: SessionId,
    number: u32,
}

impl CarriedClient {
    const fn kept(&self) -> KeptClient {
        KeptClient {
            session: self.session,
            number: self.number,
        }
    }
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
        let command = request.outline().command;
        // Its reply comes later, too.
        let can_wait = command.is_wait() || command == Opcode::DeletePrefix;
        let is_barrier = matches!(request, Request::Barrier { .. });
        let ends_waits = matches!(request, Request::EndWaits { .. });
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
                let was_ended = command.is_wait() && reply == [WAIT_CANCELED];
                self.state.set_wait_ended(conn, was_ended);
                if !reply.is_empty() {
                    self.connections.send_after(client.token, 0, reply);
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
                if matches!(
                    request,
                    Request::SetEphemeral { .. } | Request::KeepAlive { .. }
                ) {
                    self.state.name_client(conn, client.kept());
                }
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
            ends_waits || self.state.changes() != changes
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

    pub(super) fn happens(&mut self, effect: Effect<'_>) {
        self.state.record_session(effect);
        self.sessions.carried.apply(effect);
    }
}
