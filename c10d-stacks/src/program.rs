//! Which program a process runs.

use std::fs;
use std::os::unix::ffi::OsStrExt;

/// Returns whether the program of a process is named `python`, `python3`, `python3.11` or similar. Returns `false` if the
/// process has exited, if another user runs it, or if it uses Python as a library. Does not block.
#[must_use]
pub fn is_python(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    let name = program.map(|path| file_name(path.as_os_str().as_bytes()));
    name.is_ok_and(|name| is_program(&name))
}

/// Returns whether a program of this name is Python: `python`, `python3`, `python3.11`.
pub(crate) fn is_program(name: &str) -> bool {
    let rest = name.strip_prefix("python");
    rest.is_some_and(|rest| {
        rest.chars()
            .all(|char| matches!(char, '0'..='9' | '.' | 't' | 'd'))
    })
}

pub(crate) fn file_name(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    // The system marks a file that was replaced since the start of the program.
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_is_told_by_its_name() {
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
        assert!(!is_python(std::process::id()));
        assert!(!is_python(0));
    }
}
