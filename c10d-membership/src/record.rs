//! The list that the members of an attempt agree on, and the names in it.
//!
//! A [`Record`] gives each member of an [`Attempt`] its rank. The number of the attempt is the `uuid` of torch's
//! `_reconfigure`. A [`MemberKey`] names a member by a stable id and by the process that has the id.

use std::fmt;
use std::sync::Arc;

/// The list that the members of an attempt agree on. It is made once, never changed, and shared: a list of 10,000
/// members exists once, not once for each member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Record {
    /// The number of the attempt, which is torch's `uuid`.
    pub attempt: Attempt,
    /// The seats, by rank.
    pub seats: Vec<Seat>,
    /// The rank whose state the other ranks copy: it has the newest step of the members that were in the previous
    /// generation, or of all members if there was none.
    pub source: usize,
}

/// The seat of one member in an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Seat {
    /// The process that has the seat.
    pub member: MemberKey,
    /// The handle of the process in torch's list.
    pub handle: Arc<str>,
    /// The number of steps that the process had done.
    pub step: u64,
    /// The rank of the process in the previous generation; `None` for a newcomer.
    pub previous: Option<u32>,
}

impl Record {
    /// Assigns the ranks. If the group does not shrink, remaining members keep their ranks, and newcomers take the
    /// free ranks. Otherwise remaining members close the gaps in the order of their old ranks. Newcomers are ordered
    /// by id.
    ///
    /// `seats` are ordered by id; `size` is the size of the previous generation.
    pub(crate) fn new(attempt: Attempt, seats: Vec<Seat>, size: usize) -> Self {
        let (mut stay, newcomers): (Vec<_>, Vec<_>) =
            seats.into_iter().partition(|seat| seat.previous.is_some());
        stay.sort_unstable_by_key(|seat| seat.previous);
        let total = stay.len() + newcomers.len();
        let mut newcomers = newcomers.into_iter();
        let mut seats = Vec::with_capacity(total);
        for seat in stay {
            if total >= size {
                let rank = seat.previous.unwrap_or_default() as usize;
                let free = rank.saturating_sub(seats.len());
                seats.extend(newcomers.by_ref().take(free));
            }
            seats.push(seat);
        }
        seats.extend(newcomers);
        let source = source(&seats);
        Self {
            attempt,
            seats,
            source,
        }
    }

    /// Returns the rank of a member: its position. Takes time in the order of the list's length.
    pub fn rank_of(&self, member: MemberKey) -> Option<usize> {
        self.seats.iter().position(|seat| seat.member == member)
    }
}

fn source(seats: &[Seat]) -> usize {
    let has_survivor = seats.iter().any(|seat| seat.previous.is_some());
    let mut source = None;
    for (rank, seat) in seats.iter().enumerate() {
        let is_candidate = seat.previous.is_some() || !has_survivor;
        if is_candidate && source.is_none_or(|(step, _)| seat.step > step) {
            source = Some((seat.step, rank));
        }
    }
    source.map_or(0, |(_, rank)| rank)
}

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

/// One try to agree on a list of members. The attempt that commits is the *generation* from then on. A service uses no
/// number twice.
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

    /// The ids by rank and the source, of members with id, old rank and step.
    fn ranks(size: usize, members: &[(u64, Option<u32>, u64)]) -> (Vec<u64>, usize) {
        let mut members = members.to_vec();
        members.sort_unstable();
        let seats = members.into_iter().map(|(id, previous, step)| Seat {
            member: MemberKey::new(id, 1),
            handle: format!("gloo:{id}").into(),
            step,
            previous,
        });
        let record = Record::new(Attempt::new(Nonce::new(0), 1), seats.collect(), size);
        let ids = record.seats.iter().map(|seat| seat.member.id.0).collect();
        (ids, record.source)
    }

    /// docs/spec/membership.md, RANK 1 to 3.
    #[test]
    fn members_that_stay_keep_their_ranks_unless_the_group_shrinks() {
        let first = [(7, None, 0), (3, None, 0), (5, None, 0)];
        assert_eq!(ranks(0, &first).0, [3, 5, 7]);
        // Ranks 0 to 3 were 3, 5, 7, 8.
        let stay = |rank: u32, id| (id, Some(rank), 0);
        let left = [stay(0, 3), stay(2, 7), stay(3, 8)];
        assert_eq!(ranks(4, &left).0, [3, 7, 8]);
        let replaced = [stay(0, 3), stay(2, 7), stay(3, 8), (9, None, 0)];
        assert_eq!(ranks(4, &replaced).0, [3, 9, 7, 8]);
        let grown = [
            stay(2, 7),
            stay(3, 8),
            (9, None, 0),
            (1, None, 0),
            (2, None, 0),
        ];
        assert_eq!(ranks(4, &grown).0, [1, 2, 7, 8, 9]);
        // Ids and ranks are in different orders.
        let turned = [stay(0, 8), stay(3, 1), (4, None, 0)];
        assert_eq!(ranks(4, &turned).0, [8, 1, 4]);
        assert_eq!(
            ranks(3, &[(4, None, 0), stay(2, 1), stay(0, 8)]).0,
            [8, 4, 1]
        );
    }

    /// docs/spec/membership.md, RANK 4.
    #[test]
    fn the_source_has_the_newest_step_of_the_members_that_stay() {
        let members = [
            (1, Some(0), 6),
            (2, Some(1), 7),
            (3, Some(2), 7),
            (4, None, 9),
        ];
        assert_eq!(ranks(4, &members).1, 1);
        assert_eq!(ranks(0, &[(1, None, 3), (2, None, 5), (3, None, 4)]).1, 1);
    }

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
