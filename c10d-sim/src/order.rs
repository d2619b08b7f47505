//! Whether concurrent operations have an order in which they could have been carried out one after the other.

use std::collections::HashSet;
use std::hash::Hash;

use crate::fingerprint;

/// An operation of a client, with its result.
pub trait Operation {
    /// The data that operations read and change.
    type State: Default + Hash;

    /// The state after the operation; `None` if it has another result in this state.
    fn after(&self, state: &Self::State) -> Option<Self::State>;

    /// When it was called, and when it had taken effect.
    fn times(&self) -> (u64, u64);

    /// Whether it may have had no effect, because its client got no result.
    fn may_be_lost(&self) -> bool {
        false
    }
}

/// Searches for an order of the operations: all orders that respect time, with a memory of the states that were tried (Wing and
/// Gong 1993, Lowe 2017). `allows` may exclude states that cannot lead to all results.
///
/// # Errors
/// The number of operations that could be ordered, if there is no order of all.
pub fn find_order<O: Operation>(
    operations: &[O],
    allows: impl Fn(&O::State) -> bool,
) -> Result<(), usize> {
    let mut search = Search {
        operations,
        allows,
        tried: HashSet::new(),
        longest: 0,
    };
    let mut done = vec![0; operations.len().div_ceil(64)];
    if search.continue_from(&O::State::default(), &mut done, 0) {
        return Ok(());
    }
    Err(search.longest)
}

struct Search<'o, O, A> {
    operations: &'o [O],
    allows: A,
    /// The operations that are done, and the fingerprint of the state.
    tried: HashSet<(Vec<u64>, u64)>,
    longest: usize,
}

impl<O: Operation, A: Fn(&O::State) -> bool> Search<'_, O, A> {
    fn continue_from(&mut self, state: &O::State, done: &mut Vec<u64>, count: usize) -> bool {
        self.longest = self.longest.max(count);
        let is_done = |index: &usize| done[index / 64] & (1 << (index % 64)) != 0;
        let (past, open): (Vec<usize>, Vec<usize>) = (0..self.operations.len()).partition(is_done);
        let required = open.iter().map(|index| &self.operations[*index]);
        let required = required.filter(|it| !it.may_be_lost());
        // An operation that was called after another operation had returned takes effect after it.
        let Some(first_return) = required.map(|it| it.times().1).min() else {
            return true;
        };
        if !self.tried.insert((done.clone(), fingerprint(state))) {
            return false;
        }
        let last_call = past.iter().map(|index| self.operations[*index].times().0);
        let last_call = last_call.max().unwrap_or(0);
        for index in open {
            let operation = &self.operations[index];
            let (called, returned) = operation.times();
            if called > first_return || returned < last_call {
                continue;
            }
            if let Some(next) = operation.after(state)
                && (self.allows)(&next)
            {
                done[index / 64] |= 1 << (index % 64);
                if self.continue_from(&next, done, count + 1) {
                    return true;
                }
                done[index / 64] &= !(1 << (index % 64));
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation, find_order};

    /// Adds 1 to a number, and returns the sum if the client got it.
    struct Add {
        sum: Option<u64>,
        times: (u64, u64),
    }

    impl Operation for Add {
        type State = u64;

        fn after(&self, state: &u64) -> Option<u64> {
            let sum = state + 1;
            self.sum.is_none_or(|it| it == sum).then_some(sum)
        }

        fn times(&self) -> (u64, u64) {
            self.times
        }

        fn may_be_lost(&self) -> bool {
            self.sum.is_none()
        }
    }

    fn order(operations: &[(Option<u64>, u64, u64)]) -> Result<(), usize> {
        let operations = operations.iter().map(|(sum, called, returned)| Add {
            sum: *sum,
            times: (*called, *returned),
        });
        find_order(&operations.collect::<Vec<_>>(), |_| true)
    }

    #[test]
    fn operations_at_the_same_time_have_any_order() {
        assert_eq!(order(&[(Some(2), 0, 9), (Some(1), 1, 8)]), Ok(()));
        assert_eq!(order(&[(Some(2), 0, 4), (Some(1), 5, 8)]), Err(0));
        assert_eq!(order(&[(Some(1), 0, 4), (Some(1), 5, 8)]), Err(1));
    }

    #[test]
    fn an_operation_without_a_result_takes_effect_in_its_time_or_never() {
        assert_eq!(order(&[(None, 0, 4), (Some(2), 5, 8)]), Ok(()));
        assert_eq!(order(&[(None, 0, 4), (Some(1), 5, 8)]), Ok(()));
        let late = [(Some(1), 5, 8), (Some(3), 9, 10), (None, 0, 4)];
        assert_eq!(order(&late), Err(1), "not between the other two");
    }

    #[test]
    fn excluded_states_are_not_tried() {
        let add = Add {
            sum: Some(1),
            times: (0, 1),
        };
        assert_eq!(find_order(&[add], |sum| *sum != 1), Err(0));
    }
}
