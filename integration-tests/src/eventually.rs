//! Polls for conditions that cannot be awaited.

use std::thread;
use std::time::{Duration, Instant};

/// Expires only when a test fails: a start of Python and PyTorch takes long on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Polls until `condition` holds; `what` describes it in messages.
///
/// An example is the first arrival at a barrier. It creates the barrier's key, but a wait for the key ends
/// only when the barrier opens (docs/spec/wire.md, 5.8).
///
/// # Panics
/// When the condition does not hold within 120 s.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
