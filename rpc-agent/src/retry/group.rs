//! Calls with retries that can be abandoned together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::worker::WorkerId;

/// A group of calls with retries. [`AgentHandle::abandon_retries`](crate::AgentHandle::abandon_retries) ends
/// those of the group to one worker, and no others.
///
/// A clone is a handle of the same group.
///
/// ```
/// use rpc_agent::{RetryGroup, RetryOptions};
///
/// let heartbeats = RetryGroup::new();
/// let retries = RetryOptions::default().with_group(&heartbeats);
/// assert_ne!(retries, RetryOptions::default());
/// ```
#[derive(Debug, Clone, Default)]
pub struct RetryGroup {
    /// How often the group has abandoned each worker.
    abandoned: Arc<Mutex<HashMap<WorkerId, Arc<AtomicU64>>>>,
}

impl RetryGroup {
    /// A group without calls.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Abandons the calls to this worker that have begun.
    pub(crate) fn abandon(&self, worker: WorkerId) {
        self.times_abandoned(worker).fetch_add(1, Ordering::SeqCst);
    }

    fn times_abandoned(&self, worker: WorkerId) -> Arc<AtomicU64> {
        let mut abandoned = self
            .abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(abandoned.entry(worker).or_default())
    }
}

impl PartialEq for RetryGroup {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.abandoned, &other.abandoned)
    }
}

/// A call to one worker as a member of a group.
#[derive(Debug, Clone)]
pub(crate) struct RetryMembership {
    times_abandoned: Arc<AtomicU64>,
    /// `times_abandoned` when the call began.
    at_begin: u64,
}

impl RetryMembership {
    /// A call to `worker` begins.
    pub(crate) fn new(group: &RetryGroup, worker: WorkerId) -> Self {
        let times_abandoned = group.times_abandoned(worker);
        let at_begin = times_abandoned.load(Ordering::SeqCst);
        Self {
            times_abandoned,
            at_begin,
        }
    }

    /// Whether the group has abandoned the worker since the call began. Without a lock.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.times_abandoned.load(Ordering::SeqCst) != self.at_begin
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn members_are_abandoned_by_worker_and_later_ones_are_not() {
        let [a, b] = [1, 2].map(|id| WorkerId::new(id).unwrap());
        let (group, other) = (RetryGroup::new(), RetryGroup::new());
        let to_a = RetryMembership::new(&group, a);
        let to_b = RetryMembership::new(&group, b);
        let of_other = RetryMembership::new(&other, a);
        group.clone().abandon(a);
        let later = RetryMembership::new(&group, a);
        assert!(to_a.is_abandoned());
        assert!(
            ![to_b, of_other, later]
                .iter()
                .any(RetryMembership::is_abandoned)
        );
        assert_ne!(group, other);
    }
}
