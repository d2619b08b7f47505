//! How much a worker keeps for its peers: each peer leaves places for other peers. Pure.

use std::collections::BTreeMap;

use rpc_agent::WorkerId;

/// The most places that one peer can take, if no other peer has taken any.
pub(crate) const PLACES_ALONE: usize = 1 << 16;

const PLACES: usize = 2 * PLACES_ALONE;

/// The places of callers, for functions that run or requests that wait, which may never end. A caller has at
/// most as many as are free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Places {
    taken: usize,
    by_caller: BTreeMap<WorkerId, usize>,
}

impl Places {
    /// Whether the caller can take a place.
    ///
    /// # Errors
    /// The number of places that the caller has, if it may have no more.
    pub(crate) fn check(&self, caller: WorkerId) -> Result<(), usize> {
        let of_caller = self.by_caller.get(&caller).copied().unwrap_or(0);
        if of_caller < PLACES - self.taken {
            Ok(())
        } else {
            Err(of_caller)
        }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    pub(crate) fn take(&mut self, caller: WorkerId) -> Result<(), usize> {
        self.check(caller)?;
        *self.by_caller.entry(caller).or_default() += 1;
        self.taken += 1;
        Ok(())
    }

    /// Returns how many places are taken.
    #[cfg(test)]
    pub(crate) const fn taken(&self) -> usize {
        self.taken
    }

    /// Gives one back that the caller has taken.
    pub(crate) fn give_back(&mut self, caller: WorkerId) {
        if let Some(of_caller) = self.by_caller.get_mut(&caller) {
            *of_caller -= 1;
            self.taken -= 1;
            if *of_caller == 0 {
                self.by_caller.remove(&caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(caller: u32) -> WorkerId {
        WorkerId::new(caller).expect("a short one")
    }

    fn take_all(places: &mut Places, caller: u32) -> usize {
        let caller = id(caller);
        let taken = (0..).take_while(|_| places.take(caller).is_ok()).count();
        assert_eq!(places.take(caller), Err(taken));
        taken
    }

    #[test]
    fn a_caller_that_gives_nothing_back_leaves_places_for_others() {
        let mut places = Places::default();
        assert_eq!(take_all(&mut places, 1), PLACES_ALONE);
        assert_eq!(take_all(&mut places, 2), PLACES / 4);
        assert_eq!(take_all(&mut places, 3), PLACES / 8);
        for _ in 0..PLACES / 2 {
            places.give_back(id(1));
        }
        assert!(places.take(id(2)).is_ok());
        let taken: usize = places.by_caller.values().sum();
        assert_eq!((places.taken, places.by_caller.len()), (taken, 2));
    }
}
