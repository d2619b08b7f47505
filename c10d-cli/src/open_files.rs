//! The limit on open files of this process, and so on its connections.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard limit. Returns how many more files this process can
/// open; `None` without a limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    let raised = Rlimit { current, ..limit };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            // For example, macOS rejects an unlimited soft limit.
            log::debug!(
                "cannot raise the limit on open files: {}",
                io::Error::from(error)
            );
            limit.current
        }
    };
    now.map(|limit| limit.saturating_sub(open_now()))
}

/// How many files this process has open; an estimate without /proc.
fn open_now() -> u64 {
    const ESTIMATE: u64 = 16;
    fs::read_dir("/proc/self/fd").map_or(ESTIMATE, |files| files.count() as u64)
}
