//! Meeting at a place in the store: each rank reports that it has arrived, then waits until all have.
//!
//! Uses APPEND, ADD, SET and WAIT, which every server has. A barrier of the store alone could not name the missing
//! ranks.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::{Store, StoreError, StoreExt};

use crate::keys::{self, in_words};

/// The context of a call: the store, the keys of the group, and the time.
#[derive(Debug)]
pub(crate) struct Meeting<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) prefix: &'a str,
    pub(crate) world_size: usize,
    pub(crate) began: Instant,
    pub(crate) deadline: Deadline,
}

/// Processes that an error describes.
const PROCESSES_MAX: usize = 4;

impl Meeting<'_> {
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.deadline.remaining(Instant::now())
    }

    /// Reports that `rank` has arrived at `place`. Must be reported once.
    pub(crate) fn arrive(&self, place: &str, rank: usize) -> Result<(), StoreError> {
        let arrived = keys::arrived(place);
        self.store.append(&arrived, keys::arrival(rank))?;
        let count = self.store.add(&keys::count(place), 1)?;
        if usize::try_from(count) == Ok(self.world_size) {
            self.store.set(&keys::complete(place), b"1")?;
        }
        Ok(())
    }

    /// Waits until all have arrived at `place`.
    pub(crate) fn wait_for_all(&self, place: &str) -> Result<(), StoreError> {
        let complete = keys::complete(place);
        self.store.wait_timeout(&[&complete], self.remaining())
    }

    /// The ranks that have not arrived at `place`.
    pub(crate) fn absent(&self, place: &str) -> Result<Vec<usize>, StoreError> {
        let arrived = self.store.try_get(&keys::arrived(place))?;
        Ok(keys::absent(&arrived.unwrap_or_default(), self.world_size))
    }

    /// The processes that have the first of these ranks, as far as they have ever joined.
    pub(crate) fn processes(&self, ranks: &[usize]) -> Result<Vec<String>, StoreError> {
        let mut processes = Vec::new();
        for rank in ranks.iter().take(PROCESSES_MAX) {
            if let Some(member) = self.store.try_get(&keys::member(self.prefix, *rank))? {
                processes.push(format!("rank {rank} is {}", in_words(&member)));
            }
        }
        Ok(processes)
    }

    /// The keys that all ranks of a meeting share.
    pub(crate) fn shared_keys(place: &str) -> [String; 3] {
        [
            keys::arrived(place),
            keys::count(place),
            keys::complete(place),
        ]
    }
}
