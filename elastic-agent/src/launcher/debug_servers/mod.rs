//! `--debug-server`: each worker runs PyTorch's debug server on a unix socket that only this user reaches. `answers` asks
//! it about collectives, and about stacks that cannot be read otherwise.
//!
//! The script needs no change: `import torch` calls an entry point that it finds on PYTHONPATH. With a version of
//! PyTorch without entry points or debug server the workers start without one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::feature::Feature;
use crate::agent::AgentOptions;
use crate::files;

/// The function of the workers' module that starts the server, for workers that are forked with the module loaded.
pub(super) const START_HOOK: &str = "c10d_debug_server:start";

/// The directories in which Python searches for modules and entry points first.
const PYTHONPATH: &str = "PYTHONPATH";

/// The files that have an agent's workers start debug servers. Dropping it removes them.
#[derive(Debug)]
pub(super) struct DebugServers {
    files: Files,
}

impl DebugServers {
    /// Writes the files that workers load.
    ///
    /// # Errors
    /// The directory cannot be made, or every place for it has too long a path for a unix socket.
    pub(super) fn prepare() -> io::Result<Self> {
        let files = Files::create()?;
        Ok(Self { files })
    }

    /// The directory of [`AgentOptions::debug_socket`].
    pub(super) fn sockets(&self) -> &Path {
        self.files.sockets()
    }

    /// Lets workers find the files and their sockets.
    pub(super) fn add_to(&self, options: &mut AgentOptions) {
        let environment = &mut options.environment;
        let inherited = environment
            .iter()
            .rposition(|(name, _)| name == PYTHONPATH)
            .map(|index| environment.swap_remove(index).1);
        let path = prepend(self.files.python(), inherited.as_deref());
        environment.push((PYTHONPATH.into(), path));
        options.debug_sockets = Some(self.sockets().to_owned());
    }
}

impl Feature for DebugServers {
    fn ends_with_workers(&self) -> bool {
        true
    }
}

/// The longest path of a unix socket on Linux and macOS, without the end of the string.
const SOCKET_PATH_BYTES_MAX: usize = 103;

/// Space for `/RESTARTS-LOCAL_RANK`.
const SOCKET_NAME_BYTES: usize = 24;

/// The name of the directory, before its random characters.
const NAME: &str = "c10d-debug-";
const RANDOM_BYTES: usize = 8;

const MODULE: &str = include_str!("c10d_debug_server.py");
const METADATA: &str = "Metadata-Version: 2.1\nName: c10d-debug-server\nVersion: 0.1\n";
const ENTRY_POINTS: &str = "[torch.backends]\nc10d_debug_server = c10d_debug_server:start\n";

/// A directory that only this user can enter. Dropping it removes it.
#[derive(Debug)]
struct Files {
    sockets: TempDir,
    python: PathBuf,
}

impl Files {
    fn create() -> io::Result<Self> {
        files::create_temporary(Self::create_in)
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        let sockets = create_directory(place)?;
        let files = Self {
            python: sockets.path().join("python"),
            sockets,
        };
        let metadata = files.python.join("c10d_debug_server-0.1.dist-info");
        fs::create_dir_all(&metadata)?;
        fs::write(files.python.join("c10d_debug_server.py"), MODULE)?;
        fs::write(metadata.join("METADATA"), METADATA)?;
        fs::write(metadata.join("entry_points.txt"), ENTRY_POINTS)?;
        Ok(files)
    }

    /// The directory of the sockets.
    fn sockets(&self) -> &Path {
        self.sockets.path()
    }

    /// The directory for PYTHONPATH.
    fn python(&self) -> &Path {
        &self.python
    }
}

/// The value of PYTHONPATH with `directory` first. An empty entry would mean the current directory.
fn prepend(directory: &Path, inherited: Option<&OsStr>) -> OsString {
    let mut value = directory.as_os_str().to_owned();
    if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
        value.push(":");
        value.push(inherited);
    }
    value
}

/// A new directory in this place, unless its path would be too long for sockets in it.
fn create_directory(place: &Path) -> io::Result<TempDir> {
    let name_bytes = NAME.len() + RANDOM_BYTES;
    let bytes = place.as_os_str().as_bytes().len() + 1 + name_bytes;
    if bytes + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES_MAX || !place.is_absolute() {
        let text = "TMPDIR is too long for unix sockets, or not absolute";
        return Err(io::Error::other(text));
    }
    let created = tempfile::Builder::new()
        .prefix(NAME)
        .rand_bytes(RANDOM_BYTES)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(place);
    created.map_err(|error| {
        let text = format!("cannot create a directory in {}: {error}", place.display());
        io::Error::new(error.kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_user_can_enter_and_nothing_is_left_behind() {
        let files = Files::create().unwrap();
        let path = files.sockets().to_owned();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let longest = path.join(format!("{}-{}", u32::MAX, u32::MAX));
        assert!(longest.as_os_str().len() <= SOCKET_PATH_BYTES_MAX);
        assert!(files.python().join("c10d_debug_server.py").is_file());
        drop(files);
        assert!(!path.exists());
    }

    #[test]
    fn a_long_place_is_refused_and_a_missing_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = |name: &str| create_directory(&folder.path().join(name)).unwrap_err();
        assert_eq!(
            error(&"x".repeat(100)).to_string(),
            "TMPDIR is too long for unix sockets, or not absolute"
        );
        let missing = error("missing").to_string();
        assert!(missing.contains("/missing: No such file"), "{missing}");
    }

    #[test]
    fn the_users_python_path_is_kept() {
        let table = [(None, "/d"), (Some(""), "/d"), (Some("a:b"), "/d:a:b")];
        for (inherited, expected) in table {
            assert_eq!(
                prepend(Path::new("/d"), inherited.map(OsStr::new)),
                expected
            );
        }
    }
}
