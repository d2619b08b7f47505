//! Makes snapshots of the tables, and counts what a shutdown waits for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rpc_agent::WorkerId;

use super::effect::Control;
use super::owned::{Arrival, Value};
use super::rows::{
    ChildRow, ForkRow, MessageKind, MessageRow, MissingKind, OwnedRow, Snapshot, TableSizes,
    UserRow, UserState, ValueState,
};
use super::state::RRefContext;
use super::user::{Failure, State};

/// What a shutdown waits for, by the worker that could end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MissingRow {
    pub(crate) worker: WorkerId,
    pub(crate) what: MissingKind,
    pub(crate) count: usize,
}

impl<V: Clone> RRefContext<V> {
    /// The number of entries of each table.
    #[must_use]
    pub(crate) fn sizes(&self) -> TableSizes {
        let mut sizes = TableSizes {
            owners: self.owned.len(),
            pending_owners: self.uncreated,
            forks: self.owned.values().map(|owned| owned.forks.len()).sum(),
            pending_children: self.children.len(),
            deletes_queued: self.outbox.deletes_queued(),
            pending_futures: self.outbox.unanswered.len(),
            stalled: self
                .outbox
                .stalled
                .values()
                .map(|stalled| stalled.controls.len())
                .sum(),
            parked_fetches: self.waiting.len(),
            tombstone_ranges: self.tombstones.ranges(),
            ..TableSizes::default()
        };
        for user in self.users.values() {
            match user.state {
                State::Creating => {
                    sizes.pending_users += 1;
                    // Under way, but not in the outbox.
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
    pub(crate) fn snapshot(&self, now: Instant) -> Snapshot {
        let age = |since: Instant| now.saturating_duration_since(since);
        let owned = self.owned.iter().map(|(&rref, owned)| OwnedRow {
            rref,
            type_name: owned.type_name.clone(),
            state: match owned.value {
                Value::Uncreated => ValueState::Uncreated,
                Value::Running => ValueState::Running,
                Value::Promised => ValueState::Promised,
                Value::Ready(_) => ValueState::Ready,
                Value::Failed { .. } => ValueState::Failed,
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
                State::Creating => UserState::Creating,
                State::Requesting => UserState::Requesting,
                State::Confirmed => UserState::Confirmed,
                State::Unsettled(_) => UserState::Unsettled,
                State::Failed(_, Failure::Unreported | Failure::Reporting | Failure::Reported) => {
                    UserState::Failed
                }
                State::Refused(_) => UserState::Refused,
                State::OwnerLost => UserState::OwnerLost,
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
        let messages = self.outbox.unanswered.iter().map(|(&control, sending)| {
            let (kind, fork) = match control {
                Control::Create(fork) => (MessageKind::Creation, Some(fork)),
                Control::ForkRequest(fork) => (MessageKind::Registration, Some(fork)),
                Control::ChildAccept(fork) => (MessageKind::Release, Some(fork)),
                Control::Abandon(fork) => (MessageKind::Settlement, Some(fork)),
                Control::Probe(fork) => (MessageKind::Probe, Some(fork)),
                Control::Query(fork) => (MessageKind::Query, Some(fork)),
                Control::Deletes { .. } => (MessageKind::Deletion, None),
            };
            MessageRow {
                kind,
                fork,
                to: sending.to,
                has_stalled: self.outbox.is_stalled(control),
                age: age(sending.since),
            }
        });
        Snapshot {
            worker: self.me,
            sizes: self.sizes(),
            owned: owned.collect(),
            users: users.collect(),
            children: children.collect(),
            messages: messages.collect(),
        }
    }

    /// What keeps the tables from being empty, by worker.
    #[must_use]
    pub(crate) fn missing(&self) -> Vec<MissingRow> {
        let mut counts: BTreeMap<(WorkerId, MissingKind), usize> = BTreeMap::new();
        let mut count = |worker, what| *counts.entry((worker, what)).or_default() += 1;
        for owned in self.owned.values() {
            if owned.handles > 0 {
                count(self.me, MissingKind::HeldValues);
            }
            if matches!(owned.value, Value::Running) {
                count(self.me, MissingKind::RunningFunctions);
            }
            for holder in owned.forks.values() {
                count(holder.worker, MissingKind::References);
            }
        }
        for user in self.users.values() {
            match user.state {
                State::Creating => count(user.owner, MissingKind::Creations),
                _ if user.has_handle => count(self.me, MissingKind::HeldReferences),
                _ => {}
            }
        }
        for child in self.children.values() {
            count(child.to, MissingKind::Children);
        }
        for sending in self.outbox.unanswered.values() {
            count(sending.to, MissingKind::Messages);
        }
        for (&owner, queue) in &self.outbox.deletes {
            for _ in queue {
                count(owner, MissingKind::Deletions);
            }
        }
        for waiting in self.waiting.values() {
            count(waiting.rref.0.created_on, MissingKind::Fetches);
        }
        counts
            .into_iter()
            .map(|((worker, what), count)| MissingRow {
                worker,
                what,
                count,
            })
            .collect()
    }
}
