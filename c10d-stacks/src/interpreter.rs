//! Which program a process runs: whether that is Python, and the files of its interpreter.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::StackError;

/// The most bytes of `/proc/PID/maps`: a worker with GPUs has some thousand lines.
const MAPS_BYTES_MAX: u64 = 64 << 20;

/// Returns whether a process runs Python, as a program of that name or as a library. Returns `false` if the process has
/// exited, or another user runs it.
///
/// Reads `/proc` only, and no other file system. Does not block if the program is named `python`. Otherwise it blocks while
/// the process holds the lock of its memory map, as it does while `mmap` waits for a file system.
#[must_use]
pub fn is_python(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    let name = program.map(|path| file_name(path.as_os_str().as_bytes()));
    name.is_ok_and(|name| is_program(&name)) || Interpreter::of(pid).is_ok()
}

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
        let refused = |error| refusal(pid, &error);
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

/// Returns whether a program of this name is Python: `python`, `python3`, `python3.11`.
fn is_program(name: &str) -> bool {
    let rest = name.strip_prefix("python");
    rest.is_some_and(|rest| {
        rest.chars()
            .all(|char| matches!(char, '0'..='9' | '.' | 't' | 'd'))
    })
}

fn file_name(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    // The system marks a file that was replaced since the start of the program.
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    String::from_utf8_lossy(name).into_owned()
}

fn refusal(pid: u32, error: &io::Error) -> StackError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => StackError::of_refusal(pid),
        _ => StackError::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_libraries_are_told_apart() {
        for name in [
            "python",
            "python3",
            "python3.11",
            "python3.13t",
            "python3.11d",
        ] {
            assert!(is_program(name), "{name}");
        }
        for name in ["bash", "python-config", "pythonw.sh", "ipython", ""] {
            assert!(!is_program(name), "{name}");
        }
        assert_eq!(file_name(b"/usr/bin/python3.11 (deleted)"), "python3.11");
        let maps = b"7f00-7f01 r--p 00000000 08:01 1    /lib/libpython3.so.x/libc.so.6\n\
                     7f02-7f03 r-xp 00000000 08:01 2    /opt/py/lib/libpython3.13t.so.1.0\n\
                     7f04-7f05 rw-p 00000000 00:00 0    [heap]\n";
        let found = library(maps).unwrap();
        assert_eq!(found, b"/opt/py/lib/libpython3.13t.so.1.0");
        assert_eq!(library(b"\xff\n/x"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_program_is_not_python() {
        assert!(!is_python(std::process::id()));
        assert_eq!(
            Interpreter::of(std::process::id()),
            Err(StackError::NotPython)
        );
        assert!(!is_python(0));
    }
}
