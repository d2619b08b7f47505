//! The users of one value: usually one, so a single user costs no table.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Instant;

use rpc_agent::WorkerId;

use crate::id::ForkId;

/// The users of a value that are known and not deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) enum Holders {
    #[default]
    None,
    One(ForkId, Holder),
    /// The users, at least two.
    #[expect(
        clippy::box_collection,
        reason = "the usual value stays smaller than a table"
    )]
    Many(Box<BTreeMap<ForkId, Holder>>),
}

/// The worker that has a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) worker: WorkerId,
    pub(super) since: Instant,
    pub(super) arrival: Arrival,
}

/// Whether a user that was sent from here has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Arrival {
    /// The user's message is being encoded.
    Encoding,
    /// The user is in a call that has not ended.
    InCall,
    /// Sent, or probed without a result, at that time.
    UnderWay { since: Instant },
    /// A probe is under way.
    Asked,
    /// The worker has confirmed it, or has sent a message about it.
    Arrived {
        /// The incarnation of the worker's process, if it registered the user itself. A user that was sent from here
        /// may have arrived at a later process.
        registered_by: Option<NonZeroU64>,
    },
}

impl Arrival {
    /// A user that was sent from here has arrived.
    pub(super) const SENT: Self = Self::Arrived {
        registered_by: None,
    };
}

impl Holder {
    pub(super) fn arrived(now: Instant, worker: WorkerId, incarnation: u64) -> Self {
        Self {
            worker,
            since: now,
            arrival: Arrival::Arrived {
                registered_by: NonZeroU64::new(incarnation),
            },
        }
    }

    /// Returns the incarnation of the worker's process that registered the user itself.
    pub(super) fn registered_by(&self) -> Option<u64> {
        match self.arrival {
            Arrival::Arrived { registered_by } => registered_by.map(NonZeroU64::get),
            _ => None,
        }
    }
}

impl Holders {
    /// Adds a user, unless it is known.
    pub(super) fn add(&mut self, fork: ForkId, holder: Holder) {
        match self {
            Self::None => *self = Self::One(fork, holder),
            Self::One(known, _) if *known == fork => {}
            Self::One(..) => {
                if let Self::One(first, of_first) = std::mem::take(self) {
                    let both = [(first, of_first), (fork, holder)];
                    *self = Self::Many(Box::new(both.into()));
                }
            }
            Self::Many(holders) => {
                holders.entry(fork).or_insert(holder);
            }
        }
    }

    pub(super) fn remove(&mut self, fork: ForkId) -> Option<Holder> {
        match self {
            Self::One(known, _) if *known == fork => match std::mem::take(self) {
                Self::One(_, holder) => Some(holder),
                _ => None,
            },
            Self::None | Self::One(..) => None,
            Self::Many(holders) => {
                let removed = holders.remove(&fork);
                if holders.len() == 1
                    && let Some((fork, holder)) = holders.pop_first()
                {
                    *self = Self::One(fork, holder);
                }
                removed
            }
        }
    }

    pub(super) fn get_mut(&mut self, fork: ForkId) -> Option<&mut Holder> {
        match self {
            Self::One(known, holder) if *known == fork => Some(holder),
            Self::None | Self::One(..) => None,
            Self::Many(holders) => holders.get_mut(&fork),
        }
    }

    pub(super) fn contains(&self, fork: ForkId) -> bool {
        match self {
            Self::None => false,
            Self::One(known, _) => *known == fork,
            Self::Many(holders) => holders.contains_key(&fork),
        }
    }

    /// Returns the users in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ForkId, &Holder)> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(fork, holder) => (Some((*fork, holder)), None),
            Self::Many(holders) => (None, Some(holders.iter())),
        };
        let many = many.into_iter().flatten();
        one.into_iter()
            .chain(many.map(|(fork, holder)| (*fork, holder)))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(holders) => holders.len(),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rpc_agent::WorkerId;

    use super::*;
    use crate::id::GloballyUniqueId;

    #[test]
    fn holds_what_a_map_would_in_one_form() {
        let now = Instant::now();
        let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
        let (mut holders, mut map) = (Holders::default(), BTreeMap::new());
        for _ in 0..10_000 {
            let id = GloballyUniqueId {
                created_on: WorkerId::new(1).unwrap(),
                incarnation: 1,
                local_id: random.u64(0..4),
            };
            let (fork, holder) = (
                ForkId(id),
                Holder::arrived(now, id.created_on, random.u64(..)),
            );
            if random.bool() {
                holders.add(fork, holder.clone());
                map.entry(fork).or_insert(holder);
            } else {
                assert_eq!(holders.remove(fork), map.remove(&fork));
            }
            assert_eq!(holders.contains(fork), map.contains_key(&fork));
            assert_eq!(holders.get_mut(fork), map.get_mut(&fork));
            let listed = holders.iter().map(|(fork, holder)| (fork, holder.clone()));
            assert!(listed.eq(map.clone()));
            assert_eq!(holders.len(), map.len());
            let mut rebuilt = Holders::default();
            for (fork, holder) in map.clone() {
                rebuilt.add(fork, holder);
            }
            assert_eq!(holders, rebuilt);
            assert_eq!(holders.is_empty(), map.is_empty());
        }
    }
}
