//! The relay without sockets: ranks on one side, a session with the store on the other.
//!
//! Pure: no socket, clock or thread. Pass the bytes of ranks to [`Hub::receive`] and the bytes of the link to
//! [`Hub::receive_link`]; call [`Hub::end_turn`] after all input; then send the output for the link ([`Hub::stream`])
//! and for the ranks that [`Hub::take_touched`] returns. It works the same with and without a link.
//!
//! Ranks with the same request in one turn share one frame. The store handles it once for each of them, in order, as
//! if each had sent it, so no rank can see a difference, and nothing is ever answered from memory.
//!
//! When the store was restarted with its journal, [`Hub::restart`] begins both streams again. The ranks' requests are
//! kept until the store has acknowledged them, and are sent again after a restart (docs/spec/wire-extensions.md,
//! SESSION 12 to 15).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use c10d_socket::SendBuf;
use c10d_store::unstable::{
    Frame, FrameReader, GROUP_BYTES_MAX, GROUP_CLIENTS_MAX, RawRequest, RawRequests, RequestBuf,
    Restart, Session, SessionClient, SessionStream, Violation, WireError,
};
use c10d_store::{Opcode, WireLimits};

/// How long the store has to answer a CANCEL_WAIT. It answers at once if it can be reached; only the end of a wait
/// depends on it.
const CANCEL_PATIENCE: Duration = Duration::from_millis(250);

/// The most expected replies of a rank. A rank that sends more requests waits until some replies have arrived.
const OWED_MAX: usize = 4096;

/// If this many bytes of a rank wait to be sent, the relay does not read from the rank.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// The reply to a CANCEL_WAIT.
const WAIT_CANCELED: u8 = 1;

/// How many of the last requests of a turn are compared with a further request.
const COMPARED_MAX: usize = 16;

/// The memory for replies that ranks have not read, beyond which no more are taken from the store. A rank alone has at most
/// its window there, so that 128 ranks that do not read delay no other.
const UNREAD_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct Hub {
    limits: WireLimits,
    session: Session,
    /// Frames that arrived while the hub was full. A frame of nine bytes can have the hub copy 64 KiB of a piece, so one read of
    /// the link could otherwise take hundreds of megabytes.
    backlog: Vec<u8>,
    ranks: BTreeMap<u32, Rank>,
    next_client: u32,
    turn: Turn,
    touched: Vec<u32>,
    waiting_to_send: VecDeque<u32>,
    is_ended: bool,
    /// The store was informed of the end of the session.
    has_said_end: bool,
    /// The memory for replies that ranks have not read.
    unread_bytes: usize,
    /// CANCEL_WAITs that the store should have answered at the given time: the client, and the number of the cancel.
    cancels: VecDeque<(Instant, u32, u64)>,
}

/// The requests of a turn that are not in the stream yet.
#[derive(Debug, Default)]
struct Turn {
    requests: Vec<Shared>,
    bytes: Vec<u8>,
}

/// A request, and the ranks that send it.
#[derive(Debug)]
struct Shared {
    start: usize,
    end: usize,
    clients: Vec<u32>,
}

impl Hub {
    pub(crate) fn new(limits: WireLimits) -> Self {
        Self {
            limits,
            session: Session {
                stream: SessionStream::default(),
                reader: FrameReader::taking_pieces().taking_positions(),
                // Until the first link.
                is_kept: true,
            },
            ..Self::default()
        }
    }

    /// The session's stream.
    pub(crate) const fn stream(&mut self) -> &mut SessionStream {
        &mut self.session.stream
    }

    /// Whether another process may continue the session, from a journal.
    pub(crate) const fn is_kept(&self) -> bool {
        self.session.is_kept
    }

    /// The session continues with the same server, which keeps it in its journal or does not, and learns how long ranks have
    /// waited.
    pub(crate) fn go_on(&mut self, is_kept: bool, now: Instant) {
        self.emit_turn();
        self.session.is_kept = is_kept;
        for rank in self.ranks.values_mut() {
            rank.client.go_on(now, &mut self.session);
        }
    }

    /// The store was restarted with its journal: it gets all requests again that it has not acknowledged. Returns the number
    /// of ranks whose connections are closed, as that cannot be done for them.
    pub(crate) fn restart(&mut self, restart: Restart, now: Instant) -> usize {
        // If these frames break the rules, that no longer matters for the new stream.
        let _ = self.take_backlog();
        self.session.restart();
        self.turn = Turn::default();
        self.waiting_to_send.clear();
        let mut closed = 0;
        let clients: Vec<u32> = self.ranks.keys().copied().collect();
        for client in clients {
            if let Some(rank) = self.ranks.get_mut(&client)
                && !rank.is_closing()
            {
                rank.restart(restart, now, &mut self.session);
                closed += usize::from(rank.is_closing());
                self.wait_to_send(client);
                self.touch(client);
                self.finish(client);
            }
        }
        if self.has_said_end {
            self.session.stream.push_end();
        }
        closed
    }

    /// A rank has connected, from this port. Returns its number; `None` if no number is left.
    pub(crate) fn open(&mut self, port: u16) -> Option<u32> {
        let client = self.next_client;
        self.next_client = client.checked_add(1)?;
        let opened = SessionClient::open(client, port, &mut self.session);
        self.ranks.insert(client, Rank::new(opened));
        Some(client)
    }

    /// A rank has closed its connection. Its earlier requests are still sent to the store.
    pub(crate) fn close(&mut self, client: u32) {
        let Some(rank) = self.ranks.get_mut(&client) else {
            return;
        };
        rank.is_gone = true;
        let unread = std::mem::take(&mut rank.down).unsent_bytes();
        self.was_read(client, unread);
        self.finish(client);
    }

    /// A rank, until it is closed.
    pub(crate) fn rank(&mut self, client: u32) -> Option<&mut Rank> {
        self.ranks.get_mut(&client).filter(|rank| !rank.is_gone)
    }

    /// Whether a rank has completed its handshake.
    pub(crate) fn is_greeted(&self, client: u32) -> bool {
        let rank = self.ranks.get(&client);
        rank.is_some_and(|rank| rank.requests.is_handshake_done())
    }

    /// Takes bytes that a rank has sent.
    ///
    /// # Errors
    /// If that is no request: the rank must be closed.
    pub(crate) fn receive(
        &mut self,
        client: u32,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), WireError> {
        self.with_requests(client, now, |requests, limits, handle| {
            requests.receive(bytes, limits, handle)
        })
    }

    /// Continues with the requests of a paused rank, if it can.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive).
    pub(crate) fn resume(&mut self, client: u32, now: Instant) -> Result<(), WireError> {
        let Some(rank) = self.ranks.get_mut(&client) else {
            return Ok(());
        };
        if rank.is_closing() || !rank.is_paused || rank.must_wait(&self.session) {
            return Ok(());
        }
        if let Some(held) = rank.held.take() {
            if !rank.on_request(held.request(), now) {
                rank.held = Some(held);
                return Ok(());
            }
            self.turn.add(client, rank, &held.bytes, &self.session);
        }
        let resumed = self.with_requests(client, now, |requests, limits, handle| {
            requests.resume(limits, handle)
        });
        self.finish(client);
        resumed
    }

    /// Whether nothing of the link should be read until ranks have read their replies.
    pub(crate) const fn is_full(&self) -> bool {
        self.unread_bytes >= UNREAD_BYTES_MAX
    }

    /// Simulates ranks that have not read their replies.
    #[cfg(test)]
    pub(crate) const fn fill(&mut self) {
        self.unread_bytes += UNREAD_BYTES_MAX;
    }

    /// A rank has read this many bytes of its replies.
    pub(crate) fn was_read(&mut self, client: u32, bytes: usize) {
        self.recount(client);
        if let Some(rank) = self.ranks.get_mut(&client) {
            rank.client.was_read(bytes, &mut self.session);
        }
    }

    /// Answers the CANCEL_WAITs that the store has not answered in time.
    pub(crate) fn answer_cancels(&mut self, now: Instant) {
        while let Some((due, client, cancel)) = self.cancels.pop_front() {
            if due > now {
                self.cancels.push_front((due, client, cancel));
                return;
            }
            if let Some(rank) = self.ranks.get_mut(&client) {
                rank.answer_cancel(cancel);
                self.recount(client);
                self.touch(client);
            }
        }
    }

    /// Returns when [`answer_cancels`](Self::answer_cancels) should be called next.
    pub(crate) fn next_cancel(&self) -> Option<Instant> {
        self.cancels.front().map(|(due, _, _)| *due)
    }

    /// Takes bytes that the link to the store has received, after earlier bytes that have waited. Frames without room wait
    /// until ranks have read. Call it again then, even without bytes.
    ///
    /// # Errors
    /// If the store breaks the rules of the session, which is then over.
    pub(crate) fn receive_link(&mut self, mut link: &[u8]) -> Result<(), Violation> {
        if !self.backlog.is_empty() {
            let backlog = std::mem::take(&mut self.backlog);
            let mut left = &backlog[..];
            self.on_frames(&mut left, UNREAD_BYTES_MAX)?;
            self.backlog = left.to_vec();
        }
        while let Some(mut piece) = self.session.stream.next_bytes(&mut link)? {
            if self.backlog.is_empty() {
                self.on_frames(&mut piece, UNREAD_BYTES_MAX)?;
            }
            self.backlog.extend_from_slice(piece);
        }
        Ok(())
    }

    /// Takes the frames that wait, even without room, because the link is lost: the store does not send them again, and the
    /// next server must have the [position](Self::position) that they report.
    ///
    /// # Errors
    /// The errors of [`receive_link`](Self::receive_link).
    pub(crate) fn take_backlog(&mut self) -> Result<(), Violation> {
        let backlog = std::mem::take(&mut self.backlog);
        self.on_frames(&mut &backlog[..], usize::MAX)
    }

    /// Whether frames wait that there is room for now.
    pub(crate) const fn can_continue(&self) -> bool {
        !self.backlog.is_empty() && !self.is_full()
    }

    /// Takes frames from the front of `bytes`, until ranks have not read this many bytes.
    fn on_frames(&mut self, bytes: &mut &[u8], unread_bytes_max: usize) -> Result<(), Violation> {
        while self.unread_bytes < unread_bytes_max
            && let Some(frame) = self.session.reader.next(bytes)?
        {
            let Some(client) = frame.client() else {
                self.is_ended |= frame == Frame::End;
                continue;
            };
            if let Some(rank) = self.ranks.get_mut(&client) {
                rank.on_frame(&frame, &mut self.session)?;
            }
            if matches!(frame, Frame::Credit { .. }) {
                self.wait_to_send(client);
            }
            self.recount(client);
            self.touch(client);
            self.finish(client);
        }
        Ok(())
    }

    /// Up to where the journal of the store has kept what ranks have seen.
    pub(crate) fn position(&self) -> u64 {
        self.session.reader.position()
    }

    /// Puts the requests of ranks into the stream, as far as there is room.
    pub(crate) fn end_turn(&mut self) {
        self.emit_turn();
        for _ in 0..self.waiting_to_send.len() {
            let Some(client) = self.waiting_to_send.pop_front() else {
                break;
            };
            let Some(rank) = self.ranks.get_mut(&client) else {
                continue;
            };
            rank.waits_to_send = false;
            if rank.is_closing() {
                continue;
            }
            rank.client.fill(&mut self.session);
            if rank.client.outstanding.unsent_bytes() > 0 && rank.client.credit.to_send() > 0 {
                self.wait_to_send(client);
            } else if rank.is_paused {
                self.touch(client);
            }
            self.finish(client);
        }
    }

    /// The ranks to check, because they have replies, are closing, or may continue after a pause; each once.
    pub(crate) fn take_touched(&mut self) -> Vec<u32> {
        let touched = std::mem::take(&mut self.touched);
        for client in &touched {
            if let Some(rank) = self.ranks.get_mut(client) {
                rank.is_touched = false;
            }
        }
        touched
    }

    /// Informs the store of the end of the session, once no rank is left whose requests may still have to be sent.
    /// Returns whether it was informed.
    pub(crate) fn end(&mut self) -> bool {
        self.end_turn();
        if !self.ranks.is_empty() {
            return false;
        }
        self.session.stream.push_end();
        self.has_said_end = true;
        true
    }

    /// Whether the store has ended the session, as requested, after everything before that.
    pub(crate) const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// The session is over: all its ranks are closed, and another session begins.
    pub(crate) fn start_anew(&mut self) {
        *self = Self {
            // Late events of old ranks must not reach new ranks.
            next_client: self.next_client,
            ..Self::new(self.limits)
        };
    }

    fn with_requests(
        &mut self,
        client: u32,
        now: Instant,
        parse: impl FnOnce(
            &mut RawRequests,
            &WireLimits,
            &mut dyn FnMut(RawRequest<'_>) -> bool,
        ) -> Result<bool, WireError>,
    ) -> Result<(), WireError> {
        let Some(rank) = self.ranks.get_mut(&client) else {
            return Ok(());
        };
        let mut requests = std::mem::take(&mut rank.requests);
        let (turn, session) = (&mut self.turn, &self.session);
        let cancels = rank.client.outstanding.cancels();
        let outcome = parse(&mut requests, &self.limits, &mut |request| {
            if !rank.on_request(request, now) {
                rank.held = Some(Held {
                    opcode: request.opcode,
                    key_count: request.key_count,
                    bytes: request.bytes.to_vec(),
                });
                return false;
            }
            turn.add(client, rank, request.bytes, session);
            !rank.must_wait(session)
        });
        rank.requests = requests;
        rank.is_paused = outcome == Ok(false);
        if let Some(due) = now.checked_add(CANCEL_PATIENCE) {
            let new = cancels + 1..=rank.client.outstanding.cancels();
            self.cancels.extend(new.map(|cancel| (due, client, cancel)));
        }
        self.wait_to_send(client);
        outcome.map(|_| ())
    }

    /// Informs the store that a rank has closed its connection, once all its requests are in the stream.
    fn finish(&mut self, client: u32) {
        let Some(rank) = self.ranks.get_mut(&client) else {
            return;
        };
        let has_sent = !rank.is_paused && rank.client.outstanding.unsent_bytes() == 0;
        let was_closed = rank.is_closing();
        if !rank.is_gone || (!was_closed && !has_sent) {
            return;
        }
        if !was_closed && rank.must_be_acknowledged(self.session.is_kept) {
            if rank.mark() {
                self.wait_to_send(client);
            }
            return;
        }
        self.unread_bytes -= rank.counted_bytes;
        self.ranks.remove(&client);
        if !was_closed {
            self.emit_turn();
            self.session.stream.push_close(client);
        }
    }

    /// Counts again what a rank has not read.
    fn recount(&mut self, client: u32) {
        if let Some(rank) = self.ranks.get_mut(&client) {
            let now = rank.down.memory_bytes();
            let before = std::mem::replace(&mut rank.counted_bytes, now);
            self.unread_bytes = self.unread_bytes - before + now;
        }
    }

    fn emit_turn(&mut self) {
        for shared in self.turn.requests.drain(..) {
            let bytes = &self.turn.bytes[shared.start..shared.end];
            match shared.clients[..] {
                [client] => self.session.stream.push_data(client, bytes),
                _ => self.session.stream.push_group(&shared.clients, bytes),
            }
            for client in shared.clients {
                if let Some(rank) = self.ranks.get_mut(&client) {
                    rank.last_in_turn = 0;
                }
            }
        }
        self.turn.bytes.clear();
    }

    fn touch(&mut self, client: u32) {
        if let Some(rank) = self.ranks.get_mut(&client)
            && !rank.is_touched
        {
            rank.is_touched = true;
            self.touched.push(client);
        }
    }

    fn wait_to_send(&mut self, client: u32) {
        if let Some(rank) = self.ranks.get_mut(&client)
            && !rank.waits_to_send
            && !rank.is_closing()
            && rank.client.outstanding.unsent_bytes() > 0
        {
            rank.waits_to_send = true;
            self.waiting_to_send.push_back(client);
        }
    }
}

impl Turn {
    /// Adds a request of a rank, which is its last unsent request, to an equal request of another rank, if there is
    /// one. The rank's requests keep their order: the request joins none before the rank's last request.
    fn add(&mut self, client: u32, rank: &mut Rank, bytes: &[u8], session: &Session) {
        let is_short = bytes.len() <= GROUP_BYTES_MAX;
        let has_room = bytes.len() <= rank.client.credit.to_send()
            && self.bytes.len() + bytes.len() <= session.stream.room();
        let is_next = rank.client.outstanding.unsent_bytes() == bytes.len();
        if !is_short || !has_room || !is_next {
            return;
        }
        rank.client.sent(bytes.len(), session);
        let first = rank
            .last_in_turn
            .max(self.requests.len().saturating_sub(COMPARED_MAX));
        let same = (first..self.requests.len()).find(|index| {
            let shared = &self.requests[*index];
            shared.clients.len() < GROUP_CLIENTS_MAX
                && self.bytes[shared.start..shared.end] == *bytes
        });
        let index = same.unwrap_or_else(|| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            self.requests.push(Shared {
                start,
                end: self.bytes.len(),
                clients: Vec::new(),
            });
            self.requests.len() - 1
        });
        self.requests[index].clients.push(client);
        rank.last_in_turn = index + 1;
    }
}

/// The state of one rank. Does not interpret keys or values.
#[derive(Debug, Default)]
pub(crate) struct Rank {
    requests: RawRequests,
    /// The rank in the session. It closes the connection of a rank whose client has ended, once the rank has got its
    /// replies.
    pub(crate) client: SessionClient,
    /// Replies for the rank.
    pub(crate) down: SendBuf,
    /// The memory of the rank, as counted by the hub.
    counted_bytes: usize,
    /// Requests are kept until something has been received or sent.
    pub(crate) is_paused: bool,
    /// The first of them, if it has to wait for a reply.
    held: Option<Held>,
    /// The rank has closed its connection. Its earlier requests are still sent to the store.
    is_gone: bool,
    /// Whether the rank's last requests have no reply, so that a request of the relay with a reply follows them.
    is_marked: bool,
    /// Whether the rank is in the list of ranks to check.
    is_touched: bool,
    /// Whether the rank is in the list of ranks with waiting requests.
    waits_to_send: bool,
    /// The last request of this turn that this rank takes part in, from 1.
    last_in_turn: usize,
}

/// A request that was received and not passed on.
#[derive(Debug)]
struct Held {
    opcode: Opcode,
    key_count: usize,
    bytes: Vec<u8>,
}

impl Held {
    fn request(&self) -> RawRequest<'_> {
        RawRequest {
            opcode: self.opcode,
            key_count: self.key_count,
            bytes: &self.bytes,
        }
    }
}

impl Rank {
    fn new(client: SessionClient) -> Self {
        Self {
            client,
            ..Self::default()
        }
    }

    /// Whether the rank's connection is to be closed. The rank still gets the replies before that.
    pub(crate) const fn is_closing(&self) -> bool {
        self.client.end.is_some()
    }

    /// The rank sends a request. Returns whether it may be passed on; if not, it has to wait until the store has
    /// answered an earlier request.
    fn on_request(&mut self, request: RawRequest<'_>, now: Instant) -> bool {
        self.client.outstanding.owed_replies() < OWED_MAX && self.client.add(request, || now)
    }

    /// Takes a frame that the store has sent to the rank.
    fn on_frame(&mut self, frame: &Frame<'_>, session: &mut Session) -> Result<(), Violation> {
        let down = &mut self.down;
        let pass = |bytes: &[u8]| down.push(bytes);
        self.client.on_frame(frame, session, pass)?;
        if self.is_gone {
            // Its replies are counted, since a request of it may wait for one, and dropped.
            let unread = std::mem::take(&mut self.down).unsent_bytes();
            self.client.was_read(unread, session);
        }
        Ok(())
    }

    /// Whether the rank's requests should wait.
    fn must_wait(&self, session: &Session) -> bool {
        self.client.outstanding.unsent_bytes() >= UNSENT_BYTES_MAX || self.client.is_full(session)
    }

    /// Whether a rank that has closed its connection has sent requests that the store must acknowledge before it may
    /// drop the rank. If the rank waits, the store is informed at once, so that the rank gets nothing that other
    /// ranks could have.
    fn must_be_acknowledged(&self, is_kept: bool) -> bool {
        let outstanding = &self.client.outstanding;
        let is_marked = self.is_marked && outstanding.owed_replies() > 0;
        is_kept && !outstanding.is_waiting() && (is_marked || outstanding.is_last_without_reply())
    }

    /// Adds a request that has a reply, once. Returns whether it was added.
    fn mark(&mut self) -> bool {
        if self.is_marked {
            return false;
        }
        let mut request = RequestBuf::new();
        request.mark();
        let request = RawRequest {
            opcode: Opcode::Check,
            key_count: 0,
            bytes: &request.to_bytes(),
        };
        self.is_marked = self.client.add(request, Instant::now);
        self.is_marked
    }

    /// Answers a CANCEL_WAIT that the store has not answered in time.
    fn answer_cancel(&mut self, cancel: u64) {
        if self.client.answer_cancel(cancel) {
            self.down.push(&[WAIT_CANCELED]);
        }
    }

    /// The store was restarted, and gets all requests again that it has not acknowledged.
    fn restart(&mut self, restart: Restart, now: Instant, session: &mut Session) {
        self.last_in_turn = 0;
        self.waits_to_send = false;
        let unread = self.down.unsent_bytes();
        self.client.restart(restart, unread, now, session);
    }
}

#[cfg(test)]
mod tests;
