//! The values of this worker: what each is, and which users refer to it.
//!
//! A value is kept while a user is known that has not been deleted, or a handle is held here. An entry
//! without a value, *unmade*, stands for a reference whose users were heard of before its creation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use rpc_agent::WorkerId;

use super::{Phase, RRefContext};
use crate::effect::{Effect, FetchError, RequestToken};
use crate::id::{ForkId, RRefId};
use crate::protocol::Answer;

/// The most requests that wait for values.
pub(super) const WAITING_MAX: usize = 1 << 16;

/// The most references that were heard of before their creation. Peers make such entries.
pub(super) const UNMADE_MAX: usize = 1 << 16;

/// A reference that is owned here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Owned<V> {
    /// Unknown until the creation or a fork has told it.
    pub(super) type_name: Option<Arc<str>>,
    pub(super) value: Value<V>,
    /// Held by this worker's program.
    pub(super) handles: usize,
    /// The users that are known and not deleted.
    pub(super) forks: BTreeMap<ForkId, Holder>,
    /// Requests for the value.
    pub(super) waiters: BTreeSet<RequestToken>,
    pub(super) since: Instant,
}

/// What there is of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Value<V> {
    /// The creation has not come.
    Unmade,
    /// The function runs.
    Running,
    /// The program of this worker gives it later.
    Promised,
    Ready(V),
    Failed {
        error: Arc<str>,
        /// The creation never came, and will not.
        is_abandoned: bool,
    },
}

/// Who has a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) worker: WorkerId,
    /// Of the worker's process, if it has come with the user itself; one that was sent from here may have
    /// gone to the next process.
    pub(super) incarnation: Option<u64>,
    pub(super) since: Instant,
    pub(super) arrival: Arrival,
}

/// Whether a user that was sent from here is known to have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Arrival {
    /// Its message is being encoded.
    Encoding,
    /// In a call that has not ended.
    InCall,
    /// It was sent, or asked for last, at that time.
    UnderWay { since: Instant },
    /// Its worker is being asked.
    Asked,
    /// The worker said so, or came with it.
    Arrived,
}

/// A request for a value that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) rref: RRefId,
    /// Who asks.
    pub(super) from: WorkerId,
    /// When that one gives up.
    pub(super) deadline: Option<Instant>,
}

impl<V: Clone> RRefContext<V> {
    /// The entry of a reference that is not gone, made if need be; an error when there are too many.
    pub(super) fn entry(&mut self, now: Instant, rref: RRefId) -> Option<&mut Owned<V>> {
        if !self.owned.contains_key(&rref) {
            let value = if self.is_former(rref.0.created_on, rref.0.incarnation) {
                lost_creator(rref)
            } else if self.unmade < UNMADE_MAX {
                self.unmade += 1;
                Value::Unmade
            } else {
                return None;
            };
            self.owned.insert(rref, Owned::new(now, None, value));
        }
        self.owned.get_mut(&rref)
    }

    /// A creation for another worker has come.
    pub(super) fn creation_came(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        call: Creation,
    ) -> Answer {
        let Creation {
            rref,
            fork,
            type_name,
            function,
            arguments,
        } = call;
        if self.gone.contains(rref.0) {
            return Answer::RemoteAccept;
        }
        if self.is_former(rref.0.created_on, rref.0.incarnation) {
            return Answer::Refused(format!("the creator of {rref} was lost").into());
        }
        let is_deleted = self.gone.contains(fork.0);
        match self.owned.get(&rref) {
            Some(owned) if !matches!(owned.value, Value::Unmade) => {
                return if is_deleted || owned.forks.contains_key(&fork) {
                    Answer::RemoteAccept
                } else {
                    Answer::Refused(format!("{rref} was created by another call").into())
                };
            }
            // Nobody knows of it: the creator has given it up, and has sent it to nobody.
            None if is_deleted => return Answer::RemoteAccept,
            _ => {}
        }
        let Some(owned) = self.entry(now, rref) else {
            return too_many();
        };
        owned.value = Value::Running;
        owned.type_name = Some(type_name);
        if !is_deleted {
            let holder = Holder::arrived(now, from, incarnation);
            owned.forks.insert(fork, holder);
        }
        self.unmade -= 1;
        self.effects.push(Effect::RunFunction {
            rref,
            from,
            function,
            arguments,
        });
        Answer::RemoteAccept
    }

    /// The creator has given up.
    pub(super) fn abandoned(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        (rref, fork): (RRefId, ForkId),
        error: Arc<str>,
    ) -> Answer {
        if self.gone.contains(rref.0) || self.gone.contains(fork.0) {
            return Answer::Abandoned;
        }
        let Some(owned) = self.entry(now, rref) else {
            return too_many();
        };
        match &owned.value {
            Value::Running | Value::Promised | Value::Ready(_) => return Answer::Created,
            Value::Failed { is_abandoned, .. } => {
                if !is_abandoned {
                    return Answer::Created;
                }
            }
            Value::Unmade => {
                let value = Value::Failed {
                    error,
                    is_abandoned: true,
                };
                self.complete(rref, value);
            }
        }
        if let Some(owned) = self.owned.get_mut(&rref) {
            let holder = Holder::arrived(now, from, incarnation);
            owned.forks.entry(fork).or_insert(holder);
        }
        Answer::Abandoned
    }

    /// A child asks to be known.
    pub(super) fn fork_requested(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        rref: RRefId,
        fork: ForkId,
    ) -> Answer {
        // A late copy: its user has been known and deleted.
        if self.gone.contains(fork.0) {
            return Answer::Ack;
        }
        if self.gone.contains(rref.0) {
            return Answer::Refused("its value has been deleted".into());
        }
        let Some(owned) = self.entry(now, rref) else {
            return too_many();
        };
        let holder = Holder::arrived(now, from, incarnation);
        owned.forks.entry(fork).or_insert(holder);
        Answer::Ack
    }

    pub(super) fn user_deleted(&mut self, now: Instant, rref: RRefId, fork: ForkId) {
        self.gone.insert(now, fork.0);
        self.remove_holder(rref, fork);
        self.settle_owned(now, rref);
    }

    /// Gives an entry its value, and the value to those who wait for it.
    pub(super) fn complete(&mut self, rref: RRefId, value: Value<V>) {
        let Some(owned) = self.owned.get_mut(&rref) else {
            return;
        };
        if matches!(owned.value, Value::Unmade) {
            self.unmade -= 1;
        }
        owned.value = value;
        let waiters = std::mem::take(&mut owned.waiters);
        let Some(result) = owned.value.result() else {
            owned.waiters = waiters;
            return;
        };
        for token in waiters {
            let result = result.clone().map_err(FetchError::Failed);
            self.answer_fetch(token, result);
        }
    }

    /// Ends the wait for a value that can no longer be given, as this worker's references have ended.
    pub(super) fn break_promise(&mut self, rref: RRefId) {
        let owned = self.owned.get(&rref);
        if owned.is_some_and(|owned| matches!(owned.value, Value::Promised)) {
            let why = "its owner was shut down before it gave the value";
            let value = Value::Failed {
                error: why.into(),
                is_abandoned: false,
            };
            self.complete(rref, value);
        }
    }

    pub(super) fn answer_fetch(&mut self, token: RequestToken, result: Result<V, FetchError>) {
        if let Some(deadline) = self
            .waiting
            .remove(&token)
            .and_then(|waiting| waiting.deadline)
        {
            self.deadlines.remove(&(deadline, token));
        }
        self.effects.push(Effect::AnswerFetch { token, result });
    }

    /// A request is not waited with any longer.
    pub(super) fn give_up_fetch(&mut self, now: Instant, token: RequestToken, error: FetchError) {
        let Some(rref) = self.waiting.get(&token).map(|waiting| waiting.rref) else {
            return;
        };
        if let Some(owned) = self.owned.get_mut(&rref) {
            owned.waiters.remove(&token);
        }
        self.answer_fetch(token, Err(error));
        self.settle_owned(now, rref);
    }

    /// Removes the entry if nobody refers to it.
    pub(super) fn settle_owned(&mut self, now: Instant, rref: RRefId) {
        let is_sweeping = self.phase == Phase::Sweeping;
        let Some(owned) = self.owned.get_mut(&rref) else {
            return;
        };
        if is_sweeping {
            owned.handles = 0;
        }
        let is_unmade = matches!(owned.value, Value::Unmade);
        let is_awaited = is_unmade && !is_sweeping && !owned.waiters.is_empty();
        if !owned.forks.is_empty() || owned.handles > 0 || is_awaited {
            return;
        }
        let Some(owned) = self.owned.remove(&rref) else {
            return;
        };
        for token in owned.waiters {
            self.answer_fetch(token, Err(FetchError::Deleted(rref)));
        }
        match owned.value {
            // Its creation can still come. Users that were here before it have come and gone.
            Value::Unmade => self.unmade -= 1,
            // Once it was created, no user is alive that is not known: this is the end.
            Value::Running | Value::Promised | Value::Failed { .. } => {
                self.gone.insert(now, rref.0);
            }
            Value::Ready(value) => {
                self.gone.insert(now, rref.0);
                self.effects.push(Effect::Free(value));
            }
        }
    }

    /// Releases what a dead worker refers to, forgets what it has asked for, and ends the wait for what it
    /// would have created.
    pub(super) fn release_forks_of(
        &mut self,
        now: Instant,
        worker: WorkerId,
        is_released: impl Fn(&Holder) -> bool,
        is_its: impl Fn(u64) -> bool,
    ) {
        let asked = |(&token, waiting): (_, &Waiting)| (waiting.from == worker).then_some(token);
        let tokens: Vec<RequestToken> = self.waiting.iter().filter_map(asked).collect();
        for token in tokens {
            self.give_up_fetch(now, token, FetchError::GivenUp(worker));
        }
        let rrefs: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in rrefs {
            let Some(owned) = self.owned.get(&rref) else {
                continue;
            };
            let its = owned
                .forks
                .iter()
                .filter(|(_, holder)| holder.worker == worker && is_released(holder));
            let its: Vec<ForkId> = its.map(|(&fork, _)| fork).collect();
            let is_unmade = matches!(owned.value, Value::Unmade);
            for fork in its {
                self.gone.insert(now, fork.0);
                self.remove_holder(rref, fork);
            }
            if is_unmade && rref.0.created_on == worker && is_its(rref.0.incarnation) {
                self.complete(rref, lost_creator(rref));
            }
            self.settle_owned(now, rref);
        }
    }

    /// The users that were sent to a worker, and are said to have arrived there, may have arrived at a former
    /// process of it: they are asked for when that is due.
    pub(super) fn ask_for_forks_on(&mut self, now: Instant, worker: WorkerId) {
        let mut unclear = Vec::new();
        for (&rref, owned) in &self.owned {
            let forks = owned.forks.iter().filter(|(_, holder)| {
                holder.worker == worker
                    && holder.incarnation.is_none()
                    && holder.arrival == Arrival::Arrived
            });
            unclear.extend(forks.map(|(&fork, _)| (rref, fork)));
        }
        for (rref, fork) in unclear {
            self.set_arrival(rref, fork, Arrival::UnderWay { since: now });
        }
    }
}

/// What a creation says.
pub(super) struct Creation {
    pub(super) rref: RRefId,
    pub(super) fork: ForkId,
    pub(super) type_name: Arc<str>,
    pub(super) function: Arc<str>,
    pub(super) arguments: Bytes,
}

impl<V> Owned<V> {
    pub(super) fn new(now: Instant, type_name: Option<Arc<str>>, value: Value<V>) -> Self {
        Self {
            type_name,
            value,
            handles: 0,
            forks: BTreeMap::new(),
            waiters: BTreeSet::new(),
            since: now,
        }
    }
}

impl<V: Clone> Value<V> {
    /// Unless it is still to come.
    pub(super) fn result(&self) -> Option<Result<V, Arc<str>>> {
        match self {
            Self::Unmade | Self::Running | Self::Promised => None,
            Self::Ready(value) => Some(Ok(value.clone())),
            Self::Failed { error, .. } => Some(Err(Arc::clone(error))),
        }
    }
}

impl Holder {
    fn arrived(now: Instant, worker: WorkerId, incarnation: u64) -> Self {
        Self {
            worker,
            incarnation: Some(incarnation),
            since: now,
            arrival: Arrival::Arrived,
        }
    }
}

fn lost_creator<V>(rref: RRefId) -> Value<V> {
    let worker = rref.0.created_on;
    Value::Failed {
        error: format!("worker {worker} was lost before it created {rref}").into(),
        is_abandoned: true,
    }
}

fn too_many() -> Answer {
    Answer::Refused(format!("{UNMADE_MAX} references wait for their creation already").into())
}
