//! The system calls that need `unsafe`, each behind a safe function.
#![expect(
    unsafe_code,
    reason = "code between fork and exec and signal dispositions have no safe form; nothing else in \
              the crate is allowed any"
)]

use std::ffi::CString;
use std::io::{self, PipeWriter};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::Arc;

use rustix::process::{Pid, getpid, getppid, setsid};

/// Makes the process that `command` starts lead a new session and a new process group. On Linux the system also kills
/// it when the *thread* that starts it ends, alone or with its process.
///
/// `agent` is the process that will start it. The child writes its group's id as a line to `names` before
/// it executes the program, so before the group can have a second process. The pipe must be non-blocking,
/// and must have a reader until then, as SIGPIPE would kill the child. A line that does not fit is lost.
///
/// The child gets the limit on open files that this process had at its start.
pub(crate) fn lead_own_session(command: &mut Command, agent: Pid, names: Option<Arc<PipeWriter>>) {
    lead(command, agent, names, || setsid().map(drop));
}

/// Does the same as [`lead_own_session`], but the process stays in this session, and its group gets the foreground of
/// the terminal that is its standard input: Ctrl-C reaches only this group. The process ignores Ctrl-Z, because no
/// shell could continue it.
pub(crate) fn lead_foreground_group(
    command: &mut Command,
    agent: Pid,
    names: Option<Arc<PipeWriter>>,
) {
    lead(command, agent, names, || {
        rustix::process::setpgid(None, None)?;
        // SAFETY: it sets the default way to ignore a signal, in a process that has one thread.
        unsafe { libc::signal(libc::SIGTSTP, libc::SIG_IGN) };
        // A worker without the foreground is better than none.
        let _ = give_foreground(getpid());
        Ok(())
    });
}

/// Gives the foreground of the terminal that is standard input to a process group of this session, whatever group has it.
/// Takes no lock and does not allocate.
///
/// # Errors
/// The errors of tcsetpgrp(3): standard input is not the terminal of this session.
pub(crate) fn give_foreground(group: Pid) -> io::Result<()> {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are valid memory, and sigemptyset initializes `blocked`. A group in the background gets
    // SIGTTOU for the call, unless that is blocked in its thread.
    unsafe {
        libc::sigemptyset(blocked.as_mut_ptr());
        libc::sigaddset(blocked.as_mut_ptr(), libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
        let result = libc::tcsetpgrp(libc::STDIN_FILENO, group.as_raw_nonzero().get());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if result < 0 { Err(error) } else { Ok(()) }
    }
}

/// Does the work of [`lead_own_session`]. `place` gives the process its session and group, and makes only system calls.
fn lead(
    command: &mut Command,
    agent: Pid,
    names: Option<Arc<PipeWriter>>,
    place: impl Fn() -> rustix::io::Result<()> + Send + Sync + 'static,
) {
    let prepare = move || {
        place()?;
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // An agent that died before the line above no longer causes a signal.
        if getppid() != Some(agent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        if let Some(names) = &names {
            let mut line = [0; LINE_MAX_BYTES];
            // A worker that the guardian does not know is better than none.
            let _ = rustix::io::write(names, line_of(getpid(), &mut line));
        }
        Ok(())
    };
    c10d_socket::restore_file_limit(command);
    // SAFETY: between fork and exec of a process with threads only async-signal-safe calls are
    // allowed. The closure makes system calls (in `place`, and prctl, getppid, getpid, write), takes no lock and
    // neither allocates nor frees: the line is on the stack, and the pipe is only borrowed. Errors are
    // plain numbers.
    unsafe { command.pre_exec(prepare) };
}

/// The digits of the largest process id, and the newline.
const LINE_MAX_BYTES: usize = 11;

/// A process id in decimal digits, as a line. Does not allocate.
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

/// Returns the session of a process; `None` if its leader is outside of this process's PID namespace, for example for
/// the first processes of a container. The system then returns 0, which is not a process id.
///
/// # Errors
/// The errors of getsid(2): ESRCH if the process does not exist.
pub(crate) fn session_of(process: Pid) -> io::Result<Option<Pid>> {
    // SAFETY: it takes and returns a number.
    let session = unsafe { libc::getsid(process.as_raw_nonzero().get()) };
    if session < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(session))
}

/// Returns the process group of a process. `None` if the process does not exist, or is a thread of the kernel: for that the
/// system returns 0, which is not a process id.
#[cfg(target_os = "linux")]
pub(crate) fn group_of(process: Pid) -> Option<Pid> {
    // SAFETY: it takes and returns a number.
    let group = unsafe { libc::getpgid(process.as_raw_nonzero().get()) };
    Pid::from_raw(group.max(0))
}

/// Restores the default of SIGCHLD if it is ignored, as some programs leave it to their children: the
/// system then discards exit statuses. Returns whether it was ignored.
///
/// # Errors
/// The errors of sigaction(2), which has none for this signal.
pub(crate) fn unignore_child_signal() -> io::Result<bool> {
    let mut present = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action changes nothing; the old action is written to valid memory.
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
    // SAFETY: the action is the present one except for a flag and perhaps the default disposition, so
    // this installs no new handler.
    let result = unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(true)
}

/// Makes a named pipe that only this user can open.
///
/// # Errors
/// The errors of mkfifo(3), for example for a file that exists.
pub(crate) fn make_fifo(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a string that ends with a null byte and lives until the call returns.
    let result = unsafe { libc::mkfifo(path.as_ptr(), 0o600) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_session_of_a_process_is_that_of_proc_or_none() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let session: i32 = fields.split_whitespace().nth(3).unwrap().parse().unwrap();
        // Both are 0 where a session from outside of a PID namespace runs the tests.
        assert_eq!(session_of(getpid()).unwrap(), Pid::from_raw(session));
        let error = session_of(Pid::from_raw(i32::MAX).unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_process_id_is_written_in_decimal_digits() {
        for number in [1, 9, 10, 4_194_304, 1_000_000_000, i32::MAX] {
            let pid = Pid::from_raw(number).unwrap();
            let expected = format!("{number}\n");
            assert_eq!(line_of(pid, &mut [0; LINE_MAX_BYTES]), expected.as_bytes());
        }
    }
}
