//! The number of the operation that a group runs. Pure: without a store, a clock or a thread.
//!
//! All ranks do the same operations in the same order, so their number, counted by each rank for each group,
//! identifies them. An operation that was abandoned in the middle keeps its number until it is complete.

use crate::keys::Kind;

#[derive(Debug, Default)]
pub(crate) struct Sequence {
    next: u64,
    open: Option<Open>,
    broken: Option<String>,
    /// The keys of the last complete operation: other ranks may be reading them.
    leftovers: Vec<String>,
}

#[derive(Debug)]
struct Open {
    turn: Turn,
    is_running: bool,
}

/// An operation that may be carried out now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    /// Whether this rank has reported that it has arrived, in an earlier call.
    pub(crate) has_arrived: bool,
}

/// Why an operation cannot be carried out now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Unfinished(Kind),
    Broken(String),
}

/// How a call of an operation ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The operation is complete, with the keys that this rank deletes.
    Complete(Vec<String>),
    /// The same call can resume it.
    Unfinished,
    Broken(String),
}

impl Sequence {
    /// Begins an operation, or resumes an abandoned operation.
    pub(crate) fn begin(&mut self, kind: Kind) -> Result<Turn, Refusal> {
        if let Some(cause) = &self.broken {
            return Err(Refusal::Broken(cause.clone()));
        }
        let number = self.next;
        let open = self.open.get_or_insert(Open {
            turn: Turn {
                number,
                kind,
                has_arrived: false,
            },
            is_running: false,
        });
        if open.is_running || open.turn.kind != kind {
            return Err(Refusal::Unfinished(open.turn.kind));
        }
        open.is_running = true;
        Ok(open.turn)
    }

    /// This rank has reported that it has arrived, which counts once.
    pub(crate) fn arrived(&mut self) {
        if let Some(open) = &mut self.open {
            open.turn.has_arrived = true;
        }
    }

    /// Returns the keys to delete: the keys of the previous operation. They are no longer read, because all ranks
    /// have arrived in this operation.
    pub(crate) fn end(&mut self, ending: Ending) -> Vec<String> {
        match ending {
            Ending::Complete(keys) => {
                self.open = None;
                self.next += 1;
                std::mem::replace(&mut self.leftovers, keys)
            }
            Ending::Unfinished => {
                if let Some(open) = &mut self.open {
                    open.is_running = false;
                }
                Vec::new()
            }
            Ending::Broken(cause) => {
                self.open = None;
                self.broken = Some(cause);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Kind = Kind::Broadcast { root: 0 };

    #[test]
    fn operations_are_numbered_and_delete_the_keys_of_the_one_before() {
        let mut sequence = Sequence::default();
        let mut deleted = Vec::new();
        for number in 0..3 {
            assert_eq!(sequence.begin(ROOT).unwrap().number, number);
            deleted.push(sequence.end(Ending::Complete(vec![number.to_string()])));
        }
        assert_eq!(
            deleted,
            [vec![], vec!["0".to_owned()], vec!["1".to_owned()]]
        );
    }

    #[test]
    fn an_operation_that_was_given_up_goes_on_with_the_same_number_only() {
        let mut sequence = Sequence::default();
        let first = sequence.begin(ROOT).unwrap();
        assert!(!first.has_arrived);
        sequence.arrived();
        assert!(sequence.end(Ending::Unfinished).is_empty());

        assert_eq!(
            sequence.begin(Kind::Barrier),
            Err(Refusal::Unfinished(ROOT))
        );
        let other_root = Kind::Broadcast { root: 1 };
        assert_eq!(sequence.begin(other_root), Err(Refusal::Unfinished(ROOT)));
        let again = sequence.begin(ROOT).unwrap();
        assert_eq!((again.number, again.has_arrived), (first.number, true));
        sequence.end(Ending::Complete(vec![]));
        assert!(!sequence.begin(Kind::Barrier).unwrap().has_arrived);
    }

    #[test]
    fn a_second_thread_is_refused() {
        let mut sequence = Sequence::default();
        sequence.begin(Kind::Barrier).unwrap();
        let refused = sequence.begin(Kind::Barrier);
        assert_eq!(refused, Err(Refusal::Unfinished(Kind::Barrier)));
    }

    #[test]
    fn a_broken_group_stays_broken() {
        let mut sequence = Sequence::default();
        sequence.begin(Kind::Barrier).unwrap();
        sequence.end(Ending::Broken("lost".to_owned()));
        for kind in [Kind::Barrier, Kind::Finish] {
            assert_eq!(
                sequence.begin(kind),
                Err(Refusal::Broken("lost".to_owned()))
            );
        }
    }
}
