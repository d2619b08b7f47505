//! One budget for the memory that all peers together take besides the data: unread replies, requests that have arrived
//! in part, and the streams of sessions. Pure.
//!
//! A list of all keys is one byte of request, and its reply may never be read. So peers that do not read
//! pause first, and long requests arrive one at a time. If that is not enough, the server closes the peers that hold most.

use crate::session::SESSION_WINDOW_BYTES;

/// The most for the unread replies of a session. Beyond it no client's request is carried out until the peer reads.
const SESSION_BYTES_MAX: usize = 64 << 20;

/// The window of a session while memory is scarce: the peer acknowledges less than this at a time, and so goes on reading.
const SCARCE_WINDOW_BYTES: usize = 256 << 10;

/// Peers may take at least twice this, however small the limit is.
const RESERVE_BYTES_MIN: usize = 8 << 20;

/// The memory that peers take, and may take, in bytes.
#[derive(Debug)]
pub(super) struct Budget {
    /// `usize::MAX` without a memory limit.
    room: usize,
    /// The sum of all [counted](Self::count) memory.
    kept_bytes: usize,
    /// Long values that left the store and that peers are still sent. They share them.
    lent_bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            room: usize::MAX,
            kept_bytes: 0,
            lent_bytes: 0,
        }
    }
}

impl Budget {
    /// Sets the memory limit, the part of it that the data takes, and the values that only peers have any more. Peers may take
    /// the rest and an eighth of the limit more. The data never takes more than half of that eighth.
    pub(super) fn set(&mut self, limit: Option<usize>, data_bytes: usize, lent_bytes: usize) {
        self.lent_bytes = lent_bytes;
        self.room = limit.map_or(usize::MAX, |limit| {
            let reserve = RESERVE_BYTES_MIN.max(limit / 16);
            let most = limit.saturating_add(2 * reserve);
            reserve.max(most.saturating_sub(data_bytes))
        });
    }

    /// A peer that took `counted` bytes takes `now` bytes.
    #[inline]
    pub(super) const fn count(&mut self, counted: &mut usize, now: usize) {
        self.kept_bytes = self.kept_bytes - *counted + now;
        *counted = now;
    }

    /// The memory that peers take.
    pub(super) const fn taken(&self) -> usize {
        self.kept_bytes + self.lent_bytes
    }

    /// Whether most of it are values that peers share.
    pub(super) const fn is_mostly_lent(&self) -> bool {
        self.lent_bytes > self.kept_bytes
    }

    /// Whether peers that do not read pause.
    #[inline]
    pub(super) const fn is_scarce(&self) -> bool {
        self.taken() > self.room / 2
    }

    /// Whether peers take more than they may.
    #[inline]
    pub(super) const fn is_exceeded(&self) -> bool {
        self.taken() > self.room
    }

    /// The same without the shared values, because peers may have read some of them.
    #[inline]
    pub(super) const fn is_exceeded_unshared(&self) -> bool {
        self.kept_bytes > self.room
    }

    /// Whether those that took most have given back enough: more than they had to, since to find them costs a look at each.
    pub(super) const fn is_relieved(&self) -> bool {
        self.taken() <= self.room - self.room / 8
    }

    /// The unacknowledged bytes of a session beyond which its clients' replies wait.
    pub(super) const fn session_window_bytes(&self) -> usize {
        match self.is_scarce() {
            true => SCARCE_WINDOW_BYTES,
            false => SESSION_WINDOW_BYTES,
        }
    }

    /// The most for the unread replies of one session.
    #[inline]
    pub(super) const fn session_bytes_max(&self) -> usize {
        let share = self.room / 4;
        if share < SESSION_BYTES_MAX {
            share
        } else {
            SESSION_BYTES_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// docs/spec/wire.md, MEMORY 4.
    #[test]
    fn peers_may_take_what_the_data_leaves_and_an_eighth_of_the_limit() {
        let mut budget = Budget::default();
        let mut counted = 0;
        budget.count(&mut counted, usize::MAX / 4);
        assert!(!budget.is_scarce(), "without a limit");
        assert_eq!(budget.session_bytes_max(), SESSION_BYTES_MAX);

        budget.set(Some(1024 * MIB), 1000 * MIB, 0);
        let room = 152 * MIB;
        for (taken, expected) in [
            (room / 2, (false, false, true)),
            (room / 2 + 1, (true, false, true)),
            (room - room / 8, (true, false, true)),
            (room, (true, false, false)),
            (room + 1, (true, true, false)),
        ] {
            budget.count(&mut counted, taken);
            let state = (
                budget.is_scarce(),
                budget.is_exceeded(),
                budget.is_relieved(),
            );
            assert_eq!(state, expected, "{taken}");
        }
        assert_eq!(budget.session_bytes_max(), room / 4);
        budget.count(&mut counted, room / 2);
        budget.set(Some(1024 * MIB), 1000 * MIB, room / 2 + 1);
        assert!(budget.is_exceeded() && budget.is_mostly_lent());
        assert!(!budget.is_exceeded_unshared());
    }

    #[test]
    fn data_that_has_taken_everything_leaves_peers_a_reserve() {
        let mut budget = Budget::default();
        let mut counted = 0;
        for (limit, reserve) in [(1, 8 * MIB), (1024 * MIB, 64 * MIB)] {
            budget.set(Some(limit), usize::MAX, 0);
            budget.count(&mut counted, reserve);
            assert!(!budget.is_exceeded());
            budget.count(&mut counted, reserve + 1);
            assert!(budget.is_exceeded());
        }
    }
}
