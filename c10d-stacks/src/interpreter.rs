//! The interpreter that a process runs, as a program or as a library, and its files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::StackError;
use crate::program::{file_name, is_program};
use crate::refusal;

/// The most bytes of `/proc/PID/maps`: a worker with GPUs has some thousand lines.
const MAPS_BYTES_MAX: u64 = 64 << 20;

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
        io::ErrorKind::PermissionDenied => refusal::of_memory(pid),
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
}
