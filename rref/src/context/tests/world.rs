//! A simulated world: several contexts, their programs, and a simulated network.
//!
//! Each value is the id of its reference, so that the test can identify the freed value.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_sim::{Explored, Simulation, fingerprint};
use rpc_agent::WorkerId;

use crate::context::state::DeleteWindow;
use crate::context::{Carrier, Handle, RRefContext, Timing, UserStatus};
use crate::context::{Control, Delivery, Effect, FetchError};
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, ForkData, Message};

/// Token of all requests except fetches; these requests are answered at once.
const AT_ONCE: u64 = u64::MAX;

/// Timeout of a fetch. Time passes only when no other step is possible.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of consecutive time steps before every wait must have ended.
const QUIET_STEPS_MAX: usize = 20;

pub(super) type Context = RRefContext<RRefId>;

pub(super) fn worker(index: usize) -> WorkerId {
    WorkerId::new(u32::try_from(index).unwrap()).unwrap()
}

fn incarnation_of(index: usize) -> u64 {
    100 + index as u64
}

pub(super) fn index(worker: WorkerId) -> usize {
    worker.get() as usize
}

/// The next operation of a thread. Slots are a worker's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    CreateRemote {
        slot: u32,
        owner: usize,
    },
    CreateHere {
        slot: u32,
    },
    CreateLocal {
        slot: u32,
    },
    /// Creates a reference whose value is set later or never.
    CreatePromised {
        slot: u32,
    },
    SetValue {
        slot: u32,
    },
    SetValueError {
        slot: u32,
    },
    /// Sends a reference, as a result or with a call. The receiver stores it in `slot_there`.
    Send {
        slot: u32,
        to: usize,
        slot_there: u32,
        carrier: Carrier,
    },
    /// Starts to encode a message, and fails.
    FailToSend {
        slot: u32,
        to: usize,
    },
    Fetch {
        slot: u32,
    },
    Drop {
        slot: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) on: usize,
    pub(super) ops: Vec<Op>,
    pub(super) done: usize,
    /// The handle whose fetch awaits an answer.
    waits_for: Option<Handle>,
}

/// Identifies a fetch by its thread and the index of its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fetch {
    thread: usize,
    op: usize,
}

impl Fetch {
    fn token(self) -> u64 {
        (self.thread * 1000 + self.op) as u64
    }

    fn of_token(token: u64) -> Self {
        let token = usize::try_from(token).unwrap();
        Self {
            thread: token / 1000,
            op: token % 1000,
        }
    }
}

impl Thread {
    pub(super) fn new(on: usize, ops: &[Op]) -> Self {
        Self {
            on,
            ops: ops.to_vec(),
            done: 0,
            waits_for: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Held(Handle),
    /// The reference was refused or could not be created.
    Void,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Packet {
    Request {
        from: usize,
        incarnation: u64,
        to: usize,
        control: Control,
        message: Message,
        /// False for a copy whose answer nothing awaits.
        is_awaited: bool,
    },
    Answer {
        from: usize,
        incarnation: u64,
        to: usize,
        control: Control,
        answer: Answer,
    },
    Call {
        to: usize,
        data: ForkData,
        slot: u32,
        /// The sender no longer waits for the call.
        is_late: bool,
        /// The sender awaits whether the receiver accepted the reference.
        is_awaited: bool,
    },
    Taken {
        data: ForkData,
        is_taken: bool,
    },
    Fetch {
        from: usize,
        incarnation: u64,
        to: usize,
        rref: RRefId,
        fetch: Fetch,
    },
    Value {
        fetch: Fetch,
        result: Result<RRefId, FetchError>,
    },
    Function {
        on: usize,
        rref: RRefId,
    },
}

/// A possible step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Thread(usize),
    Deliver(usize),
    /// A second copy of a request arrives as well, like the retry after a lost answer: the answer to the copy is
    /// ignored.
    Copy(usize),
    /// The retries of a request are exhausted, and a copy of it may still arrive.
    StallLate(usize),
    /// The retries of a request are exhausted, and no copy of it has arrived or will arrive.
    StallLost(usize),
    /// A creation certainly did not arrive.
    NotDelivered(usize),
    /// A function fails.
    FunctionFails(usize),
    /// A call was lost. The sender only notices that it got no answer.
    CallLost(usize),
    /// A call got no answer, but arrives later.
    CallLate(usize),
    /// A call certainly did not arrive.
    CallNotSent(usize),
    /// A second copy of a call arrives as well.
    CallCopy(usize),
    /// Time passes, because no other step is possible.
    Wait,
    /// A worker dies.
    Kill(usize),
    /// A living worker learns that its connection to the dead worker was lost.
    ReportLoss(usize, usize),
    /// Coordinated shutdown: deletes all remaining users.
    Stop,
    Sweep,
}

/// How often each fault may still happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) copies: u32,
    pub(super) stalls: u32,
    pub(super) not_delivered: u32,
    pub(super) failing_functions: u32,
    pub(super) lost_calls: u32,
    pub(super) call_copies: u32,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct World {
    /// `None` for a dead worker. Copies of a world share the contexts.
    pub(super) contexts: Vec<Option<Arc<Context>>>,
    /// Cached hashes of the contexts, for [`World::fingerprint`]; most steps change only one context.
    hashes: Vec<Cell<Option<u64>>>,
    pub(super) packets: Vec<Packet>,
    pub(super) threads: Vec<Thread>,
    slots: BTreeMap<(usize, u32), Slot>,
    pub(super) budget: Budget,
    now: Instant,
    quiet_steps: usize,
    has_deaths: bool,
    /// Retries were exhausted, so some waits may have timed out.
    has_stalled: bool,
    ran: BTreeSet<RRefId>,
    created: BTreeSet<RRefId>,
    /// References without a value that may still be set.
    promised: BTreeSet<RRefId>,
    freed: BTreeSet<RRefId>,
    confirmed: BTreeSet<ForkId>,
    received: BTreeSet<ForkId>,
    has_stopped: bool,
    has_swept: bool,
    /// The living workers that know of the death of another worker.
    told: BTreeSet<(usize, usize)>,
}

impl World {
    pub(super) fn new(workers: usize, threads: Vec<Thread>, budget: Budget, now: Instant) -> Self {
        let contexts: Vec<_> = (0..workers)
            .map(|index| {
                let (me, incarnation) = (worker(index), incarnation_of(index));
                // Deletions of one worker travel in different messages, in any order.
                Context::new(me, incarnation, Timing::default(), now).with_delete_window(
                    DeleteWindow {
                        deletes_max: 1,
                        batches_max: 2,
                    },
                )
            })
            .collect();
        Self {
            hashes: vec![Cell::new(None); workers],
            contexts: contexts.into_iter().map(Arc::new).map(Some).collect(),
            packets: Vec::new(),
            threads,
            slots: BTreeMap::new(),
            budget,
            now,
            quiet_steps: 0,
            has_deaths: false,
            has_stalled: false,
            ran: BTreeSet::new(),
            created: BTreeSet::new(),
            promised: BTreeSet::new(),
            freed: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            received: BTreeSet::new(),
            has_stopped: false,
            has_swept: false,
            told: BTreeSet::new(),
        }
    }

    pub(super) fn values(&self) -> usize {
        self.created.len()
    }

    /// The steps that are not faults: threads continue and packets arrive.
    pub(super) fn regular_steps(&self) -> Vec<Step> {
        let threads = (0..self.threads.len())
            .filter(|&thread| self.is_ready(thread))
            .map(Step::Thread);
        let packets = (0..self.packets.len())
            // Equal copies need only one order.
            .filter(|&at| !self.packets[..at].contains(&self.packets[at]))
            .map(Step::Deliver);
        threads.chain(packets).collect()
    }

    /// The faults that the budget allows.
    pub(super) fn faults(&self) -> Vec<Step> {
        let mut faults = Vec::new();
        for (at, packet) in self.packets.iter().enumerate() {
            match packet {
                Packet::Request {
                    is_awaited: true,
                    control,
                    ..
                } => {
                    if self.budget.copies > 0 {
                        faults.push(Step::Copy(at));
                    }
                    if self.budget.stalls > 0 {
                        faults.extend([Step::StallLate(at), Step::StallLost(at)]);
                    }
                    if self.budget.not_delivered > 0
                        && matches!(control, Control::Create(_))
                        && !self.has_copy(*control)
                    {
                        faults.push(Step::NotDelivered(at));
                    }
                }
                Packet::Function { .. } if self.budget.failing_functions > 0 => {
                    faults.push(Step::FunctionFails(at));
                }
                Packet::Call {
                    is_late: false,
                    data,
                    ..
                } => {
                    if self.budget.lost_calls > 0 {
                        faults.extend([Step::CallLost(at), Step::CallLate(at)]);
                        if !self.has_other(at, data.fork) {
                            faults.push(Step::CallNotSent(at));
                        }
                    }
                    if self.budget.call_copies > 0 {
                        faults.push(Step::CallCopy(at));
                    }
                }
                _ => {}
            }
        }
        faults
    }

    /// Whether another copy of the call is in flight or has arrived.
    fn has_other(&self, but: usize, of: ForkId) -> bool {
        let is_other = |(at, packet): (usize, &Packet)| {
            at != but && matches!(packet, Packet::Call { data, .. } if data.fork == of)
        };
        self.received.contains(&of) || self.packets.iter().enumerate().any(is_other)
    }

    /// Whether a copy of the creation is in flight or has arrived.
    fn has_copy(&self, of: Control) -> bool {
        let is_late = self.packets.iter().any(|packet| {
            matches!(packet, Packet::Request { control, is_awaited: false, .. } if *control == of)
        });
        let has_run = self.contexts.iter().flatten().any(|context| match of {
            Control::Create(fork) => context
                .rref_of(Handle::User(fork))
                .is_some_and(|rref| self.ran.contains(&rref)),
            _ => false,
        });
        is_late || has_run
    }

    fn is_ready(&self, thread: usize) -> bool {
        let thread = &self.threads[thread];
        if thread.waits_for.is_some() || self.contexts[thread.on].is_none() {
            return false;
        }
        match thread.ops.get(thread.done) {
            None => false,
            Some(
                Op::CreateRemote { .. }
                | Op::CreateHere { .. }
                | Op::CreateLocal { .. }
                | Op::CreatePromised { .. },
            ) => true,
            Some(
                Op::Send { slot, .. }
                | Op::SetValue { slot }
                | Op::SetValueError { slot }
                | Op::FailToSend { slot, .. }
                | Op::Fetch { slot }
                | Op::Drop { slot },
            ) => self.slots.contains_key(&(thread.on, *slot)),
        }
    }

    fn copy_call(&mut self, at: usize) {
        self.budget.call_copies -= 1;
        let mut copy = self.packets[at].clone();
        if let Packet::Call {
            is_late,
            is_awaited,
            ..
        } = &mut copy
        {
            (*is_late, *is_awaited) = (true, false);
        }
        self.packets.push(copy);
    }

    /// Lets time pass.
    fn wait(&mut self) {
        self.quiet_steps += 1;
        assert!(
            self.quiet_steps <= QUIET_STEPS_MAX,
            "the history does not end:\n{self:?}"
        );
        self.now += Duration::from_secs(31);
        for on in 0..self.contexts.len() {
            self.on(on, Context::tick);
        }
    }

    /// Whether everything has ended, so that no time passes.
    pub(super) fn has_elapsed(&self) -> bool {
        let is_idle = self.packets.is_empty()
            && self
                .contexts
                .iter()
                .flatten()
                .all(|context| context.is_drained());
        // Threads may wait forever for a message of a dead worker.
        let is_done = self.has_deaths
            || self
                .threads
                .iter()
                .all(|thread| thread.done == thread.ops.len());
        is_idle && is_done
    }

    fn stop(&mut self) {
        self.has_stopped = true;
        for thread in &mut self.threads {
            thread.done = thread.ops.len();
            thread.waits_for = None;
        }
        for on in 0..self.contexts.len() {
            self.on(on, Context::delete_all_users);
        }
    }

    fn sweep(&mut self) {
        self.has_swept = true;
        for on in 0..self.contexts.len() {
            self.on(on, Context::sweep_unforked);
        }
    }

    /// Runs without further faults: all workers learn of deaths, and a stopped group comes to rest. Asserts the final state.
    pub(super) fn end(&mut self) {
        let (dead, living): (Vec<usize>, Vec<usize>) =
            (0..self.contexts.len()).partition(|&on| self.contexts[on].is_none());
        for (on, victim) in living
            .iter()
            .flat_map(|on| dead.iter().map(|it| (*on, *it)))
        {
            if !self.told.contains(&(on, victim)) {
                self.take(Step::ReportLoss(on, victim));
            }
        }
        self.rest();
        if self.has_deaths && !self.has_stopped {
            self.take(Step::Stop);
            self.rest();
        }
        if self.has_stopped && !self.has_swept {
            self.take(Step::Sweep);
        }
        while !self.has_elapsed() {
            self.rest();
            if !self.has_elapsed() {
                self.take(Step::Wait);
            }
        }
        self.check_end();
    }

    fn rest(&mut self) {
        while let Some(step) = self.regular_steps().first() {
            self.take(*step);
        }
    }

    /// Asserts the final state.
    pub(super) fn check_end(&self) {
        assert!(self.has_elapsed(), "not finished:\n{self:?}");
        for context in self.contexts.iter().flatten() {
            let mut sizes = context.sizes();
            sizes.tombstone_ranges = 0;
            assert_eq!(sizes, Default::default(), "tables of {}", context.me);
            assert_eq!(context.missing(), []);
        }
        if !self.has_deaths {
            assert_eq!(self.freed, self.created);
        }
    }

    fn kill(&mut self, victim: usize) {
        self.contexts[victim] = None;
        self.hashes[victim].set(None);
        self.has_deaths = true;
        self.slots.retain(|&(on, _), _| on != victim);
        // Packets that the worker has sent may still arrive.
        let (to_it, others) = std::mem::take(&mut self.packets)
            .into_iter()
            .partition(|packet| match packet {
                Packet::Function { on, .. } => *on == victim,
                Packet::Value { fetch, .. } => self.threads[fetch.thread].on == victim,
                _ => false,
            });
        drop::<Vec<Packet>>(to_it);
        self.packets = others;
    }

    fn report_loss(&mut self, on: usize, victim: usize) {
        self.told.insert((on, victim));
        self.on(on, |context, now| {
            context.peer_lost(now, worker(victim), Some(incarnation_of(victim)));
        });
        for thread in &mut self.threads {
            let context = self.contexts[on].as_ref();
            let owner = thread
                .waits_for
                .and_then(|handle| context.and_then(|context| context.owner_of(handle)));
            if thread.on == on && owner == Some(worker(victim)) {
                thread.waits_for = None;
                thread.done += 1;
            }
        }
    }

    fn on(&mut self, on: usize, event: impl FnOnce(&mut Context, Instant)) -> Option<Answer> {
        let context = Arc::make_mut(self.contexts[on].as_mut()?);
        event(context, self.now);
        let incarnation = context.incarnation;
        let effects = context.take_effects();
        self.hashes[on].set(None);
        let mut reply = None;
        for effect in effects {
            match effect {
                Effect::Send {
                    to,
                    control,
                    message,
                } => self.packets.push(Packet::Request {
                    from: on,
                    incarnation,
                    to: index(to),
                    control,
                    message,
                    is_awaited: true,
                }),
                Effect::Reply { token, answer } => {
                    assert_eq!(token, AT_ONCE);
                    assert!(reply.is_none(), "answered twice");
                    reply = Some(answer);
                }
                Effect::RunFunction { rref, .. } => {
                    assert!(self.ran.insert(rref), "the function of {rref} runs twice");
                    self.packets.push(Packet::Function { on, rref });
                }
                Effect::AnswerFetch { token, result } => {
                    let fetch = Fetch::of_token(token);
                    self.check_answer(fetch, &result);
                    self.packets.push(Packet::Value { fetch, result });
                }
                Effect::Confirmed { fork } => {
                    assert!(self.confirmed.insert(fork), "{fork} is confirmed twice");
                }
                Effect::Failed { fork, error } => {
                    let was_confirmed = self.confirmed.contains(&fork);
                    assert!(
                        !was_confirmed || self.has_deaths,
                        "{fork} was confirmed, and fails: {error}"
                    );
                    // When a reference fails, waits for its value return.
                    for thread in &mut self.threads {
                        if thread.on == on && thread.waits_for == Some(Handle::User(fork)) {
                            thread.waits_for = None;
                            thread.done += 1;
                        }
                    }
                }
                Effect::Free(rref) => self.free(rref),
            }
        }
        reply
    }

    /// A fetch must return a value that was created or set. It may time out only if its value may still be set, or
    /// after a fault.
    fn check_answer(&self, fetch: Fetch, result: &Result<RRefId, FetchError>) {
        let thread = &self.threads[fetch.thread];
        // False if the creation has failed in the meantime.
        let is_awaited = thread.done == fetch.op && thread.waits_for.is_some();
        match result {
            Ok(value) => assert!(
                self.created.contains(value),
                "{value} was neither created nor set"
            ),
            Err(FetchError::TimedOut(rref)) if is_awaited => assert!(
                self.has_stalled
                    || self.has_deaths
                    || self.has_stopped
                    || self.promised.contains(rref),
                "the fetch of {rref} must not time out"
            ),
            Err(_) => {}
        }
    }

    /// Asserts that no living user, handle or message in flight refers to the freed value.
    fn free(&mut self, rref: RRefId) {
        assert!(self.created.contains(&rref), "{rref} never had a value");
        assert!(self.freed.insert(rref), "{rref} is freed twice");
        if self.has_deaths || self.has_stopped {
            return;
        }
        for (&(on, slot), held) in &self.slots {
            let (Slot::Held(handle), Some(context)) = (held, &self.contexts[on]) else {
                continue;
            };
            let is_alive = match *handle {
                Handle::Owner(of) => of == rref,
                Handle::User(fork) => {
                    context.rref_of(*handle) == Some(rref)
                        && !matches!(context.status(fork), Some(UserStatus::Failed(_)))
                }
            };
            assert!(!is_alive, "{rref} is freed, worker {on} has it in {slot}");
        }
        for packet in &self.packets {
            if let Packet::Call { data, is_late, .. } = packet {
                assert!(
                    *is_late || data.rref != rref,
                    "{rref} is freed while in flight"
                );
            }
        }
    }

    fn run(&mut self, at: usize) {
        let thread = &self.threads[at];
        let (on, op) = (thread.on, thread.ops[thread.done]);
        let slot_of = |slot: u32| match self.slots.get(&(on, slot)) {
            Some(Slot::Held(handle)) => Some(*handle),
            _ => None,
        };
        let mut is_done = true;
        match op {
            Op::CreateRemote { slot, owner } => {
                let mut made = None;
                self.on(on, |context, _| {
                    made = context
                        .create_remote(worker(owner), "t", "f".into(), Bytes::new())
                        .ok();
                });
                let made = made.map_or(Slot::Void, |fork| Slot::Held(Handle::User(fork)));
                self.slots.insert((on, slot), made);
            }
            Op::CreateHere { slot } => {
                let rref = self.own(on, slot, |context, now| context.create_here(now, "t").ok());
                self.packets.push(Packet::Function { on, rref });
            }
            Op::CreateLocal { slot } => {
                let rref = self.own(on, slot, |context, now| {
                    // Predict the id that the context will assign.
                    let next = context.mint.clone().rref(worker(on));
                    context.create_local(now, "t", next).ok()
                });
                self.created.insert(rref);
            }
            Op::CreatePromised { slot } => {
                let rref = self.own(on, slot, |context, now| {
                    context.create_promised(now, "t").ok()
                });
                self.promised.insert(rref);
            }
            Op::SetValue { slot } | Op::SetValueError { slot } => {
                if let Some(Handle::Owner(rref)) = slot_of(slot) {
                    self.set_value(on, rref, matches!(op, Op::SetValue { .. }));
                }
            }
            Op::Send {
                slot,
                to,
                slot_there,
                carrier,
            } => {
                let mut sent = None;
                if let Some(handle) = slot_of(slot) {
                    self.on(on, |context, now| {
                        sent = context.fork(now, handle, worker(to)).ok();
                        if let Some(data) = &sent {
                            context.commit_fork(now, data, carrier);
                        }
                    });
                }
                match sent {
                    Some(data) => self.packets.push(Packet::Call {
                        to,
                        data,
                        slot: slot_there,
                        is_late: false,
                        is_awaited: carrier == Carrier::Call,
                    }),
                    None => {
                        self.slots.insert((to, slot_there), Slot::Void);
                    }
                }
            }
            Op::FailToSend { slot, to } => {
                if let Some(handle) = slot_of(slot) {
                    self.on(on, |context, now| {
                        if let Ok(data) = context.fork(now, handle, worker(to)) {
                            context.undo_fork(now, &data);
                        }
                    });
                }
            }
            Op::Fetch { slot } => {
                if let Some(handle) = slot_of(slot) {
                    is_done = !self.fetch(on, at, handle);
                }
            }
            Op::Drop { slot } => {
                let handle = slot_of(slot);
                self.slots.remove(&(on, slot));
                if let Some(handle) = handle {
                    self.on(on, |context, now| context.drop_handle(now, handle));
                }
            }
        }
        self.threads[at].done += usize::from(is_done);
    }

    /// Creates a reference to a value of the worker `on`.
    fn own(
        &mut self,
        on: usize,
        slot: u32,
        create: impl FnOnce(&mut Context, Instant) -> Option<RRefId>,
    ) -> RRefId {
        let mut made = None;
        self.on(on, |context, now| made = create(context, now));
        let rref = made.expect("nothing was shut down");
        let held = Slot::Held(Handle::Owner(rref));
        self.slots.insert((on, slot), held);
        rref
    }

    /// Sets the value or the error of a reference. Only the first call has an effect.
    fn set_value(&mut self, on: usize, rref: RRefId, is_value: bool) {
        let is_first = self.promised.remove(&rref);
        if is_first && is_value {
            self.created.insert(rref);
        }
        let mut given = None;
        self.on(on, |context, now| {
            // Refused values are errors here, because a refused value would be freed under the same id.
            let result = if is_value && is_first {
                Ok(rref)
            } else {
                Err("no value".into())
            };
            given = Some(context.set_value(now, rref, result));
        });
        assert_eq!(given.map(|given| given.is_ok()), Some(is_first), "{rref}");
    }

    /// Starts a fetch; returns whether there is an answer to wait for.
    fn fetch(&mut self, on: usize, thread: usize, handle: Handle) -> bool {
        let Some(context) = &self.contexts[on] else {
            return false;
        };
        let fetch = Fetch {
            thread,
            op: self.threads[thread].done,
        };
        match handle {
            Handle::Owner(rref) => {
                self.on(on, |context, now| {
                    context.fetch(now, fetch.token(), rref, Some(now + FETCH_TIMEOUT));
                });
            }
            Handle::User(fork) => {
                let (Some(owner), Some(rref)) = (context.owner_of(handle), context.rref_of(handle))
                else {
                    return false;
                };
                if matches!(context.status(fork), None | Some(UserStatus::Failed(_))) {
                    return false;
                }
                self.packets.push(Packet::Fetch {
                    from: on,
                    incarnation: context.incarnation,
                    to: index(owner),
                    rref,
                    fetch,
                });
            }
        }
        self.threads[thread].waits_for = Some(handle);
        true
    }

    fn finish(&mut self, on: usize, control: Control, delivery: Delivery) {
        self.on(on, |context, now| {
            context.control_finished(now, control, delivery);
        });
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Request {
                from,
                incarnation,
                to,
                control,
                message,
                is_awaited,
            } => {
                if self.contexts[to].is_none() {
                    // The sender learns of the loss, unless it has already handled it.
                    if is_awaited && self.contexts[from].is_some() {
                        self.report_loss(from, to);
                    }
                    return;
                }
                let bytes = Bytes::from(message.encode(incarnation));
                let (incarnation, message) = Message::decode(&bytes).expect("it was encoded");
                let reply = self.on(to, |context, now| {
                    context.receive(now, worker(from), incarnation, AT_ONCE, None, message);
                });
                let answer = reply.expect("control messages are answered at once");
                if is_awaited {
                    self.packets.push(Packet::Answer {
                        from: to,
                        incarnation: incarnation_of(to),
                        to: from,
                        control,
                        answer,
                    });
                }
            }
            Packet::Answer {
                incarnation,
                to,
                control,
                answer,
                ..
            } => {
                let delivery = Delivery::Answered {
                    incarnation,
                    answer,
                };
                self.finish(to, control, delivery);
            }
            Packet::Taken { data, is_taken } => {
                self.on(index(data.parent), |context, now| {
                    if is_taken {
                        context.fork_arrived(now, &data);
                    } else {
                        context.fork_outcome_unknown(now, &data);
                    }
                });
            }
            Packet::Call {
                to,
                ref data,
                slot,
                is_awaited,
                ..
            } => {
                let mut received = None;
                self.on(to, |context, now| {
                    received = Some(context.receive_fork(now, data));
                });
                if is_awaited {
                    self.packets.push(Packet::Taken {
                        data: data.clone(),
                        is_taken: matches!(received, Some(Ok(_))),
                    });
                }
                match received {
                    Some(Ok(received)) => {
                        let fork = data.fork;
                        assert!(self.received.insert(fork), "{fork} is received twice");
                        self.slots.insert((to, slot), Slot::Held(received.handle));
                        for packet in &mut self.packets {
                            if let Packet::Call { data, is_late, .. } = packet
                                && data.fork == fork
                            {
                                // Further copies are late: the first one counts.
                                *is_late = true;
                            }
                        }
                    }
                    Some(Err(_)) if self.received.contains(&data.fork) => {}
                    // The copy that counts may still arrive.
                    Some(Err(_)) if self.has_other(usize::MAX, data.fork) => {}
                    Some(Err(error)) => {
                        let is_late = matches!(packet, Packet::Call { is_late: true, .. });
                        assert!(
                            is_late || self.has_deaths || self.has_stopped,
                            "refused: {error}"
                        );
                        self.mark_void(&packet);
                    }
                    None => {}
                }
            }
            Packet::Fetch {
                from,
                incarnation,
                to,
                rref,
                fetch,
            } => {
                if self.contexts[to].is_none() {
                    if self.contexts[from].is_some() {
                        self.report_loss(from, to);
                    }
                    return;
                }
                let refused = self.on(to, |context, now| {
                    let message = Message::Fetch { rref };
                    context.receive(
                        now,
                        worker(from),
                        incarnation,
                        fetch.token(),
                        Some(now + FETCH_TIMEOUT),
                        message,
                    );
                });
                assert_eq!(refused, None);
            }
            Packet::Value { fetch, result } => {
                let thread = &mut self.threads[fetch.thread];
                if thread.done != fetch.op || thread.waits_for.take().is_none() {
                    return;
                }
                thread.done += 1;
                // A living user gets the value, or the error of the function or of the creation.
                assert!(
                    self.has_deaths
                        || self.has_stopped
                        || matches!(
                            result,
                            // [`World::check_answer`] has checked whether the fetch may time out.
                            Ok(_) | Err(FetchError::Failed(_) | FetchError::TimedOut(_))
                        ),
                    "{fetch:?} has the answer {result:?}"
                );
            }
            Packet::Function { on, rref } => {
                self.created.insert(rref);
                self.on(on, |context, now| {
                    context.function_finished(now, rref, Ok(rref));
                });
            }
        }
    }

    /// Marks the receiver's slot as void, because its reference will not arrive.
    fn mark_void(&mut self, call: &Packet) {
        if let Packet::Call { to, slot, .. } = call {
            self.slots.insert((*to, *slot), Slot::Void);
        }
    }
}

impl Simulation for World {
    type Step = Step;

    fn take(&mut self, step: Step) {
        if step != Step::Wait {
            self.quiet_steps = 0;
        }
        match step {
            Step::Wait => self.wait(),
            Step::Kill(victim) => self.kill(victim),
            Step::ReportLoss(on, victim) => self.report_loss(on, victim),
            Step::Stop => self.stop(),
            Step::Sweep => self.sweep(),
            Step::Thread(thread) => self.run(thread),
            Step::Deliver(at) => {
                let packet = self.packets.swap_remove(at);
                self.deliver(packet);
            }
            Step::Copy(at) => {
                self.budget.copies -= 1;
                let mut copy = self.packets[at].clone();
                if let Packet::Request { is_awaited, .. } = &mut copy {
                    *is_awaited = false;
                }
                self.packets.push(copy);
            }
            Step::StallLate(at) | Step::StallLost(at) => {
                self.budget.stalls -= 1;
                self.has_stalled = true;
                let mut packet = self.packets.swap_remove(at);
                let Packet::Request {
                    from,
                    control,
                    is_awaited,
                    ..
                } = &mut packet
                else {
                    panic!("{packet:?} is not a request");
                };
                let (from, control) = (*from, *control);
                *is_awaited = false;
                if matches!(step, Step::StallLate(_)) {
                    self.packets.push(packet);
                }
                self.finish(from, control, Delivery::Unknown("no answer".into()));
            }
            Step::NotDelivered(at) => {
                self.budget.not_delivered -= 1;
                let Packet::Request { from, control, .. } = self.packets.swap_remove(at) else {
                    panic!("only requests are sent with retries");
                };
                self.finish(from, control, Delivery::NotDelivered("refused".into()));
            }
            Step::FunctionFails(at) => {
                self.budget.failing_functions -= 1;
                let Packet::Function { on, rref } = self.packets.swap_remove(at) else {
                    panic!("only functions fail");
                };
                self.on(on, |context, now| {
                    context.function_finished(now, rref, Err("it failed".into()));
                });
            }
            Step::CallCopy(at) => self.copy_call(at),
            Step::CallLost(at) | Step::CallLate(at) | Step::CallNotSent(at) => {
                self.budget.lost_calls -= 1;
                let Packet::Call {
                    data,
                    is_late,
                    is_awaited,
                    ..
                } = &mut self.packets[at]
                else {
                    panic!("only calls are lost");
                };
                (*is_late, *is_awaited) = (true, false);
                let data = data.clone();
                if !matches!(step, Step::CallLate(_)) {
                    let has_other = self.has_other(at, data.fork);
                    let lost = self.packets.swap_remove(at);
                    if !has_other {
                        self.mark_void(&lost);
                    }
                }
                self.on(index(data.parent), |context, now| {
                    if matches!(step, Step::CallNotSent(_)) {
                        context.undo_fork(now, &data);
                    } else {
                        context.fork_outcome_unknown(now, &data);
                    }
                });
            }
        }
    }

    fn is_possible(&self, step: &Step) -> bool {
        match *step {
            Step::Wait => self.regular_steps().is_empty() && !self.has_elapsed(),
            Step::Kill(_) => !self.has_deaths,
            Step::ReportLoss(_, victim) => self.contexts[victim].is_none(),
            Step::Stop => !self.has_stopped,
            Step::Sweep => self.has_stopped && self.regular_steps().is_empty(),
            _ => self.regular_steps().contains(step) || self.faults().contains(step),
        }
    }

    fn describe(&self) -> String {
        format!("{:?}, {:?}", self.threads, self.budget)
    }
}

impl Explored for World {
    fn steps(&self) -> Vec<Step> {
        let mut steps = self.regular_steps();
        steps.extend(Some(Step::Wait).filter(|wait| self.is_possible(wait)));
        steps.extend(self.faults());
        steps
    }

    fn copy(&self, _: &[Step]) -> Self {
        self.clone()
    }

    /// Hash of the state; equal for worlds that differ only in the order of their packets.
    fn fingerprint(&self) -> Option<u64> {
        let mut packets: Vec<u64> = self.packets.iter().map(fingerprint).collect();
        packets.sort_unstable();
        let contexts = self.contexts.iter().zip(&self.hashes);
        let contexts: Vec<u64> = contexts
            .map(|(context, known)| {
                let hash = known.get().unwrap_or_else(|| fingerprint(context));
                known.set(Some(hash));
                hash
            })
            .collect();
        Some(fingerprint(&(
            (contexts, packets, &self.threads, &self.slots),
            (
                self.budget,
                self.now,
                self.quiet_steps,
                self.has_stalled,
                self.has_stopped,
            ),
            (&self.ran, &self.created, &self.promised, &self.freed),
            (&self.confirmed, &self.received),
        )))
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for context in self.contexts.iter().flatten() {
            writeln!(f, "{context:?}")?;
        }
        for packet in &self.packets {
            writeln!(f, "{packet:?}")?;
        }
        for thread in &self.threads {
            writeln!(f, "{thread:?}")?;
        }
        writeln!(f, "{:?}", self.slots)
    }
}
