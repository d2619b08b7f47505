//! The numbers of a client's requests, in a session that survives the server (docs/spec/wire-extensions.md, SESSION 13 and 14). Pure.

use crate::moment::Moment;
use crate::session::ResentWait;

/// Requests without a reply are reported to the peer as done after this many requests, or this many bytes.
const UNDONE_REQUESTS_MAX: u32 = 1024;
const UNDONE_BYTES_MAX: usize = 64 << 10;

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
