//! The state of one worker's references: all tables, and how they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_agent::WorkerId;

use super::effect::{Control, Effect, Handle, RequestToken, UserStatus};
use super::outbox::Outbox;
use super::tombstones::Tombstones;
use super::user::{Child, Orphan, State, User};
use super::values::{Owned, Waiting};
use crate::id::{ForkId, Mint, RRefId};
use crate::places::Places;
use crate::protocol::DELETES_MAX;

/// The shortest time of [`Timing`]: without it, an action could be due again at once, forever.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The context's timers. Times below 1 ms count as 1 ms; [`Duration::MAX`] disables a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Timing {
    /// How long a reference may be under way in an answer, or a child be unregistered, before its receiver is
    /// probed. Default 30 s.
    pub(crate) probe_after: Duration,
    /// How long a stalled message waits for a message of its receiver before it is resent. Default 10 s.
    pub(crate) resend_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            probe_after: Duration::from_secs(30),
            resend_after: Duration::from_secs(10),
        }
    }
}

/// How many deletions may be unanswered at one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DeleteWindow {
    /// The most deletions in one message.
    pub(super) deletes_max: usize,
    /// The most messages under way.
    pub(super) batches_max: usize,
}

impl Default for DeleteWindow {
    /// 16 messages: a few lost messages do not delay the remaining ones, and any owner's queue has room for 16.
    fn default() -> Self {
        Self {
            deletes_max: DELETES_MAX,
            batches_max: 16,
        }
    }
}

/// The phase of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Running,
    /// No new references. Users are deleted as soon as their registrations and children allow.
    DeletingUsers,
    /// Values without users are freed, whether a handle is held here or not.
    Sweeping,
}

/// One worker's references: the values that it owns and the users that it has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RRefContext<V> {
    pub(super) me: WorkerId,
    pub(super) incarnation: u64,
    pub(super) timing: Timing,
    pub(super) delete_window: DeleteWindow,
    pub(super) mint: Mint,
    pub(super) phase: Phase,
    /// Boxed, as a node of the table has room for more entries than it has.
    pub(super) owned: BTreeMap<RRefId, Box<Owned<V>>>,
    /// How many of `owned` are uncreated.
    pub(super) uncreated: usize,
    /// Requests for values that do not exist yet.
    pub(super) waiting: BTreeMap<RequestToken, Waiting>,
    /// The places of the peers whose requests wait.
    pub(super) waiting_places: Places,
    /// The same requests, by value. Not in `owned`, because few values are waited for.
    pub(super) waiters: BTreeSet<(RRefId, RequestToken)>,
    pub(super) deadlines: BTreeSet<(Instant, RequestToken)>,
    pub(super) users: BTreeMap<ForkId, Box<User>>,
    pub(super) children: BTreeMap<ForkId, Child>,
    /// The forks whose [`Arrival`] is `UnderWay`, by the time when they were sent.
    pub(super) under_way: BTreeSet<(Instant, RRefId, ForkId)>,
    pub(super) outbox: Outbox,
    pub(super) orphans: BTreeMap<Control, Orphan>,
    pub(super) peers: BTreeMap<WorkerId, Peer>,
    pub(super) tombstones: Tombstones,
    pub(super) effects: Vec<Effect<V>>,
}

impl<V: Clone> RRefContext<V> {
    /// An empty context. `incarnation` is drawn by each process, and is not 0.
    #[must_use]
    pub(crate) fn new(me: WorkerId, incarnation: u64, timing: Timing, now: Instant) -> Self {
        let timing = Timing {
            probe_after: timing.probe_after.max(WAIT_MIN),
            resend_after: timing.resend_after.max(WAIT_MIN),
        };
        Self {
            me,
            incarnation,
            timing,
            delete_window: DeleteWindow::default(),
            mint: Mint::new(me, incarnation),
            phase: Phase::Running,
            owned: BTreeMap::new(),
            uncreated: 0,
            waiting: BTreeMap::new(),
            waiting_places: Places::default(),
            waiters: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            users: BTreeMap::new(),
            children: BTreeMap::new(),
            under_way: BTreeSet::new(),
            outbox: Outbox::default(),
            orphans: BTreeMap::new(),
            peers: BTreeMap::new(),
            tombstones: Tombstones::new(now),
            effects: Vec::new(),
        }
    }

    /// Sends fewer deletions in one message, so that a test with few references has several messages.
    #[cfg(test)]
    pub(super) const fn with_delete_window(mut self, delete_window: DeleteWindow) -> Self {
        self.delete_window = delete_window;
        self
    }

    /// The effects of the steps since the last call, to be carried out in this order.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect<V>> {
        #[cfg(test)]
        assert_eq!(self.check_small_tables(), Ok(()));
        std::mem::take(&mut self.effects)
    }

    /// The owner of a handle's reference; `None` after the shutdown.
    #[must_use]
    pub(crate) fn owner_of(&self, handle: Handle) -> Option<WorkerId> {
        match handle {
            Handle::Owner(rref) => self.owned.contains_key(&rref).then_some(self.me),
            Handle::User(fork) => self.users.get(&fork).map(|user| user.owner),
        }
    }

    /// The reference of a handle.
    #[must_use]
    pub(crate) fn rref_of(&self, handle: Handle) -> Option<RRefId> {
        match handle {
            Handle::Owner(rref) => Some(rref),
            Handle::User(fork) => self.users.get(&fork).map(|user| user.rref),
        }
    }

    /// The type of a handle's reference, if it is known.
    #[must_use]
    pub(crate) fn type_name_of(&self, handle: Handle) -> Option<Arc<str>> {
        match handle {
            Handle::Owner(rref) => self.owned.get(&rref)?.type_name.clone(),
            Handle::User(fork) => self
                .users
                .get(&fork)
                .map(|user| Arc::clone(&user.type_name)),
        }
    }

    /// Returns the state of a user; `None` if it was deleted.
    #[must_use]
    pub(crate) fn status(&self, fork: ForkId) -> Option<UserStatus> {
        let user = self.users.get(&fork)?;
        Some(match (user.error(), &user.state) {
            (Some(error), _) => UserStatus::Failed(error),
            (None, State::Confirmed) => UserStatus::Confirmed,
            (None, _) => UserStatus::Pending,
        })
    }

    /// Whether a user's creation was not answered in time, and its owner has not accepted it since.
    #[must_use]
    pub(crate) fn has_timed_out(&self, fork: ForkId) -> bool {
        self.users.get(&fork).is_some_and(|user| user.has_timed_out)
    }

    /// A value of this worker, or its creation's error; `None` before either.
    pub(crate) fn try_value(&self, rref: RRefId) -> Option<Result<V, Arc<str>>> {
        self.owned.get(&rref)?.value.result()
    }
}

/// Whether `time` has passed since `since`.
pub(super) fn has_elapsed(since: Instant, time: Duration, now: Instant) -> bool {
    since.checked_add(time).is_some_and(|end| end <= now)
}

/// How many former processes of a worker are remembered.
const FORMER_MAX: usize = 8;

/// The state of another worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// The incarnation of the process that sent the last message; `None` before the first message, and after the
    /// process's death.
    pub(super) incarnation: Option<u64>,
    /// Processes that were declared dead, the latest last. Their messages are refused, even if they live.
    pub(super) former: Vec<u64>,
    /// The process was declared dead, and no message of a later process has arrived.
    pub(super) is_lost: bool,
}

impl Peer {
    pub(super) fn declare_dead(&mut self, incarnation: u64) {
        if self.former.contains(&incarnation) {
            return;
        }
        if self.former.len() == FORMER_MAX {
            self.former.remove(0);
        }
        self.former.push(incarnation);
    }
}
