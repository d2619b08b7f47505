//! Which program a process runs: whether that is Python, and the files of its interpreter.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::StackError;

/// The most bytes of `/proc/PID/maps`: a worker with GPUs has some thousand lines.
const MAPS_BYTES_MAX: u64 = 64 << 20;

/// The distance of the bytes that are read of a file, which is the smallest page.
const PAGE_BYTES: usize = 4096;

/// Whether a process runs Python, as a program of that name or as a library. Returns `false` if the process has ended, or
/// another user runs it.
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
    /// The program or the library, as `python3.11` or `libpython3.11.so.1.0`.
    name: String,
    /// The paths of its files, by way of `/proc`.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "reader")),
        expect(dead_code, reason = "no reader")
    )]
    files: Vec<PathBuf>,
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

    /// Its name, if it is one without a lock (GIL), as `python3.13t`.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "reader")),
        expect(dead_code, reason = "no reader")
    )]
    pub(crate) fn free_threaded(&self) -> Option<&str> {
        let name = self.name.split(".so").next()?;
        let version = name.split_once("python3.")?.1;
        version.ends_with('t').then_some(name)
    }

    /// Reads a byte of each page of its files, so that a file system that fails does so with an error here. A failure
    /// while the file is mapped into this process, as py-spy does, would be a signal that ends this process.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "reader")),
        expect(dead_code, reason = "no reader")
    )]
    pub(crate) fn check_files(&self) -> io::Result<()> {
        for path in &self.files {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            let mut byte = [0];
            for position in (0..bytes).step_by(PAGE_BYTES) {
                // A file that has become shorter is one that fails.
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

/// Whether a program of this name is Python: `python`, `python3`, `python3.11`.
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
        let mut interpreter = Interpreter {
            name: file_name(found),
            files: Vec::new(),
        };
        assert_eq!(interpreter.free_threaded(), Some("libpython3.13t"));
        for name in ["python3", "python3.11", "libpython3.12.so.1.0"] {
            name.clone_into(&mut interpreter.name);
            assert_eq!(interpreter.free_threaded(), None);
        }
        assert_eq!(library(b"\xff\n/x"), None);
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let interpreter = Interpreter {
            name: "python3".to_owned(),
            files: vec![PathBuf::from("/nonexistent/python3")],
        };
        assert!(interpreter.check_files().is_err());
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
