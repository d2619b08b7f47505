//! Takes several elements of a queue from a server that gives one at a time.

use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use crate::error::{ErrorContext, Operation, StoreError};
use crate::store::Store;
use crate::value_rules::check_take_max;

/// The pause before another wait for a queue whose element another worker has taken, or whose name has a
/// value, which ends each wait at once.
pub(super) const LOST_RACE_PAUSE: Duration = Duration::from_millis(1);

/// `queue_take` on servers that take one element at a time.
pub(super) fn take_one_by_one<S: Store>(
    store: &S,
    key: &str,
    max: usize,
    timeout: Option<Duration>,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let started = Instant::now();
    let deadline = Deadline::after(started, timeout);
    let full_key = store.full_key(key);
    let context = |elapsed| {
        let keys = [full_key.as_str()];
        ErrorContext::new(Operation::QueueTake, keys, store.label(), elapsed)
    };
    check_take_max(max, || context(Duration::ZERO))?;
    let mut has_waited = false;
    loop {
        let mut taken = Vec::new();
        while taken.len() < max {
            match store.try_queue_pop(key) {
                Ok(Some(element)) => taken.push(element),
                Ok(None) => break,
                // The next call will fail as well.
                Err(_) if !taken.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if !taken.is_empty() || timeout == Some(Duration::ZERO) {
            return Ok(taken);
        }
        if has_waited {
            thread::sleep(LOST_RACE_PAUSE);
        }
        has_waited = true;
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Err(StoreError::timeout(context(now - started), timeout));
        }
        match store.wait_all(&[key], deadline.remaining(now)) {
            Ok(()) => {}
            Err(StoreError::Timeout { .. }) => {
                return Err(StoreError::timeout(context(started.elapsed()), timeout));
            }
            Err(StoreError::Interrupted { outcome, .. }) => {
                let context = context(started.elapsed());
                return Err(StoreError::Interrupted { context, outcome });
            }
            Err(error) => return Err(error),
        }
    }
}
