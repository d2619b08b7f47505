//! Bytes to and from a peer's socket.
//!
//! No lock is held while a socket is read or written: what is to be written, and the reading side, are
//! taken out of the peer's state and put back. Who finds them taken leaves a note and goes away.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use c10d_socket::{Deadline, recv_into_spare, wait_for_either, wait_for_input};

use super::peer::{Established, Link, Peer, PeerState, PendingCall, Request, WayBack};
use super::shared::Shared;
use crate::error::{Outcome, RpcError};
use crate::in_flight::{CallId, Completed};
use crate::incoming::{Incoming, Message, Recipient};
use crate::outgoing::WriteProgress;
use crate::wire::WireError;

/// Bytes written in one go, before others may put theirs in between. With a quarter of a MiB a call of
/// 1 MiB takes twice as long.
const WRITE_BYTES_MAX: usize = 512 << 10;

/// Bytes read from one connection before others get their turn.
const READ_BYTES_MAX: usize = 1 << 20;

/// How reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// There is no more for now; the poller will tell.
    Drained,
    /// There is more, and it is others' turn.
    More,
    /// Somebody else reads, or nobody can.
    NotMine,
}

impl Shared {
    /// Writes what waits for a peer, as far as the socket takes it.
    pub(crate) fn flush_peer<'p>(
        self: &Arc<Self>,
        peer: &'p Arc<Peer>,
        mut state: MutexGuard<'p, PeerState>,
    ) {
        if state.is_flushing {
            return;
        }
        state.is_flushing = true;
        let mut unparked = Vec::new();
        let failure = loop {
            let Some(established) = &state.link else {
                break None;
            };
            if established.is_write_blocked {
                break None;
            }
            let link = Arc::clone(&established.link);
            let Some(mut batch) = state.outgoing.take_batch(WRITE_BYTES_MAX) else {
                break None;
            };
            drop(state);
            let before = batch.sent_bytes();
            let progress = batch.write_to(&mut &link.socket);
            self.metrics
                .sent(&peer.metrics, batch.sent_bytes() - before);
            state = peer.lock();
            if !state.uses(&link) {
                // The bytes were another connection's, whose calls have failed.
                continue;
            }
            match progress {
                Ok(WriteProgress::Done) => state.outgoing.put_back(batch),
                Ok(WriteProgress::Blocked) => {
                    state.outgoing.put_back(batch);
                    if let Some(established) = &mut state.link {
                        established.is_write_blocked = true;
                        self.sync_interest(established);
                    }
                    break None;
                }
                Err(error) => {
                    state.outgoing.put_back(batch);
                    break Some((link, error));
                }
            }
        };
        peer.end_flushing(&mut state);
        if state.outgoing.unsent_bytes() <= self.options.backlog_bytes_max / 2 {
            state.refused_unread = 0;
            unparked.extend(state.parked.drain(..));
        }
        drop(state);
        if !unparked.is_empty() {
            self.pool.submit(unparked);
        }
        if let Some((link, error)) = failure {
            self.lose(peer, &link, error);
        }
    }

    /// The socket takes bytes again.
    pub(crate) fn on_writable(self: &Arc<Self>, peer: &Arc<Peer>, token: usize) {
        let mut state = peer.lock();
        let Some(established) = &mut state.link else {
            return;
        };
        if established.link.token != token || !established.is_write_blocked {
            return;
        }
        established.is_write_blocked = false;
        self.sync_interest(established);
        self.flush_peer(peer, state);
    }

    /// Registers a connection for what is wanted of it. Called with the peer's lock held, so that two
    /// changes cannot cross; the system call does not block.
    fn sync_interest(&self, established: &mut Established) {
        let readable = (!established.is_lent).then_some(mio::Interest::READABLE);
        let writable = (established.is_write_blocked && !established.is_write_lent)
            .then_some(mio::Interest::WRITABLE);
        let wanted = match (readable, writable) {
            (Some(one), Some(other)) => Some(one | other),
            (one, other) => one.or(other),
        };
        if wanted == established.interest {
            return;
        }
        if let Err(error) = self
            .sockets
            .change(&established.link, established.interest, wanted)
        {
            // Without events the connection is of no use: the system says so to who reads or writes.
            log::error!("{}: cannot watch a connection: {error}", self.me);
            let _ = established.link.socket.shutdown(std::net::Shutdown::Both);
        }
        established.interest = wanted;
    }

    /// Puts a connection to use, on which these messages have come already.
    pub(crate) fn establish(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        mut state: MutexGuard<'_, PeerState>,
        link: Arc<Link>,
        reader: Incoming,
        messages: Vec<Message>,
    ) {
        log::debug!(
            "{}: connected to {} at {}",
            self.me,
            peer.info,
            link.address
        );
        let mut established = Established {
            link: Arc::clone(&link),
            reader: Some(Box::new(reader)),
            is_lent: false,
            is_write_lent: false,
            reads_again: false,
            is_read_closed: false,
            is_write_blocked: false,
            interest: None,
        };
        self.sync_interest(&mut established);
        state.connections += 1;
        self.metrics.connection_opened(state.connections > 1);
        state.link = Some(established);
        state.dial = None;
        state.last_failure = None;
        state.is_lost = false;
        state.has_left = false;
        state.is_dead = false;
        if messages.is_empty() {
            return self.flush_peer(peer, state);
        }
        drop(state);
        let mut found = Vec::new();
        let farewell = self.take_messages(peer, &link, messages, &mut found);
        self.pool.submit(found);
        if farewell {
            // Before anything is sent that nobody reads.
            self.lose(peer, &link, left());
        } else {
            self.flush_peer(peer, peer.lock());
        }
    }

    /// A connection is of no use any more: its calls fail.
    pub(crate) fn lose(self: &Arc<Self>, peer: &Arc<Peer>, link: &Arc<Link>, error: io::Error) {
        let mut state = peer.lock();
        if !state.uses(link) {
            return;
        }
        if let Some(pair) = &mut state.pair {
            pair.on_lost();
        }
        self.end_link(peer, state, link, error);
    }

    /// Ends a connection that is not, or no longer, the one to use.
    pub(crate) fn end_link(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        mut state: MutexGuard<'_, PeerState>,
        link: &Arc<Link>,
        error: io::Error,
    ) {
        let text: Arc<str> = format!("connection to {} lost: {error}", link.address).into();
        state.last_failure = Some(Arc::clone(&text));
        let is_farewell = error.get_ref().is_some_and(|error| error.is::<Farewell>());
        state.is_lost = !is_farewell;
        state.has_left = is_farewell;
        // Of the process that has ended: another one can be connected by the time that anybody is told.
        let incarnation = state.pair.as_ref().and_then(|pair| pair.peer_incarnation());
        let (established, calls) = state.cut();
        let parked: Vec<Request> = state.parked.drain(..).collect();
        state.requests_queued -= parked.len();
        self.requests_queued
            .fetch_sub(parked.len(), Ordering::Relaxed);
        drop(state);
        if let Some(established) = established {
            self.sockets.close(&established);
        }
        for _ in &parked {
            self.metrics.request_refused();
        }
        if !is_farewell {
            self.metrics.connection_lost();
        }
        if self.is_running() && !is_farewell {
            log::warn!(
                "{}: {}: {text}; {} calls fail",
                self.me,
                peer.info,
                calls.len()
            );
        }
        self.fail_lost(peer, calls, error);
        if is_farewell {
            self.tell_peer_left(peer, incarnation);
        } else {
            self.tell_peer_lost(peer, &text);
        }
    }

    pub(crate) fn fail_lost(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        calls: Vec<(PendingCall, Outcome)>,
        error: io::Error,
    ) {
        let cause = Arc::new(error);
        for (call, outcome) in calls {
            let error = if self.is_running() {
                call.lost(peer, outcome, &cause)
            } else {
                self.shut_down(peer, &call.function, outcome)
            };
            self.complete(peer, call, Err(error));
        }
    }

    /// Reads what has come from a peer; the requests in it go to `found`. While the connection is lent to
    /// a caller, only that one reads: it waits for the socket and would not see what another has taken.
    pub(crate) fn read_peer(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        token: usize,
        found: &mut impl Extend<Request>,
    ) -> ReadEnd {
        self.read_peer_as(peer, token, found, false)
    }

    /// [`Shared::read_peer`] by the poller, or by the caller to whom the connection is lent.
    fn read_peer_as(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        token: usize,
        found: &mut impl Extend<Request>,
        is_borrower: bool,
    ) -> ReadEnd {
        let mut state = peer.lock();
        let Some(established) = &mut state.link else {
            return ReadEnd::NotMine;
        };
        if established.link.token != token {
            return ReadEnd::NotMine;
        }
        if established.is_lent && !is_borrower {
            // An event from before: reading now would take the answer away from who waits for it.
            return ReadEnd::NotMine;
        }
        let Some(mut reader) = established.reader.take() else {
            established.reads_again = true;
            return ReadEnd::NotMine;
        };
        let link = Arc::clone(&established.link);
        let mut to_end = established.is_read_closed;
        drop(state);
        loop {
            let (end, result) = self.read_some(peer, &link, &mut reader, to_end, found);
            if let Err(error) = result {
                self.lose(peer, &link, error);
                return ReadEnd::NotMine;
            }
            let mut state = peer.lock();
            if !state.uses(&link) {
                return ReadEnd::NotMine;
            }
            let Some(established) = &mut state.link else {
                return ReadEnd::NotMine;
            };
            if std::mem::take(&mut established.reads_again) && end == ReadEnd::Drained {
                to_end = established.is_read_closed;
                continue;
            }
            established.reader = Some(reader);
            return end;
        }
    }

    /// The peer has sent its last byte: the event that says so may be the one of that byte.
    pub(crate) fn on_read_closed(&self, peer: &Peer, token: usize) {
        if let Some(established) = &mut peer.lock().link
            && established.link.token == token
        {
            established.is_read_closed = true;
        }
    }

    /// Reads until there is no more, or it is others' turn. `to_end`: the end of the stream is near.
    fn read_some(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        link: &Arc<Link>,
        reader: &mut Incoming,
        to_end: bool,
        found: &mut impl Extend<Request>,
    ) -> (ReadEnd, io::Result<()>) {
        let mut read_bytes = 0;
        while read_bytes < READ_BYTES_MAX {
            let (buffer, bytes_max) = reader.spare();
            let count = match recv_into_spare(&link.socket, buffer, bytes_max) {
                Ok(0) => return (ReadEnd::Drained, Err(ended())),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (ReadEnd::Drained, Ok(()));
                }
                Err(error) => return (ReadEnd::Drained, Err(error)),
            };
            read_bytes += count;
            self.metrics.received(&peer.metrics, count);
            let mut inbox = Inbox {
                shared: self,
                peer,
                messages: Vec::new(),
            };
            let result = reader.received(&mut inbox);
            let messages = inbox.messages;
            let farewell = self.take_messages(peer, link, messages, found);
            if let Err(error) = result {
                return (ReadEnd::Drained, Err(broken(error)));
            }
            if farewell {
                return (ReadEnd::Drained, Err(left()));
            }
            if count < bytes_max && !to_end {
                // A stream that gave less than it could has no more; an edge tells of what comes. But no
                // other one tells of an end that was told along with these bytes.
                return (ReadEnd::Drained, Ok(()));
            }
        }
        (ReadEnd::More, Ok(()))
    }

    /// Completes calls and collects requests; whether the peer said farewell.
    fn take_messages(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        link: &Arc<Link>,
        messages: Vec<Message>,
        found: &mut impl Extend<Request>,
    ) -> bool {
        let mut farewell = false;
        let now = Instant::now();
        for message in messages {
            match message {
                Message::Request {
                    id,
                    budget_ms,
                    function,
                    payload,
                } => {
                    let link = Arc::downgrade(link);
                    found.extend(self.admit(
                        peer,
                        WayBack { link, id },
                        budget_ms,
                        function.as_str(),
                        payload,
                        now,
                    ));
                }
                Message::Response { id, payload } => {
                    if let Some(call) = self.answered(peer, id) {
                        self.complete(peer, call, Ok(payload));
                    }
                }
                Message::Error { id, kind, text } => {
                    if let Some(call) = self.answered(peer, id) {
                        let error = self.error_of(peer, &call, kind, text);
                        self.complete(peer, call, Err(error));
                    }
                }
                Message::Goodbye { .. } => farewell = true,
                Message::Hello(_) | Message::Welcome(_) | Message::Refuse(_) => {
                    debug_assert!(false, "the decoder lets none of them through here");
                }
            }
        }
        farewell
    }

    /// The call that an answer belongs to, unless it has been given up.
    pub(crate) fn answered(&self, peer: &Peer, id: u64) -> Option<PendingCall> {
        match peer.lock().in_flight.complete(CallId::from_wire(id)) {
            Completed::Call(call) => Some(call),
            Completed::Late | Completed::Unknown => {
                self.metrics.late_response();
                None
            }
        }
    }

    /// A caller reads its own answer: for the time of its wait the poller leaves the connection to it,
    /// which saves waking a second thread for every answer. It reads what comes for others as well, and
    /// leaves requests and callbacks to the pool.
    pub(crate) fn read_while_waiting(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
    ) {
        let link = {
            let mut state = peer.lock();
            let Some(established) = &mut state.link else {
                return;
            };
            if established.is_lent || established.reader.is_none() {
                return;
            }
            established.is_lent = true;
            self.sync_interest(established);
            Arc::clone(&established.link)
        };
        let mut found = Vec::new();
        while !is_complete() {
            // Nobody wakes this thread when a call expires, its own perhaps: it sees to that itself.
            let (next_ms, is_write_blocked) = {
                let mut state = peer.lock();
                if state.expiring > 0 {
                    // One of them may be its own, and nothing comes on the connection that tells.
                    break;
                }
                let next_ms = state.in_flight.next_deadline_ms();
                let Some(established) = &mut state.link else {
                    break;
                };
                let is_blocked = established.is_write_blocked;
                if established.is_write_lent != is_blocked {
                    established.is_write_lent = is_blocked;
                    self.sync_interest(established);
                }
                (next_ms, is_blocked)
            };
            if is_complete() {
                // It expired before the table was looked into, which has others' deadlines only.
                break;
            }
            let next = next_ms.map_or(Deadline::NEVER, |ms| self.at_ms(ms));
            let until = deadline.min(next);
            let left = until.remaining(Instant::now());
            let ready = if is_write_blocked {
                wait_for_either(&link.socket, left)
            } else {
                wait_for_input(&link.socket, left)
            };
            match ready {
                Ok(true) if is_write_blocked => self.on_writable(peer, link.token),
                Ok(true) => {}
                Ok(false) => {
                    let now = Instant::now();
                    self.expire_peer(peer, self.ms_of(now));
                    if deadline.has_passed(now) {
                        break;
                    }
                    continue;
                }
                Err(error) => {
                    log::error!("{}: cannot wait for an answer: {error}", self.me);
                    break;
                }
            }
            let end = self.read_peer_as(peer, link.token, &mut found, true);
            if !found.is_empty() {
                self.pool.submit(found.drain(..));
            }
            self.flush_dirty();
            // Who sends without a pause would keep it reading.
            if end == ReadEnd::NotMine || deadline.has_passed(Instant::now()) {
                break;
            }
        }
        let mut state = peer.lock();
        if !state.uses(&link) {
            return;
        }
        if let Some(established) = &mut state.link {
            established.is_lent = false;
            established.is_write_lent = false;
            self.sync_interest(established);
        }
    }

    /// Cuts a peer's connection as a test's fault asks for.
    pub(crate) fn cut_for_test(&self, peer: &Peer) {
        let state = peer.lock();
        if let Some(established) = &state.link {
            let _ = established.link.socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Collects messages, and says which large answers are wanted.
struct Inbox<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
    messages: Vec<Message>,
}

impl Recipient for Inbox<'_> {
    fn wants_response(&mut self, id: u64) -> bool {
        let is_wanted = self.peer.lock().in_flight.contains(CallId::from_wire(id));
        if !is_wanted {
            // Asked once for each, as the rest of it is skipped.
            self.shared.metrics.late_response();
        }
        is_wanted
    }

    fn take(&mut self, message: Message) {
        self.messages.push(message);
    }
}

/// The peer has said that it leaves.
#[derive(Debug, thiserror::Error)]
#[error("the worker has left")]
struct Farewell;

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the peer")
}

fn left() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, Farewell)
}

fn broken(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The error of a call that cannot be sent as no connection can be made.
pub(crate) fn not_connected(peer: &Peer, call: &PendingCall, cause: &Arc<str>) -> RpcError {
    RpcError::NotSent {
        call: peer.site(&call.function),
        cause: crate::error::NotSent::Connect(Arc::clone(cause)),
    }
}
