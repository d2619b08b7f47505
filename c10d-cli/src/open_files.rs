//! How many files, and so connections, this process may have open.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard one, and returns how many more files this process
/// can open then; `None` where there is no limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            // macOS refuses an unlimited soft limit, for one.
            log::debug!(
                "the limit on open files stays as it is: {}",
                io::Error::from(error)
            );
            limit.current
        }
    };
    now.map(|limit| limit.saturating_sub(open_now()))
}

/// The open files of this process, or a fair guess where the system does not tell.
fn open_now() -> u64 {
    const GUESS: u64 = 16;
    fs::read_dir("/proc/self/fd").map_or(GUESS, |files| files.count() as u64)
}
