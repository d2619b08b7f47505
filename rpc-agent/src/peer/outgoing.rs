//! The send queue of one connection.
//!
//! The queue alternates between small frames, up to [`SMALL_BYTES_MAX`], and one part of one large message,
//! so that neither starves the other. Large messages are sent round-robin. The sender takes a [`Batch`]
//! out, writes it, and puts it back, so that no lock on the queue is held during the write.
//!
//! No socket, no clock, no call state.

use std::collections::{HashSet, VecDeque};
use std::io::{self, IoSlice, Write};
use std::mem;

use bytes::Bytes;

use crate::segmented_queue::SegmentedQueue;
use crate::wire::{
    Frame, HEADER_BYTES, Header, LARGE_MESSAGES_BYTES_MAX, LARGE_MESSAGES_MAX, PART_BYTES,
    encode_start,
};

/// Payloads up to this length are copied; longer ones are sent without a copy.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// Bytes of small frames sent between two parts of large messages. As many are encoded ahead and can no
/// longer be withdrawn.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Slices per vectored write.
const SLICES_PER_WRITE_MAX: usize = 64;

/// An encoding buffer with more capacity is freed after a batch of at most this length.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// An empty queue with more capacity is freed.
const QUEUE_KEPT_BYTES_MAX: usize = 512;

/// The send queue of one peer.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// Small frames to send next, encoded.
    ready: Encoded,
    /// Small frames after `ready`; requests among them can be withdrawn.
    waiting: SegmentedQueue<Waiting>,
    /// Large messages in progress, in round-robin order.
    begun: VecDeque<Stream>,
    /// Sum of the payload lengths of `begun`.
    begun_bytes: u64,
    /// Large messages that have not been begun.
    not_begun: VecDeque<Stream>,
    /// A partly written batch.
    unfinished: Option<Batch>,
    is_batch_out: bool,
    /// True until a connection exists: nothing is encoded ahead, so that every request can be withdrawn.
    is_held: bool,
    /// Recycled buffers for the next `ready`.
    spare: Encoded,
    unsent_bytes: u64,
}

/// Encoded frames, in sending order.
#[derive(Default)]
struct Encoded {
    copied: Vec<u8>,
    /// Payloads to insert between the copied bytes.
    shared: Vec<Shared>,
    shared_bytes: usize,
    /// Start positions of the requests.
    requests: Vec<RequestStart>,
}

struct Shared {
    /// Number of copied bytes that precede it.
    copied_before: usize,
    bytes: Bytes,
}

#[derive(Debug)]
struct RequestStart {
    id: u64,
    /// Counts copied and shared bytes.
    bytes_before: usize,
}

struct Waiting {
    request_id: Option<u64>,
    /// The frame without the shared payload.
    copied: Vec<u8>,
    shared: Bytes,
}

/// A large message.
struct Stream {
    id: u64,
    is_response: bool,
    /// The encoded start frame; empty once taken.
    start: Vec<u8>,
    rest: Bytes,
    payload_bytes: u64,
}

/// Bytes to write next. The sender returns it with [`Outgoing::put_back`], even after an error.
pub(crate) struct Batch {
    encoded: Encoded,
    sent_bytes: usize,
    /// The part of `sent_bytes` that [`Outgoing::unsent_bytes`] already accounts for.
    settled_bytes: usize,
    /// The part of the other bytes that the writer has kept. The peer may have received some of them.
    kept_bytes: usize,
}

/// Result of [`Batch::write_to`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteProgress {
    /// The whole batch is written.
    Done,
    /// The write would block.
    Blocked,
}

impl Outgoing {
    /// An empty queue with a connection.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An empty queue without a connection. Every request can be withdrawn until [`Outgoing::start`].
    pub(crate) fn held() -> Self {
        Self {
            is_held: true,
            ..Self::default()
        }
    }

    /// Marks the connection as established.
    pub(crate) fn start(&mut self) {
        self.is_held = false;
    }

    /// Queues a request.
    ///
    /// # Panics
    /// If the function name does not fit in a frame.
    pub(crate) fn push_request(&mut self, id: u64, budget_ms: u32, function: &str, payload: Bytes) {
        self.push_message(id, Some((budget_ms, function)), payload);
    }

    /// Queues a response.
    pub(crate) fn push_response(&mut self, id: u64, payload: Bytes) {
        self.push_message(id, None, payload);
    }

    /// Queues any other small frame. It overtakes large messages, so push a Goodbye only after they are
    /// sent.
    pub(crate) fn push_frame(&mut self, frame: &Frame<'_>) {
        self.push_small(None, Bytes::new(), |out| frame.encode(out));
    }

    /// Puts the first frame of a connection before everything queued. Requires that nothing has been
    /// written yet.
    pub(crate) fn put_first(&mut self, frame: &Frame<'_>) {
        debug_assert!(!self.is_batch_out && self.unfinished.is_none());
        let mut encoded = Encoded::default();
        frame.encode(&mut encoded.copied);
        self.unsent_bytes += encoded.bytes() as u64;
        self.unfinished = Some(Batch::new(encoded));
    }

    /// Bytes not yet known to be written, payloads included.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    /// Whether [`take_batch`](Self::take_batch) returns a batch.
    pub(crate) fn is_batch_ready(&self) -> bool {
        !self.is_batch_out && self.unsent_bytes > 0
    }

    /// Takes out about `bytes_max` bytes to write, at least one frame or part. `None` when the queue is
    /// empty or another batch is out.
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
        Some(Batch::new(encoded))
    }

    /// Takes a batch back. Its unwritten bytes are sent first.
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
        // Reuse the larger allocation: a connection with one batch at a time then needs only one.
        if self.ready.is_empty() && self.ready.copied.capacity() < memory.copied.capacity() {
            mem::swap(&mut self.ready, &mut memory);
        }
        self.spare = memory;
        if self.unsent_bytes == 0 {
            self.release();
        }
    }

    /// Removes the given requests unless they are encoded ahead or in progress; returns the removed ids.
    /// No byte of a removed request is ever sent. Responses stay.
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

    /// Ids of the completely unsent requests. All requests of a batch that is out count as sent. For a closed
    /// connection, when nothing more will be sent.
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

    fn push_message(&mut self, id: u64, call: Option<(u32, &str)>, payload: Bytes) {
        let payload_bytes = payload.len() as u64;
        let start = |out: &mut Vec<u8>| encode_start(id, call, payload_bytes, out);
        if payload.len() <= PART_BYTES {
            return self.push_small(call.map(|_| id), payload, start);
        }
        let mut stream = Stream {
            id,
            is_response: call.is_none(),
            start: Vec::new(),
            rest: payload,
            payload_bytes,
        };
        start(&mut stream.start);
        self.unsent_bytes += stream.wire_bytes();
        self.not_begun.push_back(stream);
    }

    /// Queues a frame: `head` encodes all of it except the payload.
    fn push_small(
        &mut self,
        request_id: Option<u64>,
        payload: Bytes,
        head: impl FnOnce(&mut Vec<u8>),
    ) {
        let is_copied = payload.len() <= COPIED_BYTES_MAX;
        // The head is not counted, so it may exceed the limit.
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

    /// Takes one part of one large message. A new message starts before one in progress continues, if the
    /// protocol's limits allow one more.
    fn take_part(&mut self, encoded: &mut Encoded) {
        let can_begin = self.not_begun.front().is_some_and(|stream| {
            let bytes = self.begun_bytes.saturating_add(stream.payload_bytes);
            // Only an injected fault sends a message twice; interleaved, its parts would be ambiguous.
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

    /// Takes up to [`SMALL_BYTES_MAX`] of small frames.
    fn take_waiting(&mut self, encoded: &mut Encoded, bytes_max: usize) {
        let end = bytes_max.min(encoded.bytes() + SMALL_BYTES_MAX);
        while encoded.bytes() < end
            && let Some(waiting) = self.waiting.pop_front()
        {
            encoded.append(waiting);
        }
    }

    /// Refills `ready`, so that it has room only if `waiting` is empty.
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
        self.waiting.release(QUEUE_KEPT_BYTES_MAX);
        shrink(&mut self.begun);
        shrink(&mut self.not_begun);
    }

    /// Checks the counters against the data that they count. `bytes_out` are the bytes of the batch that is out.
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
    const fn new(encoded: Encoded) -> Self {
        Self {
            encoded,
            sent_bytes: 0,
            settled_bytes: 0,
            kept_bytes: 0,
        }
    }

    /// Writes until the batch is written or the write would block. May be called again.
    ///
    /// # Errors
    /// The writer's errors except `WouldBlock` and `Interrupted`; [`io::ErrorKind::WriteZero`] when it
    /// accepts no bytes.
    pub(crate) fn write_to(&mut self, writer: &mut impl Write) -> io::Result<WriteProgress> {
        while self.sent_bytes < self.encoded.bytes() {
            let written = if self.encoded.shared.is_empty() {
                writer.write(&self.encoded.copied[self.sent_bytes..])
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE_MAX];
                let used = self.slices(&mut slices);
                writer.write_vectored(&slices[..used])
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

    pub(crate) const fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// Records, after a write that would block, that the writer has kept this many of the unwritten bytes. They count
    /// as unwritten, and must be written again, but their requests count as sent.
    pub(crate) const fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
    }

    /// Fills `slices` with the unwritten bytes; returns the number of slices used.
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

    /// Ids of the completely unwritten requests.
    fn unsent_requests(&self) -> impl Iterator<Item = u64> {
        let requests = self.encoded.requests.iter();
        let begun_bytes = self.sent_bytes + self.kept_bytes;
        requests
            .filter(move |request| request.bytes_before >= begun_bytes)
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

    /// Whether `more_bytes` may be encoded ahead. A frame over the limit is encoded alone.
    fn has_room(&self, more_bytes: usize) -> bool {
        self.is_empty() || self.bytes() + more_bytes < SMALL_BYTES_MAX
    }

    /// Records the start of a frame.
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
    /// Bytes not yet taken, headers included.
    fn wire_bytes(&self) -> u64 {
        let headers = self.rest.len().div_ceil(PART_BYTES) * HEADER_BYTES;
        (self.start.len() + self.rest.len() + headers) as u64
    }
}

#[cfg(test)]
mod tests;
