//! A client of a session, as a connection without a socket.

use c10d_socket::SendBuf;

use super::numbers::Numbers;
use super::session_memory::SessionMemory;
use crate::moment::Moment;
use crate::session::{Credit, ResentWait};

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
