//! A temporary directory that only this user can enter.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// How often another name is tried if one is taken.
const ATTEMPTS: usize = 16;

/// The directory. Dropping it removes it, and all in it.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Creates a directory whose name starts with `name`, where temporary files are.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn create(name: &str) -> io::Result<Self> {
        let place = env::temp_dir();
        let mut last_error = None;
        for _ in 0..ATTEMPTS {
            let path = place.join(format!("{name}-{:08x}", fastrand::u32(..)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    last_error = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last_error.unwrap_or_else(|| io::Error::other("no free name")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_this_user_can_enter_and_nothing_is_left_behind() {
        let directory = PrivateDirectory::create("c10d-test").unwrap();
        let path = directory.path().to_owned();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::write(path.join("file"), "").unwrap();
        drop(directory);
        assert!(!path.exists());
    }
}
