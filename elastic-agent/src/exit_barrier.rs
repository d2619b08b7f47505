//! The exit barrier's keys: nodes whose workers have all succeeded wait for the others.
//!
//! They are PyTorch's (`barrier` in `torch/distributed/elastic/utils/store.py`). [`round`](crate::round) decides how long
//! a node waits.

use std::time::Duration;

use c10d_store::{Store, StoreError, StoreExt};

const COUNT_KEY: &str = "torchelastic/agent/terminal_state/num_members";
const LAST_KEY: &str = "torchelastic/agent/terminal_state/last_member";

/// Checks in, as one of `nodes`. `store` is the round's.
pub(crate) fn check_in(store: &dyn Store, nodes: usize) -> Result<(), StoreError> {
    let arrived = store.add(COUNT_KEY, 1)?;
    if usize::try_from(arrived) == Ok(nodes) {
        // PyTorch's value; no node reads it.
        store.set(LAST_KEY, b"<val_ignored>")?;
    }
    Ok(())
}

/// Waits for this long until all nodes have checked in, and returns whether they have.
pub(crate) fn wait(store: &dyn Store, timeout: Duration) -> Result<bool, StoreError> {
    match store.wait_timeout(&[LAST_KEY], Some(timeout)) {
        Ok(()) => Ok(true),
        Err(StoreError::Timeout { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// How many nodes of the round have checked in, that is, whose workers succeeded.
pub(crate) fn checked_in(store: &dyn Store) -> Result<usize, StoreError> {
    let count = store.try_get(COUNT_KEY)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&count).parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_last_node_opens_the_barrier_for_all() {
        let store = HashStore::new();
        assert_eq!(checked_in(&store).unwrap(), 0);
        check_in(&store, 2).unwrap();
        assert!(!wait(&store, Duration::from_millis(10)).unwrap());
        std::thread::scope(|scope| {
            let first = scope.spawn(|| wait(&store, LONG).unwrap());
            check_in(&store, 2).unwrap();
            assert!(wait(&store, LONG).unwrap());
            assert!(first.join().unwrap());
        });
        assert_eq!(checked_in(&store).unwrap(), 2);
    }

    #[test]
    fn a_count_that_is_no_number_is_none() {
        let store = HashStore::new();
        store.set(COUNT_KEY, b"many").unwrap();
        assert_eq!(checked_in(&store).unwrap(), 0);
    }
}
