//! Where nodes whose workers have all succeeded wait for the others, so that no store goes away while
//! someone still needs it.
//!
//! PyTorch's keys (`barrier` in `torch/distributed/elastic/utils/store.py`). Keeps no node from giving
//! signs of life, and is left at once when its owner wants so.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::{Store, StoreError};

const COUNT_KEY: &str = "torchelastic/agent/terminal_state/num_members";
const LAST_KEY: &str = "torchelastic/agent/terminal_state/last_member";

/// How long one wait lasts before it is asked whether to give up.
const SLICE: Duration = Duration::from_secs(1);

/// How the wait ended.
#[derive(Debug)]
pub(crate) enum ExitBarrier {
    /// All have come.
    Open,
    /// Not all came in time; so many did, if the store says.
    TimedOut { arrived: Option<i64> },
    /// Those who ask said that there is nothing to wait for.
    GivenUp,
    /// The store failed. Most likely whoever served it has gone, having finished.
    Failed(StoreError),
}

/// Checks in, and waits for the other nodes of the round. `store` is the round's. Blocks for at most
/// `timeout`; `give_up` is asked now and then.
pub(crate) fn wait_for_others(
    store: &dyn Store,
    group_world_size: usize,
    timeout: Duration,
    give_up: &dyn Fn() -> bool,
) -> ExitBarrier {
    let deadline = Deadline::after(Instant::now(), timeout);
    match check_in(store, group_world_size) {
        Ok(()) => {}
        Err(error) => return ExitBarrier::Failed(error),
    }
    loop {
        let left = deadline.remaining(Instant::now()).unwrap_or(SLICE);
        match store.wait_timeout(&[LAST_KEY], Some(left.min(SLICE))) {
            Ok(()) => return ExitBarrier::Open,
            Err(StoreError::Timeout { .. }) if left <= SLICE => {
                return ExitBarrier::TimedOut {
                    arrived: checked_in(store).ok(),
                };
            }
            Err(StoreError::Timeout { .. }) if give_up() => return ExitBarrier::GivenUp,
            Err(StoreError::Timeout { .. }) => {}
            Err(error) => return ExitBarrier::Failed(error),
        }
    }
}

/// How many nodes of the round have checked in: their workers have succeeded.
pub(crate) fn checked_in(store: &dyn Store) -> Result<i64, StoreError> {
    if !store.check(&[COUNT_KEY])? {
        return Ok(0);
    }
    store.add(COUNT_KEY, 0)
}

fn check_in(store: &dyn Store, group_world_size: usize) -> Result<(), StoreError> {
    let arrived = store.add(COUNT_KEY, 1)?;
    if usize::try_from(arrived) == Ok(group_world_size) {
        // The value is PyTorch's; nobody reads it.
        store.set(LAST_KEY, b"<val_ignored>")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;

    #[test]
    fn the_last_one_opens_it_for_all() {
        let store = HashStore::new();
        assert_eq!(checked_in(&store).unwrap(), 0);
        std::thread::scope(|scope| {
            let first =
                scope.spawn(|| wait_for_others(&store, 2, Duration::from_secs(20), &|| false));
            let second = wait_for_others(&store, 2, Duration::from_secs(20), &|| false);
            assert!(matches!(second, ExitBarrier::Open), "{second:?}");
            let first = first.join().unwrap();
            assert!(matches!(first, ExitBarrier::Open), "{first:?}");
        });
        assert_eq!(checked_in(&store).unwrap(), 2);
    }

    #[test]
    fn who_comes_alone_learns_how_many_came() {
        let store = HashStore::new();
        let alone = wait_for_others(&store, 3, Duration::from_millis(10), &|| false);
        assert!(
            matches!(alone, ExitBarrier::TimedOut { arrived: Some(1) }),
            "{alone:?}"
        );
    }

    #[test]
    fn it_can_be_left() {
        let store = HashStore::new();
        let left = wait_for_others(&store, 3, Duration::from_secs(60), &|| true);
        assert!(matches!(left, ExitBarrier::GivenUp), "{left:?}");
    }
}
