//! Who a member is: a stable id, and which process has it.

use std::fmt;

/// Names a member for as long as the job runs: a count of the launcher, or torch's constructor rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Which process has an id. A later one has a greater number; a smaller one never comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// One process of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey {
    /// Stays when the process is replaced, if its launcher wants that.
    pub id: MemberId,
    /// Ascends with each process that has the id.
    pub incarnation: Incarnation,
}

impl MemberKey {
    /// The process that has `id` for the `incarnation`th time.
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
