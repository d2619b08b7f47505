//! The names of references and of their forks: unique over all workers and their restarts.

use std::collections::BTreeMap;
use std::fmt;

use rpc_agent::WorkerId;

/// A name that is given once: by whom, and the how many-th of its names it is.
///
/// Unlike PyTorch's, it has the creator's *incarnation*, a number that each process draws when it starts:
/// the count begins at 0 in a restarted worker, whose id is the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GloballyUniqueId {
    /// The worker that gave the name.
    pub created_on: WorkerId,
    /// Of that worker's process.
    pub incarnation: u64,
    /// Which of the names that the process has given it is: in the high 16 bits the worker that the name
    /// is for, below them the count of names for that worker, from 0.
    pub local_id: u64,
}

impl fmt::Display for GloballyUniqueId {
    /// As PyTorch prints it.
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

/// A reference: one value, on one owner, whoever refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RRefId(pub GloballyUniqueId);

/// One transfer of a reference to a worker, and the user that it made there.
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

impl GloballyUniqueId {
    /// The worker that it was named for: the owner of a reference, the holder of a user, and of a creator's
    /// user the owner.
    pub(crate) fn named_for(self) -> Option<WorkerId> {
        let of = u32::try_from(self.local_id >> COUNT_BITS).ok()?;
        WorkerId::new(of).ok()
    }
}

/// The lower bits of a name count; the upper ones say for which worker.
const COUNT_BITS: u32 = 48;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Gives the names of one process. References and forks share the count, as in PyTorch; but there is one
/// for each worker that names are for. So the names that one worker sees, and has to remember when they are
/// gone, follow each other, and many of them are one range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Mint {
    created_on: WorkerId,
    incarnation: u64,
    /// By the worker that names are for.
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

    /// A reference to a value of `owner`.
    pub(crate) fn rref(&mut self, owner: WorkerId) -> RRefId {
        RRefId(self.next(owner))
    }

    /// A user on worker `on`, or one whose creation `on` is asked for.
    pub(crate) fn fork(&mut self, on: WorkerId) -> ForkId {
        ForkId(self.next(on))
    }

    /// Whether a name is of this process's making, and not given yet.
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
    fn names_for_one_worker_follow_each_other_and_are_no_other_workers() {
        let [me, one, two] = [3, 1, 2].map(|id| WorkerId::new(id).unwrap());
        let mut mint = Mint::new(me, 77);
        let first = [mint.fork(one), mint.fork(two)].map(|fork| fork.0.local_id);
        let next = [mint.rref(one).0.local_id, mint.fork(two).0.local_id];
        assert_eq!(next, first.map(|id| id + 1));
        assert_ne!(first[0], first[1]);
    }

    #[test]
    fn a_name_is_known_for_given_or_for_one_of_another() {
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
    fn a_restarted_process_gives_no_name_of_its_predecessor() {
        let worker = WorkerId::new(3).unwrap();
        assert_ne!(
            Mint::new(worker, 1).rref(worker),
            Mint::new(worker, 2).rref(worker),
            "the worker and the count are equal"
        );
    }
}
