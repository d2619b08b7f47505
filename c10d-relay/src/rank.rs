//! One rank's side of the relay: which replies it is owed, and which it has got from the relay already.
//!
//! Pure. Does not know what a key or a value is.

use std::collections::VecDeque;

use c10d_socket::SendBuf;
use c10d_store::Opcode;
use c10d_store::unstable::{Credit, NotAReply, RawRequests, ReplyScan};

/// The most replies that a rank may be owed. One that asks for more waits until some have arrived.
const OWED_MAX: usize = 4096;

/// A rank from which so many bytes wait to be sent is not read.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// The reply to a CANCEL_WAIT.
const WAIT_CANCELED: u8 = 1;

/// The state of one rank.
#[derive(Debug, Default)]
pub(crate) struct Rank {
    pub(crate) requests: RawRequests,
    /// Requests that wait for credit, or for room in the session.
    pub(crate) up: SendBuf,
    /// Replies for the rank.
    pub(crate) down: SendBuf,
    /// What the hub has counted of its memory.
    pub(crate) counted_bytes: usize,
    pub(crate) credit: Credit,
    /// The replies to come, in order.
    owed: VecDeque<Owed>,
    cancels: u64,
    /// The rank sends requests while one waits, so that only the rank can tell its replies apart. They are passed on
    /// without a look at them.
    is_opaque: bool,
    /// Requests are kept until something has been received or sent.
    pub(crate) is_paused: bool,
    /// The first of them, if it has to wait for a reply.
    pub(crate) held: Option<Held>,
    /// The rank has closed its connection. What it has sent before still goes to the store.
    pub(crate) is_gone: bool,
    /// The store has closed the rank's connection. The rank still gets the replies before that.
    pub(crate) is_closing: bool,
    /// In the list of ranks to look at.
    pub(crate) is_touched: bool,
    /// In the list of ranks with requests that wait.
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

#[derive(Debug)]
struct Owed {
    scan: ReplyScan,
    /// The relay has answered the rank: the reply of the store is dropped.
    is_answered: bool,
    /// Which of the rank's CANCEL_WAITs this is, or has cancelled this; 0 for none.
    cancel: u64,
}

impl Rank {
    /// The rank sends a request with a command and this number of keys. Returns whether it may be passed on; if not, it
    /// has to wait until the store has answered an earlier one.
    pub(crate) fn on_request(&mut self, opcode: Opcode, key_count: usize) -> bool {
        if self.is_opaque {
            return true;
        }
        if self.owed.len() >= OWED_MAX {
            return false;
        }
        if opcode == Opcode::CancelWait {
            self.on_cancel();
            return true;
        }
        let Some(scan) = ReplyScan::new(opcode, key_count) else {
            return true;
        };
        if self.waits() {
            // Its replies must be complete before they are no longer looked at.
            if self.owed.iter().any(|owed| owed.is_answered) {
                return false;
            }
            self.is_opaque = true;
            self.owed.clear();
            return true;
        }
        self.owe(scan);
        true
    }

    /// Takes bytes that the store has sent to the rank.
    pub(crate) fn on_reply(&mut self, mut bytes: &[u8]) -> Result<(), NotAReply> {
        if self.is_opaque {
            self.down.push(bytes);
            return Ok(());
        }
        while let Some(owed) = self.owed.front_mut() {
            let before = bytes;
            let is_complete = owed.scan.advance(&mut bytes)?;
            if !owed.is_answered {
                self.down.push(&before[..before.len() - bytes.len()]);
            }
            if !is_complete {
                return Ok(());
            }
            self.owed.pop_front();
        }
        // No reply is due. The rank may know better.
        self.down.push(bytes);
        Ok(())
    }

    /// Whether the rank's requests should wait.
    pub(crate) fn must_wait(&self) -> bool {
        self.up.unsent_bytes() >= UNSENT_BYTES_MAX
    }

    /// Whether the rank waits for a reply that comes later, and has not cancelled that.
    fn waits(&self) -> bool {
        let last = self.owed.back().map(|owed| &owed.scan);
        last.is_some_and(|scan| scan.opcode().is_wait() && !scan.is_cancelled())
    }

    /// PyTorch's client waits for the answer to CANCEL_WAIT without a limit, so the relay gives it if the store does not
    /// in time: call this then, with the value of [`cancels`](Self::cancels) after the request. The answer only says that
    /// the wait is over, so it is not given for the waits with which our clients read.
    pub(crate) fn answer_cancel(&mut self, cancel: u64) {
        let Some(owed) = self.owed.iter_mut().find(|owed| !owed.is_answered) else {
            return;
        };
        let may_drop = matches!(
            owed.scan.opcode(),
            Opcode::Wait | Opcode::Barrier | Opcode::CancelWait
        );
        if owed.cancel == cancel && may_drop && !owed.scan.has_begun() {
            owed.is_answered = true;
            self.down.push(&[WAIT_CANCELED]);
        }
    }

    /// How many CANCEL_WAITs the rank has sent.
    pub(crate) const fn cancels(&self) -> u64 {
        self.cancels
    }

    fn on_cancel(&mut self) {
        self.cancels += 1;
        let waits = self.waits();
        match self.owed.back_mut() {
            Some(last) if waits => {
                last.scan.cancel();
                last.cancel = self.cancels;
            }
            _ => {
                if let Some(scan) = ReplyScan::new(Opcode::CancelWait, 0) {
                    self.owe(scan);
                    if let Some(last) = self.owed.back_mut() {
                        last.cancel = self.cancels;
                    }
                }
            }
        }
    }

    fn owe(&mut self, scan: ReplyScan) {
        self.owed.push_back(Owed {
            scan,
            is_answered: false,
            cancel: 0,
        });
    }
}
