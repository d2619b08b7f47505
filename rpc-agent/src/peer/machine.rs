//! The state machine of one peer: how calls, requests, frames, connections and dials act on each other.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::{Backoff, BackoffOptions, Deadline};

use super::admission::{Admission, Admitted};
use super::call::{NewCall, PendingCall, budget_ms};
use super::config::Config;
use super::connection::{Connection, ConnectionId, ReadNext, Reads, Watch};
use super::effect::{Count, Effect, Effects, End, Notice};
use super::failure::Failure;
use super::functions::FunctionId;
use super::in_flight::{CallId, Completed, InFlight};
use super::incoming::{Incoming, Message};
use super::outgoing::{Batch, Outgoing, WriteProgress};
use super::pair::{AfterRefuse, AfterWelcome, Answer, Pair, PairState};
use super::request::{ReplyRoute, Request};
use crate::error::{CallMessage, CallSite, NotSent, Outcome, RpcError};
use crate::wire::{self, Frame, Hello, Refuse, RefuseReason, Welcome};
use crate::worker::WorkerInfo;

/// Bytes written in one go, before others may put theirs in between. With a quarter of a MiB a call of 1 MiB takes
/// twice as long.
const WRITE_BYTES_MAX: usize = 512 << 10;

/// With more unsent bytes than this, what is queued does not wait for more to leave with it.
const CORKED_BYTES_MAX: u64 = 32 << 10;

/// With at least this many calls in flight, a further one waits for more to leave with it: until its caller waits for
/// an answer, an answer arrives, or the standby thread looks, 0.25 ms later at most. A write costs as much as the rest
/// of a small call.
const GATHERED_CALLS_MIN: usize = 4;

/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

const REPLACED: &str = "another worker has taken its place";

/// Everything that an agent knows of one worker. `P` completes a call, `S` is a socket; the machine looks into neither.
///
/// After each input carry out all [`Effect`]s, in order, before the thread blocks.
pub(crate) struct Peer<P, S> {
    config: Arc<Config>,
    info: WorkerInfo,
    phase: Phase<S>,
    /// Chooses among crossing connections; `None` for the agent's own worker.
    pair: Option<Pair>,
    in_flight: InFlight<PendingCall<P>>,
    outgoing: Outgoing,
    admission: Admission,
    /// The largest message that the peer takes, in bytes, as it said when it connected last.
    message_bytes_max: u64,
    connections: u64,
    dials: u64,
    /// Why there is no connection, if there was one or an attempt.
    last_failure: Option<Arc<str>>,
    /// An [`Effect::SendSoon`] is under way.
    sends_soon: bool,
    /// The agent is shutting down: no new calls, no new connections.
    is_closing: bool,
    /// The function called last: the next call is often to the same.
    last_function: Arc<str>,
}

enum Phase<S> {
    /// The agent's own worker: calls to it use no connection.
    Own,
    /// No connection, and no attempt to make one.
    Absent(Absence),
    /// Attempts to connect.
    Dialing {
        dial: Dial,
        before: Absence,
    },
    Connected(Connection<S>),
    /// Another worker has its id. Its calls have failed, and further ones fail at once.
    Replaced,
}

/// What is known of a peer without a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absence {
    NeverConnected,
    /// Its last connection ended with a farewell.
    Left,
    /// Its last connection ended without one.
    Lost,
    /// Nothing listens at its address any more: its process has ended.
    Dead,
}

impl Absence {
    fn is_final(self) -> bool {
        matches!(self, Self::Left | Self::Dead)
    }
}

#[derive(Debug)]
struct Dial {
    /// Attempts that belong to an earlier dial are ignored.
    number: u64,
    backoff: Backoff,
    /// When the first attempt began.
    began: Option<Instant>,
}

/// How an attempt to connect failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptFailure {
    /// A later one may succeed.
    Again(Arc<str>),
    /// A later one would not succeed.
    Hopeless {
        cause: Arc<str>,
        /// The process has ended.
        is_dead: bool,
    },
}

/// What becomes of a connection that was dialed and welcomed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Welcomed {
    Established,
    /// Another process than the dialed one answered: close it. A further attempt is scheduled.
    OtherProcess,
    /// The dial is over: close it.
    Stale,
}

impl<P, S: Clone> Peer<P, S> {
    /// A worker of the group that there was no contact with yet.
    pub(crate) fn new(config: Arc<Config>, info: WorkerInfo) -> Self {
        let is_own = info.id == config.me.id;
        let pair = (!is_own).then(|| Pair::new(config.me.id, config.incarnation, info.id));
        Self {
            config,
            info,
            phase: if is_own {
                Phase::Own
            } else {
                Phase::Absent(Absence::NeverConnected)
            },
            pair,
            in_flight: InFlight::new(),
            outgoing: Outgoing::held(),
            admission: Admission::default(),
            message_bytes_max: u64::MAX,
            connections: 0,
            dials: 0,
            last_failure: None,
            sends_soon: false,
            is_closing: false,
            last_function: Arc::from(""),
        }
    }

    // ---- Calls to the peer ----

    /// Makes a call. `is_pool_thread`: the calling thread flushes before it sleeps, so that the request may wait for
    /// more to leave with it.
    pub(crate) fn call(
        &mut self,
        call: NewCall<'_, P>,
        payload: Bytes,
        is_pool_thread: bool,
        now: Instant,
        effects: &mut Effects<P, S>,
    ) {
        let timeout = call.timeout;
        if let Some(id) = self.expect(call, payload.len(), effects) {
            self.send(id, payload, timeout, is_pool_thread, now, effects);
        }
    }

    /// Begins a call without sending its request: for a test that loses or delays it. `None` when the call has failed.
    pub(crate) fn expect(
        &mut self,
        call: NewCall<'_, P>,
        payload_bytes: usize,
        effects: &mut Effects<P, S>,
    ) -> Option<CallId> {
        if *self.last_function != *call.function {
            self.last_function = Arc::from(call.function);
        }
        let pending = PendingCall {
            promise: call.promise,
            function: Arc::clone(&self.last_function),
            started_at: call.started_at,
            timeout: call.timeout,
            is_repeated: call.is_repeated,
        };
        let checked = self.check_call(&pending.function, payload_bytes as u64);
        if let Err(error) = checked.and_then(|()| self.check_time(&pending)) {
            effects.push(Effect::Complete {
                call: pending,
                result: Err(error),
            });
            return None;
        }
        Some(self.in_flight.insert(call.deadline_ms, pending))
    }

    /// Sends the request of a call that has no answer yet, once more for a test that doubles it. `timeout` is what is
    /// left to the call.
    pub(crate) fn send(
        &mut self,
        id: CallId,
        payload: Bytes,
        timeout: Option<Duration>,
        is_pool_thread: bool,
        now: Instant,
        effects: &mut Effects<P, S>,
    ) {
        let Some(call) = self.in_flight.get(id) else {
            return;
        };
        let budget_ms = budget_ms(timeout);
        if matches!(self.phase, Phase::Own) {
            let function = self.config.functions.find(&call.function);
            effects.push(Effect::Count(Count::OwnRequest));
            let route = ReplyRoute {
                connection: None,
                call: id.get(),
            };
            self.request(
                route,
                budget_ms,
                function,
                payload,
                is_pool_thread,
                now,
                effects,
            );
            return;
        }
        let function = &call.function;
        self.outgoing
            .push_request(id.get(), budget_ms, function, payload);
        match self.phase {
            Phase::Connected(_) => self.send_queued(is_pool_thread, effects),
            Phase::Absent(before) => self.begin_dial(before, now, effects),
            Phase::Dialing { .. } | Phase::Own | Phase::Replaced => {}
        }
    }

    /// Whether a call with this id, from the wire, has no answer yet.
    pub(crate) fn is_awaited(&self, id: u64) -> bool {
        self.in_flight.contains(CallId::from_wire(id))
    }

    /// How many calls have no answer.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The earliest deadline of a call, in milliseconds of the caller's clock.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.in_flight.next_deadline_ms()
    }

    /// Fails the calls whose deadline has passed.
    pub(crate) fn tick(&mut self, now_ms: u64, effects: &mut Effects<P, S>) {
        if self.next_deadline_ms().is_none_or(|next| next > now_ms) {
            return;
        }
        let expired = self.in_flight.expire(now_ms);
        let ids: HashSet<u64> = expired.iter().map(|(id, _)| id.get()).collect();
        let mut unsent = self.outgoing.withdraw(&ids);
        let cause: Option<Arc<str>> = match &self.phase {
            Phase::Own => None,
            Phase::Connected(_) => {
                (!unsent.is_empty()).then(|| "the worker does not read what is sent to it".into())
            }
            Phase::Absent(_) | Phase::Dialing { .. } | Phase::Replaced => {
                unsent = ids.into_iter().collect();
                let cause = self.last_failure.clone();
                Some(cause.unwrap_or_else(|| "no connection has been made yet".into()))
            }
        };
        unsent.sort_unstable();
        for (id, call) in expired {
            let is_unsent = !call.is_repeated && unsent.binary_search(&id.get()).is_ok();
            let error = RpcError::Timeout {
                call: self.site(&call.function),
                after: call.timeout.unwrap_or_default(),
                outcome: if is_unsent {
                    Outcome::NotExecuted
                } else {
                    Outcome::Unknown
                },
                cause: cause.clone().filter(|_| is_unsent),
            };
            effects.push(Effect::Complete {
                call,
                result: Err(error),
            });
        }
    }

    /// A call with a timeout of zero expires before it is sent.
    fn check_time(&self, call: &PendingCall<P>) -> Result<(), RpcError> {
        if call.timeout != Some(Duration::ZERO) {
            return Ok(());
        }
        Err(RpcError::Timeout {
            call: self.site(&call.function),
            after: Duration::ZERO,
            outcome: if call.is_repeated {
                Outcome::Unknown
            } else {
                Outcome::NotExecuted
            },
            cause: Some("its timeout is zero".into()),
        })
    }

    fn check_call(&self, function: &Arc<str>, payload_bytes: u64) -> Result<(), RpcError> {
        let call = || self.site(function);
        if matches!(self.phase, Phase::Replaced) {
            return Err(RpcError::NotSent {
                call: call(),
                cause: NotSent::Connect(REPLACED.into()),
            });
        }
        if self.is_closing {
            return Err(RpcError::Shutdown {
                call: call(),
                outcome: Outcome::NotExecuted,
            });
        }
        let bytes_max = self.largest_message();
        if payload_bytes > bytes_max {
            return Err(RpcError::TooLarge {
                call: call(),
                message: CallMessage::Request,
                bytes: Some(payload_bytes),
                bytes_max,
            });
        }
        if function.is_empty() || function.len() > wire::FUNCTION_NAME_BYTES_MAX {
            return Err(RpcError::NoSuchFunction { call: call() });
        }
        let waiting_bytes = self.outgoing.unsent_bytes();
        let max_bytes = self.config.backlog_bytes_max;
        if waiting_bytes > 0 && waiting_bytes + payload_bytes > max_bytes {
            return Err(RpcError::NotSent {
                call: call(),
                cause: NotSent::Backlog {
                    waiting_bytes,
                    max_bytes,
                },
            });
        }
        Ok(())
    }

    fn answered(&mut self, id: u64, answer: Result<Bytes, Failure>, effects: &mut Effects<P, S>) {
        match self.in_flight.complete(CallId::from_wire(id)) {
            Completed::Call(call) => {
                let result = answer.map_err(|failure| {
                    failure.into_error(self.site(&call.function), &call, self.largest_message())
                });
                effects.push(Effect::Complete { call, result });
            }
            // Its deadline has passed, or it was answered before.
            Completed::Late | Completed::Unknown => effects.push(Effect::Count(Count::LateAnswer)),
        }
    }

    // ---- Requests from the peer ----

    /// A thread is about to run a request that was admitted. `None` when that must wait until the peer has read some
    /// of its answers: more of them would pile up here.
    pub(crate) fn begin_request(&mut self, request: Request) -> Option<Request> {
        let has_backlog = self.has_backlog();
        self.admission.begin(request, has_backlog)
    }

    /// Refuses a request that was admitted, as no thread can run it.
    pub(crate) fn refuse_admitted(
        &mut self,
        route: ReplyRoute,
        reason: Arc<str>,
        is_pool_thread: bool,
        effects: &mut Effects<P, S>,
    ) {
        self.admission.cancel();
        effects.push(Effect::Count(Count::RequestRefused));
        self.respond(
            route,
            Err(Failure::Rejected(reason)),
            is_pool_thread,
            effects,
        );
    }

    /// Answers a request. False when the connection on which it came has ended.
    pub(crate) fn respond(
        &mut self,
        route: ReplyRoute,
        answer: Result<Bytes, Failure>,
        is_pool_thread: bool,
        effects: &mut Effects<P, S>,
    ) -> bool {
        let limit = self.largest_message();
        let answer = match answer {
            Ok(payload) if payload.len() as u64 > limit => Err(Failure::AnswerTooLarge {
                bytes: Some(payload.len() as u64),
            }),
            answer => answer,
        };
        match route.connection {
            None => self.answered(route.call, answer, effects),
            Some(connection) if self.is_connected_by(connection) => {
                match answer {
                    Ok(payload) => self.outgoing.push_response(route.call, payload),
                    Err(failure) => self.outgoing.push_frame(&failure.frame(route.call)),
                }
                self.send_queued(is_pool_thread, effects);
            }
            Some(_) => return false,
        }
        true
    }

    /// Requests that have not begun, those that no thread has taken included.
    pub(crate) fn requests_queued(&self) -> usize {
        self.admission.queued()
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "they are the fields of one frame, and when and where it arrived"
    )]
    fn request(
        &mut self,
        route: ReplyRoute,
        budget_ms: u32,
        function: Option<FunctionId>,
        payload: Bytes,
        is_pool_thread: bool,
        now: Instant,
        effects: &mut Effects<P, S>,
    ) {
        let Some(function) = function else {
            return self.refuse(route, Failure::NoSuchFunction, is_pool_thread, effects);
        };
        let deadline = if budget_ms == 0 {
            Deadline::NEVER
        } else {
            Deadline::after(now, Duration::from_millis(u64::from(budget_ms)))
        };
        let request = Request {
            route,
            function,
            deadline,
            arrived_at: now,
            payload,
        };
        let has_backlog = self.has_backlog();
        let queued_max = self.config.requests_queued_max;
        match self.admission.admit(request, has_backlog, queued_max) {
            Admitted::Run(request) => effects.push(Effect::Admit(request)),
            Admitted::Parked => {}
            Admitted::Full => {
                let reason = format!("{queued_max} requests of this worker wait already");
                self.refuse(
                    route,
                    Failure::Rejected(reason.into()),
                    is_pool_thread,
                    effects,
                );
            }
        }
    }

    /// Refuses a request. A refusal waits for no thread and takes no place in a queue, so a peer that sends requests
    /// without end and reads no answer loses its connection.
    fn refuse(
        &mut self,
        route: ReplyRoute,
        failure: Failure,
        is_pool_thread: bool,
        effects: &mut Effects<P, S>,
    ) {
        effects.push(Effect::Count(Count::RequestRefused));
        if self.has_backlog()
            && self
                .admission
                .refused_unread(self.config.requests_queued_max)
        {
            let text = "closed: the peer is not reading, and its refused-request limit is reached";
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, text);
            return self.end_connection(End::Failed(error), effects);
        }
        self.respond(route, Err(failure), is_pool_thread, effects);
    }

    fn has_backlog(&self) -> bool {
        self.outgoing.unsent_bytes() > self.config.backlog_bytes_max
    }

    // ---- Making a connection ----

    /// An attempt of this dial is due. False when it is not needed any more.
    pub(crate) fn begin_attempt(&mut self, number: u64, now: Instant) -> bool {
        let is_needed = self.in_flight.len() > 0;
        let Phase::Dialing { dial, before } = &mut self.phase else {
            return false;
        };
        if dial.number != number {
            return false;
        }
        // After a loss the attempt shows whether the process still lives.
        if !is_needed && matches!(before, Absence::NeverConnected | Absence::Left) {
            self.phase = Phase::Absent(*before);
            return false;
        }
        dial.began.get_or_insert(now);
        true
    }

    /// The first frame of a connection that was dialed to the process with this incarnation (0 for any). `None` when
    /// the dial is over.
    pub(crate) fn hello(&mut self, number: u64, incarnation: u64) -> Option<Hello> {
        if !self.is_dialing(number) {
            return None;
        }
        let links = self.pair.as_mut()?.dial(incarnation)?;
        Some(Hello {
            from: self.config.me.clone(),
            to: self.info.id,
            incarnation: self.config.incarnation,
            incarnation_wanted: incarnation,
            links,
            message_bytes_max: self.config.message_bytes_max,
        })
    }

    /// The peer has accepted the connection, on which `messages` have arrived right behind the Welcome.
    #[expect(clippy::too_many_arguments, reason = "they make up the new connection")]
    pub(crate) fn welcomed(
        &mut self,
        number: u64,
        welcome: &Welcome,
        (socket, address): (S, SocketAddr),
        decoder: Incoming,
        messages: Vec<Message>,
        now: Instant,
        effects: &mut Effects<P, S>,
    ) -> Welcomed {
        if !self.awaits_welcome(number) {
            return Welcomed::Stale;
        }
        let after = self.pair.as_mut().map(|pair| pair.on_welcome(welcome));
        if after != Some(AfterWelcome::Established) {
            let cause = "another process answered".into();
            self.attempt_failed(number, AttemptFailure::Again(cause), now, effects);
            return Welcomed::OtherProcess;
        }
        self.message_bytes_max = welcome.message_bytes_max;
        let connection = self.establish(socket, address, decoder, effects);
        if self.received(connection, messages, false, now, effects) {
            self.send_now(effects);
        }
        Welcomed::Established
    }

    /// The peer has refused the connection.
    pub(crate) fn refused(
        &mut self,
        number: u64,
        refuse: &Refuse,
        now: Instant,
        effects: &mut Effects<P, S>,
    ) {
        if !self.awaits_welcome(number) {
            return;
        }
        let after = self.pair.as_mut().map(|pair| pair.on_refuse(refuse));
        let cause = format!("refused: {}", refuse.text).into();
        let failure = match after {
            Some(AfterRefuse::GiveUp) => AttemptFailure::Hopeless {
                cause,
                is_dead: false,
            },
            _ => AttemptFailure::Again(cause),
        };
        self.attempt_failed(number, failure, now, effects);
    }

    /// An attempt of this dial has failed: schedules the next one, or fails the calls that wait for the connection.
    pub(crate) fn attempt_failed(
        &mut self,
        number: u64,
        failure: AttemptFailure,
        now: Instant,
        effects: &mut Effects<P, S>,
    ) {
        if !self.is_dialing(number) {
            return;
        }
        if let Some(pair) = &mut self.pair
            && matches!(pair.state(), PairState::Dialing { .. })
        {
            pair.on_dial_failed();
        }
        let Phase::Dialing { dial, before } = &mut self.phase else {
            return;
        };
        let (cause, is_dead) = match failure {
            AttemptFailure::Again(cause) => {
                let limit = self.config.connect_timeout;
                let is_late = dial.began.is_some_and(|began| now - began >= limit);
                if !is_late && !self.is_closing {
                    let at = now + dial.backoff.next_delay();
                    self.last_failure = Some(cause);
                    effects.push(Effect::Dial { dial: number, at });
                    return;
                }
                (cause, false)
            }
            AttemptFailure::Hopeless { cause, is_dead } => (cause, is_dead),
        };
        let absence = match *before {
            _ if is_dead => Absence::Dead,
            // It did not refuse this time.
            Absence::Dead => Absence::Lost,
            before => before,
        };
        self.phase = Phase::Absent(absence);
        self.last_failure = Some(Arc::clone(&cause));
        effects.push(Effect::Notify(Notice::Unreachable {
            cause: Arc::clone(&cause),
            calls_failed: self.in_flight.len(),
        }));
        self.fail_calls(false, effects, |site, _, _| RpcError::NotSent {
            call: site,
            cause: NotSent::Connect(Arc::clone(&cause)),
        });
    }

    /// Decides on a connection that the peer has made. It replaces one that the peer no longer has.
    ///
    /// # Errors
    /// What to answer instead of a Welcome.
    pub(crate) fn accept(
        &mut self,
        hello: &Hello,
        (socket, address): (S, SocketAddr),
        decoder: Incoming,
        effects: &mut Effects<P, S>,
    ) -> Result<ConnectionId, (RefuseReason, u32)> {
        if matches!(self.phase, Phase::Replaced) {
            return Err((RefuseReason::WrongWorker, 0));
        }
        let Some(pair) = &mut self.pair else {
            return Err((RefuseReason::WrongWorker, 0));
        };
        let links = match pair.on_hello(hello) {
            Answer::Refuse { reason, links } => return Err((reason, links)),
            Answer::Accept { links, .. } => links,
        };
        if self.is_connected() {
            let error = io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the worker has made a new one",
            );
            self.drop_connection(End::Failed(error), effects);
        }
        self.message_bytes_max = hello.message_bytes_max;
        let connection = self.establish(socket, address, decoder, effects);
        // The first bytes of the connection: the peer takes no others before.
        self.outgoing.put_first(&Frame::Welcome(Welcome {
            incarnation: self.config.incarnation,
            links,
            message_bytes_max: self.config.message_bytes_max,
        }));
        self.send_now(effects);
        Ok(connection)
    }

    /// Whether the peer is known to have ended or left. One whose connection was lost is dialed, so that a later
    /// question has an answer: no call may ever find out.
    pub(crate) fn is_known_dead(&mut self, now: Instant, effects: &mut Effects<P, S>) -> bool {
        match self.phase {
            Phase::Absent(absence)
            | Phase::Dialing {
                before: absence, ..
            } if absence.is_final() => true,
            Phase::Absent(Absence::Lost) if !self.is_closing => {
                self.begin_dial(Absence::Lost, now, effects);
                false
            }
            _ => false,
        }
    }

    /// The incarnation of the process at the other end of the last connection.
    pub(crate) fn peer_incarnation(&self) -> Option<u64> {
        self.pair.as_ref()?.peer_incarnation()
    }

    fn begin_dial(&mut self, before: Absence, now: Instant, effects: &mut Effects<P, S>) {
        let options = BackoffOptions::default()
            .with_first(FIRST_PAUSE)
            .with_max(LONGEST_PAUSE);
        // Two workers that dial each other do not stay in step.
        let seed = self.config.incarnation ^ u64::from(self.info.id.get());
        self.dials += 1;
        let number = self.dials;
        let dial = Dial {
            number,
            backoff: Backoff::new(options, seed),
            began: None,
        };
        self.phase = Phase::Dialing { dial, before };
        effects.push(Effect::Dial {
            dial: number,
            at: now,
        });
    }

    fn is_dialing(&self, number: u64) -> bool {
        matches!(&self.phase, Phase::Dialing { dial, .. } if dial.number == number)
    }

    fn awaits_welcome(&self, number: u64) -> bool {
        let state = self.pair.as_ref().map(Pair::state);
        self.is_dialing(number) && matches!(state, Some(PairState::Dialing { .. }))
    }

    fn establish(
        &mut self,
        socket: S,
        address: SocketAddr,
        decoder: Incoming,
        effects: &mut Effects<P, S>,
    ) -> ConnectionId {
        self.outgoing.start();
        self.connections += 1;
        let id = ConnectionId(self.connections);
        self.phase = Phase::Connected(Connection::new(id, socket, address, decoder));
        self.last_failure = None;
        effects.push(Effect::Notify(Notice::Connected {
            address,
            is_reconnect: self.connections > 1,
        }));
        id
    }

    // ---- Bytes of the connection ----

    /// The messages that a read of the connection gave. False when the connection is not, or no longer, in use.
    pub(crate) fn received(
        &mut self,
        connection: ConnectionId,
        messages: impl IntoIterator<Item = Message>,
        is_pool_thread: bool,
        now: Instant,
        effects: &mut Effects<P, S>,
    ) -> bool {
        let mut has_left = false;
        for message in messages {
            if !self.is_connected_by(connection) {
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
                    self.request(
                        route,
                        budget_ms,
                        function,
                        payload,
                        is_pool_thread,
                        now,
                        effects,
                    );
                }
                Message::Response { id, payload } => self.answered(id, Ok(payload), effects),
                Message::Failure { id, failure } => self.answered(id, Err(failure), effects),
                Message::Goodbye { .. } => has_left = true,
                Message::Hello(_) | Message::Welcome(_) | Message::Refuse(_) => {
                    debug_assert!(false, "the decoder lets none of them through here");
                }
            }
        }
        if has_left && self.is_connected_by(connection) {
            self.end_connection(End::Left, effects);
        }
        self.is_connected_by(connection)
    }

    /// The connection is of no use any more: its calls fail.
    pub(crate) fn connection_lost(
        &mut self,
        connection: ConnectionId,
        error: io::Error,
        effects: &mut Effects<P, S>,
    ) {
        if self.is_connected_by(connection) {
            self.end_connection(End::Failed(error), effects);
        }
    }

    /// The thread that was told to [`Effect::Send`] has written so far.
    pub(crate) fn written(
        &mut self,
        connection: ConnectionId,
        batch: Batch,
        result: io::Result<WriteProgress>,
        effects: &mut Effects<P, S>,
    ) {
        let Some(current) = self.connected_by(connection) else {
            // The bytes were those of an earlier connection, whose calls have failed.
            return;
        };
        match result {
            Ok(WriteProgress::Done) => current.end_writing(),
            Ok(WriteProgress::Blocked) => current.block_writing(),
            Err(_) => current.end_writing(),
        }
        self.outgoing.put_back(batch);
        if let Err(error) = result {
            return self.end_connection(End::Failed(error), effects);
        }
        self.send_now(effects);
        if self.outgoing.unsent_bytes() <= self.config.backlog_bytes_max / 2 {
            for request in self.admission.unpark() {
                effects.push(Effect::Admit(request));
            }
        }
    }

    /// The socket takes bytes again.
    pub(crate) fn writable(&mut self, connection: ConnectionId, effects: &mut Effects<P, S>) {
        if let Some(current) = self.connected_by(connection)
            && current.writable()
        {
            self.send_now(effects);
        }
    }

    /// Carries out an [`Effect::SendSoon`].
    pub(crate) fn flush(&mut self, effects: &mut Effects<P, S>) {
        self.sends_soon = false;
        self.send_now(effects);
    }

    /// The decoder for a thread that is to read: see [`Connection::take_reader`].
    pub(crate) fn take_reader(
        &mut self,
        connection: ConnectionId,
        reads: Reads,
    ) -> Option<(Box<Incoming>, bool)> {
        self.connected_by(connection)?.take_reader(reads)
    }

    /// Takes the decoder back: see [`Connection::give_back_reader`].
    pub(crate) fn give_back_reader(
        &mut self,
        connection: ConnectionId,
        decoder: Box<Incoming>,
        is_drained: bool,
    ) -> ReadNext {
        match self.connected_by(connection) {
            Some(current) => current.give_back_reader(decoder, is_drained),
            None => ReadNext::Stop,
        }
    }

    /// The poller has reported the end of the stream.
    pub(crate) fn read_closed(&mut self, connection: ConnectionId) {
        if let Some(current) = self.connected_by(connection) {
            current.read_closed();
        }
    }

    /// Lends the connection to a caller that waits for its answer and will read it. `None` when it cannot be lent.
    pub(crate) fn lend(&mut self) -> Option<(ConnectionId, S)> {
        let Phase::Connected(current) = &mut self.phase else {
            return None;
        };
        current.lend().then(|| (current.id, current.socket.clone()))
    }

    /// Before the borrowing caller waits for the socket: whether it is to wait until that is writable, too. `None`
    /// when the connection has ended.
    pub(crate) fn waits_for_output(&mut self, connection: ConnectionId) -> Option<bool> {
        Some(self.connected_by(connection)?.waits_for_output())
    }

    /// The borrowing caller is done.
    pub(crate) fn end_lending(&mut self, connection: ConnectionId) {
        if let Some(current) = self.connected_by(connection) {
            current.end_lending();
        }
    }

    /// What the poller is to watch from now on, if the last input changed that: before and after.
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
        matches!(&self.phase, Phase::Connected(current) if current.is_writing())
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected(_))
    }

    /// Sends what is queued: at once, or together with what else this thread produces.
    fn send_queued(&mut self, is_pool_thread: bool, effects: &mut Effects<P, S>) {
        let Phase::Connected(current) = &self.phase else {
            return;
        };
        if current.is_writing() {
            return;
        }
        let is_urgent = self.outgoing.unsent_bytes() >= CORKED_BYTES_MAX
            || !is_pool_thread && self.in_flight.len() < GATHERED_CALLS_MIN;
        if is_urgent {
            return self.send_now(effects);
        }
        if !std::mem::replace(&mut self.sends_soon, true) {
            effects.push(Effect::SendSoon);
        }
    }

    fn send_now(&mut self, effects: &mut Effects<P, S>) {
        let Phase::Connected(current) = &mut self.phase else {
            return;
        };
        if !current.is_writer_idle() {
            return;
        }
        if let Some(batch) = self.outgoing.take_batch(WRITE_BYTES_MAX) {
            current.begin_writing();
            effects.push(Effect::Send {
                connection: current.id,
                socket: current.socket.clone(),
                batch,
            });
        }
    }

    // ---- The end of a connection, and of the peer ----

    /// Another worker has this one's id: ends the connection, and fails all calls, now and later.
    pub(crate) fn replaced(&mut self, effects: &mut Effects<P, S>) {
        if self.is_connected() {
            let error = io::Error::new(io::ErrorKind::ConnectionReset, REPLACED);
            self.end_connection(End::Failed(error), effects);
        } else {
            self.fail_calls(false, effects, |site, _, _| RpcError::NotSent {
                call: site,
                cause: NotSent::Connect(REPLACED.into()),
            });
        }
        self.phase = Phase::Replaced;
    }

    /// The agent shuts down: takes no more calls and connections, and tells the peer so.
    pub(crate) fn say_goodbye(&mut self, effects: &mut Effects<P, S>) {
        self.is_closing = true;
        if let Some(pair) = &mut self.pair {
            pair.close();
        }
        if self.is_connected() {
            self.outgoing.push_frame(&Frame::Goodbye { reason: 0 });
            self.send_now(effects);
        }
    }

    /// The agent has shut down: closes the connection, and fails what is left.
    pub(crate) fn end(&mut self, effects: &mut Effects<P, S>) {
        self.is_closing = true;
        let had_connection = self.close_connection(Absence::NeverConnected, effects);
        if let Phase::Dialing { before, .. } = self.phase {
            self.phase = Phase::Absent(before);
        }
        self.admission.connection_ended();
        self.fail_calls(had_connection, effects, |site, _, outcome| {
            RpcError::Shutdown {
                call: site,
                outcome,
            }
        });
    }

    /// Ends the connection in use.
    fn end_connection(&mut self, end: End, effects: &mut Effects<P, S>) {
        self.drop_connection(end, effects);
        if let Some(pair) = &mut self.pair
            && pair.state() == PairState::Established
        {
            pair.on_lost();
        }
    }

    /// Ends the connection in use, but for the pair's state: another one may be about to take its place.
    fn drop_connection(&mut self, end: End, effects: &mut Effects<P, S>) {
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
        // Of the process that has ended: another one may be connected by the time that the program is told.
        let incarnation = self.peer_incarnation();
        self.close_connection(
            if has_left {
                Absence::Left
            } else {
                Absence::Lost
            },
            effects,
        );
        for _ in 0..self.admission.connection_ended() {
            effects.push(Effect::Count(Count::RequestRefused));
        }
        let calls_failed = self.in_flight.len();
        self.fail_calls(true, effects, |site, call, outcome| {
            call.lost(site, outcome, &error)
        });
        effects.push(Effect::Notify(if has_left {
            Notice::Left { incarnation }
        } else {
            Notice::Lost {
                cause,
                calls_failed,
            }
        }));
    }

    /// Whether there was a connection, which is closed now.
    fn close_connection(&mut self, absence: Absence, effects: &mut Effects<P, S>) -> bool {
        if !self.is_connected() {
            return matches!(self.phase, Phase::Own);
        }
        let before = std::mem::replace(&mut self.phase, Phase::Absent(absence));
        if let Phase::Connected(current) = before {
            let watched = current.watched();
            effects.push(Effect::Close {
                socket: current.socket,
                watched,
            });
        }
        true
    }

    /// Fails all calls: with `error`, or as shut down. A request of which no byte was sent has not been executed.
    fn fail_calls(
        &mut self,
        had_connection: bool,
        effects: &mut Effects<P, S>,
        error: impl Fn(Box<CallSite>, &PendingCall<P>, Outcome) -> RpcError,
    ) {
        let mut unsent = self.outgoing.unsent_requests();
        unsent.sort_unstable();
        self.outgoing = Outgoing::held();
        for (id, call) in self.in_flight.drain() {
            let is_unsent =
                !had_connection || !call.is_repeated && unsent.binary_search(&id.get()).is_ok();
            let outcome = if is_unsent {
                Outcome::NotExecuted
            } else {
                Outcome::Unknown
            };
            let site = self.site(&call.function);
            let error = if self.is_closing {
                RpcError::Shutdown {
                    call: site,
                    outcome,
                }
            } else {
                error(site, &call, outcome)
            };
            effects.push(Effect::Complete {
                call,
                result: Err(error),
            });
        }
    }

    // ---- What the parts above share ----

    fn site(&self, function: &Arc<str>) -> Box<CallSite> {
        Box::new(CallSite {
            to: self.info.clone(),
            function: Arc::clone(function),
        })
    }

    /// The largest message that goes between this agent and the peer, in bytes.
    fn largest_message(&self) -> u64 {
        self.config.message_bytes_max.min(self.message_bytes_max)
    }

    fn is_connected_by(&self, connection: ConnectionId) -> bool {
        matches!(&self.phase, Phase::Connected(current) if current.id == connection)
    }

    fn connected_by(&mut self, connection: ConnectionId) -> Option<&mut Connection<S>> {
        match &mut self.phase {
            Phase::Connected(current) if current.id == connection => Some(current),
            _ => None,
        }
    }
}

impl<P, S> std::fmt::Debug for Peer<P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer")
            .field("info", &self.info)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
