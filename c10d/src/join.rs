//! How a group forms: each rank claims its place in a generation that rank 0 has begun.
//!
//! A store may hold keys of earlier workers of the job, because a launcher's store outlives them. So rank 0 draws a
//! new number, the generation, that is part of all keys of the group. The other ranks look for the newest generation,
//! and move to a newer generation until all ranks have claimed their places. `Joining` decides and has neither store
//! nor clock; `join` carries it out.

use std::time::Duration;

use c10d_store::{Known, StoreError, StoreExt};

use crate::arrivals::Meeting;
use crate::keys::{self, Generation, in_words, random, shown, this_process};

/// How often a waiting rank looks for a newer generation, and for the first generation on a store that cannot notify
/// it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The next step of a rank.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Claim(Generation),
    WaitForAll(Generation),
    /// Wait until there is another generation.
    WaitForChange,
    /// Another process has this rank.
    GiveUp,
}

/// Why a rank has not joined yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Rank 0 has not begun.
    NoGeneration,
    /// Ranks have not arrived.
    Absent(Generation),
    /// The process that has this rank in the newest generation.
    Taken(String),
    /// The world size of rank 0.
    WorldSize(usize),
}

/// Joining a group that is named by the user.
#[derive(Debug)]
struct Joining {
    world_size: usize,
    me: String,
    /// The generation that rank 0 has begun.
    own: Option<Generation>,
    claimed: Option<Generation>,
    obstacle: Obstacle,
}

impl Joining {
    const fn new(world_size: usize, me: String, own: Option<Generation>) -> Self {
        Self {
            world_size,
            me,
            own,
            claimed: None,
            obstacle: Obstacle::NoGeneration,
        }
    }

    /// The newest generation has this text.
    fn on_generation(&mut self, text: &[u8]) -> Step {
        let Some(newest) = Generation::parse(text) else {
            self.obstacle = Obstacle::NoGeneration;
            return Step::WaitForChange;
        };
        if self.own.is_some_and(|own| own != newest) {
            self.obstacle = Obstacle::Taken("another process, which began later".to_owned());
            return Step::GiveUp;
        }
        if newest.world_size != self.world_size {
            // It may be of workers that have ended.
            self.obstacle = Obstacle::WorldSize(newest.world_size);
            return Step::WaitForChange;
        }
        if self.claimed == Some(newest) {
            return Step::WaitForAll(newest);
        }
        Step::Claim(newest)
    }

    /// This process or another has claimed the rank.
    fn on_claim(&mut self, generation: Generation, holder: &[u8]) -> Step {
        if holder == self.me.as_bytes() {
            self.claimed = Some(generation);
            self.obstacle = Obstacle::Absent(generation);
            Step::WaitForAll(generation)
        } else {
            // It may have ended, and a newer generation be about to begin.
            self.obstacle = Obstacle::Taken(in_words(holder));
            Step::WaitForChange
        }
    }
}

/// Why joining failed.
#[derive(Debug)]
pub(crate) enum JoinFailure {
    Obstacle(Obstacle),
    Store(StoreError),
}

impl From<StoreError> for JoinFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Joins the group `name` as `rank`; returns the generation in which all ranks have.
pub(crate) fn join(
    meeting: &Meeting<'_>,
    name: &str,
    rank: usize,
) -> Result<Generation, JoinFailure> {
    let store = meeting.store;
    let place = keys::generation(name);
    let own = (rank == 0).then(|| Generation {
        id: random(),
        world_size: meeting.world_size,
    });
    if let Some(own) = own {
        store.set(&place, own.to_string().as_bytes())?;
    }
    let mut joining = Joining::new(meeting.world_size, this_process(), own);
    let mut newest = None;
    loop {
        let text = match newest.take() {
            Some(text) => text,
            None => match store.get_timeout(&place, meeting.remaining()) {
                Err(error) if error.is_timeout() => {
                    return Err(JoinFailure::Obstacle(joining.obstacle));
                }
                result => result?,
            },
        };
        let mut step = joining.on_generation(&text);
        if let Step::Claim(generation) = step {
            let prefix = keys::prefix(name, generation);
            let key = keys::member(&prefix, rank);
            let holder = store.compare_set(&key, b"", joining.me.as_bytes())?;
            step = joining.on_claim(generation, holder.value());
            if let Step::WaitForAll(_) = step {
                meeting.arrive(&keys::joined(&prefix), rank)?;
            }
        }
        let limit = meeting
            .remaining()
            .map_or(LOOK_INTERVAL, |it| it.min(LOOK_INTERVAL));
        let waited = match step {
            Step::GiveUp => return Err(JoinFailure::Obstacle(joining.obstacle)),
            Step::WaitForAll(generation) | Step::Claim(generation) => {
                let prefix = keys::prefix(name, generation);
                let begun = keys::begun(&prefix);
                let waited = if own.is_some() {
                    let complete = keys::complete(&keys::joined(&prefix));
                    let waited = store.wait_timeout(&[&complete], Some(limit));
                    waited.and_then(|()| store.set(&begun, b"1"))
                } else {
                    store.wait_timeout(&[&begun], Some(limit))
                };
                if waited.is_ok() {
                    return Ok(generation);
                }
                waited
            }
            Step::WaitForChange => store
                .wait_change(&place, Known::whole(&text), Some(limit))
                .map(|text| newest = Some(text)),
        };
        match waited {
            Err(error) if !error.is_timeout() => return Err(error.into()),
            Err(_) if meeting.deadline.has_passed(std::time::Instant::now()) => {
                return Err(JoinFailure::Obstacle(joining.obstacle));
            }
            _ => {}
        }
    }
}

/// Joins a sub-group, which is in its parent's generation: a name serves once.
pub(crate) fn join_sub_group(
    meeting: &Meeting<'_>,
    rank: usize,
    ranks: &str,
) -> Result<Result<(), String>, JoinFailure> {
    let store = meeting.store;
    let agreed = store.compare_set(&keys::ranks(meeting.prefix), b"", ranks.as_bytes())?;
    if agreed.value() != ranks.as_bytes() {
        return Ok(Err(shown(agreed.value())));
    }
    let me = this_process();
    let key = keys::member(meeting.prefix, rank);
    let holder = store.compare_set(&key, b"", me.as_bytes())?;
    if holder.value() != me.as_bytes() {
        let holder = in_words(holder.value());
        return Err(JoinFailure::Obstacle(Obstacle::Taken(holder)));
    }
    meeting.arrive(&keys::joined(meeting.prefix), rank)?;
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Generation = Generation {
        id: 1,
        world_size: 4,
    };
    const SECOND: Generation = Generation {
        id: 2,
        world_size: 4,
    };

    fn text(generation: Generation) -> Vec<u8> {
        generation.to_string().into_bytes()
    }

    #[test]
    fn a_rank_claims_its_place_and_goes_over_to_a_newer_generation() {
        let mut joining = Joining::new(4, "me".to_owned(), None);
        assert_eq!(joining.on_generation(&text(FIRST)), Step::Claim(FIRST));
        assert_eq!(joining.on_claim(FIRST, b"me"), Step::WaitForAll(FIRST));
        assert_eq!(joining.obstacle, Obstacle::Absent(FIRST));
        assert_eq!(joining.on_generation(&text(FIRST)), Step::WaitForAll(FIRST));
        assert_eq!(joining.on_generation(&text(SECOND)), Step::Claim(SECOND));
    }

    #[test]
    fn what_earlier_workers_left_is_waited_out() {
        let mut joining = Joining::new(4, "me".to_owned(), None);
        assert_eq!(joining.on_generation(&text(FIRST)), Step::Claim(FIRST));
        let holder = b"00 17 node1";
        assert_eq!(joining.on_claim(FIRST, holder), Step::WaitForChange);
        assert_eq!(
            joining.obstacle,
            Obstacle::Taken("pid 17 on node1".to_owned())
        );
        let smaller = Generation {
            id: 3,
            world_size: 2,
        };
        assert_eq!(joining.on_generation(&text(smaller)), Step::WaitForChange);
        assert_eq!(joining.obstacle, Obstacle::WorldSize(2));
        assert_eq!(joining.on_generation(b"stranger"), Step::WaitForChange);
        assert_eq!(joining.obstacle, Obstacle::NoGeneration);
    }

    #[test]
    fn a_second_rank_0_ends_the_first() {
        let mut joining = Joining::new(4, "me".to_owned(), Some(FIRST));
        assert_eq!(joining.on_generation(&text(FIRST)), Step::Claim(FIRST));
        assert_eq!(joining.on_claim(FIRST, b"me"), Step::WaitForAll(FIRST));
        assert_eq!(joining.on_generation(&text(SECOND)), Step::GiveUp);
    }
}
