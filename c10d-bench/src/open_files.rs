//! The limit on open files of this process and its children, and so on their connections.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard limit, and returns it; `None` without a limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        let error = io::Error::from(error);
        log::debug!("cannot raise the limit on open files: {error}");
        return limit.current;
    }
    limit.maximum
}

/// How many of `wanted` nodes or ranks have room for their connections, in this process and in the server's.
pub(crate) fn that_fit(
    wanted: usize,
    what: &str,
    files_each: usize,
    files_left: Option<u64>,
    notes: &mut Vec<String>,
) -> usize {
    /// Poll descriptors, pipes to child processes, and the like.
    const OTHER_FILES: u64 = 64;
    let room = files_left.map_or(u64::MAX, |left| left.saturating_sub(OTHER_FILES));
    let room = (room / files_each.max(1) as u64).max(1);
    match usize::try_from(room) {
        Ok(room) if room < wanted => {
            notes.push(format!(
                "{room} {what} instead of {wanted}, because of the limit on open files (ulimit -Hn)"
            ));
            room
        }
        _ => wanted,
    }
}
