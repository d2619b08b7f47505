//! The status of a process that Linux shows in /proc/PID/stat. It is in this crate because this is the lowest crate
//! of those that read it.

use std::fs;

/// The fields of `/proc/PID/stat` that this project needs; see proc_pid_stat(5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessStat {
    /// The state of the process: R, S, D, T, Z and others.
    pub state: char,
    /// The process id of the parent.
    pub parent: u32,
    /// The id of the process group.
    pub group: u32,
    /// The process id of the session's leader.
    pub session: u32,
    /// Processor time in user and system mode, in clock ticks.
    pub cpu_ticks: u64,
    /// The start of the process, in clock ticks after the start of the system.
    pub start_ticks: u64,
    /// Resident memory, in pages.
    pub resident_pages: u64,
}

impl ProcessStat {
    /// Reads the file of a process. `None` if there is no such process, or no /proc. Does not block.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the file. `None` if it is cut off.
    #[must_use]
    pub fn parse(stat: &[u8]) -> Option<Self> {
        // The name is in parentheses and may contain any byte, so count from its end.
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let text = str::from_utf8(&stat[name_end + 1..]).ok()?;
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        // The manual's third field is the first one here.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let id = |field: usize| fields.get(field - 3)?.parse::<u32>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: id(4)?,
            group: id(5)?,
            session: id(6)?,
            cpu_ticks: number(14)?.saturating_add(number(15)?),
            start_ticks: number(22)?,
            resident_pages: number(24)?,
        })
    }

    /// Returns whether the process no longer runs: it waits to be reaped, or no longer exists.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Returns whether a signal or a debugger has stopped it.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded on Linux 6.
    const RECORDED: &[u8] =
        b"26589 (pt_main_thread) S 26587 26580 26570 34816 26587 4194304 105821 0 12 0 913 \
        207 0 0 20 0 19 0 1234567 5432107008 91234 18446744073709551615 1 1 0 0 0 0 0 16781312\n";

    #[test]
    fn a_file_is_parsed() {
        let expected = ProcessStat {
            state: 'S',
            parent: 26587,
            group: 26580,
            session: 26570,
            cpu_ticks: 1120,
            start_ticks: 1_234_567,
            resident_pages: 91_234,
        };
        assert_eq!(ProcessStat::parse(RECORDED), Some(expected));
    }

    #[test]
    fn a_name_does_not_move_the_fields() {
        let rest = &RECORDED[RECORDED.iter().position(|&byte| byte == b')').unwrap()..];
        for name in [&b"7 (a) Z 9 9 (\xff b"[..], b"7 (", b"7 (a) S (b"] {
            let stat = [name, rest].concat();
            assert_eq!(
                ProcessStat::parse(&stat),
                ProcessStat::parse(RECORDED),
                "{}",
                stat.escape_ascii()
            );
        }
    }

    #[test]
    fn what_is_cut_off_is_nothing() {
        let end = RECORDED.len() - b" 18446744073709551615 1 1 0 0 0 0 0 16781312\n".len();
        assert!(ProcessStat::parse(&RECORDED[..end]).is_some());
        for length in 0..end - 5 {
            assert_eq!(ProcessStat::parse(&RECORDED[..length]), None, "{length}");
        }
        assert_eq!(ProcessStat::parse(b"7 sh S 1 2 3"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_known() {
        let stat = ProcessStat::of(std::process::id()).unwrap();
        assert!(stat.resident_pages > 100, "{stat:?}");
        assert!(!stat.has_ended() && !stat.is_stopped(), "{stat:?}");
        assert_eq!(ProcessStat::of(0), None);
    }
}
