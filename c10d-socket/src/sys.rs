//! The system calls that need `unsafe`, each behind a safe function.
#![expect(
    unsafe_code,
    reason = "receiving into unset memory and duplicating a descriptor known by its number have no \
              safe form; nothing else in the crate is allowed any"
)]

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

use socket2::SockRef;

/// Receives once from a socket and appends to `buf`, into the capacity it has to spare and at most
/// `max` bytes; returns how many bytes came, 0 at the end of the stream.
///
/// The memory is not zeroed first, and `buf` never grows: how much memory a peer may fill is the
/// caller's decision, made with [`Vec::reserve`]. Blocks if the socket does.
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
/// What recv(2) reports, [`io::ErrorKind::WouldBlock`] among it; an interrupted call is made again.
/// [`io::ErrorKind::InvalidInput`] when there is no room (no spare capacity, or `max` is 0), since a
/// receive of 0 bytes could not be told from the end of the stream.
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

/// A second descriptor, closed on exec, for what `fd` refers to; `fd` itself is left as it is.
///
/// # Errors
/// EBADF when `fd` is not open, EMFILE when the process has no descriptor left.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(F_DUPFD_CLOEXEC) takes plain integers and touches no memory of ours; a number
    // that is not open is an error.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system just made `copy`, so it is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
