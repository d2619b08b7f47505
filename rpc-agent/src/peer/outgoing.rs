//! The sending side of one connection: what waits to be sent, and in which order it goes.
//!
//! Small frames go first, up to [`SMALL_BYTES_MAX`], then one part of one large message, and so on:
//! neither holds the other up. Large messages take turns. Who sends takes a [`Batch`] out, writes it, and
//! puts it back, so that no lock around the queue needs to be held while writing.
//!
//! Knows neither the socket nor the clock, nor what becomes of a call.

use std::collections::{HashSet, VecDeque};
use std::io::{self, IoSlice, Write};
use std::mem;

use bytes::Bytes;

use crate::wire::{
    Frame, HEADER_BYTES, Header, LARGE_MESSAGES_BYTES_MAX, LARGE_MESSAGES_MAX, PART_BYTES,
    encode_request_head, encode_response_head,
};

/// Payloads up to this length are copied, longer ones are sent from where they are.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// So many bytes of small frames go before it is the turn of a large message. As many are encoded ahead
/// and can no longer be withdrawn.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Pieces handed to the system in one vectored write.
const SLICES_PER_WRITE_MAX: usize = 64;

/// Memory for copied bytes shrinks to this when a batch needed no more.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// The memory that an emptied queue keeps.
const QUEUE_KEPT_BYTES_MAX: usize = 512;

/// What waits to be sent to one peer.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Small frames that go next.
    ready: Encoded,
    /// Small frames after them, which can be withdrawn.
    waiting: VecDeque<Waiting>,
    /// Large messages that have begun, in the order of their turns.
    begun: VecDeque<Stream>,
    /// The bytes of `begun` as announced to the peer.
    begun_bytes: u64,
    /// Large messages that have not begun.
    not_begun: VecDeque<Stream>,
    /// Put back before it was written to its end.
    unfinished: Option<Batch>,
    is_batch_out: bool,
    /// There is no connection yet: nothing is encoded ahead, so that every request can be withdrawn.
    is_held: bool,
    /// Memory for the next `ready`.
    spare: Encoded,
    unsent_bytes: u64,
}

/// Frames in the order in which they go.
#[derive(Default)]
struct Encoded {
    copied: Vec<u8>,
    /// Payloads that belong between the copied bytes.
    shared: Vec<Shared>,
    shared_bytes: usize,
    /// Where the requests begin.
    requests: Vec<RequestStart>,
}

impl std::fmt::Debug for Encoded {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoded")
            .field("copied_bytes", &self.copied.len())
            .field("shared_bytes", &self.shared_bytes)
            .finish_non_exhaustive()
    }
}

struct Shared {
    /// How many copied bytes go before it.
    copied_before: usize,
    bytes: Bytes,
}

impl std::fmt::Debug for Shared {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("copied_before", &self.copied_before)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

#[derive(Debug)]
struct RequestStart {
    id: u64,
    /// Counts copied and shared bytes.
    bytes_before: usize,
}

struct Waiting {
    request_id: Option<u64>,
    /// The frame, but for a shared payload.
    copied: Vec<u8>,
    shared: Bytes,
}

impl std::fmt::Debug for Waiting {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting")
            .field("request_id", &self.request_id)
            .field("copied_bytes", &self.copied.len())
            .field("shared_bytes", &self.shared.len())
            .finish()
    }
}

/// A large message.
struct Stream {
    id: u64,
    is_response: bool,
    /// The frame that begins it; empty once it was taken.
    start: Vec<u8>,
    rest: Bytes,
    payload_bytes: u64,
}

impl std::fmt::Debug for Stream {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id)
            .field("is_response", &self.is_response)
            .field("payload_bytes", &self.payload_bytes)
            .finish_non_exhaustive()
    }
}

/// What to write next. To be given back with [`Outgoing::put_back`], also after an error.
#[derive(Debug)]
pub(crate) struct Batch {
    encoded: Encoded,
    sent_bytes: usize,
    /// Of `sent_bytes`, what the queue has been told of.
    settled_bytes: usize,
}

/// How far a write came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteProgress {
    /// All is written.
    Done,
    /// The writer takes no more at present.
    Blocked,
}

impl Outgoing {
    /// Nothing is queued, and there is a connection.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Nothing is queued, and there is no connection: until [`Outgoing::start`] every request can be withdrawn.
    pub(crate) fn held() -> Self {
        Self {
            is_held: true,
            ..Self::default()
        }
    }

    /// There is a connection.
    pub(crate) fn start(&mut self) {
        self.is_held = false;
    }

    /// Adds a request.
    ///
    /// # Panics
    /// When the function's name is longer than a frame holds.
    pub(crate) fn push_request(&mut self, id: u64, budget_ms: u32, function: &str, payload: Bytes) {
        if payload.len() <= PART_BYTES {
            let bytes = payload.len();
            self.push_small(Some(id), payload, |out| {
                encode_request_head(id, budget_ms, function, bytes, out);
            });
            return;
        }
        let payload_bytes = payload.len() as u64;
        let start = Frame::LargeRequest {
            id,
            budget_ms,
            function,
            payload_bytes,
        };
        self.push_large(id, false, &start, payload);
    }

    /// Adds a response.
    pub(crate) fn push_response(&mut self, id: u64, payload: Bytes) {
        if payload.len() <= PART_BYTES {
            let bytes = payload.len();
            self.push_small(None, payload, |out| encode_response_head(id, bytes, out));
            return;
        }
        let payload_bytes = payload.len() as u64;
        let start = Frame::LargeResponse { id, payload_bytes };
        self.push_large(id, true, &start, payload);
    }

    /// Adds a frame that is no request, no response and no part of one. A Goodbye overtakes large
    /// messages: push it when these are gone.
    pub(crate) fn push_frame(&mut self, frame: &Frame<'_>) {
        self.push_small(None, Bytes::new(), |out| frame.encode(out));
    }

    /// Puts a frame before everything that is queued: the first of a connection. Nothing of the queue has been
    /// written yet.
    pub(crate) fn put_first(&mut self, frame: &Frame<'_>) {
        debug_assert!(!self.is_batch_out && self.unfinished.is_none());
        let mut encoded = Encoded::default();
        frame.encode(&mut encoded.copied);
        self.unsent_bytes += encoded.bytes() as u64;
        self.unfinished = Some(Batch {
            encoded,
            sent_bytes: 0,
            settled_bytes: 0,
        });
    }

    /// What is not yet known to be written, payloads included.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    /// Whether [`take_batch`](Self::take_batch) has something to give.
    pub(crate) fn is_batch_ready(&self) -> bool {
        !self.is_batch_out && self.unsent_bytes > 0
    }

    /// Takes out what is to be written next: about `bytes_max` bytes, one turn at least. `None` when
    /// nothing waits, or while another batch is out.
    pub(crate) fn take_batch(&mut self, bytes_max: usize) -> Option<Batch> {
        if !self.is_batch_ready() {
            return None;
        }
        self.is_batch_out = true;
        if let Some(batch) = self.unfinished.take() {
            return Some(batch);
        }
        let mut encoded = mem::replace(&mut self.ready, mem::take(&mut self.spare));
        loop {
            let before = encoded.bytes();
            self.take_part(&mut encoded);
            if encoded.bytes() >= bytes_max
                || (self.waiting.is_empty() && encoded.bytes() == before)
            {
                break;
            }
            self.take_waiting(&mut encoded, bytes_max);
            if encoded.bytes() >= bytes_max {
                break;
            }
        }
        self.encode_ahead();
        self.release();
        Some(Batch {
            encoded,
            sent_bytes: 0,
            settled_bytes: 0,
        })
    }

    /// Takes a batch back: what of it is not written goes out first.
    pub(crate) fn put_back(&mut self, mut batch: Batch) {
        debug_assert!(self.is_batch_out);
        self.is_batch_out = false;
        self.unsent_bytes -= (batch.sent_bytes - batch.settled_bytes) as u64;
        batch.settled_bytes = batch.sent_bytes;
        if batch.sent_bytes < batch.encoded.bytes() {
            self.unfinished = Some(batch);
            return;
        }
        let mut memory = batch.encoded;
        if memory.copied.len() <= IDLE_BYTES_MAX && memory.copied.capacity() > IDLE_BYTES_MAX {
            memory = Encoded::default();
        }
        memory.clear();
        // One warm allocation serves a connection with one batch at a time.
        if self.ready.is_empty() && self.ready.copied.capacity() < memory.copied.capacity() {
            mem::swap(&mut self.ready, &mut memory);
        }
        self.spare = memory;
        if self.unsent_bytes == 0 {
            self.release();
        }
    }

    /// Removes those of these requests that can still be removed, and returns which these were: no byte
    /// of them has been sent, and none will be. A request that is encoded ahead or has begun is not among
    /// them, nor is a response ever.
    pub(crate) fn withdraw(&mut self, ids: &HashSet<u64>) -> Vec<u64> {
        let mut withdrawn = Vec::new();
        let mut withdrawn_bytes = 0;
        self.waiting.retain(|waiting| match waiting.request_id {
            Some(id) if ids.contains(&id) => {
                withdrawn.push(id);
                withdrawn_bytes += waiting.bytes() as u64;
                false
            }
            _ => true,
        });
        self.not_begun.retain(|stream| {
            if stream.is_response || !ids.contains(&stream.id) {
                return true;
            }
            withdrawn.push(stream.id);
            withdrawn_bytes += stream.wire_bytes();
            false
        });
        self.unsent_bytes -= withdrawn_bytes;
        withdrawn
    }

    /// The requests of which no byte was given to a writer, as far as it is known: of a batch that is out
    /// all count as sent. For the end of a connection, when nothing more will be sent.
    pub(crate) fn unsent_requests(&self) -> Vec<u64> {
        let of_batch = self.unfinished.iter().flat_map(Batch::unsent_requests);
        let of_ready = self.ready.requests.iter().map(|request| request.id);
        let of_waiting = self.waiting.iter().filter_map(|waiting| waiting.request_id);
        let of_large = self
            .not_begun
            .iter()
            .filter(|stream| !stream.is_response)
            .map(|stream| stream.id);
        of_batch
            .chain(of_ready)
            .chain(of_waiting)
            .chain(of_large)
            .collect()
    }

    /// Encodes a frame whose payload, if it has one, is not yet encoded by `head`.
    fn push_small(
        &mut self,
        request_id: Option<u64>,
        payload: Bytes,
        head: impl FnOnce(&mut Vec<u8>),
    ) {
        let is_copied = payload.len() <= COPIED_BYTES_MAX;
        // The head may reach beyond the limit.
        if !self.is_held && self.waiting.is_empty() && self.ready.has_room(payload.len()) {
            let before = self.ready.bytes();
            self.ready.begin(request_id);
            head(&mut self.ready.copied);
            if is_copied {
                self.ready.copied.extend_from_slice(&payload);
            } else {
                self.ready.share(payload);
            }
            self.unsent_bytes += (self.ready.bytes() - before) as u64;
            return;
        }
        let mut copied = Vec::new();
        head(&mut copied);
        let shared = if is_copied {
            copied.extend_from_slice(&payload);
            Bytes::new()
        } else {
            payload
        };
        let waiting = Waiting {
            request_id,
            copied,
            shared,
        };
        self.unsent_bytes += waiting.bytes() as u64;
        self.waiting.push_back(waiting);
    }

    fn push_large(&mut self, id: u64, is_response: bool, start: &Frame<'_>, payload: Bytes) {
        let mut bytes = Vec::new();
        start.encode(&mut bytes);
        let stream = Stream {
            id,
            is_response,
            start: bytes,
            payload_bytes: payload.len() as u64,
            rest: payload,
        };
        self.unsent_bytes += stream.wire_bytes();
        self.not_begun.push_back(stream);
    }

    /// The turn of a large message: one part of it. A new one begins before an old one goes on, if the
    /// peer takes one more.
    fn take_part(&mut self, encoded: &mut Encoded) {
        let can_begin = self.not_begun.front().is_some_and(|stream| {
            let bytes = self.begun_bytes.saturating_add(stream.payload_bytes);
            // Only a test's fault sends a message twice; in turns its parts could not be told apart.
            let is_same =
                |begun: &Stream| (begun.id, begun.is_response) == (stream.id, stream.is_response);
            self.begun.is_empty()
                || (!self.begun.iter().any(is_same)
                    && self.begun.len() < LARGE_MESSAGES_MAX
                    && bytes <= LARGE_MESSAGES_BYTES_MAX)
        });
        let next = if can_begin {
            self.not_begun.pop_front()
        } else {
            self.begun.pop_front()
        };
        let Some(mut stream) = next else {
            return;
        };
        if can_begin {
            self.begun_bytes += stream.payload_bytes;
            encoded.begin((!stream.is_response).then_some(stream.id));
            encoded.copied.append(&mut mem::take(&mut stream.start));
        }
        let part = stream.rest.split_to(stream.rest.len().min(PART_BYTES));
        Header::part(stream.is_response, stream.id, part.len()).encode(&mut encoded.copied);
        encoded.share(part);
        if stream.rest.is_empty() {
            self.begun_bytes -= stream.payload_bytes;
        } else {
            self.begun.push_back(stream);
        }
    }

    /// The turn of the small frames.
    fn take_waiting(&mut self, encoded: &mut Encoded, bytes_max: usize) {
        let end = bytes_max.min(encoded.bytes() + SMALL_BYTES_MAX);
        while encoded.bytes() < end
            && let Some(waiting) = self.waiting.pop_front()
        {
            encoded.append(waiting);
        }
    }

    /// Fills `ready` again, so that it has room only if nothing waits.
    fn encode_ahead(&mut self) {
        while let Some(next) = self.waiting.front()
            && self.ready.has_room(next.bytes())
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.ready.append(waiting);
        }
    }

    fn release(&mut self) {
        fn shrink<T>(queue: &mut VecDeque<T>) {
            if queue.is_empty() && queue.capacity() * size_of::<T>() > QUEUE_KEPT_BYTES_MAX {
                *queue = VecDeque::new();
            }
        }
        shrink(&mut self.waiting);
        shrink(&mut self.begun);
        shrink(&mut self.not_begun);
    }

    /// The sums agree with what they sum up; a batch that is out is the caller's to count.
    #[cfg(test)]
    fn check_invariants(&self, bytes_out: usize) {
        let waiting: usize = self.waiting.iter().map(Waiting::bytes).sum();
        let large = self.begun.iter().chain(&self.not_begun);
        let large: u64 = large.map(Stream::wire_bytes).sum();
        let unfinished = self.unfinished.iter();
        let unfinished: usize = unfinished
            .map(|batch| batch.encoded.bytes() - batch.sent_bytes)
            .sum();
        let small = (self.ready.bytes() + waiting + unfinished + bytes_out) as u64;
        assert_eq!(self.unsent_bytes, small + large);
        let announced = self.begun.iter().map(|stream| stream.payload_bytes);
        assert_eq!(self.begun_bytes, announced.sum::<u64>());
        assert!(self.begun.len() <= LARGE_MESSAGES_MAX);
        assert!(self.begun.len() <= 1 || self.begun_bytes <= LARGE_MESSAGES_BYTES_MAX);
        assert!(self.begun.iter().all(|stream| !stream.rest.is_empty()));
        assert!(!self.ready.is_empty() || self.waiting.is_empty() || self.is_batch_out);
        assert!(self.spare.is_empty());
    }
}

impl Batch {
    /// Writes until all is written or the writer takes no more. May be called again.
    ///
    /// # Errors
    /// What the writer reports, besides `WouldBlock` and `Interrupted`; [`io::ErrorKind::WriteZero`]
    /// when it takes nothing.
    pub(crate) fn write_to(&mut self, writer: &mut impl Write) -> io::Result<WriteProgress> {
        while self.sent_bytes < self.encoded.bytes() {
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE_MAX];
            let used = self.slices(&mut slices);
            let written = match &slices[..used] {
                [only] => writer.write(only),
                several => writer.write_vectored(several),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(WriteProgress::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(WriteProgress::Done)
    }

    /// How many bytes have been written.
    pub(crate) const fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// The bytes that are not written yet, as far as the slices reach; returns how many slices that are.
    pub(crate) fn slices<'s>(&'s self, slices: &mut [IoSlice<'s>]) -> usize {
        let mut skip = self.sent_bytes;
        let mut used = 0;
        let mut copied_end = 0;
        let last = self.encoded.copied.len();
        let shared = self.encoded.shared.iter();
        let pieces = shared
            .map(|shared| (shared.copied_before, &shared.bytes[..]))
            .chain(std::iter::once((last, &[][..])))
            .flat_map(|(copied_before, shared)| {
                let copied = &self.encoded.copied[copied_end..copied_before];
                copied_end = copied_before;
                [copied, shared]
            });
        for piece in pieces {
            if used == slices.len() {
                break;
            }
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            slices[used] = IoSlice::new(&piece[skip..]);
            skip = 0;
            used += 1;
        }
        used
    }

    /// The requests of which no byte is written.
    fn unsent_requests(&self) -> impl Iterator<Item = u64> {
        let requests = self.encoded.requests.iter();
        requests
            .filter(|request| request.bytes_before >= self.sent_bytes)
            .map(|request| request.id)
    }
}

impl Encoded {
    fn bytes(&self) -> usize {
        self.copied.len() + self.shared_bytes
    }

    fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Whether a frame of so many bytes may be encoded ahead; a longer one than the limit goes alone.
    fn has_room(&self, more_bytes: usize) -> bool {
        self.is_empty() || self.bytes() + more_bytes < SMALL_BYTES_MAX
    }

    /// A frame begins here.
    fn begin(&mut self, request_id: Option<u64>) {
        if let Some(id) = request_id {
            let bytes_before = self.bytes();
            self.requests.push(RequestStart { id, bytes_before });
        }
    }

    fn share(&mut self, bytes: Bytes) {
        self.shared_bytes += bytes.len();
        self.shared.push(Shared {
            copied_before: self.copied.len(),
            bytes,
        });
    }

    fn append(&mut self, waiting: Waiting) {
        self.begin(waiting.request_id);
        self.copied.extend_from_slice(&waiting.copied);
        if !waiting.shared.is_empty() {
            self.share(waiting.shared);
        }
    }

    fn clear(&mut self) {
        self.copied.clear();
        self.shared.clear();
        self.shared_bytes = 0;
        self.requests.clear();
    }
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.copied.len() + self.shared.len()
    }
}

impl Stream {
    /// What of it is not taken yet, headers included.
    fn wire_bytes(&self) -> u64 {
        let headers = self.rest.len().div_ceil(PART_BYTES) * HEADER_BYTES;
        (self.start.len() + self.rest.len() + headers) as u64
    }
}

#[cfg(test)]
mod tests;
