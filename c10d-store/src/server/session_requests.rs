//! The requests of sessions that survive the server. Their effects are recorded, and a request that was carried out before
//! a restart is answered from the record (docs/spec/wire-extensions.md, SESSION 13 and 14).

use mio::Token;

use super::connection::{Connections, conn_id_of};
use super::session_client::Numbers;
use super::session_replies::Again;
use super::sessions::Sessions;
use crate::journal::batch::Effect;
use crate::message::{Extension, Request};
use crate::moment::Moment;
pub(super) use crate::session::Hello;
use crate::session::{ResentWait, SessionId};
use crate::state::{KeptClient, Recorder, Refusal, StoreState};
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

/// A request of such a client.
#[derive(Debug)]
pub(super) struct CarriedRequest {
    client: CarriedClient,
    number: u32,
    can_wait: bool,
    /// A wait that changes nothing. If it has ended at once, it was a read.
    can_read: bool,
    is_fresh: bool,
    is_always_recorded: bool,
    resent: Option<(ResentWait, Moment)>,
    /// The number of changes of the state before the request.
    changes: u64,
}

/// How a request of such a client is handled.
#[derive(Debug)]
enum Begun {
    /// The state handles it.
    New(CarriedRequest),
    /// The request waits at a barrier, where it had arrived before a restart.
    Waits(CarriedRequest),
    /// The request was carried out before, and is answered.
    Answered,
}

/// The result of the checks before a request.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// The result of a request that must not be carried out now: it is answered, waits, or is refused. `Ok` if the connection
    /// stays open, as it does after a refused write about which its peer may ask.
    pub(super) done: Option<Result<(), Refusal>>,
    /// To be [finished](Parts::finish) after the request, for a client whose session the journal keeps.
    pub(super) begun: Option<CarriedRequest>,
    /// The argument of SESSION.
    pub(super) hello: Option<Hello>,
    /// Whether the request may begin to delete names.
    pub(super) may_sweep: bool,
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

    /// Whether a request needs [`check`](Self::check). Otherwise the state notes it and carries it out.
    #[inline]
    pub(super) fn must_check(&self, carried: Option<CarriedClient>, request: &Request<'_>) -> bool {
        carried.is_some() || self.connections.has_refused() || self.state.must_check(request)
    }

    /// Checks a request of a connection, which is `carried` if the journal keeps its session. Notes it in the state, unless it
    /// was carried out before a restart. If the state refuses it, [`Checked::done`] has the refusal: waits that it has ended are
    /// recorded before the connection is closed.
    ///
    /// # Errors
    /// The refusal of the write before, after which the connection had to ask (docs/spec/wire-extensions.md, REFUSAL 2).
    pub(super) fn check(
        &mut self,
        token: Token,
        carried: Option<CarriedClient>,
        request: &Request<'_>,
    ) -> Result<Checked, Refusal> {
        if let Some(refusal) = self.connections.unasked_refusal(token, request) {
            return Err(refusal);
        }
        let (begun, is_new) = match carried.map(|client| self.begin(client, request)) {
            None => (None, true),
            Some(Begun::New(begun)) => (Some(begun), true),
            Some(Begun::Waits(begun)) => (Some(begun), false),
            Some(Begun::Answered) => (None, false),
        };
        let done = match is_new {
            true => self.check_in_state(token, request),
            false => Some(Ok(())),
        };
        if let Some(Err(Refusal::MemoryFull { used, limit })) = done
            && request.is_silent_write()
            && self.connections.may_ask_why(token, used, limit)
        {
            let done = Some(Ok(()));
            return Ok(Checked {
                done,
                ..Checked::default()
            });
        }
        let hello = match request {
            Request::Extension(Extension::Session(hello)) => Some(*hello),
            _ => None,
        };
        Ok(Checked {
            done,
            begun,
            hello,
            may_sweep: matches!(request, Request::Extension(Extension::DeletePrefix { .. })),
        })
    }

    /// Notes a request in the state, and has the state check it. Returns [`Checked::done`].
    fn check_in_state(
        &mut self,
        token: Token,
        request: &Request<'_>,
    ) -> Option<Result<(), Refusal>> {
        let conn = conn_id_of(token);
        self.state.note_request(conn, request);
        let checked = self.state.check_request(conn, request, self.connections);
        checked.map(|is_done| is_done.then_some(())).transpose()
    }

    /// Begins a request of a client whose session the journal keeps. The request may have been carried out before.
    fn begin(&mut self, client: CarriedClient, request: &Request<'_>) -> Begun {
        let conn = conn_id_of(client.token);
        let command = request.outline().command;
        // The reply to `DeletePrefix` is also sent later.
        let can_wait = command.is_wait() || command == Opcode::DeletePrefix;
        // It follows from the state of its group, and has the list of thousands.
        let is_fresh = command == Opcode::MembershipPoll;
        let Some(number) = self.next_number(client, can_wait, is_fresh) else {
            return Begun::Answered;
        };
        let resent = self.numbers(client).filter(|_| command.is_wait());
        let begun = CarriedRequest {
            client,
            number,
            can_wait,
            resent: resent.and_then(Numbers::take_resent),
            can_read: matches!(command, Opcode::Wait | Opcode::WaitGet | Opcode::WaitChange),
            is_fresh,
            is_always_recorded: matches!(
                request,
                Request::Barrier { .. } | Request::Extension(Extension::EndWaits { .. })
            ),
            changes: self.state.recorder().map_or(0, Recorder::changes),
        };
        let again = self
            .sessions
            .carried
            .again(client.session, client.number, number);
        match (again, request) {
            (Some(Again::Reply(reply)), _) => {
                let was_ended = command.is_wait() && has_ended(Some(reply));
                self.state.set_wait_ended(conn, was_ended);
                if !reply.is_empty() {
                    self.connections.send_after(client.token, 0, reply);
                    self.replies(client, number);
                }
                Begun::Answered
            }
            (Some(Again::Waits), Request::Barrier { key, world_size }) => {
                let connections = &mut *self.connections;
                self.state
                    .wait_at_barrier(conn, key, *world_size, connections);
                Begun::Waits(begun)
            }
            (Some(Again::Waits) | None, _) => {
                let is_owner = match request {
                    Request::Extension(Extension::SetEphemeral { .. })
                    | Request::Extension(Extension::KeepAlive { .. }) => true,
                    Request::Extension(Extension::Membership { bytes, .. }) => {
                        self.state.keeps_alive(bytes)
                    }
                    _ => false,
                };
                if is_owner {
                    self.state.name_client(conn, client.kept());
                }
                Begun::New(begun)
            }
        }
    }

    /// The request was carried out.
    pub(super) fn finish(&mut self, begun: CarriedRequest) {
        let CarriedRequest { client, number, .. } = begun;
        if let Some((wait, accepted)) = begun.resent {
            let conn = conn_id_of(client.token);
            self.state
                .end_if_missed(conn, wait, accepted, self.connections);
        }
        let reply = self.connections.take_captured_of(client.token);
        if reply.is_some() {
            self.replies(client, number);
        }
        let must_record = if begun.is_fresh || begun.can_read {
            // A wait that continues is recorded when it ends.
            has_ended(reply.as_deref())
        } else if begun.can_wait {
            // Before the reply arrives, other requests may change the data that this request saw.
            reply.is_some()
        } else {
            self.state.recorder().map_or(0, Recorder::changes) != begun.changes
        };
        if must_record || begun.is_always_recorded {
            let waits = begun.can_wait && reply.is_none();
            self.record(client, number, waits, &reply.unwrap_or_default());
        }
    }

    /// Records the replies that have ended the waits of other clients.
    #[inline]
    pub(super) fn record_woken(&mut self) {
        if self.connections.has_captured() {
            self.record_captured();
        }
    }

    fn record_captured(&mut self) {
        while let Some((token, reply)) = self.connections.take_captured() {
            if let Some(client) = self.carried(token)
                && let Some(connection) = self.connections.get_mut(token)
                && let Some(numbers) = connection.client().and_then(|it| it.numbers.as_ref())
            {
                let (request, is_fresh) = (numbers.wait_request(), numbers.is_wait_fresh());
                self.replies(client, request);
                if !is_fresh || has_ended(Some(&reply)) {
                    self.record(client, request, false, &reply);
                }
            }
        }
    }

    fn next_number(
        &mut self,
        client: CarriedClient,
        can_wait: bool,
        is_fresh: bool,
    ) -> Option<u32> {
        let numbers = self.numbers(client)?;
        let number = numbers.next(can_wait);
        if can_wait {
            numbers.set_fresh(is_fresh);
        }
        Some(number)
    }

    fn replies(&mut self, client: CarriedClient, request: u32) {
        if let Some(numbers) = self.numbers(client) {
            numbers.replies(request);
        }
    }

    fn numbers(&mut self, client: CarriedClient) -> Option<&mut Numbers> {
        let connection = self.connections.get_mut(client.token)?;
        connection.client()?.numbers.as_deref_mut()
    }

    fn record(&mut self, client: CarriedClient, request: u32, waits: bool, reply: &[u8]) {
        let session = self.sessions.get_mut(client.slot);
        let acknowledged = session.map_or(0, |session| session.stream.acknowledged());
        let numbers = self.numbers(client);
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
        if let Some(recorder) = self.state.recorder_mut() {
            recorder.record_session(effect);
        }
        let carried = &mut self.sessions.carried;
        carried.apply(effect);
        self.state.set_carried_bytes(carried.memory_bytes());
    }
}

/// Whether END_WAITS has ended the wait with this reply.
fn has_ended(reply: Option<&[u8]>) -> bool {
    reply == Some(&[WAIT_CANCELED])
}
