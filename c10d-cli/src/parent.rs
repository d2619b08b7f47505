//! Ends a server together with the script or program that started it.

use std::io;

/// Makes the system send SIGTERM to this process when its parent ends.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] on systems other than Linux.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_parent() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};

    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_parent() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
