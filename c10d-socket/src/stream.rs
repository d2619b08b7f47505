//! A blocking connection whose every call keeps to a deadline.

use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::SockRef;

use crate::sys::recv_into_spare;
use crate::wait::{wait_for_input_by, wait_for_output_by};
use crate::{Deadline, WriteError};

/// A TCP connection to read from and write to with a deadline for each call.
///
/// All calls take `&self`: while one thread reads, another may write, or end both with
/// [`shutdown`](Self::shutdown). Two threads that read at once share the stream's bytes between them
/// in no useful order, so a caller allows one reader and one writer.
///
/// A deadline that has passed looks once: what can be done without waiting is done. A request and
/// its reply cost three system calls: send, poll, receive.
///
/// ```
/// use c10d_socket::{Deadline, DeadlineStream};
/// use std::net::{TcpListener, TcpStream};
/// use std::time::{Duration, Instant};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let near = DeadlineStream::new(TcpStream::connect(listener.local_addr()?)?)?;
/// let far = DeadlineStream::new(listener.accept()?.0)?;
///
/// let soon = Deadline::after(Instant::now(), Duration::from_secs(5));
/// near.write_all_by(b"ping", soon)?;
/// let mut buf = [0; 4];
/// far.read_exact_by(&mut buf, soon)?;
/// assert_eq!(&buf, b"ping");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct DeadlineStream {
    /// Non-blocking, so that a wrong guess about readiness cannot hang.
    stream: TcpStream,
    /// Whether more input is likely to be there, as the last receive filled its buffer. Then a
    /// receive is tried before a poll; otherwise the poll comes first, for a reply is hardly ever
    /// there when its request has just left. Only a guess: each way is correct.
    more_likely: AtomicBool,
}

impl DeadlineStream {
    /// Takes over a connection, and makes it non-blocking for all who share it.
    ///
    /// # Errors
    /// What the system reports when it cannot.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            more_likely: AtomicBool::new(false),
        })
    }

    /// Reads what there is, at least one byte and at most `buf.len()`, waiting for it until the
    /// deadline. Returns the number of bytes; 0 at the end of the stream, or when `buf` is empty.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when nothing came by the deadline, else what the connection
    /// reports.
    pub fn read_by(&self, buf: &mut [u8], deadline: Deadline) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let room = buf.len();
        self.receive(room, deadline, || (&self.stream).read(buf))
    }

    /// Fills `buf`, waiting until the deadline.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when too few bytes came by the deadline,
    /// [`io::ErrorKind::UnexpectedEof`] when the stream ends before, else what the connection
    /// reports. What was received by then is in `buf`, and the text of the first two says how many
    /// bytes that is.
    pub fn read_exact_by(&self, buf: &mut [u8], deadline: Deadline) -> io::Result<()> {
        let mut received = 0;
        while received < buf.len() {
            match self.read_by(&mut buf[received..], deadline) {
                Ok(0) => return Err(ended_early(received, buf.len())),
                Ok(count) => received += count,
                Err(error) => return Err(explained(error, received, buf.len())),
            }
        }
        Ok(())
    }

    /// Appends exactly `len` bytes to `buf`, waiting until the deadline; never takes more from the
    /// stream.
    ///
    /// The memory is not zeroed first, and is reserved as the bytes come: at no time for more than
    /// 64 KiB and eight times what was received so far. So a peer that announces much and sends
    /// little costs little, and a large value is moved a handful of times.
    ///
    /// # Errors
    /// As [`read_exact_by`](Self::read_exact_by). What was received by then is at the end of `buf`.
    pub fn read_exact_into_vec_by(
        &self,
        buf: &mut Vec<u8>,
        len: usize,
        deadline: Deadline,
    ) -> io::Result<()> {
        let mut received = 0;
        while received < len {
            let missing = len - received;
            if buf.len() == buf.capacity() {
                let ahead = READ_AHEAD_BYTES.saturating_add(received.saturating_mul(8));
                buf.reserve_exact(missing.min(ahead));
            }
            let room = missing.min(buf.capacity() - buf.len());
            let count = self.receive(room, deadline, || {
                recv_into_spare(&self.stream, buf, missing)
            });
            match count {
                Ok(0) => return Err(ended_early(received, len)),
                Ok(count) => received += count,
                Err(error) => return Err(explained(error, received, len)),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`, waiting for room until the deadline. Success means that the system has
    /// them, not that the peer does.
    ///
    /// # Errors
    /// A [`WriteError`], which tells how many bytes were taken before the failure; its cause is
    /// [`io::ErrorKind::TimedOut`] at the deadline.
    pub fn write_all_by(&self, bytes: &[u8], deadline: Deadline) -> Result<(), WriteError> {
        self.write_vectored_all_by(&mut [IoSlice::new(bytes)], deadline)
    }

    /// Writes all of several pieces one after the other, as [`write_all_by`](Self::write_all_by). The
    /// pieces are used up on the way: their content afterwards is unspecified.
    ///
    /// # Errors
    /// As [`write_all_by`](Self::write_all_by).
    pub fn write_vectored_all_by(
        &self,
        mut pieces: &mut [IoSlice<'_>],
        deadline: Deadline,
    ) -> Result<(), WriteError> {
        let socket = SockRef::from(&self.stream);
        let mut written = 0;
        self.more_likely.store(false, Ordering::Relaxed);
        // Empty pieces in front would make a send of nothing look like a closed connection.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let batch = &pieces[..pieces.len().min(PIECES_MAX)];
            let sent = match batch {
                [piece] => socket.send_with_flags(piece, SEND_FLAGS),
                _ => socket.send_vectored_with_flags(batch, SEND_FLAGS),
            };
            let error = match sent {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    written += count;
                    IoSlice::advance_slices(&mut pieces, count);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match wait_for_output_by(&self.stream, deadline) {
                        Ok(true) => continue,
                        Ok(false) => io::ErrorKind::TimedOut.into(),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            return Err(WriteError::new(written, error));
        }
        Ok(())
    }

    /// Ends the connection in both directions: a thread that waits in a read or a write on it returns
    /// at once, with the end of the stream or a broken pipe. What was written before is still sent.
    /// Does not block.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] when the connection has already failed.
    pub fn shutdown(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Both)
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// When the connection has already failed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// The address of this end.
    ///
    /// # Errors
    /// What the system reports.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Runs `receive_once`, which has `room` bytes of room, until it does not say "would block".
    fn receive(
        &self,
        room: usize,
        deadline: Deadline,
        mut receive_once: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut poll_first = !self.more_likely.load(Ordering::Relaxed);
        loop {
            if poll_first && !wait_for_input_by(&self.stream, deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            poll_first = true;
            match receive_once() {
                Ok(count) => {
                    self.more_likely.store(count == room, Ordering::Relaxed);
                    return Ok(count);
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for DeadlineStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What a peer may make us reserve by announcing a length alone.
const READ_AHEAD_BYTES: usize = 64 * 1024;

/// How many pieces one send takes: the system refuses more than IOV_MAX, 1024 on Linux and macOS.
const PIECES_MAX: usize = 1024;

/// A write to a closed connection is an error and must not be a signal, whatever the program that
/// embeds us does about SIGPIPE. Apple's systems know no such flag; there the standard library has
/// set the same as a socket option.
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: libc::c_int = 0;
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL;

fn ended_early(received: usize, len: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the connection was closed after {received} of {len} bytes"),
    )
}

/// Adds to a timeout how far the read had come.
fn explained(error: io::Error, received: usize, len: usize) -> io::Error {
    if error.kind() != io::ErrorKind::TimedOut || error.raw_os_error().is_some() {
        return error;
    }
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("timed out after {received} of {len} bytes"),
    )
}
