//! One rank's side of the relay. Pure. Does not interpret keys or values.

use std::mem;
use std::time::Instant;

use c10d_socket::SendBuf;
use c10d_store::Opcode;
use c10d_store::unstable::{
    Frame, RawRequest, RawRequests, RequestBuf, Restart, Session, SessionClient, Violation,
};

/// The most expected replies of a rank. A rank that sends more requests waits until some replies have arrived.
const OWED_MAX: usize = 4096;

/// If this many bytes of a rank wait to be sent, the relay does not read from the rank.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// The reply to a CANCEL_WAIT.
const WAIT_CANCELED: u8 = 1;

/// The state of one rank.
#[derive(Debug, Default)]
pub(crate) struct Rank {
    pub(crate) requests: RawRequests,
    /// The rank in the session. It closes the connection of a rank whose client has ended, once the rank has got its
    /// replies.
    pub(crate) client: SessionClient,
    /// Replies for the rank.
    pub(crate) down: SendBuf,
    /// The memory of the rank, as counted by the hub.
    pub(crate) counted_bytes: usize,
    /// Requests are kept until something has been received or sent.
    pub(crate) is_paused: bool,
    /// The first of them, if it has to wait for a reply.
    pub(crate) held: Option<Held>,
    /// The rank has closed its connection. Its earlier requests are still sent to the store.
    pub(crate) is_gone: bool,
    /// Whether the rank's last requests have no reply, so that a request of the relay with a reply follows them.
    pub(crate) is_marked: bool,
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

impl Held {
    pub(crate) fn request(&self) -> RawRequest<'_> {
        RawRequest {
            opcode: self.opcode,
            key_count: self.key_count,
            bytes: &self.bytes,
        }
    }
}

impl Rank {
    pub(crate) fn new(client: SessionClient) -> Self {
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
    pub(crate) fn on_request(&mut self, request: RawRequest<'_>, now: Instant) -> bool {
        self.client.outstanding.owed_replies() < OWED_MAX && self.client.add(request, || now)
    }

    /// Takes a frame that the store has sent to the rank.
    pub(crate) fn on_frame(
        &mut self,
        frame: &Frame<'_>,
        session: &mut Session,
    ) -> Result<(), Violation> {
        let down = &mut self.down;
        let pass = |bytes: &[u8]| down.push(bytes);
        self.client.on_frame(frame, session, pass)?;
        if self.is_gone {
            // Its replies are counted, since a request of it may wait for one, and dropped.
            let unread = mem::take(&mut self.down).unsent_bytes();
            self.client.was_read(unread, session);
        }
        Ok(())
    }

    /// Whether the rank's requests should wait.
    pub(crate) fn must_wait(&self, session: &Session) -> bool {
        self.client.outstanding.unsent_bytes() >= UNSENT_BYTES_MAX || self.client.is_full(session)
    }

    /// Whether a rank that has closed its connection has sent requests that the store must acknowledge before it may
    /// drop the rank. If the rank waits, the store is informed at once, so that the rank gets nothing that other
    /// ranks could have.
    pub(crate) fn must_be_acknowledged(&self, is_kept: bool) -> bool {
        let outstanding = &self.client.outstanding;
        let is_marked = self.is_marked && outstanding.owed_replies() > 0;
        is_kept && !outstanding.is_waiting() && (is_marked || outstanding.is_last_without_reply())
    }

    /// Adds a request that has a reply, once. Returns whether it was added.
    pub(crate) fn mark(&mut self) -> bool {
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
    pub(crate) fn answer_cancel(&mut self, cancel: u64) {
        if self.client.answer_cancel(cancel) {
            self.down.push(&[WAIT_CANCELED]);
        }
    }

    /// The store was restarted, and gets all requests again that it has not acknowledged.
    pub(crate) fn restart(&mut self, restart: Restart, now: Instant, session: &mut Session) {
        self.last_in_turn = 0;
        self.waits_to_send = false;
        let unread = self.down.unsent_bytes();
        self.client.restart(restart, unread, now, session);
    }
}
