//! Sends on a socket without raising SIGPIPE.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use socket2::SockRef;

/// Pieces in one send: the system's IOV_MAX, 1024 on Linux and macOS.
const PIECES_MAX: usize = 1024;

/// Makes a write to a closed connection an error instead of SIGPIPE, whatever the program does about
/// that signal. Apple's systems lack the flag; there socket2 and the standard library set a socket
/// option with the same effect.
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: libc::c_int = 0;
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL;

/// Makes one send of the pieces, in order, and returns how many bytes the system accepted. Blocks if
/// the socket does.
///
/// A closed connection is an error and never raises SIGPIPE. Sends at most the first 1024 pieces.
///
/// ```
/// use std::io::{IoSlice, Read};
/// use std::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let sender = TcpStream::connect(listener.local_addr()?)?;
/// let (mut receiver, _) = listener.accept()?;
///
/// let pieces = [IoSlice::new(b"length"), IoSlice::new(b"value")];
/// assert_eq!(c10d_socket::send_vectored(&sender, &pieces)?, 11);
/// drop(sender);
/// let mut received = String::new();
/// receiver.read_to_string(&mut received)?;
/// assert_eq!(received, "lengthvalue");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The error of send(2), including [`io::ErrorKind::WouldBlock`]. An interrupted call is repeated.
pub fn send_vectored(socket: &impl AsFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let socket = SockRef::from(socket);
    let pieces = &pieces[..pieces.len().min(PIECES_MAX)];
    loop {
        let sent = match pieces {
            [piece] => socket.send_with_flags(piece, SEND_FLAGS),
            _ => socket.send_vectored_with_flags(pieces, SEND_FLAGS),
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
