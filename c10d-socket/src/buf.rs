//! Send buffer for a non-blocking socket.
//!
//! [`SendBuf::flush`] writes to anything that implements [`Write`]. There is no receive buffer, since
//! the protocol decides which received bytes to keep.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use socket2::SockRef;

/// Slices passed to one vectored write.
const SLICES_PER_WRITE_MAX: usize = 64;

/// Bytes of capacity that an empty buffer keeps: an idle connection stays small, and a busy one with
/// short replies does not allocate for each.
const CAPACITY_KEPT_MAX: usize = 512;

/// The first capacity beyond that. Doubling up to it would cost a pipelining client several moves for each of its
/// batches.
const CAPACITY_STEP: usize = 4096;

/// About what a piece costs besides its bytes, with its share of the list's unused capacity and a short allocation.
const PIECE_BYTES: usize = 96;

/// A queue of outgoing bytes: short pieces are copied into one allocation, long ones can be shared
/// with their owner instead.
///
/// ```
/// use c10d_socket::SendBuf;
/// use std::sync::Arc;
///
/// let mut out = SendBuf::new();
/// out.push(b"length");
/// out.push_shared(Arc::new(b"xxvalue".to_vec()), 2);
/// assert_eq!(out.unsent_bytes(), 11);
///
/// let mut wire = Vec::new();
/// out.flush(&mut wire)?;
/// assert_eq!(wire, b"lengthvalue");
/// assert!(out.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Default)]
pub struct SendBuf {
    /// Sent before `rest`. Invariant: `head_sent <= head.len()`, and both are 0 when the buffer is
    /// empty.
    head: Vec<u8>,
    head_sent: usize,
    /// The first shared piece and everything after it. `None` on most connections; a server has thousands of them.
    rest: Option<Box<Rest>>,
}

#[derive(Default)]
struct Rest {
    pieces: VecDeque<Piece>,
    /// Unsent bytes in `pieces`.
    unsent: usize,
    /// The number of bytes in shared pieces.
    shared_unsent: usize,
}

impl std::fmt::Debug for SendBuf {
    /// Lengths only: the bytes can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendBuf")
            .field("unsent_bytes", &self.unsent_bytes())
            .field("copied_bytes", &self.copied_bytes())
            .finish_non_exhaustive()
    }
}

enum Piece {
    Copied { bytes: Vec<u8>, sent: usize },
    Shared { bytes: Arc<Vec<u8>>, sent: usize },
}

impl Piece {
    fn unsent(&self) -> &[u8] {
        match self {
            Self::Copied { bytes, sent } => &bytes[*sent..],
            Self::Shared { bytes, sent } => &bytes[*sent..],
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Copied { sent, .. } | Self::Shared { sent, .. } => *sent += count,
        }
    }
}

impl SendBuf {
    /// Creates an empty buffer. Allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether all bytes have been sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unsent_bytes() == 0
    }

    /// Returns the number of unsent bytes, including shared bytes.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        let of_rest = self.rest.as_ref().map_or(0, |rest| rest.unsent);
        self.head.len() - self.head_sent + of_rest
    }

    /// Returns the number of unsent bytes that this buffer holds in its own memory: all except the shared bytes.
    #[must_use]
    pub fn copied_bytes(&self) -> usize {
        let shared = self.rest.as_ref().map_or(0, |rest| rest.shared_unsent);
        self.unsent_bytes() - shared
    }

    /// Returns about how much memory the buffer holds, in bytes: the memory allocated for copied bytes, and the list
    /// of shared pieces, but not the shared bytes themselves.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let of_rest = self.rest.as_ref().map_or(0, |rest| {
            rest.unsent - rest.shared_unsent + rest.pieces.len() * PIECE_BYTES
        });
        self.head.capacity() + of_rest
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.push_pair(bytes, &[]);
    }

    /// Appends a copy of `first`, then one of `second`.
    #[inline]
    pub fn push_pair(&mut self, first: &[u8], second: &[u8]) {
        if let Some(rest) = &mut self.rest {
            rest.push(first);
            return rest.push(second);
        }
        let count = first.len() + second.len();
        if count > self.head.capacity() - self.head.len() {
            self.grow_head(count);
        }
        self.head.extend_from_slice(first);
        self.head.extend_from_slice(second);
    }

    #[cold]
    fn grow_head(&mut self, count: usize) {
        drop_sent(&mut self.head, &mut self.head_sent);
        let wanted = self.head.len() + count;
        if wanted > CAPACITY_KEPT_MAX && wanted < CAPACITY_STEP {
            self.head.reserve_exact(CAPACITY_STEP - self.head.len());
        } else {
            self.head.reserve(count);
        }
    }

    /// Appends `bytes[start..]` without copying. Drops the `Arc` once it is sent.
    ///
    /// # Panics
    /// If `start` is beyond the end of `bytes`.
    pub fn push_shared(&mut self, bytes: Arc<Vec<u8>>, start: usize) {
        assert!(start <= bytes.len(), "start must be within the bytes");
        let rest = self.rest.get_or_insert_default();
        rest.unsent += bytes.len() - start;
        rest.shared_unsent += bytes.len() - start;
        rest.pieces.push_back(Piece::Shared { bytes, sent: start });
    }

    /// Returns the shared pieces that are not completely sent, in their order.
    pub fn shared(&self) -> impl Iterator<Item = &Arc<Vec<u8>>> {
        let pieces = self.rest.iter().flat_map(|rest| &rest.pieces);
        pieces.filter_map(|piece| match piece {
            Piece::Shared { bytes, .. } => Some(bytes),
            Piece::Copied { .. } => None,
        })
    }

    /// Returns the first shared piece that is not completely sent: the number of unsent bytes before it, its bytes,
    /// and how many of its bytes are sent.
    #[must_use]
    pub fn first_shared(&self) -> Option<(usize, &Arc<Vec<u8>>, usize)> {
        let mut before = self.head.len() - self.head_sent;
        for piece in &self.rest.as_ref()?.pieces {
            match piece {
                Piece::Shared { bytes, sent } => return Some((before, bytes, *sent)),
                Piece::Copied { .. } => before += piece.unsent().len(),
            }
        }
        None
    }

    /// Considers the first `count` unsent bytes sent, or all if there are fewer.
    pub fn skip(&mut self, count: usize) {
        self.advance(count.min(self.unsent_bytes()));
        if self.is_empty() {
            self.release();
        }
    }

    /// Moves the unsent bytes of another buffer to the end of this buffer.
    pub fn append(&mut self, other: Self) {
        if self.is_empty() && other.memory_bytes() > CAPACITY_KEPT_MAX {
            *self = other;
            return;
        }
        self.push(&other.head[other.head_sent..]);
        for piece in other.rest.into_iter().flat_map(|rest| rest.pieces) {
            match piece {
                Piece::Copied { .. } => self.push(piece.unsent()),
                Piece::Shared { bytes, sent } => self.push_shared(bytes, sent),
            }
        }
    }

    /// Writes until everything is sent or the writer would block. Returns whether the buffer is now
    /// empty. Blocks only if the writer does.
    ///
    /// # Errors
    /// Errors of the writer, except `WouldBlock` and `Interrupted`; [`io::ErrorKind::WriteZero`] when
    /// a write accepts no bytes.
    pub fn flush<W: Write>(&mut self, writer: &mut W) -> io::Result<bool> {
        while !self.is_empty() {
            let written = match &self.rest {
                None => writer.write(&self.head[self.head_sent..]),
                Some(rest) => rest.write_vectored_after(&self.head[self.head_sent..], writer),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.release();
        Ok(true)
    }

    fn advance(&mut self, count: usize) {
        let of_head = count.min(self.head.len() - self.head_sent);
        self.head_sent += of_head;
        if let Some(rest) = &mut self.rest {
            rest.advance(count - of_head);
        }
    }

    fn release(&mut self) {
        self.head.clear();
        self.head_sent = 0;
        if self.head.capacity() > CAPACITY_KEPT_MAX {
            self.head.shrink_to(CAPACITY_KEPT_MAX);
        }
        self.rest = None;
    }
}

impl Rest {
    fn push(&mut self, bytes: &[u8]) {
        self.unsent += bytes.len();
        if let Some(Piece::Copied { bytes: last, sent }) = self.pieces.back_mut() {
            drop_sent(last, sent);
            last.extend_from_slice(bytes);
        } else {
            self.pieces.push_back(Piece::Copied {
                bytes: bytes.to_vec(),
                sent: 0,
            });
        }
    }

    fn write_vectored_after<W: Write>(&self, head: &[u8], writer: &mut W) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE_MAX];
        let mut used = 0;
        let pieces = self.pieces.iter().map(Piece::unsent);
        for bytes in std::iter::once(head).chain(pieces) {
            if used == SLICES_PER_WRITE_MAX {
                break;
            }
            if !bytes.is_empty() {
                slices[used] = IoSlice::new(bytes);
                used += 1;
            }
        }
        writer.write_vectored(&slices[..used])
    }

    fn advance(&mut self, mut count: usize) {
        self.unsent -= count;
        while let Some(piece) = self.pieces.front_mut() {
            let unsent = piece.unsent().len();
            let of_piece = count.min(unsent);
            if matches!(piece, Piece::Shared { .. }) {
                self.shared_unsent -= of_piece;
            }
            if count < unsent {
                piece.advance(count);
                break;
            }
            count -= unsent;
            self.pieces.pop_front();
        }
    }
}

/// Removes the sent bytes from the front, once they are as many as the unsent bytes: a buffer that never becomes
/// empty must not keep everything that was ever sent. Each byte is moved once on average.
fn drop_sent(bytes: &mut Vec<u8>, sent: &mut usize) {
    if *sent > 0 && *sent >= bytes.len() - *sent {
        bytes.drain(..*sent);
        *sent = 0;
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts `step` bytes in every second call, and would block in the remaining calls.
    struct Trickle {
        taken: Vec<u8>,
        step: usize,
        ready: bool,
    }

    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            self.ready = !self.ready;
            if !self.ready {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let before = self.taken.len();
            for slice in slices {
                let room = self.step - (self.taken.len() - before);
                self.taken
                    .extend_from_slice(&slice[..slice.len().min(room)]);
            }
            Ok(self.taken.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn shared_pieces_are_found_and_skipped() {
        let mut out = SendBuf::new();
        assert!(out.first_shared().is_none());
        let shared = Arc::new(vec![7; 10]);
        out.push(b"head");
        out.push_shared(Arc::clone(&shared), 2);
        out.push(b"between");
        out.push_shared(Arc::clone(&shared), 0);
        let place = |out: &SendBuf| out.first_shared().map(|(before, _, sent)| (before, sent));
        assert_eq!(place(&out), Some((4, 2)));
        out.skip(1);
        assert_eq!(place(&out), Some((3, 2)));
        out.skip(6);
        assert_eq!(place(&out), Some((0, 5)));
        out.skip(5);
        assert_eq!(place(&out), Some((7, 0)));
        assert_eq!((out.unsent_bytes(), out.copied_bytes()), (17, 7));
        out.skip(100);
        assert!(out.is_empty() && out.first_shared().is_none());
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn partial_writes_resume_where_they_stopped() {
        for step in 1..40 {
            let mut out = SendBuf::new();
            let mut expected = Vec::new();
            for round in 0..5_u8 {
                let small = vec![round; usize::from(round)];
                out.push(&small);
                expected.extend_from_slice(&small);
                let shared: Vec<u8> = (0..20).map(|i| i + 10 * round).collect();
                expected.extend_from_slice(&shared[usize::from(round)..]);
                out.push_shared(Arc::new(shared), usize::from(round));
            }
            out.push(b"end");
            expected.extend_from_slice(b"end");

            let mut writer = Trickle {
                taken: Vec::new(),
                step,
                ready: false,
            };
            let mut left = out.unsent_bytes();
            assert_eq!(left, expected.len());
            while !out.flush(&mut writer).expect("a trickle does not fail") {
                assert_eq!(out.unsent_bytes(), expected.len() - writer.taken.len());
                assert!(out.unsent_bytes() < left, "step {step}: no progress");
                left = out.unsent_bytes();
            }
            assert_eq!(writer.taken, expected, "step {step}");
            assert!(out.is_empty());
            assert_eq!(out.copied_bytes(), 0);
        }
    }

    #[test]
    fn an_empty_buffer_releases_its_memory() {
        let mut out = SendBuf::new();
        out.push(&[7; 100_000]);
        out.push_shared(Arc::new(vec![8; 10]), 0);
        out.push(b"tail");
        assert!(
            out.flush(&mut io::sink())
                .expect("a sink accepts everything")
        );
        assert!(out.head.capacity() <= CAPACITY_KEPT_MAX);
        assert!(out.rest.is_none());

        out.push(&[7; 100]);
        assert!(
            out.flush(&mut io::sink())
                .expect("a sink accepts everything")
        );
        assert!(
            out.head.capacity() >= 100,
            "capacity for a short reply is kept"
        );
    }

    /// Accepts this number of bytes, then blocks.
    struct Room(usize);

    impl Write for Room {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let count = slices.iter().map(|slice| slice.len()).sum::<usize>();
            let count = count.min(self.0);
            self.0 -= count;
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_buffer_that_never_becomes_empty_does_not_keep_what_was_sent() {
        for shared in [0, 10] {
            let mut out = SendBuf::new();
            out.push_shared(Arc::new(vec![1; shared]), 0);
            out.push(&[7; 1000]);
            for _ in 0..10_000 {
                out.push(&[7; 1000]);
                assert!(!out.flush(&mut Room(1000)).expect("room does not fail"));
            }
            assert_eq!(out.unsent_bytes(), 1000 + shared);
            let pieces = out.rest.iter().flat_map(|rest| &rest.pieces);
            let of_pieces: usize = pieces
                .map(|piece| match piece {
                    Piece::Copied { bytes, .. } => bytes.capacity(),
                    Piece::Shared { .. } => 0,
                })
                .sum();
            let held = out.head.capacity() + of_pieces;
            assert!(held < 20_000, "{held} bytes");
            assert!(out.memory_bytes() < 20_000);
        }
    }

    #[test]
    fn an_appended_buffer_is_sent_after_what_was_there() {
        let of = |name: u8, shared: bool| {
            let mut out = SendBuf::new();
            out.push(&[name; 3]);
            if shared {
                out.push_shared(Arc::new(vec![name; 600]), 1);
                out.push(&[name; 2]);
            }
            let mut room = Room(2);
            assert!(!out.flush(&mut room).expect("room does not fail"));
            out
        };
        for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut out = SendBuf::new();
            let mut expected = Vec::new();
            for (name, shared) in [(1, first), (2, second)] {
                out.append(of(name, shared));
                expected.resize(expected.len() + if shared { 602 } else { 1 }, name);
            }
            assert_eq!(out.unsent_bytes(), expected.len());
            let mut sent = Vec::new();
            assert!(out.flush(&mut sent).expect("a vector accepts everything"));
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn the_memory_of_many_short_pieces_is_counted() {
        let mut out = SendBuf::new();
        for _ in 0..1000 {
            out.push(b"length");
            out.push_shared(Arc::new(vec![1; 100_000]), 0);
        }
        assert!((100_000..1_000_000).contains(&out.memory_bytes()));
    }

    #[test]
    fn a_zero_length_write_is_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Ok(0)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = SendBuf::new();
        out.push(b"x");
        let error = out.flush(&mut Full).expect_err("a write of zero bytes");
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn debug_output_contains_no_data() {
        let mut out = SendBuf::new();
        out.push(b"QZQZ");
        out.push_shared(Arc::new(b"QZQZ".to_vec()), 0);
        out.push(b"QZQZ");
        assert_eq!(
            format!("{out:?}"),
            "SendBuf { unsent_bytes: 12, copied_bytes: 8, .. }"
        );
    }
}
