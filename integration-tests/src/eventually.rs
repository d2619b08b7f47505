//! Waiting for a condition that nothing announces.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// Far longer than any condition takes in a run that succeeds.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until a thread of this process is blocked in the kernel, or has ended (Linux).
///
/// # Panics
/// When it is not within half a minute.
pub fn until_blocked(thread: Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    eventually("the thread is blocked", || {
        let Ok(stat) = fs::read_to_string(&path) else {
            return true;
        };
        // The name before it stands in parentheses, and may have some itself.
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('S'))
    });
}

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
