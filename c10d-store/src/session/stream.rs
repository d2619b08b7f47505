//! A stream of bytes in both directions that outlives the connections it travels on (docs/spec/wire-extensions.md,
//! SESSION 4 and 5).

use std::collections::VecDeque;
use std::fmt;

use byteorder::{ByteOrder, LittleEndian};
use c10d_socket::SendBuf;

/// The most unacknowledged bytes that are kept: beyond that, no bytes of clients may be
/// [pushed](SessionStream::push). Enough for 10 Gbit/s over 3 ms.
pub const SESSION_WINDOW_BYTES: usize = 4 << 20;

/// Frames of the session itself may exceed the window by this. They are short and answer frames of the peer.
const OVERRUN_BYTES_MAX: usize = SESSION_WINDOW_BYTES;

/// Received bytes that are acknowledged even if there is nothing to send.
const ACKNOWLEDGED_BYTES_MIN: u64 = 32 << 10;

/// The most bytes of the stream in one frame of a link.
const LINK_FRAME_BYTES_MAX: usize = 256 << 10;

/// The capacity that an empty stream keeps.
const CAPACITY_KEPT_MAX: usize = 512;

/// One end of a stream of bytes that outlives its links.
///
/// Over each link, call [`attach`](Self::attach) with the number of bytes that the peer has received, then
/// [`fill`](Self::fill) and [`next_bytes`](Self::next_bytes) as the link can be written and read. When a link is lost,
/// the unacknowledged bytes stay here: every byte is delivered exactly once.
///
/// ```
/// use c10d_socket::SendBuf;
/// use c10d_store::unstable::{SessionStream};
///
/// let (mut ours, mut theirs) = (SessionStream::default(), SessionStream::default());
/// ours.push(b"hello");
/// ours.fill(&mut SendBuf::new(), 100); // Lost with the link.
/// ours.attach(theirs.received())?;
/// theirs.attach(ours.received())?;
/// let mut link = SendBuf::new();
/// ours.fill(&mut link, 100);
/// let mut wire = Vec::new();
/// link.flush(&mut wire).expect("memory takes everything");
/// assert_eq!(theirs.next_bytes(&mut &wire[..])?, Some(&b"hello"[..]));
/// # Ok::<(), c10d_store::unstable::Violation>(())
/// ```
#[derive(Default)]
pub struct SessionStream {
    /// The bytes that the peer has not acknowledged. The first one has the offset `acknowledged`.
    kept: VecDeque<u8>,
    acknowledged: u64,
    /// The offset of the next byte to send over this link.
    sent: u64,
    /// How many bytes have arrived.
    received: u64,
    /// How many of these bytes were reported to the peer over this link.
    reported: u64,
    reader: LinkReader,
}

impl fmt::Debug for SessionStream {
    /// Numbers only: the bytes can be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStream")
            .field("acknowledged", &self.acknowledged)
            .field("sent", &self.sent)
            .field("end", &self.end())
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

impl SessionStream {
    /// Appends bytes to the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
    }

    /// Returns how many more bytes of clients may be pushed.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room_in(SESSION_WINDOW_BYTES)
    }

    /// Like [`room`](Self::room), with this window.
    pub(crate) fn room_in(&self, window_bytes: usize) -> usize {
        window_bytes.saturating_sub(self.kept.len())
    }

    /// Returns how many bytes have arrived so far. The peer needs this number to continue over another link.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Returns how many bytes the peer has received, as far as it has reported.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Returns how many bytes were pushed so far.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    /// Returns the memory of the bytes that the peer has not acknowledged.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match self.kept.is_empty() {
            true => 0,
            false => self.kept.capacity(),
        }
    }

    /// Returns whether there are bytes that the peer has not acknowledged.
    #[must_use]
    pub fn has_unacknowledged(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Returns whether there are unsent bytes for [`fill`](Self::fill).
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.sent < self.end() || self.received - self.reported >= ACKNOWLEDGED_BYTES_MIN
    }

    /// Returns whether received bytes have not been acknowledged to the peer. The peer keeps them until they are.
    #[must_use]
    pub const fn has_unreported(&self) -> bool {
        self.reported < self.received
    }

    /// Continues over a new link, on which nothing has been sent or received. The peer has received
    /// `received_by_peer` bytes.
    ///
    /// # Errors
    /// [`Violation`] if that is impossible, because the peer is at another place of the stream. The stream is then
    /// unchanged.
    pub fn attach(&mut self, received_by_peer: u64) -> Result<(), Violation> {
        if !(self.acknowledged..=self.end()).contains(&received_by_peer) {
            return Err(Violation::new("it is at another place of the stream"));
        }
        self.forget_until(received_by_peer);
        self.sent = received_by_peer;
        self.reported = self.received;
        self.reader = LinkReader::default();
        Ok(())
    }

    /// Appends frames for the link to `link`, until it has about `unsent_bytes_max` unsent bytes.
    pub fn fill(&mut self, link: &mut SendBuf, unsent_bytes_max: usize) {
        while self.has_unsent() && link.unsent_bytes() < unsent_bytes_max {
            self.push_frame(link);
        }
    }

    /// Appends a frame without bytes, which acknowledges all received bytes.
    pub fn report(&mut self, link: &mut SendBuf) {
        if self.has_unreported() {
            self.push_frame(link);
        }
    }

    /// Appends a frame, if necessary without bytes, to show that this side is alive.
    pub fn beat(&mut self, link: &mut SendBuf) {
        self.push_frame(link);
    }

    /// Takes the next bytes of the stream from the front of the received bytes of a link; `None` once the received
    /// bytes are used up.
    ///
    /// # Errors
    /// [`Violation`] if the peer breaks the rules: neither the link nor the session can be used any more.
    pub fn next_bytes<'a>(&mut self, link: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Violation> {
        while let Some(delivered) = self.reader.next(link) {
            match delivered {
                Delivered::Bytes(bytes) => {
                    self.received += bytes.len() as u64;
                    return Ok(Some(bytes));
                }
                Delivered::Acknowledgment(received) => {
                    if !(self.acknowledged..=self.sent).contains(&received) {
                        return Err(Violation::new("it acknowledged what was not sent"));
                    }
                    self.forget_until(received);
                }
            }
        }
        if self.kept.len() > SESSION_WINDOW_BYTES + OVERRUN_BYTES_MAX {
            return Err(Violation::new("it sends requests and does not acknowledge"));
        }
        Ok(None)
    }

    /// The offsets are in order: acknowledged, sent, end; and no bytes are acknowledged that have not arrived.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        assert!(
            self.acknowledged <= self.sent && self.sent <= self.end(),
            "{self:?}"
        );
        assert!(self.reported <= self.received, "{self:?}");
    }

    fn push_frame(&mut self, link: &mut SendBuf) {
        let from = index_of(self.sent - self.acknowledged);
        let count = (self.kept.len() - from).min(LINK_FRAME_BYTES_MAX);
        let head = Head {
            length: u32::try_from(count).unwrap_or(u32::MAX),
            received: self.received,
        };
        let (front, back) = self.kept.as_slices();
        let of_front = front.get(from..).unwrap_or_default();
        let of_front = &of_front[..count.min(of_front.len())];
        link.push_pair(&head.encode(), of_front);
        if of_front.len() < count {
            let start = from.saturating_sub(front.len());
            link.push(&back[start..start + count - of_front.len()]);
        }
        self.sent += count as u64;
        self.reported = self.received;
    }

    fn forget_until(&mut self, offset: u64) {
        let count = index_of(offset - self.acknowledged);
        self.acknowledged = offset;
        if count < self.kept.len() {
            self.kept.drain(..count);
        } else {
            self.kept.clear();
            self.kept.shrink_to(CAPACITY_KEPT_MAX);
        }
    }
}

/// The length of a head: the number of bytes of the stream that follow (u32), and how many bytes of the other
/// direction have been received (u64).
const HEAD_BYTES: usize = 12;

/// The head of a link frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    length: u32,
    /// The number of bytes of the stream that the sender has received so far.
    received: u64,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        LittleEndian::write_u32(&mut bytes[..4], self.length);
        LittleEndian::write_u64(&mut bytes[4..], self.received);
        bytes
    }
}

/// The progress in the frames of one link.
#[derive(Debug, Default)]
struct LinkReader {
    /// The part of the next head that has arrived.
    head: [u8; HEAD_BYTES],
    head_bytes: u8,
    /// Bytes of the stream left in the current frame.
    left: u32,
}

/// An item that a link delivers.
#[derive(Debug, PartialEq, Eq)]
enum Delivered<'a> {
    /// A head: how many bytes the peer has received.
    Acknowledgment(u64),
    /// The next bytes of the stream.
    Bytes(&'a [u8]),
}

impl LinkReader {
    /// Takes the next item from the front of `bytes`; `None` if they are used up.
    fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Delivered<'a>> {
        if bytes.is_empty() {
            return None;
        }
        if self.left > 0 {
            let (now, later) = bytes.split_at((self.left as usize).min(bytes.len()));
            *bytes = later;
            self.left -= now.len() as u32;
            return Some(Delivered::Bytes(now));
        }
        let had = usize::from(self.head_bytes);
        let (now, later) = bytes.split_at((HEAD_BYTES - had).min(bytes.len()));
        *bytes = later;
        self.head[had..had + now.len()].copy_from_slice(now);
        self.head_bytes += now.len() as u8;
        if had + now.len() < HEAD_BYTES {
            return None;
        }
        self.head_bytes = 0;
        self.left = LittleEndian::read_u32(&self.head[..4]);
        Some(Delivered::Acknowledgment(LittleEndian::read_u64(
            &self.head[4..],
        )))
    }
}

/// The peer has broken the rules of a session (docs/spec/wire-extensions.md, section 9.9): it is another program, or
/// has a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the rules of the session: {what}")]
pub struct Violation {
    what: &'static str,
}

impl Violation {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

/// A distance within the kept bytes, which are in memory.
fn index_of(distance: u64) -> usize {
    usize::try_from(distance).unwrap_or(usize::MAX)
}
