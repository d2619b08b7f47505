//! The exit barrier: nodes whose workers have all succeeded wait for the others, as the store ends with
//! the node that hosts it.
//!
//! Uses PyTorch's keys (`barrier` in `torch/distributed/elastic/utils/store.py`). Heartbeats go on
//! meanwhile.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::{Store, StoreError};

const COUNT_KEY: &str = "torchelastic/agent/terminal_state/num_members";
const LAST_KEY: &str = "torchelastic/agent/terminal_state/last_member";

/// How often a wait checks whether it is cancelled.
const SLICE: Duration = Duration::from_secs(1);

/// How the wait ended.
#[derive(Debug)]
pub(crate) enum ExitBarrier {
    /// All nodes checked in.
    Open,
    /// Not all nodes checked in in time; `arrived` did, `None` if the store does not answer.
    TimedOut { arrived: Option<i64> },
    /// The caller cancelled the wait.
    Cancelled,
    /// The store failed. Most likely the node that hosted it has finished.
    Failed(StoreError),
}

/// Checks in, and waits for the other nodes of the round. `store` is the round's. Blocks for at most
/// `timeout`, indefinitely if `None`; `is_cancelled` is checked once a second.
pub(crate) fn wait_for_others(
    store: &dyn Store,
    group_world_size: usize,
    timeout: Option<Duration>,
    is_cancelled: &dyn Fn() -> bool,
) -> ExitBarrier {
    let deadline = Deadline::after(Instant::now(), timeout);
    match check_in(store, group_world_size) {
        Ok(()) => {}
        Err(error) => return ExitBarrier::Failed(error),
    }
    loop {
        let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
        match store.wait_timeout(&[LAST_KEY], Some(left.min(SLICE))) {
            Ok(()) => return ExitBarrier::Open,
            Err(StoreError::Timeout { .. }) if left <= SLICE => {
                return ExitBarrier::TimedOut {
                    arrived: checked_in(store).ok(),
                };
            }
            Err(StoreError::Timeout { .. }) if is_cancelled() => return ExitBarrier::Cancelled,
            Err(StoreError::Timeout { .. }) => {}
            Err(error) => return ExitBarrier::Failed(error),
        }
    }
}

/// How many nodes of the round have checked in, that is, whose workers succeeded.
pub(crate) fn checked_in(store: &dyn Store) -> Result<i64, StoreError> {
    let count = store.try_get(COUNT_KEY)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&count).parse().unwrap_or(0))
}

fn check_in(store: &dyn Store, group_world_size: usize) -> Result<(), StoreError> {
    let arrived = store.add(COUNT_KEY, 1)?;
    if usize::try_from(arrived) == Ok(group_world_size) {
        // PyTorch's value; no node reads it.
        store.set(LAST_KEY, b"<val_ignored>")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;

    #[test]
    fn the_last_node_opens_the_barrier_for_all() {
        let store = HashStore::new();
        assert_eq!(checked_in(&store).unwrap(), 0);
        std::thread::scope(|scope| {
            let first = scope
                .spawn(|| wait_for_others(&store, 2, Some(Duration::from_secs(20)), &|| false));
            let second = wait_for_others(&store, 2, Some(Duration::from_secs(20)), &|| false);
            assert!(matches!(second, ExitBarrier::Open), "{second:?}");
            let first = first.join().unwrap();
            assert!(matches!(first, ExitBarrier::Open), "{first:?}");
        });
        assert_eq!(checked_in(&store).unwrap(), 2);
    }

    #[test]
    fn a_timeout_reports_how_many_nodes_arrived() {
        let store = HashStore::new();
        let alone = wait_for_others(&store, 3, Some(Duration::from_millis(10)), &|| false);
        assert!(
            matches!(alone, ExitBarrier::TimedOut { arrived: Some(1) }),
            "{alone:?}"
        );
    }

    #[test]
    fn a_wait_can_be_cancelled() {
        let store = HashStore::new();
        let cancelled = wait_for_others(&store, 3, None, &|| true);
        assert!(matches!(cancelled, ExitBarrier::Cancelled), "{cancelled:?}");
    }
}
