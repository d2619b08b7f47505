//! The tables, to be read by people: all of them, at one moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_agent::WorkerId;

use super::effect::Control;
use super::owned::{Arrival, Value};
use super::state::RRefContext;
use super::user::{Failure, State};
use crate::id::{ForkId, RRefId};

/// How full each table is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSizes {
    /// Values owned here, those without users and those still to come included.
    pub owners: usize,
    /// References that were heard of before their creation.
    pub pending_owners: usize,
    /// Users of values owned here.
    pub forks: usize,
    /// Users here that their owners have not answered.
    pub pending_users: usize,
    /// Users here that their owners know.
    pub confirmed_users: usize,
    /// Users here that are of no use.
    pub failed_users: usize,
    /// Users that were sent from here and are not known to be registered.
    pub pending_children: usize,
    /// Deletions that wait for others.
    pub deletes_queued: usize,
    /// Messages without an answer, those that stalled included.
    pub pending_futures: usize,
    /// Messages whose retries are used up.
    pub stalled: usize,
    /// Requests that wait for a value.
    pub parked_fetches: usize,
    /// Ranges of ids of what is gone.
    pub tombstone_ranges: usize,
}

/// All tables.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Whose.
    pub worker: WorkerId,
    /// How many rows there are, and what has none.
    pub sizes: TableSizes,
    /// Values of this worker.
    pub owned: Vec<OwnedRow>,
    /// Users on this worker.
    pub users: Vec<UserRow>,
    /// Users that were sent from here.
    pub children: Vec<ChildRow>,
    /// Messages without an answer.
    pub controls: Vec<ControlRow>,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedRow {
    /// The reference.
    pub rref: RRefId,
    /// The value's type, where it is known.
    pub type_name: Option<Arc<str>>,
    /// `unmade`, `running`, `promised` (to be given by the program), `ready` or `failed`.
    pub state: &'static str,
    /// How many handles the program here holds.
    pub handles: usize,
    /// Who else refers to it.
    pub forks: Vec<ForkRow>,
    /// How many requests wait for it.
    pub waiters: usize,
    /// How long it has been there.
    pub age: Duration,
}

/// A user of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkRow {
    /// Which.
    pub fork: ForkId,
    /// Who has it.
    pub worker: WorkerId,
    /// Whether it is known to have arrived there.
    pub has_arrived: bool,
    /// How long it has been known.
    pub age: Duration,
}

/// A user on this worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserRow {
    /// The reference.
    pub rref: RRefId,
    /// The user.
    pub fork: ForkId,
    /// Who has the value.
    pub owner: WorkerId,
    /// The value's type.
    pub type_name: Arc<str>,
    /// `creating`, `requesting`, `confirmed`, `doubtful`, `failed`, `refused` or `owner lost`.
    pub state: &'static str,
    /// Whether the program holds it.
    pub has_handle: bool,
    /// How many children it waits for.
    pub children: usize,
    /// How long it has been there.
    pub age: Duration,
}

/// A user that was sent from here.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildRow {
    /// Which.
    pub fork: ForkId,
    /// The user here that waits for it.
    pub parent: ForkId,
    /// To whom it was sent.
    pub to: WorkerId,
    /// How long it has been under way.
    pub age: Duration,
}

/// A message without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlRow {
    /// Which.
    pub control: Control,
    /// To whom.
    pub to: WorkerId,
    /// Whether its retries are used up.
    pub has_stalled: bool,
    /// Since it was sent, or has stalled.
    pub age: Duration,
}

/// What keeps the tables from being empty: which worker, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// Who could end it.
    pub worker: WorkerId,
    /// What is awaited of it.
    pub what: &'static str,
    /// How many of these.
    pub count: usize,
}

impl<V: Clone> RRefContext<V> {
    /// How full each table is. Takes time in proportion to the tables.
    #[must_use]
    pub fn sizes(&self) -> TableSizes {
        let mut sizes = TableSizes {
            owners: self.owned.len(),
            pending_owners: self.unmade,
            forks: self.owned.values().map(|owned| owned.forks.len()).sum(),
            pending_children: self.children.len(),
            deletes_queued: self.outbox.deletes_queued(),
            pending_futures: self.outbox.sendings.len(),
            stalled: self
                .outbox
                .stalled
                .values()
                .map(|stalled| stalled.controls.len())
                .sum(),
            parked_fetches: self.waiting.len(),
            tombstone_ranges: self.gone.ranges(),
            ..TableSizes::default()
        };
        for user in self.users.values() {
            match user.state {
                State::Creating => {
                    sizes.pending_users += 1;
                    // It is under way, though not in the outbox.
                    sizes.pending_futures += 1;
                }
                State::Requesting => sizes.pending_users += 1,
                State::Confirmed => sizes.confirmed_users += 1,
                _ => sizes.failed_users += 1,
            }
        }
        sizes
    }

    /// All tables.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let age = |since: Instant| now.saturating_duration_since(since);
        let owned = self.owned.iter().map(|(&rref, owned)| OwnedRow {
            rref,
            type_name: owned.type_name.clone(),
            state: match owned.value {
                Value::Unmade => "unmade",
                Value::Running => "running",
                Value::Promised => "promised",
                Value::Ready(_) => "ready",
                Value::Failed { .. } => "failed",
            },
            handles: owned.handles,
            forks: owned
                .forks
                .iter()
                .map(|(&fork, holder)| ForkRow {
                    fork,
                    worker: holder.worker,
                    has_arrived: holder.arrival == Arrival::Arrived,
                    age: age(holder.since),
                })
                .collect(),
            waiters: owned.waiters.len(),
            age: age(owned.since),
        });
        let users = self.users.iter().map(|(&fork, user)| UserRow {
            rref: user.rref,
            fork,
            owner: user.owner,
            type_name: Arc::clone(&user.type_name),
            state: match user.state {
                State::Creating => "creating",
                State::Requesting => "requesting",
                State::Confirmed => "confirmed",
                State::Doubtful(_) => "doubtful",
                State::Failed(_, Failure::Private | Failure::Telling | Failure::Told) => "failed",
                State::Refused(_) => "refused",
                State::OwnerLost => "owner lost",
            },
            has_handle: user.has_handle,
            children: user.children,
            age: age(user.since),
        });
        let children = self.children.iter().map(|(&fork, child)| ChildRow {
            fork,
            parent: child.parent,
            to: child.to,
            age: age(child.since),
        });
        let controls = self
            .outbox
            .sendings
            .iter()
            .map(|(&control, sending)| ControlRow {
                control,
                to: sending.to,
                has_stalled: self.outbox.is_stalled(control),
                age: age(sending.since),
            });
        Snapshot {
            worker: self.me,
            sizes: self.sizes(),
            owned: owned.collect(),
            users: users.collect(),
            children: children.collect(),
            controls: controls.collect(),
        }
    }

    /// Who keeps the tables from being empty, by worker. Empty when they are.
    #[must_use]
    pub fn missing(&self) -> Vec<Missing> {
        let mut counts: BTreeMap<(WorkerId, &'static str), usize> = BTreeMap::new();
        let mut count = |worker, what| *counts.entry((worker, what)).or_default() += 1;
        for owned in self.owned.values() {
            if owned.handles > 0 {
                count(self.me, "values that its program holds");
            }
            if matches!(owned.value, Value::Running) {
                count(self.me, "functions that make values");
            }
            for holder in owned.forks.values() {
                count(holder.worker, "references to values of this worker");
            }
        }
        for user in self.users.values() {
            match user.state {
                State::Creating => count(user.owner, "creations to be answered"),
                _ if user.has_handle => count(self.me, "references that its program holds"),
                _ => {}
            }
        }
        for child in self.children.values() {
            count(child.to, "references to be received and registered");
        }
        for sending in self.outbox.sendings.values() {
            count(sending.to, "messages to be answered");
        }
        for (&owner, queue) in &self.outbox.deletes {
            for _ in queue {
                count(owner, "deletions to be sent");
            }
        }
        for waiting in self.waiting.values() {
            count(waiting.rref.0.created_on, "values that requests wait for");
        }
        counts
            .into_iter()
            .map(|((worker, what), count)| Missing {
                worker,
                what,
                count,
            })
            .collect()
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            worker,
            what,
            count,
        } = self;
        write!(f, "worker {worker}: {count} {what}")
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "references of worker {}", self.worker)?;
        for row in &self.owned {
            let type_name = row.type_name.as_deref().unwrap_or("unknown type");
            writeln!(
                f,
                "  value OwnerRRef({}) of `{type_name}`: {}, {} handles here, {} waiting, for {:?}",
                row.rref, row.state, row.handles, row.waiters, row.age
            )?;
            for fork in &row.forks {
                let way = if fork.has_arrived { "" } else { " (under way)" };
                writeln!(
                    f,
                    "    held by worker {}{way} as {}, for {:?}",
                    fork.worker, fork.fork, fork.age
                )?;
            }
        }
        for row in &self.users {
            let held = if row.has_handle { "held" } else { "dropped" };
            writeln!(
                f,
                "  user UserRRef(RRefId = {}, ForkId = {}) of `{}` on worker {}: {}, {held}, \
                 {} children, for {:?}",
                row.rref, row.fork, row.type_name, row.owner, row.state, row.children, row.age
            )?;
        }
        for row in &self.children {
            writeln!(
                f,
                "  child {} of {} to worker {}, for {:?}",
                row.fork, row.parent, row.to, row.age
            )?;
        }
        for row in &self.controls {
            let stalled = if row.has_stalled { ", stalled" } else { "" };
            writeln!(
                f,
                "  message {:?} to worker {}{stalled}, for {:?}",
                row.control, row.to, row.age
            )?;
        }
        Ok(())
    }
}
