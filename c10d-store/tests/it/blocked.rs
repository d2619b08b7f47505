//! Whether a thread is blocked, as Linux shows it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::raw::LONG;

/// A thread that can be seen to block.
#[derive(Debug)]
pub(crate) struct Observed(PathBuf);

impl Observed {
    /// The calling thread. Empty where the system does not show threads.
    pub(crate) fn this_thread() -> Self {
        Self(fs::read_link("/proc/thread-self").unwrap_or_default())
    }

    /// Returns once the thread sleeps in the system and stays there for longer than an answer over
    /// loopback takes, or has ended. Where that cannot be seen it waits for a moment.
    pub(crate) fn wait_until_blocked(&self) {
        const LOOKS: u32 = 5;
        if self.0.as_os_str().is_empty() {
            return thread::sleep(Duration::from_millis(30));
        }
        let deadline = Instant::now() + LONG;
        let stat = Path::new("/proc").join(&self.0).join("stat");
        let mut asleep = 0;
        while asleep < LOOKS {
            let Ok(stat) = fs::read_to_string(&stat) else {
                return;
            };
            // The name before the state is in parentheses and may hold anything.
            let is_asleep = stat.rsplit(") ").next().is_some_and(|s| s.starts_with('S'));
            asleep = if is_asleep { asleep + 1 } else { 0 };
            assert!(Instant::now() < deadline, "never blocks: {stat}");
            thread::sleep(Duration::from_micros(200));
        }
    }
}
