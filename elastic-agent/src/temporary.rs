//! Places for files that workers use while they run. A full or read-only TMPDIR need not stop a job.

use std::path::{Path, PathBuf};
use std::{env, io};

/// TMPDIR, and then the places that nearly every Linux system has: memory and `/tmp`.
fn places() -> [PathBuf; 3] {
    [env::temp_dir(), "/dev/shm".into(), "/tmp".into()]
}

/// Creates something in the first place where that succeeds.
///
/// # Errors
/// The error of TMPDIR.
pub(crate) fn create<T>(mut create: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
    let mut first = None;
    for place in places() {
        match create(&place) {
            Ok(created) => return Ok(created),
            Err(error) => {
                log::debug!(
                    "cannot use {} for temporary files: {error}",
                    place.display()
                );
                first.get_or_insert(error);
            }
        }
    }
    Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}
