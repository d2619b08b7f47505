//! How many `async` functions may run for each caller. Pure.

use std::collections::HashMap;

use rpc_agent::WorkerId;

/// The most functions that run at a time, as peers can start them.
const PLACES: usize = 1 << 17;

/// The places that callers have taken. A caller has at most as many as are free, thus half of all if it is the only one: so
/// functions that never end leave places for other callers.
#[derive(Default)]
pub(crate) struct Places {
    taken: usize,
    by_caller: HashMap<WorkerId, usize>,
}

impl Places {
    /// Takes a place.
    ///
    /// # Errors
    /// The number of places that the caller has, if it may have no more.
    pub(crate) fn take(&mut self, caller: WorkerId) -> Result<(), usize> {
        let of_caller = self.by_caller.entry(caller).or_default();
        if *of_caller >= PLACES - self.taken {
            return Err(*of_caller);
        }
        *of_caller += 1;
        self.taken += 1;
        Ok(())
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
    fn a_caller_whose_functions_never_end_leaves_places_for_others() {
        let mut places = Places::default();
        assert_eq!(take_all(&mut places, 1), PLACES / 2);
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
