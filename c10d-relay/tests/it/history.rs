//! Whether a history of operations on one key has an order that a store could have carried them out in.
//! Keys are independent of each other, so each is checked alone.

use std::collections::{HashMap, VecDeque};

use c10d_sim::{Operation, find_order};

/// An operation, and the client's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Set(Vec<u8>),
    Append(Vec<u8>),
    Add {
        delta: i64,
        sum: i64,
    },
    Get(Vec<u8>),
    CompareSet {
        expected: Vec<u8>,
        desired: Vec<u8>,
        wrote: bool,
    },
    Push(Vec<u8>),
    /// `None`: the queue was empty.
    Pop(Option<Vec<u8>>),
}

/// An operation of a history, with the times between which it took effect.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) op: Op,
    pub(crate) called: u64,
    /// For a command without a reply: when a later command of the same client was answered.
    pub(crate) returned: u64,
}

/// The value and queue of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct State {
    value: Option<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
}

impl State {
    /// The state after the operation; `None` if the operation cannot have its result in this state.
    fn after(&self, op: &Op) -> Option<Self> {
        let mut next = self.clone();
        let value = self.value.clone().unwrap_or_default();
        match op {
            Op::Set(new) => next.value = Some(new.clone()),
            Op::Append(more) => next.value = Some([value, more.clone()].concat()),
            Op::Add { delta, sum } => {
                let number = match &self.value {
                    None => 0,
                    Some(text) => std::str::from_utf8(text).ok()?.parse::<i64>().ok()?,
                };
                if number + delta != *sum {
                    return None;
                }
                next.value = Some(sum.to_string().into_bytes());
            }
            Op::Get(got) => {
                if value != *got {
                    return None;
                }
            }
            Op::CompareSet {
                expected,
                desired,
                wrote,
            } => {
                if (value == *expected) != *wrote {
                    return None;
                }
                if *wrote {
                    next.value = Some(desired.clone());
                }
            }
            Op::Push(element) => next.queue.push_back(element.clone()),
            Op::Pop(got) => {
                if next.queue.pop_front() != *got {
                    return None;
                }
            }
        }
        Some(next)
    }
}

impl Operation for Event {
    type State = State;

    fn after(&self, state: &State) -> Option<State> {
        state.after(&self.op)
    }

    fn times(&self) -> (u64, u64) {
        (self.called, self.returned)
    }
}

/// Finds an order of the events. `Err` has the longest part that could be ordered. Elements and appended pieces must
/// be unique.
pub(crate) fn check(events: &[Event]) -> Result<(), String> {
    let hints = Hints::of(events);
    find_order(events, |state| hints.allow(state)).map_err(|longest| {
        let all = events.len();
        format!("no order explains more than {longest} of {all} operations: {events:#?}")
    })
}

/// Knowledge about the order of writes from later reads. Without it, the search would try all orders of simultaneous
/// writes.
struct Hints {
    /// If the value is only appended to: the longest value that was read.
    text: Option<Vec<u8>>,
    /// When each element was taken.
    taken: HashMap<Vec<u8>, (u64, u64)>,
}

impl Hints {
    fn of(events: &[Event]) -> Self {
        let reads = events.iter().filter_map(|event| match &event.op {
            Op::Get(value) => Some(value.clone()),
            _ => None,
        });
        let is_appended = |event: &Event| matches!(event.op, Op::Append(_) | Op::Get(_));
        let taken = events.iter().filter_map(|event| match &event.op {
            Op::Pop(Some(element)) => Some((element.clone(), (event.called, event.returned))),
            _ => None,
        });
        Self {
            text: reads
                .max_by_key(Vec::len)
                .filter(|_| events.iter().all(is_appended)),
            taken: taken.collect(),
        }
    }

    /// Whether the state, in which the last element of the queue is new, can lead to all reads.
    fn allow(&self, state: &State) -> bool {
        let value = state.value.as_deref().unwrap_or_default();
        let is_on_the_way = match &self.text {
            Some(text) => text.starts_with(value) || value.starts_with(text),
            None => true,
        };
        let Some(new) = state.queue.back() else {
            return is_on_the_way;
        };
        let never = (u64::MAX, u64::MAX);
        let when = |element: &Vec<u8>| *self.taken.get(element).unwrap_or(&never);
        let is_before = |first: &Vec<u8>| first == new || when(first).0 <= when(new).1;
        is_on_the_way && state.queue.iter().all(is_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(ops: &[(Op, u64, u64)]) -> Vec<Event> {
        let event = |(op, called, returned): &(Op, u64, u64)| Event {
            op: op.clone(),
            called: *called,
            returned: *returned,
        };
        ops.iter().map(event).collect()
    }

    fn add(delta: i64, sum: i64) -> Op {
        Op::Add { delta, sum }
    }

    #[test]
    fn operations_at_the_same_time_may_take_effect_in_any_order() {
        let get = |value: &[u8]| Op::Get(value.to_vec());
        check(&events(&[
            (add(1, 2), 0, 10),
            (add(1, 1), 1, 9),
            (get(b"2"), 11, 12),
        ]))
        .unwrap();
        check(&events(&[
            (Op::Set(b"x".to_vec()), 0, 10),
            (get(b""), 1, 2),
            (get(b"x"), 3, 4),
        ]))
        .unwrap();
    }

    #[test]
    fn what_no_store_could_have_done_is_found() {
        let get = |value: &[u8]| Op::Get(value.to_vec());
        let set = |value: &[u8]| Op::Set(value.to_vec());
        let cases = [
            // Twice.
            vec![(add(1, 1), 0, 1), (add(1, 3), 2, 3)],
            // Lost.
            vec![(add(1, 1), 0, 1), (add(1, 1), 2, 3)],
            // Old.
            vec![(set(b"a"), 0, 1), (set(b"b"), 2, 3), (get(b"a"), 4, 5)],
            // Read, then not there.
            vec![(set(b"a"), 0, 9), (get(b"a"), 1, 2), (get(b""), 3, 4)],
            // Popped twice.
            vec![
                (Op::Push(b"e".to_vec()), 0, 1),
                (Op::Pop(Some(b"e".to_vec())), 2, 3),
                (Op::Pop(Some(b"e".to_vec())), 4, 5),
            ],
            // Out of order.
            vec![
                (Op::Append(b"1".to_vec()), 0, 1),
                (Op::Append(b"2".to_vec()), 2, 3),
                (get(b"21"), 4, 5),
            ],
        ];
        for case in cases {
            assert!(check(&events(&case)).is_err(), "{case:?}");
        }
    }
}
