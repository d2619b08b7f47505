//! The requests of one client that may have to be sent again, and the expected replies (docs/spec/wire-extensions.md,
//! SESSION 13 to 15).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use super::fingerprint::Fingerprint;
use super::resent_wait::{ResentWait, Restart, WaitOrigin};
use super::stream::SessionStream;
use crate::wire::{NotAReply, Opcode, ReplyScan};

/// The capacity that an idle client keeps.
const CAPACITY_KEPT_MAX: usize = 512;

/// An incomplete reply is passed on once it is longer than this. The client could not use a part of it, and the
/// server may give another reply after a restart.
const WITHHELD_BYTES_MAX: usize = 64 << 10;

/// The most bytes of one client in a frame, so that long requests of several clients take turns.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Reason why a client cannot resume after a server restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotCarried {
    /// The client's replies cannot be separated from each other.
    #[error("it sends requests while one waits, so that its replies cannot be told apart")]
    Opaque,
    /// Requests were dropped before the server had acknowledged them.
    #[error("it had sent more without a reply than is kept")]
    Forgotten,
    /// The client has sent too many requests: their numbers have 32 bits.
    #[error("it has sent more than 4,294,967,295 requests")]
    TooMany,
}

/// Reason why the bytes that arrived for a client are not the expected reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The bytes are not a reply.
    #[error(transparent)]
    NotAReply(#[from] NotAReply),
    /// The reply differs from the part that was passed on before the server was restarted.
    #[error("a value that had arrived in part was overwritten when the store was restarted")]
    Changed,
}

/// The unanswered requests of one client, oldest first, and the replies that are still expected, including answers to
/// CANCEL_WAIT that the caller gives instead of the server.
///
/// [`add`](Self::add) each request, then either [`send`](Self::send) it or report that it [was sent](Self::sent).
/// When the server was restarted, call [`restart`](Self::restart): all requests are then unsent again.
///
/// Requests count from 1.
#[derive(Debug, Default)]
pub struct Outstanding {
    /// The bytes of requests: first the requests in `lengths`, whose first `sent` bytes are sent.
    bytes: VecDeque<u8>,
    sent: usize,
    lengths: VecDeque<usize>,
    /// The requests that no longer are in `lengths`.
    dropped: u64,
    /// The number of requests that will not be sent to the server again. It is less than `dropped` after requests
    /// were forgotten.
    acknowledged: u64,
    /// The requests that the server has carried out and kept.
    done: u64,
    owed: VecDeque<Owed>,
    /// The start of the first reply that is owed, if that is short.
    withheld: Vec<u8>,
    /// The part of the first expected reply that has been passed on.
    passed: Fingerprint,
    /// The part of that reply that has arrived again.
    repeated: Fingerprint,
    cancels: u64,
    /// The origin of the last request that was a wait.
    wait: Option<WaitOrigin>,
    /// The last request, if that is a wait that END_WAITS has ended.
    ended_wait: Option<u64>,
    /// The CANCEL_WAIT after such a wait: the server does not answer it.
    vain_cancel: Option<u64>,
    /// The client sends requests while one waits, so that only the client can tell its replies apart. They are passed on
    /// without a look at them.
    is_opaque: bool,
}

#[derive(Debug)]
struct Owed {
    scan: ReplyScan,
    /// The caller has answered the client: the reply of the server is dropped.
    is_answered: bool,
    /// Which of the client's CANCEL_WAITs this is, or has cancelled this; 0 for none.
    cancel: u64,
    /// The request, and its CANCEL_WAIT.
    first: u64,
    last: u64,
}

impl Outstanding {
    /// Adds a whole request of the client with a command and this number of keys. Returns whether it was added; if
    /// not, the client has to wait until the server has answered an earlier request.
    #[must_use]
    pub fn add(&mut self, opcode: Opcode, key_count: usize, bytes: &[u8]) -> bool {
        if !self.is_opaque && !self.expect(opcode, key_count) {
            return false;
        }
        if !self.is_opaque {
            self.lengths.push_back(bytes.len());
        }
        self.bytes.extend(bytes);
        true
    }

    /// Reports when the client sent the request that was [added](Self::add) last, which matters if it is a wait.
    pub fn sent_at(&mut self, now: Instant) {
        if self.is_waiting() {
            self.wait = Some(WaitOrigin::new(now));
        }
    }

    /// Checks that the client can resume after a server restart.
    ///
    /// # Errors
    /// [`NotCarried`] with the reason if it cannot.
    pub fn check_carried(&self) -> Result<(), NotCarried> {
        if self.is_opaque {
            Err(NotCarried::Opaque)
        } else if self.dropped > self.acknowledged {
            Err(NotCarried::Forgotten)
        } else if u32::try_from(self.last()).is_err() {
            Err(NotCarried::TooMany)
        } else {
            Ok(())
        }
    }

    /// Resumes after a server restart: all requests that are here will be sent again. Returns the number of the first
    /// request.
    ///
    /// # Errors
    /// [`NotCarried`] if that is impossible.
    pub fn restart(&mut self) -> Result<u32, NotCarried> {
        self.check_carried()?;
        self.drop_vain_cancel();
        let first = u32::try_from(self.acknowledged + 1).map_err(|_| NotCarried::TooMany)?;
        self.sent = 0;
        self.withheld = Vec::new();
        self.repeated = Fingerprint::default();
        if let Some(owed) = self.owed.front_mut() {
            owed.scan = owed.scan.begun_anew();
        }
        Ok(first)
    }

    /// Returns the wait that will be sent to the restarted server, if the client waits.
    pub fn resent_wait(&mut self, restart: Restart, now: Instant) -> Option<ResentWait> {
        let is_waiting = self.is_waiting();
        let wait = self.wait.as_mut().filter(|_| is_waiting)?;
        Some(wait.resend(restart, now))
    }

    /// Returns whether the client waits, and an earlier wait is to be sent as well: the earlier wait is cancelled,
    /// but has no reply.
    #[must_use]
    pub fn has_earlier_wait(&self) -> bool {
        let mut earlier = self.owed.iter().rev().skip(1);
        self.is_waiting() && earlier.any(|owed| owed.scan.opcode().is_wait())
    }

    /// Returns the wait to report to the same server over a link that was made at this time, if the client has waited since
    /// before. Call it when the wait is in the session: another wait may have taken its place.
    #[must_use]
    pub fn wait_of_same_server(&self, linked_at: Instant) -> Option<ResentWait> {
        let wait = self.wait.filter(|_| self.is_waiting())?;
        wait.began_by(linked_at)
            .then(|| wait.at_same_server(linked_at))
    }

    /// Returns the number of unsent bytes.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Returns the number of kept bytes, sent or not.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether exactly one request is kept, and it has no reply.
    #[must_use]
    pub fn is_one_without_reply(&self) -> bool {
        self.lengths.len() == 1 && self.is_last_without_reply()
    }

    /// Returns the number of expected replies.
    #[must_use]
    pub fn owed_replies(&self) -> usize {
        self.owed.len()
    }

    /// Sends at most this many of the unsent bytes, as DATA of the client.
    pub fn send(&mut self, stream: &mut SessionStream, client: u32, count: usize) {
        let count = count.min(self.unsent_bytes());
        let range = self.sent..self.sent + count;
        let (front, back) = self.bytes.as_slices();
        let of_front = within(&range, 0, front.len());
        let of_back = within(&range, front.len(), back.len());
        for part in [&front[of_front], &back[of_back]] {
            for piece in part.chunks(FRAME_BYTES_MAX) {
                stream.push_data(client, piece);
            }
        }
        self.sent(count);
    }

    /// Reports that this many of the next unsent bytes are sent by other means.
    pub fn sent(&mut self, count: usize) {
        self.sent += count.min(self.unsent_bytes());
        if self.is_opaque {
            self.drop_bytes(self.sent);
        } else if self.acknowledged < self.done {
            self.acknowledge(self.done);
        }
    }

    /// Drops the oldest sent requests while more than `bytes_max` bytes are kept.
    pub fn forget_beyond(&mut self, bytes_max: usize) {
        while self.bytes.len() > bytes_max && self.drop_first() {}
    }

    /// Reports that the server has carried out and kept the requests up to this one. Their replies may still be on
    /// the way.
    pub fn done(&mut self, request: u32) {
        self.done = self.done.max(u64::from(request).min(self.last()));
        self.acknowledge(self.done);
    }

    /// Takes bytes that the server has sent to the client, and passes on the bytes that the client should get.
    ///
    /// # Errors
    /// [`ReplyError`] if they are not the expected reply: the client must be closed.
    pub fn on_reply(
        &mut self,
        mut bytes: &[u8],
        mut pass: impl FnMut(&[u8]),
    ) -> Result<(), ReplyError> {
        while let Some(owed) = self.owed.front_mut() {
            let before = bytes;
            let is_complete = owed.scan.advance(&mut bytes)?;
            let part = &before[..before.len() - bytes.len()];
            let last = owed.last;
            let was_ended = owed.scan.was_ended();
            if !owed.is_answered {
                let new = self.new_part(part)?;
                if is_complete || !self.withhold(new) {
                    let withheld = std::mem::take(&mut self.withheld);
                    for part in [&withheld[..], new] {
                        self.pass_on(part, is_complete, &mut pass);
                    }
                }
            }
            if !is_complete {
                return Ok(());
            }
            if self.repeated != self.passed {
                return Err(ReplyError::Changed);
            }
            self.owed.pop_front();
            self.ended_wait = Some(last).filter(|last| was_ended && *last == self.last());
            self.passed = Fingerprint::default();
            self.repeated = Fingerprint::default();
            self.acknowledge(self.done.max(last));
        }
        // The client may expect a reply that this side does not.
        if !bytes.is_empty() {
            pass(bytes);
        }
        Ok(())
    }

    /// Returns whether the client waits for a delayed reply, and has not cancelled that wait.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let last = self.owed.back().map(|owed| &owed.scan);
        last.is_some_and(|scan| scan.opcode().is_wait() && !scan.is_cancelled())
    }

    /// Answers a CANCEL_WAIT for the store, which has not answered in time: PyTorch's client waits for this answer
    /// without a limit. `cancel` is the value of [`cancels`](Self::cancels) after the request. Returns whether the
    /// client should get the answer. The answer only means that the wait is over, so it is not given for the waits
    /// that our clients read with.
    #[must_use]
    pub fn answer_cancel(&mut self, cancel: u64) -> bool {
        let Some(index) = self.owed.iter().position(|owed| !owed.is_answered) else {
            return false;
        };
        let has_begun = index == 0 && !self.passed.is_empty();
        let owed = &mut self.owed[index];
        let may_drop = matches!(
            owed.scan.opcode(),
            Opcode::Wait | Opcode::Barrier | Opcode::CancelWait
        );
        owed.is_answered =
            owed.cancel == cancel && may_drop && !owed.scan.has_begun() && !has_begun;
        owed.is_answered
    }

    /// Returns how many CANCEL_WAITs the client has sent.
    #[must_use]
    pub const fn cancels(&self) -> u64 {
        self.cancels
    }

    /// Returns whether the last requests have no reply that would acknowledge them.
    #[must_use]
    pub fn is_last_without_reply(&self) -> bool {
        let owed = self.owed.back().map_or(0, |owed| owed.last);
        !self.is_opaque && self.last() > self.acknowledged.max(owed)
    }

    /// Keeps the start of a reply, if it is short. Returns whether it does.
    fn withhold(&mut self, part: &[u8]) -> bool {
        let is_short = self.withheld.len() + part.len() <= WITHHELD_BYTES_MAX;
        let withholds = self.passed.is_empty() && is_short;
        if withholds {
            self.withheld.extend_from_slice(part);
        }
        withholds
    }

    fn pass_on(&mut self, part: &[u8], is_complete: bool, pass: &mut impl FnMut(&[u8])) {
        if part.is_empty() {
            return;
        }
        pass(part);
        if !is_complete {
            self.passed.add(part);
            self.repeated = self.passed;
        }
    }

    /// The part of a reply that has not been passed on before.
    fn new_part<'a>(&mut self, part: &'a [u8]) -> Result<&'a [u8], ReplyError> {
        let left = self.passed.bytes() - self.repeated.bytes();
        if left == 0 {
            return Ok(part);
        }
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(part.len());
        let (old, new) = part.split_at(count);
        self.repeated.add(old);
        if old.len() as u64 == left && self.repeated != self.passed {
            return Err(ReplyError::Changed);
        }
        Ok(new)
    }

    /// Expects the reply to the next request. Returns whether it may be sent.
    fn expect(&mut self, opcode: Opcode, key_count: usize) -> bool {
        let number = self.last() + 1;
        let ended_wait = self.ended_wait.take();
        if opcode == Opcode::CancelWait && ended_wait.is_some() {
            self.vain_cancel = Some(number);
            return true;
        }
        if opcode == Opcode::CancelWait {
            self.expect_cancel(number);
            return true;
        }
        let Some(mut scan) = ReplyScan::new(opcode, key_count) else {
            return true;
        };
        if scan.advance(&mut &[][..]) == Ok(true) {
            // It has no bytes.
            return true;
        }
        if self.is_waiting() {
            // Its replies must be complete before they are no longer looked at.
            if self.owed.iter().any(|owed| owed.is_answered) {
                return false;
            }
            self.become_opaque();
            return true;
        }
        self.owe(scan, number, 0);
        true
    }

    fn expect_cancel(&mut self, number: u64) {
        self.cancels += 1;
        let waits = self.is_waiting();
        match self.owed.back_mut() {
            Some(last) if waits => {
                last.scan.cancel();
                last.cancel = self.cancels;
                last.last = number;
            }
            _ => {
                if let Some(scan) = ReplyScan::new(Opcode::CancelWait, 0) {
                    self.owe(scan, number, self.cancels);
                }
            }
        }
    }

    fn owe(&mut self, scan: ReplyScan, number: u64, cancel: u64) {
        self.owed.push_back(Owed {
            scan,
            is_answered: false,
            cancel,
            first: number,
            last: number,
        });
    }

    fn become_opaque(&mut self) {
        self.is_opaque = true;
        self.owed.clear();
        self.lengths.clear();
        self.drop_bytes(self.sent);
    }

    /// A CANCEL_WAIT that has no answer changes nothing, and a restarted server would answer it.
    fn drop_vain_cancel(&mut self) {
        if self.vain_cancel == Some(self.dropped + 1)
            && let Some(length) = self.lengths.pop_front()
        {
            self.bytes.drain(..length);
            self.sent = self.sent.saturating_sub(length);
            self.dropped += 1;
            self.acknowledged = self.acknowledged.max(self.dropped);
        }
    }

    /// The number of the last request.
    fn last(&self) -> u64 {
        self.dropped + self.lengths.len() as u64
    }

    /// Drops the requests up to this one, as far as no earlier reply is owed.
    fn acknowledge(&mut self, until: u64) {
        let first_owed = self.owed.front().map_or(u64::MAX, |owed| owed.first);
        let until = until.min(first_owed - 1);
        while self.dropped < until && self.drop_first() {}
        // A request that is still here is sent again to a restarted server, under its own number.
        self.acknowledged = self.acknowledged.max(until.min(self.dropped));
    }

    /// Drops the first request, if it is sent.
    fn drop_first(&mut self) -> bool {
        match self.lengths.front() {
            Some(&length) if length <= self.sent => {
                self.lengths.pop_front();
                self.dropped += 1;
                self.drop_bytes(length);
                true
            }
            _ => false,
        }
    }

    fn drop_bytes(&mut self, count: usize) {
        self.sent -= count;
        if count < self.bytes.len() {
            self.bytes.drain(..count);
        } else {
            self.bytes.clear();
            self.bytes.shrink_to(CAPACITY_KEPT_MAX);
        }
    }
}

/// The part of a range that is in the piece of this length at `start`, as a range of the piece.
fn within(range: &Range<usize>, start: usize, length: usize) -> Range<usize> {
    let of_piece = |at: usize| at.saturating_sub(start).min(length);
    of_piece(range.start)..of_piece(range.end)
}

#[cfg(test)]
mod tests;
