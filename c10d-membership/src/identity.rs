//! The identity of a member, which is a stable id and the process that has it; and the number of an attempt, which is the `uuid`
//! of torch's `_reconfigure`. A service uses no number twice.

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

/// 31 random bits that distinguish the attempts of one service from the attempts of all other services on the same
/// store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(u32);

impl Nonce {
    /// Takes the upper 31 of 32 random bits.
    pub const fn new(random: u32) -> Self {
        Self(random >> 1)
    }
}

/// One try to agree on a list of members. The attempt that commits is the *generation* from then on.
///
/// Its 63 bits are a [`Nonce`] and a count from 1, so that messages to a previous run of the service fit no attempt
/// of this run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(u64);

impl Attempt {
    pub(crate) fn new(nonce: Nonce, count: u32) -> Self {
        Self((u64::from(nonce.0) << 32) | u64::from(count))
    }

    /// Returns the attempt of a `uuid`; `None` if it has more than 63 bits.
    pub const fn from_uuid(uuid: u64) -> Option<Self> {
        if uuid >> 63 == 0 {
            Some(Self(uuid))
        } else {
            None
        }
    }

    /// Returns the number that torch calls `uuid`. It fits into 63 bits.
    pub const fn uuid(self) -> u64 {
        self.0
    }

    /// Returns the number of attempts that the service had made, including this one.
    pub const fn count(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        {
            self.0 as u32
        }
    }

    /// Whether both are of the same life of a service.
    pub(crate) const fn has_nonce_of(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    /// Returns whether this attempt is over when `other` is: it is not later than `other`, and of the same run of a
    /// service.
    pub const fn is_over_with(self, other: Self) -> bool {
        self.has_nonce_of(other) && self.0 <= other.0
    }

    /// The attempt after this one; `None` after 2^32 - 1 attempts, because a uuid must not repeat.
    pub(crate) fn next(self) -> Option<Self> {
        (self.count() < u32::MAX).then_some(Self(self.0 + 1))
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/spec/membership.md, UUID 1 and 2.
    #[test]
    fn a_uuid_has_63_bits_and_ascends_and_ends_before_it_repeats() {
        let first = Attempt::new(Nonce::new(u32::MAX), 1);
        assert_eq!(first.uuid(), 0x7fff_ffff_0000_0001);
        assert_eq!(first.count(), 1);
        assert_eq!(first.next().unwrap().uuid(), first.uuid() + 1);
        let last = Attempt::new(Nonce::new(8), u32::MAX);
        assert_eq!(last.uuid(), 0x0000_0004_ffff_ffff);
        assert_eq!(last.next(), None);
        assert_eq!(Attempt::from_uuid(last.uuid()), Some(last));
        assert_eq!(Attempt::from_uuid(1 << 63), None);
    }
}
