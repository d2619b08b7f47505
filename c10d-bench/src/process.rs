//! Memory and files of another process, read from /proc.

use std::{fs, io};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::failure::{Context as _, Failure};

/// A process by its id. All figures are `None` if it has ended or the system has no /proc.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process(pub(super) u32);

impl Process {
    /// All running processes.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(Self(entry.file_name().to_str()?.parse().ok()?)))
    }

    /// The value of an environment variable when the process started its program.
    pub(super) fn variable(self, name: &str) -> Option<String> {
        // It is empty for a process that has exited.
        let environment = fs::read(format!("/proc/{}/environ", self.0)).ok()?;
        let mut entries = environment.split(|byte| *byte == 0);
        let value = entries.find_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// Sends it a signal.
    pub(super) fn signal(self, signal: Signal) -> Result<(), Failure> {
        let id = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| Failure::new("a process has no id"))?;
        kill_process(id, signal).context("cannot send a signal")
    }

    /// Anonymous resident memory in bytes: without files and shared memory.
    pub(super) fn anonymous_bytes(self) -> Option<u64> {
        self.status_bytes("RssAnon:")
    }

    /// How many files it has open: its connections, and a few others.
    pub(super) fn open_files(self) -> Option<usize> {
        let files = fs::read_dir(format!("/proc/{}/fd", self.0)).ok()?;
        Some(files.count())
    }

    /// The most resident memory that it ever had, in bytes.
    pub(super) fn peak_bytes(self) -> Option<u64> {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes << 10)
    }
}

/// Raises the soft limit on open files to the hard limit, and returns it; `None` without a limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        let error = io::Error::from(error);
        log::debug!("cannot raise the limit on open files: {error}");
        return limit.current;
    }
    limit.maximum
}

/// How many of `wanted` nodes or ranks have room for their connections, in this process and in the server's.
pub(crate) fn that_fit(
    wanted: usize,
    what: &str,
    files_each: usize,
    files_left: Option<u64>,
    notes: &mut Vec<String>,
) -> usize {
    /// Poll descriptors, pipes to child processes, and the like.
    const OTHER_FILES: u64 = 64;
    let room = files_left.map_or(u64::MAX, |left| left.saturating_sub(OTHER_FILES));
    let room = (room / files_each.max(1) as u64).max(1);
    match usize::try_from(room) {
        Ok(room) if room < wanted => {
            notes.push(format!(
                "{room} {what} instead of {wanted}, because of the limit on open files (ulimit -Hn)"
            ));
            room
        }
        _ => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_process_has_no_figures() {
        let this = Process(std::process::id());
        if cfg!(target_os = "linux") {
            assert!(this.anonymous_bytes().unwrap() > 4096);
            assert!(this.peak_bytes() >= this.anonymous_bytes());
            assert!(this.open_files().unwrap() > 0);
        }
        // Above the largest process id.
        let nobody = Process(u32::MAX);
        assert_eq!(nobody.anonymous_bytes(), None);
        assert_eq!((nobody.peak_bytes(), nobody.open_files()), (None, None));
    }
}
