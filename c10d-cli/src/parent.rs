//! The tie between a server and the script or program that started it.

use std::io;

/// Has this process end, by SIGTERM, when its parent does.
///
/// # Errors
/// Where the system has no such thing: only Linux does.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_parent() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};

    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_parent() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
