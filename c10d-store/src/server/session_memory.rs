//! How much memory the clients of one session may take. Pure.
//!
//! A session is one connection of a peer, which costs the peer as little for each client as a frame of 9 bytes, or nothing in
//! a group of clients. So its clients share a budget, and the session as a whole has the limit of a connection.

/// The budget for the unsent replies of a session. Beyond it no client's request is carried out until the peer reads.
pub(super) const BUDGET_BYTES: usize = 64 << 20;

/// Beyond this, only clients whose replies have all been sent go on: the rest of the budget is for clients that read.
const SHARED_BYTES: usize = BUDGET_BYTES / 2;

/// The memory of the clients of a session, or of one of them, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionMemory {
    /// For unsent replies.
    pub(super) reply_bytes: usize,
    /// For requests that came in groups and wait, and for the keys that clients wait for. The budget leaves them out, since
    /// what waits for the budget cannot give it back.
    pub(super) request_bytes: usize,
}

impl SessionMemory {
    pub(super) const fn all(self) -> usize {
        self.reply_bytes + self.request_bytes
    }

    /// Whether some client's request may be carried out.
    pub(super) const fn has_budget(self) -> bool {
        self.reply_bytes < BUDGET_BYTES
    }

    /// A client of the session with this many unsent bytes or more pauses: `usual` while there is room.
    pub(super) const fn unsent_bytes_max(self, usual: usize) -> usize {
        if self.reply_bytes < SHARED_BYTES {
            usual
        } else if self.has_budget() {
            1
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/spec/wire-extensions.md, SESSION 10.
    #[test]
    fn clients_that_do_not_read_pause_first() {
        let limit = |reply_bytes| {
            let request_bytes = BUDGET_BYTES;
            let memory = SessionMemory {
                reply_bytes,
                request_bytes,
            };
            memory.unsent_bytes_max(1000)
        };
        assert_eq!(limit(0), 1000);
        assert_eq!(limit(SHARED_BYTES - 1), 1000);
        assert_eq!(limit(SHARED_BYTES), 1, "not with anything unsent");
        assert_eq!(limit(BUDGET_BYTES - 1), 1);
        assert_eq!(limit(BUDGET_BYTES), 0, "none");
    }
}
