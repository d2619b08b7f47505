//! The names of references and of their forks: unique over all workers and their restarts.

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
    /// Counts the names that the process has given, from 0.
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

/// Gives the names of one process. References and forks share the count, as in PyTorch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Mint {
    created_on: WorkerId,
    incarnation: u64,
    next_local_id: u64,
}

impl Mint {
    pub(crate) fn new(created_on: WorkerId, incarnation: u64) -> Self {
        Self {
            created_on,
            incarnation,
            next_local_id: 0,
        }
    }

    pub(crate) fn rref(&mut self) -> RRefId {
        RRefId(self.next())
    }

    pub(crate) fn fork(&mut self) -> ForkId {
        ForkId(self.next())
    }

    fn next(&mut self) -> GloballyUniqueId {
        let local_id = self.next_local_id;
        self.next_local_id += 1;
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
        let (rref, fork) = (mint.rref(), mint.fork());
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
    fn a_restarted_process_gives_no_name_of_its_predecessor() {
        let worker = WorkerId::new(3).unwrap();
        assert_ne!(
            Mint::new(worker, 1).rref(),
            Mint::new(worker, 2).rref(),
            "the worker and the count are equal"
        );
    }
}
