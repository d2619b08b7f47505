//! The memory that the clients of one session may take. Pure.
//!
//! A session is one connection of a peer, which costs the peer as little for each client as a frame of 9 bytes, or
//! nothing in a group of clients. Therefore, its clients share a budget, and the session as a whole has the limit of
//! a connection.

/// The memory of the clients of a session, or of one of them, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionMemory {
    /// The memory of unsent replies, in bytes.
    pub(super) reply_bytes: usize,
    /// The memory of waiting requests that arrived in groups, and of the keys that clients wait for, in bytes. The
    /// budget does not include them, because a request that waits for the budget cannot give it back.
    pub(super) request_bytes: usize,
}

impl SessionMemory {
    pub(super) const fn all(self) -> usize {
        self.reply_bytes + self.request_bytes
    }

    /// Whether some client's request may be carried out, with this budget for the unsent replies of the session.
    pub(super) const fn has_budget(self, budget: usize) -> bool {
        self.reply_bytes < budget
    }

    /// A client of the session with this many unsent bytes or more pauses: `usual` while there is room. Beyond half
    /// of the budget, only clients whose replies have all been sent continue: the rest is for clients that read.
    pub(super) const fn unsent_bytes_max(self, usual: usize, budget: usize) -> usize {
        if self.reply_bytes < budget / 2 {
            usual
        } else if self.has_budget(budget) {
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
            let request_bytes = 64;
            let memory = SessionMemory {
                reply_bytes,
                request_bytes,
            };
            memory.unsent_bytes_max(1000, 64)
        };
        assert_eq!(limit(0), 1000);
        assert_eq!(limit(31), 1000);
        assert_eq!(limit(32), 1, "not with anything unsent");
        assert_eq!(limit(63), 1);
        assert_eq!(limit(64), 0, "none");
    }
}
