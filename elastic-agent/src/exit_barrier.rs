//! The exit barrier's keys: nodes whose workers have all succeeded wait for the others.
//!
//! They are PyTorch's (`barrier` in `torch/distributed/elastic/utils/store.py`). [`round`](crate::round) decides how long
//! a node waits.

use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{Store, StoreError, StoreExt};

const COUNT_KEY: &str = "torchelastic/agent/terminal_state/num_members";
const LAST_KEY: &str = "torchelastic/agent/terminal_state/last_member";

/// Checks in, as one of `nodes`; `None` if that is not fixed, and [`open_if`] opens the barrier. `store` is the round's.
pub(crate) fn check_in(
    store: &dyn Store,
    nodes: impl Into<Option<usize>>,
) -> Result<(), StoreError> {
    let arrived = store.add(COUNT_KEY, 1)?;
    if usize::try_from(arrived).ok() == nodes.into() {
        open(store)?;
    }
    Ok(())
}

/// Opens the barrier for all if so many nodes have checked in, as others are lost.
pub(crate) fn open_if(store: &dyn Store, nodes: usize) -> Result<(), StoreError> {
    if checked_in(store)? >= nodes {
        open(store)?;
    }
    Ok(())
}

fn open(store: &dyn Store) -> Result<(), StoreError> {
    // PyTorch's value; no node reads it.
    store.set(LAST_KEY, b"<val_ignored>")
}

/// Waits until all nodes have checked in, the time has passed, or `cancel` ends the wait, and returns whether they have.
pub(crate) fn wait(
    store: &dyn Store,
    timeout: Option<Duration>,
    cancel: &Cancel,
) -> Result<bool, StoreError> {
    match store.with_cancel(cancel).wait_timeout(&[LAST_KEY], timeout) {
        Ok(()) => Ok(true),
        Err(error) if error.is_timeout() => Ok(false),
        Err(StoreError::Interrupted { .. }) => wait(store, Some(Duration::ZERO), &Cancel::NEVER),
        Err(error) => Err(error),
    }
}

/// Whether all nodes have checked in. Does not wait for them.
pub(crate) fn is_open(store: &dyn Store) -> Result<bool, StoreError> {
    store.check(&[LAST_KEY])
}

/// How many nodes of the round have checked in, that is, whose workers succeeded.
pub(crate) fn checked_in(store: &dyn Store) -> Result<usize, StoreError> {
    let count = store.try_get(COUNT_KEY)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&count).parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use c10d_store::HashStore;

    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    #[test]
    fn the_last_node_opens_the_barrier_for_all() {
        let store = HashStore::new();
        assert_eq!(checked_in(&store).unwrap(), 0);
        check_in(&store, 2).unwrap();
        assert!(!is_open(&store).unwrap());
        std::thread::scope(|scope| {
            let first = scope.spawn(|| wait(&store, LONG, &Cancel::NEVER).unwrap());
            check_in(&store, 2).unwrap();
            assert!(wait(&store, LONG, &Cancel::NEVER).unwrap());
            assert!(first.join().unwrap());
        });
        assert_eq!(checked_in(&store).unwrap(), 2);
    }

    #[test]
    fn those_that_are_left_open_the_barrier() {
        let store = HashStore::new();
        check_in(&store, 3).unwrap();
        for (enough, is_open) in [(2, false), (1, true)] {
            open_if(&store, enough).unwrap();
            assert_eq!(
                wait(&store, Some(Duration::ZERO), &Cancel::NEVER).unwrap(),
                is_open
            );
        }
    }

    #[test]
    fn a_wait_that_ends_early_knows_whether_the_barrier_is_open() {
        let store = HashStore::new();
        let (asked, asks) = std::sync::mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let cancel = Cancel::with_check({
            let is_over = Arc::clone(&is_over);
            move || {
                let _ = asked.send(());
                is_over.load(Ordering::SeqCst)
            }
        });
        check_in(&store, 2).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&store, None, &cancel).unwrap());
            asks.recv().unwrap();
            is_over.store(true, Ordering::SeqCst);
            cancel.wake();
            assert!(!waiting.join().unwrap());
        });
        check_in(&store, 2).unwrap();
        assert!(wait(&store, None, &cancel).unwrap());
        assert!(!wait(&HashStore::new(), Some(Duration::ZERO), &Cancel::NEVER).unwrap());
    }

    #[test]
    fn a_count_that_is_no_number_is_none() {
        let store = HashStore::new();
        store.set(COUNT_KEY, b"many").unwrap();
        assert_eq!(checked_in(&store).unwrap(), 0);
    }
}
