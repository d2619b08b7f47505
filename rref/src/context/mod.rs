//! The protocol of references as a state machine: events in, effects out.
//!
//! Knows no socket, clock, thread or randomness, and neither functions nor the encoding of values. Every
//! method may leave effects, which [`RRefContext::take_effects`] hands to the shell.
//!
//! # The two guarantees
//!
//! 1. The owner is told when any user is gone.
//! 2. A user is not deleted before the owner knows its children.
//!
//! So an owner that knows no user of a value that was created has none: each unknown user has a living
//! parent, that one is known or has a living parent itself, and the chain ends at a user that the owner
//! has made, or at the creator's, which both are known. See PyTorch's
//! `torch/csrc/distributed/rpc/rref_context.h` and `torch/csrc/distributed/rpc/rref_impl.h`.
//!
//! # Beyond PyTorch
//!
//! - A creation is answered when it is registered, not when its function has run; it is sent with retries
//!   and runs once. If it was not answered at all, the owner is asked to settle it: either it has come
//!   meanwhile, or it never counts, for nobody. So no user waits for what will not come.
//! - Ids of what is gone are kept for a while: late copies of messages change nothing. All handlers can
//!   run twice; numbers and windows for messages are not needed for that.
//! - Messages that could not be sent are kept, and sent when their receiver is heard of again.
//! - Whether a reference has arrived can be asked at its receiver, which then refuses it if it has not,
//!   and at its owner.
//! - Dead workers are no guarantee's end: their users are released, and users of their values fail. A user
//!   that only a dead worker has passed on, and that the owner does not know yet, may find its value gone.

mod invariants;
mod outbox;
mod owner;
mod peers;
mod snapshot;
mod tombstones;
mod user;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_agent::WorkerId;

use crate::effect::{
    Control, Delivery, Effect, FetchError, ForkError, GiveError, ReceiveError, RequestToken,
    UserError,
};
use crate::id::{ForkId, Mint, RRefId};
use crate::protocol::{Answer, ForkData, Message, TYPE_NAME_BYTES_MAX, cut};
use outbox::Outbox;
use owner::{Arrival, Creation, Holder, Owned, UNMADE_MAX, Value, WAITING_MAX, Waiting};
use peers::Peer;
pub use snapshot::{
    ChildRow, ControlRow, ForkRow, Missing, OwnedRow, Snapshot, TableSizes, UserRow,
};
use tombstones::Tombstones;
use user::{Child, InVain, State, User};

/// How many probes are under way at a time, those that have stalled not counted.
const PROBES_MAX: usize = 1024;

/// The most messages without an answer: no more references are received then.
const SENDINGS_MAX: usize = 1 << 20;

/// What a reference travels in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carrier {
    /// A call, of which the sender learns how it ends. While it goes on its references are not asked for: it
    /// may wait for a thread of its receiver for long.
    Call,
    /// An answer, of which nobody says whether it has arrived.
    Answer,
}

/// The shortest time of [`Timing`].
const WAIT_MIN: Duration = Duration::from_millis(1);

/// How long the context waits for others. A time of less than a millisecond counts as one, and one that no
/// clock reaches is waited for without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    /// For so long a reference may be under way in an answer, or a child be unregistered, before its receiver
    /// is asked whether it has come. Default 30 s.
    pub probe_after: Duration,
    /// For so long a message whose retries are used up waits for a sign of life before it is tried all the
    /// same. Default 10 s.
    pub resend_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            probe_after: Duration::from_secs(30),
            resend_after: Duration::from_secs(10),
        }
    }
}

/// What a program holds: all clones of an `RRef` together hold one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Handle {
    /// Of a value of this worker.
    Owner(RRefId),
    /// Of a value of another worker.
    User(ForkId),
}

/// A reference that came in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// To be given back by [`RRefContext::drop_handle`].
    pub handle: Handle,
    /// Whether the owner knows it; if not, [`Effect::Confirmed`] or [`Effect::Failed`] comes.
    pub is_confirmed: bool,
}

/// How far a user is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserStatus {
    /// The owner has not answered.
    Pending,
    /// The owner knows it.
    Confirmed,
    /// It is of no use.
    Failed(UserError),
}

/// How far the joint end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Running,
    /// No new references; users go as soon as they may.
    DeletingUsers,
    /// Values without users go, whoever holds a handle here.
    Sweeping,
}

/// One worker's references: the values that it owns and the users that it has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RRefContext<V> {
    me: WorkerId,
    incarnation: u64,
    timing: Timing,
    mint: Mint,
    phase: Phase,
    owned: BTreeMap<RRefId, Owned<V>>,
    /// How many of `owned` are unmade.
    unmade: usize,
    /// Requests for values that are not there.
    waiting: BTreeMap<RequestToken, Waiting>,
    deadlines: BTreeSet<(Instant, RequestToken)>,
    users: BTreeMap<ForkId, User>,
    children: BTreeMap<ForkId, Child>,
    /// The forks whose [`Arrival`] is `UnderWay`, by its time.
    under_way: BTreeSet<(Instant, RRefId, ForkId)>,
    outbox: Outbox,
    in_vain: BTreeMap<Control, InVain>,
    peers: BTreeMap<WorkerId, Peer>,
    gone: Tombstones,
    effects: Vec<Effect<V>>,
}

impl<V: Clone> RRefContext<V> {
    /// Without any reference. `incarnation` is drawn anew by each process, and not 0.
    #[must_use]
    pub fn new(me: WorkerId, incarnation: u64, timing: Timing, now: Instant) -> Self {
        // What is due at once, again and again, would be done without end.
        let timing = Timing {
            probe_after: timing.probe_after.max(WAIT_MIN),
            resend_after: timing.resend_after.max(WAIT_MIN),
        };
        Self {
            me,
            incarnation,
            timing,
            mint: Mint::new(me, incarnation),
            phase: Phase::Running,
            owned: BTreeMap::new(),
            unmade: 0,
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            users: BTreeMap::new(),
            children: BTreeMap::new(),
            under_way: BTreeSet::new(),
            outbox: Outbox::default(),
            in_vain: BTreeMap::new(),
            peers: BTreeMap::new(),
            gone: Tombstones::new(now),
            effects: Vec::new(),
        }
    }

    /// What is to be done now, in this order. In tests and debug builds it checks the
    /// invariants, while the tables are small: a test fails, else the log tells.
    pub fn take_effects(&mut self) -> Vec<Effect<V>> {
        #[cfg(any(test, debug_assertions))]
        self.debug_check();
        std::mem::take(&mut self.effects)
    }

    /// This worker.
    #[must_use]
    pub fn me(&self) -> WorkerId {
        self.me
    }

    /// Of this process.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// A reference to a value of this worker. Nobody is told.
    ///
    /// # Errors
    /// [`UserError::ShutDown`].
    pub fn create_local(
        &mut self,
        now: Instant,
        type_name: &str,
        value: V,
    ) -> Result<RRefId, UserError> {
        self.create_owned(now, type_name, Value::Ready(value))
    }

    /// A reference to what a function of this worker will return: the shell runs it, and reports by
    /// [`RRefContext::function_finished`].
    ///
    /// PyTorch counts the creation as a user of its own, named as the reference; here the handle is
    /// enough: a result that comes after it was dropped is freed at once.
    ///
    /// # Errors
    /// [`UserError::ShutDown`].
    pub fn create_here(&mut self, now: Instant, type_name: &str) -> Result<RRefId, UserError> {
        self.create_owned(now, type_name, Value::Running)
    }

    /// A reference to a value of this worker that its program gives later, by [`RRefContext::give`]. Requests
    /// for it wait until then.
    ///
    /// # Errors
    /// [`UserError::ShutDown`].
    pub fn create_promised(&mut self, now: Instant, type_name: &str) -> Result<RRefId, UserError> {
        self.create_owned(now, type_name, Value::Promised)
    }

    /// Gives a reference of [`RRefContext::create_promised`] its value, or the error that there is none, once.
    /// A value that is refused is freed.
    ///
    /// # Errors
    /// [`GiveError`].
    pub fn give(
        &mut self,
        now: Instant,
        rref: RRefId,
        result: Result<V, Arc<str>>,
    ) -> Result<(), GiveError> {
        let given = match self.owned.get(&rref) {
            None => Err(GiveError::ShutDown),
            Some(_) if self.phase == Phase::Sweeping => Err(GiveError::ShutDown),
            Some(owned) => match owned.value {
                Value::Promised => Ok(()),
                Value::Ready(_) | Value::Failed { .. } => Err(GiveError::AlreadyGiven),
                Value::Unmade | Value::Running => Err(GiveError::MadeByFunction),
            },
        };
        match (given, result) {
            (Ok(()), result) => {
                let value = match result {
                    Ok(value) => Value::Ready(value),
                    Err(error) => Value::Failed {
                        error,
                        is_abandoned: false,
                    },
                };
                self.complete(rref, value);
                self.settle_owned(now, rref);
            }
            // The caller drops it after it has released its lock.
            (Err(_), result) => self.effects.extend(result.ok().map(Effect::Free)),
        }
        given
    }

    fn create_owned(
        &mut self,
        now: Instant,
        type_name: &str,
        value: Value<V>,
    ) -> Result<RRefId, UserError> {
        if self.phase != Phase::Running {
            // The caller drops it after it has released its lock.
            if let Value::Ready(value) = value {
                self.effects.push(Effect::Free(value));
            }
            return Err(UserError::ShutDown);
        }
        let rref = self.mint.rref(self.me);
        let type_name = cut(type_name, TYPE_NAME_BYTES_MAX).into();
        let mut owned = Owned::new(now, Some(type_name), value);
        owned.handles = 1;
        self.owned.insert(rref, owned);
        Ok(rref)
    }

    /// A reference to what a function on another worker will return. The message is sent with retries,
    /// for as long as the creation may take; that it runs is not awaited.
    ///
    /// # Errors
    /// [`UserError::ShutDown`], and [`UserError::OwnerIsHere`] when `owner` is this worker.
    pub fn create_remote(
        &mut self,
        now: Instant,
        owner: WorkerId,
        type_name: &str,
        function: Arc<str>,
        arguments: Bytes,
    ) -> Result<ForkId, UserError> {
        if self.phase != Phase::Running {
            return Err(UserError::ShutDown);
        }
        if owner == self.me {
            return Err(UserError::OwnerIsHere);
        }
        let (rref, fork) = (self.mint.rref(owner), self.mint.fork(owner));
        let type_name: Arc<str> = cut(type_name, TYPE_NAME_BYTES_MAX).into();
        let user = User {
            rref,
            owner,
            owner_incarnation: 0,
            type_name: Arc::clone(&type_name),
            parent: None,
            state: State::Creating,
            has_handle: true,
            children: 0,
            was_forked: false,
            has_timed_out: false,
            since: now,
        };
        self.users.insert(fork, user);
        // Not in the outbox: a creation that is not answered is not repeated, but settled.
        self.effects.push(Effect::Send {
            to: owner,
            control: Control::Create(fork),
            message: Message::RemoteCall {
                rref,
                fork,
                type_name,
                function,
                arguments,
            },
        });
        Ok(fork)
    }

    /// The function that makes a value has returned, or failed.
    pub fn function_finished(&mut self, now: Instant, rref: RRefId, result: Result<V, Arc<str>>) {
        match self.owned.get(&rref) {
            Some(owned) if matches!(owned.value, Value::Running) => {
                let value = match result {
                    Ok(value) => Value::Ready(value),
                    Err(error) => Value::Failed {
                        error,
                        is_abandoned: false,
                    },
                };
                self.complete(rref, value);
                self.settle_owned(now, rref);
            }
            // Nobody has waited for it.
            _ => self.effects.extend(result.ok().map(Effect::Free)),
        }
    }

    /// Makes a user for another worker, whose data goes into a message to it. Then one of
    /// [`commit_fork`](Self::commit_fork) and [`undo_fork`](Self::undo_fork) is due.
    ///
    /// # Errors
    /// [`ForkError`].
    pub fn fork(
        &mut self,
        now: Instant,
        handle: Handle,
        to: WorkerId,
    ) -> Result<ForkData, ForkError> {
        if self.phase != Phase::Running {
            return Err(UserError::ShutDown.into());
        }
        match handle {
            Handle::Owner(rref) => {
                let Some(owned) = self.owned.get_mut(&rref).filter(|owned| owned.handles > 0)
                else {
                    return Err(ForkError::Deleted);
                };
                let fork = self.mint.fork(to);
                let holder = Holder {
                    worker: to,
                    incarnation: None,
                    since: now,
                    arrival: Arrival::Encoding,
                };
                owned.forks.insert(fork, holder);
                Ok(ForkData {
                    owner: self.me,
                    owner_incarnation: self.incarnation,
                    rref,
                    fork,
                    parent: self.me,
                    type_name: owned.type_name.clone().unwrap_or_default(),
                })
            }
            Handle::User(parent) => {
                let Some(user) = self.users.get_mut(&parent).filter(|user| user.has_handle) else {
                    return Err(ForkError::Deleted);
                };
                if let Some(error) = user.error() {
                    return Err(error.into());
                }
                user.children += 1;
                user.was_forked = true;
                let fork = self.mint.fork(to);
                let known = self
                    .peers
                    .get(&user.owner)
                    .and_then(|peer| peer.incarnation);
                let child = Child {
                    parent,
                    to,
                    arrival: Arrival::Encoding,
                    since: now,
                };
                self.children.insert(fork, child);
                Ok(ForkData {
                    owner: user.owner,
                    owner_incarnation: match user.owner_incarnation {
                        0 => known.unwrap_or(0),
                        incarnation => incarnation,
                    },
                    rref: user.rref,
                    fork,
                    parent: self.me,
                    type_name: Arc::clone(&user.type_name),
                })
            }
        }
    }

    /// The message with this fork goes to the transport. The end of a call is told: by
    /// [`fork_has_arrived`](Self::fork_has_arrived), [`undo_fork`](Self::undo_fork) or
    /// [`fork_outcome_unknown`](Self::fork_outcome_unknown). That of a creation, which is answered before
    /// the references in it are looked at, is told by this with [`Carrier::Answer`].
    pub fn commit_fork(&mut self, now: Instant, data: &ForkData, carrier: Carrier) {
        let before = self.arrival(data.rref, data.fork);
        if matches!(before, Some(Arrival::Encoding | Arrival::InCall)) {
            let arrival = match carrier {
                Carrier::Call => Arrival::InCall,
                Carrier::Answer => Arrival::UnderWay { since: now },
            };
            self.set_arrival(data.rref, data.fork, arrival);
        }
    }

    /// The call with this fork was answered by its receiver, which has taken the references in it. What the
    /// owner has sent need not be asked for then; a child's registration is still to come.
    pub fn fork_has_arrived(&mut self, now: Instant, data: &ForkData) {
        let (rref, fork) = (data.rref, data.fork);
        if self.holder(rref, fork).is_some() {
            self.set_arrival(rref, fork, Arrival::Arrived);
        } else if self.arrival(rref, fork) == Some(Arrival::InCall) {
            self.set_arrival(rref, fork, Arrival::UnderWay { since: now });
        }
    }

    /// The message with this fork was not made, or it is certain that it has not arrived.
    pub fn undo_fork(&mut self, now: Instant, data: &ForkData) {
        self.fork_is_not_there(now, data.rref, data.fork);
    }

    /// The message with this fork was sent, and what became of it is not known: its receiver is asked.
    pub fn fork_outcome_unknown(&mut self, now: Instant, data: &ForkData) {
        self.probe(now, data.rref, data.fork);
    }

    /// A reference came in a message.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_fork(
        &mut self,
        now: Instant,
        data: &ForkData,
    ) -> Result<Received, ReceiveError> {
        let &ForkData {
            owner,
            owner_incarnation,
            rref,
            fork,
            parent,
            ref type_name,
        } = data;
        if self.phase != Phase::Running {
            return Err(ReceiveError::ShutDown);
        }
        if self.is_invented(rref, fork) || fork.0.created_on != parent {
            return Err(ReceiveError::Invented(fork));
        }
        if self.gone.contains(fork.0) || self.users.contains_key(&fork) {
            return Err(ReceiveError::ReceivedBefore(fork));
        }
        // Who is told of it has to answer.
        if parent != self.me && self.outbox.sendings.len() >= SENDINGS_MAX {
            return Err(ReceiveError::TooManyMessages { max: SENDINGS_MAX });
        }
        if owner == self.me {
            if owner_incarnation != self.incarnation && owner_incarnation != 0 {
                return Err(ReceiveError::OwnerLost(owner));
            }
            self.receive_own(now, data)?;
            return Ok(Received {
                handle: Handle::Owner(rref),
                is_confirmed: true,
            });
        }
        if self.is_lost(owner, owner_incarnation) {
            return Err(ReceiveError::OwnerLost(owner));
        }
        let is_confirmed = parent == owner;
        let user = User {
            rref,
            owner,
            owner_incarnation,
            type_name: Arc::clone(type_name),
            parent: Some(parent),
            state: if is_confirmed {
                State::Confirmed
            } else {
                State::Requesting
            },
            has_handle: true,
            children: 0,
            was_forked: false,
            has_timed_out: false,
            since: now,
        };
        self.users.insert(fork, user);
        if !is_confirmed {
            let control = Control::ForkRequest(fork);
            self.send(now, owner, control, Message::ForkRequest { rref, fork });
        }
        Ok(Received {
            handle: Handle::User(fork),
            is_confirmed,
        })
    }

    /// A reference has come back to its owner, maybe before its creation.
    fn receive_own(&mut self, now: Instant, data: &ForkData) -> Result<(), ReceiveError> {
        let (rref, me) = (data.rref, self.me);
        if self.gone.contains(rref.0) {
            return Err(ReceiveError::Deleted(rref));
        }
        let Some(owned) = self.entry(now, rref) else {
            return Err(ReceiveError::TooMany { max: UNMADE_MAX });
        };
        let ours = owned
            .type_name
            .get_or_insert_with(|| data.type_name.clone());
        if *ours != data.type_name {
            return Err(ReceiveError::TypeMismatch {
                rref,
                ours: Arc::clone(ours),
                theirs: Arc::clone(&data.type_name),
            });
        }
        owned.handles += 1;
        if data.parent == me {
            self.remove_holder(rref, data.fork);
        } else {
            // The fork is no user, and is never among the known ones: it has kept its parent alive.
            self.send_child_accept(now, data.parent, data.fork);
        }
        self.gone.insert(now, data.fork.0);
        Ok(())
    }

    /// A request has come. It is answered by [`Effect::Reply`] or [`Effect::AnswerFetch`], now or later;
    /// `incarnation` is what it says of its sender, `deadline` when the caller gives up.
    ///
    /// For [`Message::Call`] the value is given to the shell, as for a fetch; what is to be run on it the
    /// shell keeps.
    pub fn receive(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        token: RequestToken,
        deadline: Option<Instant>,
        message: Message,
    ) {
        let is_heard = self.hear(now, from, incarnation);
        let answer = match message {
            Message::Fetch { rref } | Message::Call { rref, .. } => {
                if is_heard {
                    self.fetch_for(now, token, from, rref, deadline);
                } else {
                    let result = Err(FetchError::GivenUp(from));
                    self.effects.push(Effect::AnswerFetch { token, result });
                }
                return;
            }
            message if is_heard => self.handle(now, from, incarnation, message),
            _ => Answer::Refused(FetchError::GivenUp(from).to_string().into()),
        };
        self.effects.push(Effect::Reply { token, answer });
    }

    fn handle(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        message: Message,
    ) -> Answer {
        match message {
            Message::RemoteCall {
                rref,
                fork,
                type_name,
                function,
                arguments,
            } => {
                if !is_by(rref, fork, from, incarnation) {
                    return invented(rref, fork);
                }
                let call = Creation {
                    rref,
                    fork,
                    type_name,
                    function,
                    arguments,
                };
                self.creation_came(now, from, incarnation, call)
            }
            // Waits for a value, which is no answer of the context's.
            Message::Fetch { rref } | Message::Call { rref, .. } => {
                Answer::Refused(format!("{rref}: not a control message").into())
            }
            Message::ForkRequest { rref, fork }
                if self.is_invented(rref, fork) || fork.0.named_for() != Some(from) =>
            {
                invented(rref, fork)
            }
            Message::Probe { rref, fork } | Message::Query { rref, fork }
                if self.is_invented(rref, fork) || fork.0.created_on != from =>
            {
                invented(rref, fork)
            }
            Message::ForkRequest { rref, fork } => {
                self.fork_requested(now, from, incarnation, rref, fork)
            }
            Message::ChildAccept { fork } => {
                if self
                    .children
                    .get(&fork)
                    .is_some_and(|child| child.to == from)
                {
                    self.release_child(now, fork);
                }
                Answer::Ack
            }
            Message::UserDelete { forks } => {
                for (rref, fork) in forks {
                    // By who holds it, or has made it.
                    let is_its = fork.0.named_for() == Some(from) || fork.0.created_on == from;
                    if is_its && !self.is_invented(rref, fork) {
                        self.user_deleted(now, rref, fork);
                    }
                }
                Answer::Ack
            }
            Message::Abandon { rref, fork, .. } if !is_by(rref, fork, from, incarnation) => {
                invented(rref, fork)
            }
            Message::Abandon { rref, fork, error } => {
                self.abandoned(now, from, incarnation, (rref, fork), error)
            }
            Message::Probe { fork, .. } => {
                let is_accepting = self.outbox.contains(Control::ChildAccept(fork));
                if self.users.contains_key(&fork) || is_accepting {
                    Answer::Received
                } else {
                    self.gone.insert(now, fork.0);
                    Answer::NotReceived
                }
            }
            Message::Query { rref, fork } => {
                let owned = self.owned.get(&rref);
                if owned.is_some_and(|owned| owned.forks.contains_key(&fork)) {
                    Answer::Known
                } else if self.gone.contains(fork.0) || self.gone.contains(rref.0) {
                    Answer::Deleted
                } else {
                    Answer::Unknown
                }
            }
        }
    }

    /// Whether one of these is a name that this process has yet to give: nobody can have it from here.
    fn is_invented(&self, rref: RRefId, fork: ForkId) -> bool {
        self.mint.is_still_to_give(rref.0) || self.mint.is_still_to_give(fork.0)
    }

    /// Asks for a value of this worker, which [`Effect::AnswerFetch`] brings, at the deadline at the
    /// latest.
    pub fn fetch(
        &mut self,
        now: Instant,
        token: RequestToken,
        rref: RRefId,
        deadline: Option<Instant>,
    ) {
        self.fetch_for(now, token, self.me, rref, deadline);
    }

    fn fetch_for(
        &mut self,
        now: Instant,
        token: RequestToken,
        from: WorkerId,
        rref: RRefId,
        deadline: Option<Instant>,
    ) {
        // At the end no value comes any more that is not here: one that is still referred to is.
        let has_ended = self.phase == Phase::Sweeping && !self.owned.contains_key(&rref);
        let error = if self.gone.contains(rref.0) || has_ended {
            FetchError::Deleted(rref)
        } else if self.mint.is_still_to_give(rref.0) {
            FetchError::Invented(rref)
        } else if let Some(result) = self.try_value(rref) {
            let result = result.map_err(FetchError::Failed);
            self.effects.push(Effect::AnswerFetch { token, result });
            return;
        } else if deadline.is_some_and(|deadline| deadline <= now) {
            FetchError::TimedOut(rref)
        } else if self.waiting.len() >= WAITING_MAX {
            FetchError::TooMany { max: WAITING_MAX }
        } else if let Some(owned) = self.entry(now, rref) {
            if let Some(result) = owned.value.result() {
                let result = result.map_err(FetchError::Failed);
                self.effects.push(Effect::AnswerFetch { token, result });
                self.settle_owned(now, rref);
                return;
            }
            owned.waiters.insert(token);
            let waiting = Waiting {
                rref,
                from,
                deadline,
            };
            self.waiting.insert(token, waiting);
            self.deadlines
                .extend(deadline.map(|deadline| (deadline, token)));
            return;
        } else {
            FetchError::TooMany { max: UNMADE_MAX }
        };
        let result = Err(error);
        self.effects.push(Effect::AnswerFetch { token, result });
    }

    /// A message of [`Effect::Send`] has been answered, or its retries are used up.
    pub fn control_finished(&mut self, now: Instant, control: Control, mut delivery: Delivery) {
        if let Some(in_vain) = self.in_vain.remove(&control) {
            return self.ended_in_vain(now, in_vain, &delivery);
        }
        let to = match control {
            Control::Create(fork) => self.users.get(&fork).map(|user| user.owner),
            _ => self.outbox.sendings.get(&control).map(|sending| sending.to),
        };
        let Some(to) = to else {
            return;
        };
        if self.outbox.is_stalled(control) {
            return;
        }
        let mut answered_by = 0;
        if let Delivery::Answered { incarnation, .. } = delivery {
            answered_by = incarnation;
            if !self.hear(now, to, incarnation) {
                // It will not be answered by anybody who is heard: as if it had been sent before the loss.
                if self.incarnation_of(to).is_none() {
                    return self.peer_lost(now, to, None);
                }
                // There is a later process, which has not answered yet.
                let why = FetchError::GivenUp(to).to_string();
                delivery = Delivery::Unknown(why.into());
            }
        }
        if let Control::Create(fork) = control {
            self.creation_finished(now, fork, delivery);
            return;
        }
        let answer = match delivery {
            Delivery::Answered { answer, .. } => answer,
            Delivery::Refused(reason) => Answer::Refused(reason),
            Delivery::NotDelivered(_) | Delivery::Unknown(_) => {
                self.stall(now, control);
                if let Control::Probe(fork) = control {
                    self.query(now, fork);
                }
                return;
            }
        };
        // It is not there when the answer came from a new process of the worker.
        let Some(sending) = self.outbox.remove(control) else {
            return;
        };
        match control {
            Control::ForkRequest(fork) => {
                self.fork_request_answered(now, fork, answered_by, answer);
            }
            Control::Abandon(fork) => self.abandon_answered(now, fork, answered_by, answer),
            Control::Probe(fork) => {
                if let Message::Probe { rref, .. } = sending.message {
                    self.probe_answered(now, rref, fork, &answer);
                }
                // It hears this worker no more: its owner may know what became of the child.
                if let Answer::Refused(_) = answer {
                    self.query(now, fork);
                }
            }
            Control::Query(fork) => {
                if matches!(answer, Answer::Known | Answer::Deleted) {
                    self.release_child(now, fork);
                }
            }
            Control::Deletes { owner, .. } => self.send_deletes(now, owner),
            Control::ChildAccept(_) | Control::Create(_) => {}
        }
    }

    fn probe_answered(&mut self, now: Instant, rref: RRefId, fork: ForkId, answer: &Answer) {
        match answer {
            // It will ask the owner, and then release its parent.
            Answer::Received if self.children.contains_key(&fork) => {
                self.set_arrival(rref, fork, Arrival::UnderWay { since: now });
            }
            Answer::Received => self.set_arrival(rref, fork, Arrival::Arrived),
            Answer::NotReceived => self.fork_is_not_there(now, rref, fork),
            _ => self.set_arrival(rref, fork, Arrival::UnderWay { since: now }),
        }
    }

    /// A fork has not arrived and never will, or is gone again.
    fn fork_is_not_there(&mut self, now: Instant, rref: RRefId, fork: ForkId) {
        if self.children.contains_key(&fork) {
            self.release_child(now, fork);
        } else if self.holder(rref, fork).is_some() {
            self.user_deleted(now, rref, fork);
        }
    }

    /// Asks the receiver of a fork whether it has come.
    fn probe(&mut self, now: Instant, rref: RRefId, fork: ForkId) {
        let control = Control::Probe(fork);
        if self.outbox.contains(control) {
            return;
        }
        let to = match self.children.get(&fork) {
            Some(child) => Some(child.to),
            None => self.holder(rref, fork).map(|holder| holder.worker),
        };
        match to {
            // A message to this worker itself: it is decoded here, or never.
            Some(to) if to != self.me => {
                self.set_arrival(rref, fork, Arrival::Asked);
                self.send(now, to, control, Message::Probe { rref, fork });
            }
            Some(_) if !self.users.contains_key(&fork) => {
                self.gone.insert(now, fork.0);
                self.fork_is_not_there(now, rref, fork);
            }
            _ => self.set_arrival(rref, fork, Arrival::UnderWay { since: now }),
        }
    }

    /// Asks the owner whether it knows a child whose worker cannot be reached.
    fn query(&mut self, now: Instant, fork: ForkId) {
        let Some(child) = self.children.get(&fork) else {
            return;
        };
        let Some(parent) = self.users.get(&child.parent) else {
            return;
        };
        let (owner, rref) = (parent.owner, parent.rref);
        if child.to != owner && !self.outbox.contains(Control::Query(fork)) {
            let control = Control::Query(fork);
            self.send(now, owner, control, Message::Query { rref, fork });
        }
    }

    fn holder(&mut self, rref: RRefId, fork: ForkId) -> Option<&mut Holder> {
        self.owned.get_mut(&rref)?.forks.get_mut(&fork)
    }

    /// A user of a value here is gone.
    fn remove_holder(&mut self, rref: RRefId, fork: ForkId) {
        if let Some(owned) = self.owned.get_mut(&rref)
            && let Some(holder) = owned.forks.remove(&fork)
        {
            self.forget_arrival(holder.arrival, rref, fork);
        }
    }

    fn arrival(&mut self, rref: RRefId, fork: ForkId) -> Option<Arrival> {
        match self.children.get(&fork) {
            Some(child) => Some(child.arrival),
            None => self.holder(rref, fork).map(|holder| holder.arrival),
        }
    }

    /// Notes whether a child, or a user of a value here, has arrived.
    fn set_arrival(&mut self, rref: RRefId, fork: ForkId, arrival: Arrival) {
        let place = match self.children.get_mut(&fork) {
            Some(child) => Some(&mut child.arrival),
            None => self.holder(rref, fork).map(|holder| &mut holder.arrival),
        };
        let Some(before) = place.map(|place| std::mem::replace(place, arrival)) else {
            return;
        };
        self.forget_arrival(before, rref, fork);
        if let Arrival::UnderWay { since } = arrival {
            self.under_way.insert((since, rref, fork));
        }
    }

    /// What was to be done about a fork that had not arrived is not to be done any more.
    fn forget_arrival(&mut self, arrival: Arrival, rref: RRefId, fork: ForkId) {
        match arrival {
            Arrival::UnderWay { since } => {
                self.under_way.remove(&(since, rref, fork));
            }
            Arrival::Asked => {
                self.outbox.remove(Control::Probe(fork));
            }
            Arrival::Encoding | Arrival::InCall | Arrival::Arrived => {}
        }
    }

    /// The last clone of an `RRef` is gone. A handle that the end of the references has taken may be given
    /// back all the same.
    pub fn drop_handle(&mut self, now: Instant, handle: Handle) {
        match handle {
            Handle::Owner(rref) => {
                if let Some(owned) = self.owned.get_mut(&rref) {
                    owned.handles = owned.handles.saturating_sub(1);
                    self.settle_owned(now, rref);
                }
            }
            Handle::User(fork) => {
                if let Some(user) = self.users.get_mut(&fork) {
                    user.has_handle = false;
                    self.settle_user(now, fork);
                }
            }
        }
    }

    /// Does what is due: requests whose deadline has passed, messages that could not be sent, children
    /// that are under way for long. To be called at [`RRefContext::next_tick`], or more often.
    pub fn tick(&mut self, now: Instant) {
        while let Some(&(deadline, token)) = self.deadlines.first()
            && deadline <= now
        {
            let Some(rref) = self.waiting.get(&token).map(|waiting| waiting.rref) else {
                self.deadlines.remove(&(deadline, token));
                continue;
            };
            self.give_up_fetch(now, token, FetchError::TimedOut(rref));
        }
        self.gone.expire(now);
        self.resend_overdue(now);
        while let Some(&(since, rref, fork)) = self.under_way.first()
            && self.outbox.probes < PROBES_MAX
            && is_over(since, self.timing.probe_after, now)
        {
            self.probe(now, rref, fork);
        }
    }

    /// When [`RRefContext::tick`] is to be called next; none while nothing waits for anything.
    #[must_use]
    pub fn next_tick(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        let probe = match self.under_way.first() {
            Some((since, ..)) if self.outbox.probes < PROBES_MAX => {
                since.checked_add(self.timing.probe_after)
            }
            // Where there are too many, an answer leads to the next ones.
            _ => None,
        };
        let resend = self.outbox.oldest_stall();
        let resend = resend.and_then(|since| since.checked_add(self.timing.resend_after));
        let expiry = self.gone.next_expiry();
        [deadline, probe, resend, expiry]
            .into_iter()
            .flatten()
            .min()
    }

    /// The first step of the joint end: no new references, and all users go, whoever holds them, as soon
    /// as their registrations and their children allow.
    pub fn delete_all_users(&mut self, now: Instant) {
        if self.phase == Phase::Running {
            self.phase = Phase::DeletingUsers;
        }
        let forks: Vec<ForkId> = self.users.keys().copied().collect();
        for fork in forks {
            self.drop_handle(now, Handle::User(fork));
        }
    }

    /// The second step: values without users go, and the others with their last user. A value that was not
    /// given is an error from now on.
    pub fn sweep_unforked(&mut self, now: Instant) {
        self.phase = Phase::Sweeping;
        let rrefs: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in rrefs {
            self.break_promise(rref);
            self.settle_owned(now, rref);
        }
    }

    /// The agent has ended, and nothing will be answered any more: everything goes.
    pub fn end(&mut self, now: Instant) {
        self.phase = Phase::Sweeping;
        let users = std::mem::take(&mut self.users);
        for fork in users.into_keys() {
            let error = UserError::ShutDown;
            self.effects.push(Effect::Failed { fork, error });
        }
        self.children.clear();
        self.under_way.clear();
        self.outbox = Outbox::default();
        self.in_vain.clear();
        for owned in self.owned.values_mut() {
            owned.forks.clear();
        }
        let rrefs: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in rrefs {
            self.break_promise(rref);
            self.settle_owned(now, rref);
        }
    }

    /// Whether there is no user here, and no message under way.
    #[must_use]
    pub fn has_no_users(&self) -> bool {
        self.users.is_empty()
            && self.children.is_empty()
            && self.outbox.sendings.is_empty()
            && self.outbox.deletes.is_empty()
    }

    /// Whether all tables are empty: no value, no user, no message under way.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.owned.is_empty() && self.has_no_users() && self.waiting.is_empty()
    }

    /// Who owns what a handle refers to.
    #[must_use]
    pub fn owner_of(&self, handle: Handle) -> Option<WorkerId> {
        match handle {
            Handle::Owner(rref) => self.owned.contains_key(&rref).then_some(self.me),
            Handle::User(fork) => self.users.get(&fork).map(|user| user.owner),
        }
    }

    /// What a handle refers to.
    #[must_use]
    pub fn rref_of(&self, handle: Handle) -> Option<RRefId> {
        match handle {
            Handle::Owner(rref) => Some(rref),
            Handle::User(fork) => self.users.get(&fork).map(|user| user.rref),
        }
    }

    /// The type of what a handle refers to, where it is known.
    #[must_use]
    pub fn type_name_of(&self, handle: Handle) -> Option<Arc<str>> {
        match handle {
            Handle::Owner(rref) => self.owned.get(&rref)?.type_name.clone(),
            Handle::User(fork) => self
                .users
                .get(&fork)
                .map(|user| Arc::clone(&user.type_name)),
        }
    }

    /// How far a user is; none if it is gone.
    #[must_use]
    pub fn status(&self, fork: ForkId) -> Option<UserStatus> {
        let user = self.users.get(&fork)?;
        Some(match (user.error(), &user.state) {
            (Some(error), _) => UserStatus::Failed(error),
            (None, State::Confirmed) => UserStatus::Confirmed,
            (None, _) => UserStatus::Pending,
        })
    }

    /// Whether a user's creation was not answered in time, unless its owner has said since that it has
    /// accepted it all the same.
    #[must_use]
    pub fn has_timed_out(&self, fork: ForkId) -> bool {
        self.users.get(&fork).is_some_and(|user| user.has_timed_out)
    }

    /// A value of this worker, or its creation's error; none while it is still to come.
    pub fn try_value(&self, rref: RRefId) -> Option<Result<V, Arc<str>>> {
        self.owned.get(&rref)?.value.result()
    }
}

/// Whether so much time has passed since then.
fn is_over(since: Instant, time: Duration, now: Instant) -> bool {
    since.checked_add(time).is_some_and(|end| end <= now)
}

/// Whether a creation is named by who asks for it.
fn is_by(rref: RRefId, fork: ForkId, from: WorkerId, incarnation: u64) -> bool {
    [rref.0, fork.0]
        .iter()
        .all(|id| id.created_on == from && id.incarnation == incarnation)
}

fn invented(rref: RRefId, fork: ForkId) -> Answer {
    let what = format!("{rref} or {fork} was not given by whom it names");
    Answer::Refused(what.into())
}
