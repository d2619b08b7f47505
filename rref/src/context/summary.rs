//! Summaries of the tables: the number of entries, the held values, and the entries that delay a shutdown.

use std::collections::BTreeMap;
use std::time::Instant;

use rpc_agent::{WorkerId, WorkerInfo};

use super::rows::{HeldValue, Holder, MissingKind, TableSizes, ValueState};
use super::state::RRefContext;
use super::user::State;
use super::values::Value;

/// The number of entries that delay a shutdown, by the worker that can remove them.
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

    /// The values that are held, with their holders, whose names are not known here.
    pub(crate) fn held(&self, now: Instant) -> Vec<HeldValue> {
        let age = |since: Instant| now.saturating_duration_since(since);
        let held = self.owned.iter().map(|(&rref, owned)| HeldValue {
            rref,
            type_name: owned.type_name.clone(),
            state: match owned.value {
                Value::Uncreated => ValueState::Uncreated,
                Value::Running => ValueState::Running,
                Value::Promised => ValueState::Promised,
                Value::Ready(_) => ValueState::Ready,
                Value::Failed { .. } => ValueState::Failed,
            },
            age: age(owned.since),
            handles: owned.handles as usize,
            held_by: owned
                .forks
                .iter()
                .map(|(fork, holder)| Holder {
                    worker: WorkerInfo::unnamed(holder.worker),
                    fork,
                    age: age(holder.since),
                })
                .collect(),
        });
        held.collect()
    }

    /// Returns the entries that delay a shutdown, by worker.
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
            for (_, holder) in owned.forks.iter() {
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
