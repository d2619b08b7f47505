//! Waiting for a condition that nothing announces.

use std::thread;
use std::time::{Duration, Instant};

/// Far longer than any condition takes in a run that succeeds.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until `condition` holds; `what` says which in messages.
///
/// For instance that somebody has arrived at a barrier: its key is there from the first arrival on,
/// but a wait for the key would end with the barrier only (docs/wire.md, 5.8).
///
/// # Panics
/// When it does not hold within half a minute.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
