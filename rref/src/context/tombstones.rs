//! The ids of deleted references and users, so that late messages do not revive them.
//!
//! Ids of one process count upwards, and a reference and its users are mostly deleted together. Therefore, ids are
//! kept as ranges: a worker that creates and drops a million references leaves a few of them.
//!
//! An id is kept for one to two times [`TOMBSTONE_AGE`], which is longer than a copy of a message can be under
//! way. If more than [`RANGES_MAX`] ranges gather within that time, the older half is forgotten early. That
//! costs no safety: a revived fork keeps a value alive, it frees none.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rpc_agent::WorkerId;

use crate::id::GloballyUniqueId;

/// The shortest time that an id is kept.
pub(super) const TOMBSTONE_AGE: Duration = Duration::from_secs(300);

/// The most ranges of each of the two ages.
pub(super) const RANGES_MAX: usize = 1 << 17;

/// First and last local id of each range, by the process that gave the ids.
type Ranges = BTreeMap<(WorkerId, u64), BTreeMap<u64, u64>>;

/// The ids of deleted references and users.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Tombstones {
    recent: Ranges,
    recent_ranges: usize,
    older: Ranges,
    older_ranges: usize,
    rotated: Instant,
}

impl Tombstones {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            recent: Ranges::new(),
            recent_ranges: 0,
            older: Ranges::new(),
            older_ranges: 0,
            rotated: now,
        }
    }

    pub(super) fn contains(&self, id: GloballyUniqueId) -> bool {
        is_within(&self.recent, id) || is_within(&self.older, id)
    }

    pub(super) fn insert(&mut self, now: Instant, id: GloballyUniqueId) {
        if is_within(&self.recent, id) {
            return;
        }
        if self.recent_ranges >= RANGES_MAX {
            self.rotate(now);
        }
        let ranges = self
            .recent
            .entry((id.created_on, id.incarnation))
            .or_default();
        let local_id = id.local_id;
        let before = ranges
            .range(..local_id)
            .next_back()
            .map(|(&first, &last)| (first, last))
            .filter(|&(_, last)| last + 1 == local_id);
        let first = before.map_or(local_id, |(first, _)| first);
        let after = local_id
            .checked_add(1)
            .and_then(|next| ranges.remove(&next));
        ranges.insert(first, after.unwrap_or(local_id));
        match (before.is_some(), after.is_some()) {
            (true, true) => self.recent_ranges -= 1,
            (false, false) => self.recent_ranges += 1,
            _ => {}
        }
    }

    /// Forgets the ids that are old enough.
    pub(super) fn expire(&mut self, now: Instant) {
        if now.saturating_duration_since(self.rotated) >= TOMBSTONE_AGE {
            self.rotate(now);
        }
    }

    /// Returns when [`Tombstones::expire`] is due.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        (self.ranges() > 0).then(|| self.rotated + TOMBSTONE_AGE)
    }

    pub(super) fn ranges(&self) -> usize {
        self.recent_ranges + self.older_ranges
    }

    fn rotate(&mut self, now: Instant) {
        self.older = std::mem::take(&mut self.recent);
        self.older_ranges = std::mem::take(&mut self.recent_ranges);
        self.rotated = now;
    }
}

fn is_within(ranges: &Ranges, id: GloballyUniqueId) -> bool {
    ranges
        .get(&(id.created_on, id.incarnation))
        .and_then(|ranges| ranges.range(..=id.local_id).next_back())
        .is_some_and(|(_, &last)| id.local_id <= last)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn id(local_id: u64) -> GloballyUniqueId {
        GloballyUniqueId {
            created_on: WorkerId::new(1).unwrap(),
            incarnation: 1,
            local_id,
        }
    }

    #[test]
    fn holds_what_a_set_would_and_counts_its_ranges() {
        let mut random = fastrand::Rng::with_seed(7);
        let now = Instant::now();
        for _ in 0..50 {
            let mut tombstones = Tombstones::new(now);
            let mut set = BTreeSet::new();
            for _ in 0..60 {
                let n = random.u64(0..40);
                tombstones.insert(now, id(n));
                set.insert(n);
                for n in 0..42 {
                    assert_eq!(tombstones.contains(id(n)), set.contains(&n));
                }
                let ranges = set
                    .iter()
                    .filter(|&&n| n == 0 || !set.contains(&(n - 1)))
                    .count();
                assert_eq!(tombstones.ranges(), ranges);
            }
        }
    }

    #[test]
    fn a_million_ids_in_a_row_are_one_range() {
        let now = Instant::now();
        let mut tombstones = Tombstones::new(now);
        for n in 0..1_000_000 {
            tombstones.insert(now, id(n));
        }
        tombstones.insert(now, id(u64::MAX));
        assert_eq!(tombstones.ranges(), 2);
    }

    #[test]
    fn an_id_is_kept_for_its_age_and_forgotten_after_twice_of_it() {
        let now = Instant::now();
        let mut tombstones = Tombstones::new(now);
        tombstones.insert(now, id(1));
        tombstones.expire(now + TOMBSTONE_AGE);
        assert!(tombstones.contains(id(1)));
        tombstones.expire(now + 2 * TOMBSTONE_AGE);
        assert!(!tombstones.contains(id(1)));
        assert_eq!(tombstones.ranges(), 0);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let now = Instant::now();
        let mut tombstones = Tombstones::new(now);
        for n in 0..3 * RANGES_MAX as u64 {
            tombstones.insert(now, id(2 * n));
        }
        assert!(tombstones.ranges() <= 2 * RANGES_MAX);
    }
}
