//! The system calls that need `unsafe`, each behind a safe function.
#![expect(
    unsafe_code,
    reason = "receiving into unset memory, duplicating a descriptor known by its number, listing the \
              interfaces, reading the disposition of a signal, noticing a fork and code between fork and \
              exec have no safe form; nothing else in the crate is allowed any"
)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::process::{Resource, Rlimit, setrlimit};
use socket2::SockRef;

/// Makes one receive into the spare capacity of `buf`, of at most `max` bytes, and returns the number
/// of bytes; 0 at the end of the stream.
///
/// Does not zero the memory and does not grow `buf`: the caller decides with [`Vec::reserve`] how much
/// memory a peer may fill. Blocks if the socket does.
///
/// ```
/// use std::io::Write;
/// use std::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut sender = TcpStream::connect(listener.local_addr()?)?;
/// let (receiver, _) = listener.accept()?;
/// sender.write_all(b"hello")?;
///
/// let mut buf = Vec::with_capacity(64);
/// assert_eq!(c10d_socket::recv_into_spare(&receiver, &mut buf, 2)?, 2);
/// assert_eq!(buf, b"he");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The error of recv(2), including [`io::ErrorKind::WouldBlock`]. An interrupted call is repeated.
/// [`io::ErrorKind::InvalidInput`] without spare capacity or with a `max` of 0, since a receive of 0
/// bytes would look like the end of the stream.
pub fn recv_into_spare(socket: &impl AsFd, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
    let socket = SockRef::from(socket);
    let spare = buf.spare_capacity_mut();
    let room = spare.len().min(max);
    if room == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no room to receive into",
        ));
    }
    let received = loop {
        match socket.recv(&mut spare[..room]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    debug_assert!(received <= room);
    let filled = buf.len() + received;
    // SAFETY: recv(2) wrote the first `received` bytes of the spare capacity, and `received <= room`
    // keeps the new length within the capacity.
    unsafe { buf.set_len(filled) };
    Ok(received)
}

/// Returns the freed memory of this process to the system. The allocator keeps small pieces for later, however many
/// they are. Call it after a peak, because its time grows with the number of pieces. Does nothing with other
/// allocators than glibc's.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it has no arguments that could be invalid, and takes the allocator's locks.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Returns whether this process ignores the signal with this number, for example SIGHUP when nohup(1) has started it.
/// A number that is not a signal is not ignored.
///
/// ```
/// assert!(!c10d_socket::is_signal_ignored(15));
/// ```
#[must_use]
pub fn is_signal_ignored(signal: i32) -> bool {
    let mut present = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action changes nothing; the present one is written to valid memory.
    let result = unsafe { libc::sigaction(signal, ptr::null(), present.as_mut_ptr()) };
    // SAFETY: the call has filled it, or has left the zeroes, which are valid.
    let action = unsafe { present.assume_init() };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Has fork(3) call `handler` in each child, before it returns there. Returns false if the system has no memory for that.
pub(crate) fn call_in_forked_children(handler: extern "C" fn()) -> bool {
    // SAFETY: the handler takes no arguments and is not unwound through. It may run in a child of a process with threads,
    // where only async-signal-safe code is allowed: the only caller's loads and stores an atomic and asks for the process id.
    unsafe { libc::pthread_atfork(None, None, Some(handler)) == 0 }
}

/// Makes the process that `command` starts set this limit on open files before it executes its program.
pub(crate) fn set_file_limit(command: &mut Command, limit: Rlimit) {
    // A program that gets a higher limit than its caller had is better than none.
    let prepare = move || {
        let _ = setrlimit(Resource::Nofile, limit);
        Ok(())
    };
    // SAFETY: between fork and exec of a process with threads only async-signal-safe calls are allowed. The closure
    // makes one system call (prlimit) with a copied value; it takes no lock and neither allocates nor frees.
    unsafe { command.pre_exec(prepare) };
}

/// A close-on-exec duplicate of `fd`, which stays unchanged.
///
/// # Errors
/// EBADF if `fd` is not open, EMFILE if the process has no descriptor left.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(F_DUPFD_CLOEXEC) takes plain integers and accesses no memory; a number that is not
    // open is an error.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system just made `copy`, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Calls `visit` with the name and the address of each interface that has one.
///
/// # Errors
/// The error of getifaddrs(3).
pub(crate) fn for_each_interface_address(mut visit: impl FnMut(&[u8], IpAddr)) -> io::Result<()> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: getifaddrs(3) writes one pointer to `first`, which is valid for that.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut next = first;
    // SAFETY: until freeifaddrs(3), `next` is null or an element of the list that getifaddrs(3) has made.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_name.is_null() {
            continue;
        }
        // SAFETY: `ifa_addr` is an address whose family says which type it has, and is read without an assumption about
        // its alignment; `ifa_name` is a string with an end. Both belong to the list.
        let (address, name) = unsafe {
            let address: IpAddr = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let v4 = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into()
                }
                libc::AF_INET6 => {
                    let v6 = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    Ipv6Addr::from(v6.sin6_addr.s6_addr).into()
                }
                _ => continue,
            };
            (address, CStr::from_ptr(entry.ifa_name))
        };
        visit(name.to_bytes(), address);
    }
    // SAFETY: `first` is the list of getifaddrs(3), and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(())
}
