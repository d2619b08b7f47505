//! The program of a process, and its activity, whatever program it runs.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use c10d_socket::ProcessStat;

use crate::system_calls;

/// The most bytes of a command line.
const COMMAND_LINE_BYTES_MAX: u64 = 200;

/// The most bytes of another file.
const FILE_BYTES_MAX: u64 = 4096;

/// The activity of the main thread of a process, as `/proc` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessActivity {
    /// The state letter of `/proc`: R, S, D, T, Z and others.
    pub state: char,
    /// The function of the kernel in which it waits, for example `pipe_read`; `None` if it does not wait, or the system
    /// does not show the function.
    pub waits_in: Option<String>,
    /// The system call in which it is, for example `read`; `None` if it is in no system call, or this process has no
    /// access.
    pub system_call: Option<String>,
}

impl ProcessActivity {
    /// Returns the activity of a process; `None` if there is no such process, or no `/proc`. Does not block.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let state = ProcessStat::of(pid)?.state;
        let waits_in = read(pid, "wchan", FILE_BYTES_MAX);
        let system_call = read(pid, "syscall", FILE_BYTES_MAX);
        Some(Self {
            state,
            waits_in: waits_in.filter(|name| !name.is_empty() && name != "0"),
            system_call: system_call.and_then(|text| system_calls::parse(&text)),
        })
    }
}

/// Returns the first 200 bytes of the command line of a process; `None` if it has none. Escape it before it is printed.
///
/// Blocks while the process holds the lock of its memory map, as it does while `mmap` waits for a file system.
#[must_use]
pub fn command_line(pid: u32) -> Option<String> {
    let line = read(pid, "cmdline", COMMAND_LINE_BYTES_MAX)?;
    let line = line.replace('\0', " ").trim().to_owned();
    (!line.is_empty()).then_some(line)
}

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

fn read(pid: u32, name: &str, bytes_max: u64) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/{name}")).ok()?;
    file.take(bytes_max).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_reads_is_in_read() {
        let mut command = Command::new("cat");
        let command = command.arg("-").stdin(Stdio::piped());
        let child = Killed(command.stdout(Stdio::null()).spawn().unwrap());
        let pid = child.0.id();
        let started = Instant::now();
        loop {
            let activity = ProcessActivity::of(pid).unwrap();
            if activity.state == 'S' && command_line(pid).as_deref() == Some("cat -") {
                // A container may hide it.
                if let Some(call) = activity.system_call {
                    assert_eq!(call, "read");
                }
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "{activity:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(child);
        assert_eq!(ProcessActivity::of(pid), None);
        assert_eq!(command_line(pid), None);
    }

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
