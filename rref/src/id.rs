//! The ids of references and forks, unique over all workers and their restarts, and the shared names of their types.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use rpc_agent::WorkerId;

/// An id that is unique over all workers and their restarts.
///
/// Unlike PyTorch's, it contains the creator's *incarnation*, which each process draws when it starts: a restarted
/// worker has the same worker id and counts from 0 again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GloballyUniqueId {
    /// The worker that gave the id.
    pub created_on: WorkerId,
    /// The incarnation of that worker's process.
    pub incarnation: u64,
    /// The worker that the id is for, in the high 16 bits, and below it the count of ids for that worker, from 0.
    pub local_id: u64,
}

impl fmt::Display for GloballyUniqueId {
    /// Shows the id like PyTorch.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            created_on,
            local_id,
            ..
        } = self;
        write!(
            f,
            "GloballyUniqueId(created_on={created_on}, local_id={local_id})"
        )
    }
}

/// Identifies a reference: one value on one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RRefId(pub GloballyUniqueId);

/// Identifies a user: one transfer of a reference to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForkId(pub GloballyUniqueId);

impl fmt::Display for RRefId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ForkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl RRefId {
    /// The id of its creator's user: the next id that the creator gives ([`Mint`]).
    pub(crate) fn creators_fork(self) -> ForkId {
        ForkId(GloballyUniqueId {
            local_id: self.0.local_id.wrapping_add(1),
            ..self.0
        })
    }
}

impl GloballyUniqueId {
    /// The worker that it is for: the owner of a reference, the holder of a user; of a creator's user, the owner.
    pub(crate) fn named_for(self) -> Option<WorkerId> {
        let of = u32::try_from(self.local_id >> COUNT_BITS).ok()?;
        WorkerId::new(of).ok()
    }
}

/// The low bits of a local id count; the high ones are the worker that it is for.
const COUNT_BITS: u32 = 48;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Gives the ids of one process. References and forks share the count, like in PyTorch, with a count for each worker
/// that ids are for. Therefore, the ids that one worker sees, and remembers as tombstones, are consecutive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Mint {
    created_on: WorkerId,
    incarnation: u64,
    /// The counts by the worker that ids are for.
    counts: BTreeMap<WorkerId, u64>,
}

impl Mint {
    pub(crate) fn new(created_on: WorkerId, incarnation: u64) -> Self {
        Self {
            created_on,
            incarnation,
            counts: BTreeMap::new(),
        }
    }

    /// The id of a reference to a value of `owner`.
    pub(crate) fn rref(&mut self, owner: WorkerId) -> RRefId {
        RRefId(self.next(owner))
    }

    /// The id of a user on worker `on`, or of a creator's user of a value there.
    pub(crate) fn fork(&mut self, on: WorkerId) -> ForkId {
        ForkId(self.next(on))
    }

    /// Whether this process is still to give the id.
    pub(crate) fn is_unissued(&self, id: GloballyUniqueId) -> bool {
        if id.created_on != self.created_on || id.incarnation != self.incarnation {
            return false;
        }
        let given = id.named_for().and_then(|of| self.counts.get(&of));
        given.is_none_or(|given| id.local_id & COUNT_MAX >= *given)
    }

    fn next(&mut self, of: WorkerId) -> GloballyUniqueId {
        let count = self.counts.entry(of).or_default();
        let local_id = u64::from(of.get()) << COUNT_BITS | *count;
        *count += 1;
        GloballyUniqueId {
            created_on: self.created_on,
            incarnation: self.incarnation,
            local_id,
        }
    }
}

/// How many names a thread remembers. A program with more types at a time has some names more than once.
const RECENT_MAX: usize = 16;

thread_local! {
    static RECENT: RefCell<VecDeque<Arc<str>>> = const { RefCell::new(VecDeque::new()) };
}

/// Returns the name of a type. References of the same type share one copy, if this thread has used the name recently.
pub(crate) fn shared_name(name: &str) -> Arc<str> {
    // A reference that a thread-local destructor receives or makes has its own copy.
    RECENT
        .try_with(|recent| {
            let mut recent = recent.borrow_mut();
            if let Some(known) = recent.iter().find(|known| ***known == *name) {
                return Arc::clone(known);
            }
            let name = Arc::<str>::from(name);
            if recent.len() == RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back(Arc::clone(&name));
            name
        })
        .unwrap_or_else(|_| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_creation_gets_the_ids_0_and_1_and_prints_them_as_pytorch_does() {
        let mut mint = Mint::new(WorkerId::new(3).unwrap(), 77);
        let owner = WorkerId::new(0).unwrap();
        let (rref, fork) = (mint.rref(owner), mint.fork(owner));
        assert_eq!(
            rref.to_string(),
            "GloballyUniqueId(created_on=3, local_id=0)"
        );
        assert_eq!(
            fork.to_string(),
            "GloballyUniqueId(created_on=3, local_id=1)"
        );
    }

    #[test]
    fn ids_for_one_worker_are_consecutive_and_differ_from_those_for_others() {
        let [me, one, two] = [3, 1, 2].map(|id| WorkerId::new(id).unwrap());
        let mut mint = Mint::new(me, 77);
        let first = [mint.fork(one), mint.fork(two)].map(|fork| fork.0.local_id);
        let next = [mint.rref(one).0.local_id, mint.fork(two).0.local_id];
        assert_eq!(next, first.map(|id| id + 1));
        assert_ne!(first[0], first[1]);
    }

    #[test]
    fn only_unassigned_ids_of_this_process_are_unissued() {
        let [me, other] = [3, 1].map(|id| WorkerId::new(id).unwrap());
        let mut mint = Mint::new(me, 77);
        let first = mint.fork(other).0;
        let next = GloballyUniqueId {
            local_id: first.local_id + 1,
            ..first
        };
        let for_nobody = GloballyUniqueId {
            local_id: u64::MAX,
            ..first
        };
        assert_eq!(
            [first, next, for_nobody].map(|id| mint.is_unissued(id)),
            [false, true, true]
        );
        assert_eq!(mint.fork(other).0, next);
        assert!(!mint.is_unissued(next));
        let of_others = [
            GloballyUniqueId {
                created_on: other,
                ..for_nobody
            },
            GloballyUniqueId {
                incarnation: 78,
                ..for_nobody
            },
        ];
        assert_eq!(of_others.map(|id| mint.is_unissued(id)), [false; 2]);
    }

    #[test]
    fn a_restarted_process_reuses_no_ids() {
        let worker = WorkerId::new(3).unwrap();
        assert_ne!(
            Mint::new(worker, 1).rref(worker),
            Mint::new(worker, 2).rref(worker),
            "the worker and the count are equal"
        );
    }

    #[test]
    fn references_of_few_types_share_their_names_and_many_types_are_forgotten() {
        let first = shared_name("first");
        assert!(Arc::ptr_eq(&first, &shared_name("first")));
        for number in 0..1000 {
            assert_eq!(*shared_name(&number.to_string()), *number.to_string());
        }
        assert_eq!(RECENT.with_borrow(VecDeque::len), RECENT_MAX);
        assert_eq!(*shared_name("first"), *first);
    }
}
