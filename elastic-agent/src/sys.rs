//! The system calls that need `unsafe`, each behind a safe function.
#![expect(
    unsafe_code,
    reason = "code between fork and exec, signal dispositions and local time have no safe form; \
              nothing else in the crate is allowed any"
)]

use std::io::{self, PipeWriter};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::Arc;

use rustix::process::{Pid, getpid, getppid, setsid};

/// Has the process that `command` starts lead a session and a process group of its own, and, on
/// Linux, be killed when the *thread* that starts it ends, be it with its whole process.
///
/// `agent` is the process that will start it. The group's id is written as a line into `names` before
/// the program is executed, that is before there can be a second process in the group. The pipe must
/// have a reader until then, as the process would die of SIGPIPE, and must not block. A line for which
/// it has no room is lost.
pub(crate) fn lead_own_session(command: &mut Command, agent: Pid, names: Option<Arc<PipeWriter>>) {
    let prepare = move || {
        setsid()?;
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // An agent that died before the line above sends no signal any more.
        if getppid() != Some(agent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if let Some(names) = &names {
            let mut line = [0; LINE_MAX_BYTES];
            // A worker that nobody knows is better than none.
            let _ = rustix::io::write(names, line_of(getpid(), &mut line));
        }
        Ok(())
    };
    // SAFETY: between fork and exec of a process with threads only async-signal-safe calls are
    // allowed. The closure makes system calls (setsid, prctl, getppid, getpid, write), without locks
    // and without memory from the heap: the line is on the stack, and the pipe is only borrowed, so
    // nothing is freed either. Errors are plain numbers.
    unsafe { command.pre_exec(prepare) };
}

/// The digits of the largest number of a process, and the end of the line.
const LINE_MAX_BYTES: usize = 11;

/// A process id in decimal digits, as a line. Needs no memory but the buffer's.
fn line_of(pid: Pid, buffer: &mut [u8; LINE_MAX_BYTES]) -> &[u8] {
    let mut rest = pid.as_raw_nonzero().get().unsigned_abs();
    let mut start = LINE_MAX_BYTES;
    for (position, byte) in buffer.iter_mut().enumerate().rev() {
        if start == LINE_MAX_BYTES {
            *byte = b'\n';
        } else if rest > 0 {
            *byte = b"0123456789"[(rest % 10) as usize];
            rest /= 10;
        } else {
            break;
        }
        start = position;
    }
    &buffer[start..]
}

/// Undoes an ignored SIGCHLD, which some programs leave to those they start: with it the system
/// throws exit statuses away. Says whether it was ignored.
///
/// # Errors
/// What sigaction(2) reports, which for this signal is nothing.
pub(crate) fn unignore_child_signal() -> io::Result<bool> {
    let mut present = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action changes nothing; the old one is written to valid memory.
    let result = unsafe { libc::sigaction(libc::SIGCHLD, ptr::null(), present.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and filled it; zeroes were valid before.
    let mut action = unsafe { present.assume_init() };
    let is_ignored = action.sa_sigaction == libc::SIG_IGN;
    if !is_ignored && action.sa_flags & libc::SA_NOCLDWAIT == 0 {
        return Ok(false);
    }
    action.sa_flags &= !libc::SA_NOCLDWAIT;
    if is_ignored {
        action.sa_sigaction = libc::SIG_DFL;
    }
    // SAFETY: the action is the present one but for a flag and perhaps the default disposition, so
    // no handler is installed that was not there.
    let result = unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(true)
}

/// A moment as clocks and calendars on the wall show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WallTime {
    pub(crate) year: i64,
    pub(crate) month: i32,
    pub(crate) day: i32,
    pub(crate) hour: i32,
    pub(crate) minute: i32,
    pub(crate) second: i32,
}

/// The local time of a moment; `None` when the system cannot express it (the year overflows).
pub(crate) fn wall_time(epoch_s: i64) -> Option<WallTime> {
    let time: libc::time_t = epoch_s;
    let mut fields = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are to valid memory for the time of the call. The time zone is read from
    // the environment under the C library's own lock; Rust code that changes the environment at the
    // same time is unsafe code, and forbidden in this project.
    let result = unsafe { libc::localtime_r(&raw const time, fields.as_mut_ptr()) };
    if result.is_null() {
        return None;
    }
    // SAFETY: the call succeeded and filled it; zeroes were valid before.
    let fields = unsafe { fields.assume_init() };
    Some(WallTime {
        year: i64::from(fields.tm_year) + 1900,
        month: fields.tm_mon + 1,
        day: fields.tm_mday,
        hour: fields.tm_hour,
        minute: fields.tm_min,
        second: fields.tm_sec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_id_is_written_in_decimal_digits() {
        for number in [1, 9, 10, 4_194_304, 1_000_000_000, i32::MAX] {
            let pid = Pid::from_raw(number).unwrap();
            let expected = format!("{number}\n");
            assert_eq!(line_of(pid, &mut [0; LINE_MAX_BYTES]), expected.as_bytes());
        }
    }

    #[test]
    fn local_time_is_within_a_day_of_universal_time() {
        let time = wall_time(1_000_000_000).unwrap(); // 2001-09-09 01:46:40 UTC
        assert_eq!((time.year, time.month), (2001, 9));
        assert!((8..=9).contains(&time.day), "{time:?}");
        assert_eq!(time.second, 40);
        assert_eq!(wall_time(i64::MAX), None);
    }
}
