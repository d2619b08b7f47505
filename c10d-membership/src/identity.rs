//! The identity of a member: a stable id, and the process that has it.

use std::fmt;

/// Names a member for as long as the job runs: a count of the launcher, or torch's constructor rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// The number of a process among the processes that have had the same id. A later process has a greater number; a
/// number is not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// One process of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey {
    /// The id. The process that replaces this one gets the same id if its launcher keeps it.
    pub id: MemberId,
    /// The number of the process; it ascends with each process that has the id.
    pub incarnation: Incarnation,
}

impl MemberKey {
    /// Returns the key of the process that has `id` for the `incarnation`th time.
    pub const fn new(id: u64, incarnation: u64) -> Self {
        Self {
            id: MemberId(id),
            incarnation: Incarnation(incarnation),
        }
    }
}

impl fmt::Display for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}.{}", self.id.0, self.incarnation.0)
    }
}
