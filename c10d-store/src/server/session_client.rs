//! A client of a session, as a connection without a socket, and the numbers of its requests. Pure.

use c10d_socket::SendBuf;

use super::budget::SessionMemory;
use crate::moment::Moment;
use crate::session::{Credit, ResentWait};

/// Requests without a reply are reported to the peer as done after this many requests, or this many bytes.
const UNDONE_REQUESTS_MAX: u32 = 1024;
const UNDONE_BYTES_MAX: usize = 64 << 10;

/// A client of a session.
#[derive(Debug)]
pub(super) struct Client {
    /// The slot of the session.
    session: u32,
    pub(super) number: u32,
    pub(super) credit: Credit,
    /// Received bytes that wait because the client does not read its replies, at most its credit.
    pub(super) kept_bytes: u32,
    /// Bytes of groups in requests that were not carried out yet. The peer has sent them once for many clients.
    pub(super) grouped_bytes: u32,
    /// The memory of its pending wait at the time of its last request.
    pub(super) waiting_bytes: u32,
    /// What [`Connections::session_memory`](super::connection::Connections::session_memory) has counted of its requests and its wait.
    counted_bytes: u32,
    /// Whether it is in the list of clients whose replies wait for room in the session.
    pub(super) waits_for_room: bool,
    /// Whether it is in the list of clients whose requests wait for the session's budget.
    pub(super) waits_for_budget: bool,
    /// Whether its relay passes on how a write was refused.
    pub(super) knows_refusal: bool,
    /// `None` while there are none.
    replies: Option<Box<ClientReplies>>,
    /// The numbers of its requests, if the journal keeps its session.
    pub(super) numbers: Option<Box<Numbers>>,
    /// The last request that has arrived may be a wait that was sent before its session was accepted at this time.
    pub(super) resent: Option<Box<(ResentWait, Moment)>>,
}

/// The unsent replies of a client.
#[derive(Debug, Default)]
struct ClientReplies {
    out: SendBuf,
    /// What [`Connections::session_memory`](super::connection::Connections::session_memory) has counted of them.
    counted_bytes: usize,
}

impl Client {
    /// Creates a client of the session in this slot.
    pub(super) fn new(session: usize, number: u32) -> Self {
        Self {
            // There are at most 65,536.
            session: session as u32,
            number,
            credit: Credit::default(),
            kept_bytes: 0,
            grouped_bytes: 0,
            waiting_bytes: 0,
            counted_bytes: 0,
            waits_for_room: false,
            waits_for_budget: false,
            knows_refusal: false,
            replies: None,
            numbers: None,
            resent: None,
        }
    }

    /// The slot of the session.
    pub(super) const fn slot(&self) -> usize {
        self.session as usize
    }

    /// Returns its replies, and its credit to send them with; `None` without replies.
    pub(super) fn replies(&mut self) -> Option<(&mut SendBuf, &mut Credit)> {
        let replies = self.replies.as_mut()?;
        Some((&mut replies.out, &mut self.credit))
    }

    /// The replies that are not sent; `None` if it has none.
    #[inline]
    pub(super) fn out(&self) -> Option<&SendBuf> {
        self.replies.as_ref().map(|replies| &replies.out)
    }

    /// Returns the buffer for replies.
    #[inline]
    pub(super) fn out_mut(&mut self) -> &mut SendBuf {
        &mut self.replies.get_or_insert_default().out
    }

    /// Drops all replies.
    pub(super) fn drop_replies(&mut self) {
        if let Some(replies) = &mut self.replies {
            replies.out = SendBuf::new();
        }
    }

    /// Forgets the memory of its requests and its wait.
    pub(super) const fn drop_requests(&mut self) {
        self.grouped_bytes = 0;
        self.waiting_bytes = 0;
    }

    /// Whether its relay passes on how a write was refused.
    pub(super) const fn knows_refusal(&self) -> bool {
        self.knows_refusal
    }

    /// Whether the journal keeps its session.
    pub(super) const fn is_carried(&self) -> bool {
        self.numbers.is_some()
    }

    /// Counts again the memory that it holds, besides the bytes of held replies. Returns the new and the previous
    /// count. Frees memory that an idle client does not need.
    pub(super) fn recount(&mut self, held_bytes: usize) -> (SessionMemory, SessionMemory) {
        let mut before = SessionMemory {
            reply_bytes: 0,
            request_bytes: self.counted_bytes as usize,
        };
        self.counted_bytes = self.grouped_bytes.saturating_add(self.waiting_bytes);
        let mut now = SessionMemory {
            reply_bytes: 0,
            request_bytes: self.counted_bytes as usize,
        };
        if let Some(replies) = &mut self.replies {
            before.reply_bytes = replies.counted_bytes;
            if replies.out.is_empty() && held_bytes == 0 {
                self.replies = None;
            } else {
                now.reply_bytes = replies.out.memory_bytes() + held_bytes;
                replies.counted_bytes = now.reply_bytes;
            }
        }
        (now, before)
    }
}

/// The numbers of a client's requests, in a session that survives the server (docs/spec/wire-extensions.md, SESSION 13 and 14).
/// Requests count from 1, in the order in which they arrive.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The last request.
    requests: u32,
    /// Whether no request has arrived since RESUME.
    is_resumed: bool,
    /// The last request that can wait.
    wait_request: u32,
    /// Whether that has another reply when it is sent again.
    wait_is_fresh: bool,
    /// The next request that can wait was sent to an earlier server, or waited for this one, which has accepted the session
    /// at this time.
    resent: Option<(ResentWait, Moment)>,
    /// The last request with a reply. A request without a reply is sent again until a later request has a reply.
    replied: u32,
    /// Up to this request the peer has its replies, and sends none again.
    answered: u32,
    /// The last reply that was put into the stream: its request, and the length of the stream with it.
    handed: Option<(u32, u64)>,
    /// The last request that was reported to the peer as done.
    told: u32,
    /// Counted since requests were last reported to the peer as done, by a reply or by DONE. They stay while a
    /// request has arrived in part, to which some of the bytes belong.
    undone_bytes: usize,
    undone_requests: u32,
}

impl Numbers {
    /// The next request, which can wait or not.
    pub(super) const fn next(&mut self, can_wait: bool) -> u32 {
        self.requests = self.requests.wrapping_add(1);
        self.is_resumed = false;
        self.undone_requests += 1;
        if can_wait {
            self.wait_request = self.requests;
        }
        self.requests
    }

    /// The last request is a poll, which is carried out again if it is sent again: its reply is not kept.
    pub(super) const fn set_fresh(&mut self, is_fresh: bool) {
        self.wait_is_fresh = is_fresh;
    }

    /// Whether the reply to the request that waits is not kept.
    pub(super) const fn is_wait_fresh(&self) -> bool {
        self.wait_is_fresh
    }

    /// The next request has this number. `false` if others were sent before.
    pub(super) const fn resume(&mut self, request: u32) -> bool {
        let is_first = self.requests == 0;
        self.requests = request.wrapping_sub(1);
        self.is_resumed = true;
        is_first && request > 0
    }

    /// The next request that can wait is sent to a restarted server, which has accepted the session at this time. `false` if
    /// requests have arrived since RESUME.
    pub(super) const fn set_resent(&mut self, wait: ResentWait, accepted: Moment) -> bool {
        if self.is_resumed {
            self.resent = Some((wait, accepted));
        }
        self.is_resumed
    }

    /// Returns the resent wait, if this request is the resent one.
    pub(super) const fn take_resent(&mut self) -> Option<(ResentWait, Moment)> {
        self.resent.take()
    }

    /// A request has its reply.
    pub(super) fn replies(&mut self, request: u32) {
        self.replied = self.replied.max(request);
    }

    /// The request that waits, if one does.
    pub(super) const fn wait_request(&self) -> u32 {
        self.wait_request
    }

    /// Up to this request the peer has its replies, given how many bytes of the stream it has.
    pub(super) fn answered(&mut self, acknowledged: u64) -> u32 {
        if let Some((request, length)) = self.handed
            && length <= acknowledged
        {
            self.answered = request;
            self.handed = None;
        }
        self.answered
    }

    /// Records that all replies so far are in the stream, which has this length.
    pub(super) fn all_handed(&mut self, is_waiting: bool, is_between: bool, length: u64) {
        self.hand(self.replied.min(self.settled(is_waiting)), length);
        if self.replied == self.requests {
            self.reset(is_between);
        }
    }

    /// The requests up to this one are reported to the peer as done; at that moment, the stream has this length.
    pub(super) fn hand(&mut self, request: u32, length: u64) {
        if self.handed.is_none() && request > self.answered {
            self.handed = Some((request, length));
        }
    }

    /// Bytes of requests have arrived.
    pub(super) const fn received(&mut self, bytes: usize) {
        self.undone_bytes = self.undone_bytes.saturating_add(bytes);
    }

    /// Whether requests should be reported to the peer as done.
    pub(super) const fn is_due(&self) -> bool {
        self.undone_bytes >= UNDONE_BYTES_MAX || self.undone_requests >= UNDONE_REQUESTS_MAX
    }

    /// Returns the request to report to the peer as done, together with the requests before it. With `is_between`, no
    /// request has arrived in part.
    pub(super) fn take_done(&mut self, is_waiting: bool, is_between: bool) -> Option<u32> {
        let request = self.settled(is_waiting);
        if !self.is_due() || request <= self.told.max(self.answered) {
            return None;
        }
        self.told = request;
        self.reset(is_between);
        Some(request)
    }

    const fn reset(&mut self, is_between: bool) {
        self.undone_requests = 0;
        if is_between {
            self.undone_bytes = 0;
        }
    }

    /// The last request before a request that waits, or of all requests.
    const fn settled(&self, is_waiting: bool) -> u32 {
        if is_waiting {
            self.wait_request.wrapping_sub(1)
        } else {
            self.requests
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_once_the_peer_has_what_followed_it() {
        let mut numbers = Numbers::default();
        assert_eq!([numbers.next(false), numbers.next(true)], [1, 2]);
        numbers.replies(1);
        numbers.all_handed(true, true, 100);
        assert_eq!(numbers.answered(99), 0);
        assert_eq!(numbers.answered(100), 1, "the second one waits");
        assert_eq!(numbers.next(false), 3, "without a reply");
        numbers.replies(2);
        numbers.all_handed(false, true, 200);
        numbers.all_handed(false, true, 300);
        assert_eq!(numbers.answered(200), 2, "the third one is sent again");
        assert_eq!(numbers.next(false), 4);
        numbers.replies(4);
        numbers.all_handed(false, true, 400);
        assert_eq!(numbers.answered(400), 4);
    }

    #[test]
    fn a_client_that_was_open_before_goes_on_with_its_numbers() {
        let mut numbers = Numbers::default();
        assert!(!Numbers::default().resume(0));
        assert!(numbers.resume(7));
        assert_eq!(numbers.next(false), 7);
        assert!(!numbers.resume(9), "in the middle");
    }

    #[test]
    fn the_peer_is_told_of_many_requests_without_replies() {
        let mut numbers = Numbers::default();
        for _ in 1..UNDONE_REQUESTS_MAX {
            numbers.next(false);
            assert_eq!(numbers.take_done(false, true), None);
        }
        numbers.next(false);
        assert_eq!(numbers.take_done(false, true), Some(UNDONE_REQUESTS_MAX));
        numbers.next(false);
        numbers.received(UNDONE_BYTES_MAX);
        assert_eq!(
            numbers.take_done(false, true),
            Some(UNDONE_REQUESTS_MAX + 1)
        );
        assert_eq!(numbers.take_done(false, true), None);
    }

    #[test]
    fn the_bytes_of_a_request_count_until_it_is_complete() {
        let mut numbers = Numbers::default();
        numbers.next(false);
        numbers.received(UNDONE_BYTES_MAX);
        assert_eq!(numbers.take_done(false, false), Some(1));
        numbers.received(1);
        assert_eq!(numbers.take_done(false, false), None, "it has 1 part only");
        numbers.replies(1);
        numbers.all_handed(false, false, 100);
        numbers.next(false);
        numbers.received(1);
        assert_eq!(numbers.take_done(false, true), Some(2));
        assert!(!numbers.is_due());
        // A reply reports nothing about requests after its own request.
        for _ in 3..=4 {
            numbers.next(false);
        }
        numbers.received(UNDONE_BYTES_MAX);
        numbers.replies(3);
        numbers.all_handed(false, true, 200);
        assert_eq!(numbers.take_done(false, true), Some(4));
    }
}
