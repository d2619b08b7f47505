//! The names of system calls, by their numbers on this processor.

/// Returns the call in the text of `/proc/PID/syscall`, which has its number and its arguments, or "running".
pub(crate) fn parse(text: &str) -> Option<String> {
    let number = text.split_ascii_whitespace().next()?.parse().ok()?;
    name(number)
}

/// Returns the name of a call, or the number of a rare call, for example "system call 999". `None` outside of a call.
fn name(number: i64) -> Option<String> {
    if number < 0 {
        return None;
    }
    let mut known = NAMES.iter().chain(OLD_NAMES);
    Some(match known.find(|(known, _)| *known == number) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("system call {number}"),
    })
}

/// The calls of all processors in which a process can wait for long.
#[cfg(target_os = "linux")]
const NAMES: &[(i64, &str)] = &[
    (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_clone, "clone"),
    (libc::SYS_clone3, "clone3"),
    (libc::SYS_close, "close"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_copy_file_range, "copy_file_range"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_epoll_pwait2, "epoll_pwait2"),
    (libc::SYS_execve, "execve"),
    (libc::SYS_faccessat, "faccessat"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_futex_waitv, "futex_waitv"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_getrandom, "getrandom"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_mkdirat, "mkdirat"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_mq_timedreceive, "mq_timedreceive"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_msgrcv, "msgrcv"),
    (libc::SYS_msync, "msync"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_newfstatat, "newfstatat"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_preadv, "preadv"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_read, "read"),
    (libc::SYS_readlinkat, "readlinkat"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_renameat, "renameat"),
    (libc::SYS_renameat2, "renameat2"),
    (libc::SYS_restart_syscall, "restart_syscall"),
    (libc::SYS_rt_sigsuspend, "rt_sigsuspend"),
    (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
    (libc::SYS_semop, "semop"),
    (libc::SYS_semtimedop, "semtimedop"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_sendmmsg, "sendmmsg"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_splice, "splice"),
    (libc::SYS_statfs, "statfs"),
    (libc::SYS_statx, "statx"),
    (libc::SYS_sync, "sync"),
    (libc::SYS_sync_file_range, "sync_file_range"),
    (libc::SYS_syncfs, "syncfs"),
    (libc::SYS_truncate, "truncate"),
    (libc::SYS_unlinkat, "unlinkat"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "writev"),
];

/// The calls that newer processors have only in a newer form.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const OLD_NAMES: &[(i64, &str)] = &[
    (libc::SYS_access, "access"),
    (libc::SYS_epoll_wait, "epoll_wait"),
    (libc::SYS_fork, "fork"),
    (libc::SYS_lstat, "lstat"),
    (libc::SYS_mkdir, "mkdir"),
    (libc::SYS_open, "open"),
    (libc::SYS_pause, "pause"),
    (libc::SYS_poll, "poll"),
    (libc::SYS_readlink, "readlink"),
    (libc::SYS_rename, "rename"),
    (libc::SYS_rmdir, "rmdir"),
    (libc::SYS_select, "select"),
    (libc::SYS_stat, "stat"),
    (libc::SYS_unlink, "unlink"),
    (libc::SYS_vfork, "vfork"),
];

#[cfg(all(target_os = "linux", not(target_arch = "x86_64")))]
const OLD_NAMES: &[(i64, &str)] = &[];

#[cfg(not(target_os = "linux"))]
const NAMES: &[(i64, &str)] = &[];

#[cfg(not(target_os = "linux"))]
const OLD_NAMES: &[(i64, &str)] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_call_has_its_name() {
        let read = format!(
            "{} 0x3 0x7ffd 0x400 0x0 0x0 0x0 0x7ffe 0x7f01\n",
            libc::SYS_read
        );
        assert_eq!(parse(&read).as_deref(), Some("read"));
        let futex = libc::SYS_futex.to_string();
        assert_eq!(parse(&futex).as_deref(), Some("futex"));
        assert_eq!(parse("9999 0x3").as_deref(), Some("system call 9999"));
    }

    #[test]
    fn what_is_no_call_has_none() {
        for text in ["running\n", "-1 0x7ffe 0x7f01\n", "", "\u{1b}[2J"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
