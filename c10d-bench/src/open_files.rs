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
