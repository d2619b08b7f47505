//! One rank's side of the relay. Pure. Does not interpret keys or values.

use std::fmt;
use std::time::Instant;

use c10d_socket::SendBuf;
use c10d_store::Opcode;
use c10d_store::unstable::{Credit, NotCarried, Outstanding, RawRequests, ReplyError, RequestBuf};

/// The most expected replies of a rank. A rank that sends more requests waits until some replies have arrived.
const OWED_MAX: usize = 4096;

/// If this many bytes of a rank wait to be sent, the relay does not read from the rank.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// If this many bytes of a rank are kept for a possible restart of the store, the relay does not read from the rank.
/// The store acknowledges earlier than that: it has carried out everything except the bytes for which there is
/// credit, and leaves at most 64 KiB of the rest unacknowledged (docs/spec/wire-extensions.md, SESSION 8 and 14).
const KEPT_BYTES_MAX: usize = (256 + 64) << 10;

/// The reply to a CANCEL_WAIT.
const WAIT_CANCELED: u8 = 1;

/// The state of one rank.
#[derive(Debug, Default)]
pub(crate) struct Rank {
    pub(crate) requests: RawRequests,
    /// The rank's requests that wait for credit, for room in the session, or for replies; and the expected replies.
    pub(crate) outstanding: Outstanding,
    /// Replies for the rank.
    pub(crate) down: SendBuf,
    /// The number of bytes in `down` that do not belong to the credit: they are the relay's, or from before a restart
    /// of the store, or they were withheld and the credit was returned.
    uncounted_down: usize,
    /// The memory of the rank, as counted by the hub.
    pub(crate) counted_bytes: usize,
    pub(crate) credit: Credit,
    /// The port of the rank's end of the connection.
    pub(crate) port: u16,
    /// Requests are kept until something has been received or sent.
    pub(crate) is_paused: bool,
    /// The first of them, if it has to wait for a reply.
    pub(crate) held: Option<Held>,
    /// The rank has closed its connection. Its earlier requests are still sent to the store.
    pub(crate) is_gone: bool,
    /// Whether the rank's last requests have no reply, so that a request of the relay with a reply follows them.
    pub(crate) is_marked: bool,
    /// The rank's connection is to be closed. The rank still gets the replies before that.
    pub(crate) closing: Option<Closing>,
    /// Whether the rank is in the list of ranks to check.
    pub(crate) is_touched: bool,
    /// Whether the rank is in the list of ranks with waiting requests.
    pub(crate) waits_to_send: bool,
    /// The last request of this turn that this rank takes part in, from 1.
    pub(crate) last_in_turn: usize,
}

/// A request that was received and not passed on.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) opcode: Opcode,
    pub(crate) key_count: usize,
    pub(crate) bytes: Vec<u8>,
}

/// Why a rank's connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The store has closed it.
    ByStore,
    /// The store's replies are not those that are due.
    Reply(ReplyError),
    /// The store was restarted.
    NotCarried(NotCarried),
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByStore => f.write_str("the store has closed it, and its log has the reason"),
            Self::Reply(error) => write!(f, "{error}"),
            Self::NotCarried(reason) => write!(f, "the store was restarted, and {reason}"),
        }
    }
}

impl Rank {
    pub(crate) fn on_port(port: u16) -> Self {
        Self {
            port,
            ..Self::default()
        }
    }

    /// The rank sends a request. Returns whether it may be passed on; if not, it has to wait until the store has
    /// answered an earlier request.
    pub(crate) fn on_request(
        &mut self,
        opcode: Opcode,
        key_count: usize,
        bytes: &[u8],
        now: Instant,
    ) -> bool {
        let outstanding = &mut self.outstanding;
        let is_added =
            outstanding.owed_replies() < OWED_MAX && outstanding.add(opcode, key_count, bytes);
        if is_added && opcode.is_wait() {
            outstanding.sent_at(now);
        }
        is_added
    }

    /// Takes bytes that the store has sent to the rank.
    pub(crate) fn on_reply(&mut self, bytes: &[u8]) -> Result<(), ReplyError> {
        let down = &mut self.down;
        self.outstanding.on_reply(bytes, |bytes| down.push(bytes))
    }

    /// Whether the rank's requests should wait. `is_kept`: the store keeps sessions.
    pub(crate) fn must_wait(&self, is_kept: bool) -> bool {
        self.outstanding.unsent_bytes() >= UNSENT_BYTES_MAX
            || is_kept
                && self.outstanding.kept_bytes() >= KEPT_BYTES_MAX
                && self.outstanding.check_carried().is_ok()
                // The store does not acknowledge a refused write before it has the next request (docs/spec/wire-extensions.md,
                // REFUSAL 5).
                && !self.outstanding.is_one_without_reply()
    }

    /// Some of the rank's requests are in the session now.
    pub(crate) fn after_sending(&mut self, is_kept: bool) {
        if self.outstanding.kept_bytes() > KEPT_BYTES_MAX
            && (!is_kept || self.outstanding.check_carried().is_err())
        {
            self.outstanding.forget_beyond(KEPT_BYTES_MAX);
        }
    }

    /// Whether a rank that has closed its connection has sent requests that the store must acknowledge before it may
    /// drop the rank. If the rank waits, the store is informed at once, so that the rank gets nothing that other
    /// ranks could have.
    pub(crate) fn must_be_acknowledged(&self, is_kept: bool) -> bool {
        let is_marked = self.is_marked && self.outstanding.owed_replies() > 0;
        is_kept
            && !self.outstanding.is_waiting()
            && (is_marked || self.outstanding.is_last_without_reply())
    }

    /// Adds a request that has a reply, once. Returns whether it was added.
    pub(crate) fn mark(&mut self) -> bool {
        if self.is_marked {
            return false;
        }
        let mut request = RequestBuf::new();
        request.mark();
        self.is_marked = self.outstanding.add(Opcode::Check, 0, &request.to_bytes());
        self.is_marked
    }

    /// Answers a CANCEL_WAIT that the store has not answered in time.
    pub(crate) fn answer_cancel(&mut self, cancel: u64) {
        if self.outstanding.answer_cancel(cancel) {
            self.down.push(&[WAIT_CANCELED]);
            self.uncounted_down += 1;
        }
    }

    /// The rank has read this many bytes. Returns the credit to return to the store now, if any.
    pub(crate) fn was_read(&mut self, bytes: usize) -> Option<u32> {
        let uncounted = self.uncounted_down.min(bytes);
        self.uncounted_down -= uncounted;
        self.credit.used(bytes - uncounted)
    }

    /// Counts received bytes: `passed_on` of `bytes` bytes are in `down` now, or more if some were withheld before.
    /// Returns the credit to return to the store now, if any.
    pub(crate) fn was_received(&mut self, bytes: usize, passed_on: usize) -> Option<u32> {
        self.uncounted_down += passed_on.saturating_sub(bytes);
        self.credit.used(bytes.saturating_sub(passed_on))
    }

    /// The store was restarted. Returns the number of the first request that is sent to it again.
    pub(crate) fn restart(&mut self) -> Result<u32, NotCarried> {
        let first = self.outstanding.restart()?;
        self.credit = Credit::default();
        self.uncounted_down = self.down.unsent_bytes();
        Ok(first)
    }
}
