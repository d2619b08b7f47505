//! Sending once on a socket, without a signal.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use socket2::SockRef;

/// How many pieces one send takes: the system refuses more than IOV_MAX, 1024 on Linux and macOS.
const PIECES_MAX: usize = 1024;

/// A write to a closed connection is an error and must not be a signal, whatever the program that
/// embeds us does about SIGPIPE. Apple's systems know no such flag; there socket2 and the standard
/// library set the same as a socket option.
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: libc::c_int = 0;
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL;

/// Sends once on a socket, from the first of the pieces onwards; returns how many bytes the system
/// took. Blocks if the socket does.
///
/// A closed connection is an error and never a SIGPIPE. Of more than 1024 pieces only the first 1024
/// are sent.
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
/// What send(2) reports, [`io::ErrorKind::WouldBlock`] among it; an interrupted call is made again.
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
