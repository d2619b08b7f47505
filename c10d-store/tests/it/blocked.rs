//! Detects blocked threads through /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::raw::LONG;

/// The path of a thread below /proc. Empty on systems without it.
#[derive(Debug)]
pub(crate) struct Observed(PathBuf);

impl Observed {
    pub(crate) fn this_thread() -> Self {
        Self(fs::read_link("/proc/thread-self").unwrap_or_default())
    }

    /// Returns once the thread has slept for longer than a reply over loopback takes, or has ended.
    /// Without /proc it returns after 30 ms.
    pub(crate) fn wait_until_blocked(&self) {
        const SAMPLES: u32 = 5;
        if self.0.as_os_str().is_empty() {
            return thread::sleep(Duration::from_millis(30));
        }
        let deadline = Instant::now() + LONG;
        let stat = Path::new("/proc").join(&self.0).join("stat");
        let mut asleep = 0;
        while asleep < SAMPLES {
            let Ok(stat) = fs::read_to_string(&stat) else {
                return;
            };
            // The state follows the thread name, which is in parentheses and may contain any bytes.
            let is_asleep = stat.rsplit(") ").next().is_some_and(|s| s.starts_with('S'));
            asleep = if is_asleep { asleep + 1 } else { 0 };
            assert!(
                Instant::now() < deadline,
                "the thread does not block: {stat}"
            );
            thread::sleep(Duration::from_micros(200));
        }
    }
}
