//! One budget for the memory that all peers together take besides the data: unread replies, requests that have arrived
//! in part, and the streams of sessions. Pure.
//!
//! A list of all keys is one byte of request, and its reply may never be read. So peers that do not read
//! pause first, and long requests arrive one at a time. If that is not enough, the server closes the peers that hold most.
//! The clients of a session share a part of the budget.

use crate::state::peer_reserve;

/// The most for the unread replies of a session. Beyond it no client's request is carried out until the peer reads.
const SESSION_BYTES_MAX: usize = 64 << 20;

/// The memory that peers take, and may take, in bytes.
#[derive(Debug)]
pub(super) struct Budget {
    /// `usize::MAX` without a memory limit.
    room: usize,
    /// The sum of all [counted](Self::count) memory.
    kept_bytes: usize,
    /// Long values that left the store and that peers are still sent, or were at the last look. They share them.
    lent_bytes: usize,
    /// The memory that peers took at the last look.
    looked_at: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            room: usize::MAX,
            kept_bytes: 0,
            lent_bytes: 0,
            looked_at: 0,
        }
    }
}

impl Budget {
    /// Sets the memory limit, the part of it that the data takes, and the values that only peers have any more. Peers may take
    /// the rest and an eighth of the limit more. The data never takes more than half of that eighth.
    pub(super) fn set(&mut self, limit: Option<usize>, data_bytes: usize, lent_bytes: usize) {
        self.lent_bytes = lent_bytes;
        self.room = limit.map_or(usize::MAX, |limit| {
            let reserve = peer_reserve(limit);
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

    /// Whether peers may have taken more than allowed since the last check. A check costs a step for each shared
    /// value, so it is only made when they have taken a sixteenth more. Until then they have taken at most what they
    /// may.
    #[inline]
    pub(super) fn must_look(&self) -> bool {
        let (most, sixteenth) = (self.room - self.room / 16, self.room / 16);
        self.taken() > most && self.taken() > self.looked_at.min(most) + sixteenth
    }

    /// The shared values were looked at.
    pub(super) const fn looked(&mut self) {
        self.looked_at = self.taken();
    }

    /// Whether peers take so much, after a look, that some have to give it back.
    pub(super) const fn is_exceeded(&self) -> bool {
        self.taken() > self.room - self.room / 16
    }

    /// Whether peers take more than they may, without the shared values, because peers may have read some of them.
    #[inline]
    pub(super) const fn is_exceeded_unshared(&self) -> bool {
        self.kept_bytes > self.room
    }

    /// How much the largest peers have to give back: more than the excess itself, because to find these peers costs a look at each.
    pub(super) const fn excess(&self) -> usize {
        self.taken().saturating_sub(self.room - self.room / 8)
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

/// The memory of the clients of a session, or of one of them, in bytes.
///
/// A session is one connection of a peer, which costs the peer as little for each client as a frame of 9 bytes, or
/// nothing in a group of clients. Therefore, its clients share a budget, and the session as a whole has the limit of
/// a connection.
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

/// The peers that are closed if that is needed, the largest first.
#[derive(Debug)]
pub(super) struct Relief<P> {
    /// The peers, each with the memory that it takes.
    peers: Vec<(P, usize)>,
    batch_min: usize,
}

impl<P> Relief<P> {
    pub(super) fn new(peers: impl IntoIterator<Item = (P, usize)>) -> Self {
        let mut peers: Vec<_> = peers.into_iter().collect();
        peers.sort_unstable_by_key(|(_, bytes)| *bytes);
        let batch_min = 1;
        Self { peers, batch_min }
    }

    /// The next peers, which take as much as this. Since they share values, they may give back less: it takes a look to find out,
    /// so each batch has at least twice as many.
    pub(super) fn next_batch(&mut self, excess: usize) -> Vec<(P, usize)> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while (bytes < excess || batch.len() < self.batch_min)
            && excess > 0
            && let Some(peer) = self.peers.pop()
        {
            bytes += peer.1;
            batch.push(peer);
        }
        self.batch_min = 2 * batch.len();
        batch
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
        let most = room - room / 16;
        for (taken, expected) in [
            (room / 2, (false, false, 0)),
            (room / 2 + 1, (true, false, 0)),
            (room - room / 8, (true, false, 0)),
            (most, (true, false, room / 16)),
            (most + 1, (true, true, room / 16 + 1)),
        ] {
            budget.count(&mut counted, taken);
            budget.looked();
            let state = (budget.is_scarce(), budget.is_exceeded(), budget.excess());
            assert_eq!(state, expected, "{taken}");
            assert!(!budget.must_look(), "there was a look");
        }
        budget.count(&mut counted, room + 1);
        assert!(budget.must_look());
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
            budget.count(&mut counted, reserve - reserve / 16);
            assert!(!budget.must_look() && !budget.is_exceeded());
            budget.count(&mut counted, reserve + 1);
            assert!(budget.must_look() && budget.is_exceeded());
        }
    }

    /// Each request replaces a value that a peer is sent, and a peer reads such a value: at the limit, each look at all values finds
    /// little.
    #[test]
    fn looks_cost_a_few_steps_for_each_value() {
        let (limit, value) = (128 * MIB, 64 << 10);
        let mut budget = Budget::default();
        let room = limit + limit / 8;
        let most = room - room / 16;
        let mut held = most / value;
        let (mut seen, mut steps, mut requests) = (held, 0, 0);
        while requests < 100_000 {
            requests += 1;
            // One more that is held, or seems to be.
            seen += 1;
            budget.set(Some(limit), 0, seen * value);
            assert!(held * value <= room);
            if budget.must_look() {
                (steps, seen) = (steps + seen, held);
                budget.set(Some(limit), 0, seen * value);
                budget.looked();
                // It would be closed.
                held -= budget.excess() / value;
            }
        }
        assert!(steps < 20 * requests, "{steps} steps");
    }

    #[test]
    fn peers_are_closed_in_few_batches() {
        // All share a value, and each has a further value.
        let mut relief = Relief::new((0..10_000_usize).map(|peer| (peer, MIB + peer)));
        assert_eq!(relief.next_batch(0), []);
        assert_eq!(
            relief.next_batch(2 * MIB),
            [(9999, MIB + 9999), (9998, MIB + 9998)]
        );
        let mut batches = 1;
        while !relief.next_batch(1).is_empty() {
            batches += 1;
        }
        assert!(batches < 15, "{batches} batches");
        let mut own = Relief::new([("a", 3), ("b", 9), ("c", 5)]);
        assert_eq!(own.next_batch(10), [("b", 9), ("c", 5)]);
    }

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
