//! The interpreter that a process runs, as a program or as a library, and its files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::StackError;
use crate::process::{file_name, is_program};

/// The most bytes of `/proc/PID/maps`: a worker with GPUs has some thousand lines.
const MAPS_BYTES_MAX: u64 = 64 << 20;

/// The distance between two bytes that are read of a file, which is the smallest page.
const PAGE_BYTES: usize = 4096;

/// The interpreter of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interpreter {
    /// The program or the library, for example `python3.11` or `libpython3.11.so.1.0`.
    pub(crate) name: String,
    /// The paths of its files, by way of `/proc`.
    pub(crate) files: Vec<PathBuf>,
}

impl Interpreter {
    pub(crate) fn of(pid: u32) -> Result<Self, StackError> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let refused = |error| refused(pid, &error);
        let program = fs::read_link(folder.join("exe")).map_err(refused)?;
        let program = file_name(program.as_os_str().as_bytes());
        let mut maps = Vec::new();
        let file = File::open(folder.join("maps")).map_err(refused)?;
        file.take(MAPS_BYTES_MAX)
            .read_to_end(&mut maps)
            .map_err(refused)?;
        let mut files = vec![folder.join("exe")];
        match library(&maps) {
            Some(path) => {
                let path = Path::new(OsStr::from_bytes(path));
                files.push(
                    folder
                        .join("root")
                        .join(path.strip_prefix("/").unwrap_or(path)),
                );
                let name = file_name(path.as_os_str().as_bytes());
                Ok(Self { name, files })
            }
            None if is_program(&program) => Ok(Self {
                name: program,
                files,
            }),
            None => Err(StackError::NotPython),
        }
    }

    /// Returns its name if it is built without the lock (GIL), for example `python3.13t`.
    pub(crate) fn free_threaded(&self) -> Option<&str> {
        let name = self.name.split(".so").next()?;
        let version = name.split_once("python3.")?.1;
        version.ends_with('t').then_some(name)
    }

    /// Reads a byte of each page of its files, so that a failing file system causes an error here. py-spy maps the
    /// files into this process, where the same failure would be a signal that kills this process.
    pub(crate) fn check_files(&self) -> io::Result<()> {
        for path in &self.files {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            let mut byte = [0];
            for position in (0..bytes).step_by(PAGE_BYTES) {
                // A file that has become shorter counts as a failure.
                file.read_exact_at(&mut byte, position)?;
            }
        }
        Ok(())
    }
}

/// The path of Python's library in `/proc/PID/maps`.
fn library(maps: &[u8]) -> Option<&[u8]> {
    let paths = maps.split(|byte| *byte == b'\n').filter_map(|line| {
        let start = line.iter().position(|byte| *byte == b'/')?;
        Some(&line[start..])
    });
    let mut libraries = paths.filter(|path| {
        let name = file_name(path);
        name.starts_with("libpython3.") && name.contains(".so")
    });
    libraries.next()
}

fn refused(pid: u32, error: &io::Error) -> StackError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => StackError::of_memory(pid),
        _ => StackError::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_among_the_maps() {
        let maps = b"7f00-7f01 r--p 00000000 08:01 1    /lib/libpython3.so.x/libc.so.6\n\
                     7f02-7f03 r-xp 00000000 08:01 2    /opt/py/lib/libpython3.13t.so.1.0\n\
                     7f04-7f05 rw-p 00000000 00:00 0    [heap]\n";
        let found = library(maps).unwrap();
        assert_eq!(found, b"/opt/py/lib/libpython3.13t.so.1.0");
        assert_eq!(library(b"\xff\n/x"), None);
    }

    #[test]
    fn this_program_is_not_python() {
        let own = Interpreter::of(std::process::id());
        assert_eq!(own, Err(StackError::NotPython));
    }

    fn named(name: &str) -> Interpreter {
        Interpreter {
            name: name.to_owned(),
            files: vec![PathBuf::from("/nonexistent/python3")],
        }
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(named("python3").check_files().is_err());
    }

    #[test]
    fn an_interpreter_without_lock_is_told_by_its_name() {
        let free = named("libpython3.13t.so.1.0");
        assert_eq!(free.free_threaded(), Some("libpython3.13t"));
        for name in ["python3", "python3.11", "libpython3.12.so.1.0"] {
            assert_eq!(named(name).free_threaded(), None);
        }
    }
}
