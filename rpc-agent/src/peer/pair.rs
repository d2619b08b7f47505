//! Selects the one connection that two workers use, although both may dial at the same time.
//!
//! Each side counts the connections of the pair (`links`), and every Hello, Welcome and Refuse carries the sender's
//! count. If a Hello has a lower count than the listener's, its sender did not have the listener's connection yet:
//! the listener keeps it. If the count is the same, the sender had that connection and has lost it: the listener
//! replaces it. When both dial at the same time, the dial of the worker with the lower id is accepted.
//!
//! No sockets, no clock. The caller tracks whether there is a connection or a dial, decides when to dial again, and
//! handles the calls on a lost connection. It must not report events of an abandoned dial or of a replaced
//! connection.

use crate::wire::{Hello, Refuse, RefuseReason, Welcome};
use crate::worker::WorkerId;

/// One side's view of the connections of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    me: WorkerId,
    my_incarnation: u64,
    peer: WorkerId,
    /// The process to which `links` applies.
    peer_incarnation: Option<u64>,
    /// Number of connections accepted so far, as counted by this side.
    links: u32,
}

/// One side's state of the pair's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PairState {
    /// No connection and no dial.
    Idle,
    /// A dial, until its Hello is answered.
    Dialing {
        /// Incarnation of the process to dial; 0 for any.
        incarnation_wanted: u64,
    },
    /// A connection in use.
    Established,
}

impl Pair {
    /// A pair without a connection. The two ids must differ.
    pub(crate) fn new(me: WorkerId, my_incarnation: u64, peer: WorkerId) -> Self {
        debug_assert_ne!(me, peer);
        Self {
            me,
            my_incarnation,
            peer,
            peer_incarnation: None,
            links: 0,
        }
    }

    /// Incarnation of the peer process of the last connection; `None` before the first.
    pub(crate) const fn peer_incarnation(&self) -> Option<u64> {
        self.peer_incarnation
    }

    /// The `links` of a Hello to the process with this incarnation (0 for any).
    pub(crate) fn hello_links(&self, incarnation_wanted: u64) -> u32 {
        match self.peer_incarnation {
            Some(known) if incarnation_wanted != 0 && incarnation_wanted != known => 0,
            _ => self.links,
        }
    }

    /// Accepts a Hello from the peer, and returns the `links` of the Welcome. The caller closes its dial or connection,
    /// `state`. `None`: this side is shutting down.
    ///
    /// # Errors
    /// The reason and the `links` of the Refuse to be sent instead.
    pub(crate) fn on_hello(
        &mut self,
        hello: &Hello,
        state: Option<PairState>,
    ) -> Result<u32, (RefuseReason, u32)> {
        let links = self.links_with(hello.incarnation);
        if let Some(reason) = self.reason_to_refuse(hello, links, state) {
            return Err((reason, links));
        }
        self.peer_incarnation = Some(hello.incarnation);
        self.links = links.max(hello.links).saturating_add(1);
        Ok(self.links)
    }

    /// The peer accepted the dial of the process with this incarnation (0 for any). False if it is another process: close
    /// the connection and read the address again.
    pub(crate) fn on_welcome(&mut self, welcome: &Welcome, incarnation_wanted: u64) -> bool {
        if incarnation_wanted != 0 && incarnation_wanted != welcome.incarnation {
            return false;
        }
        self.links = self.links_with(welcome.incarnation).max(welcome.links);
        self.peer_incarnation = Some(welcome.incarnation);
        true
    }

    /// The peer refused the current dial. Returns whether a later dial may succeed, after a pause and with the
    /// address read again: not if the peer is shutting down or has another protocol version.
    pub(crate) fn on_refuse(&mut self, refuse: &Refuse) -> bool {
        if refuse.reason == RefuseReason::UseOther {
            // The next Hello then carries the peer's count and replaces that connection. By then it
            // has either arrived at this side or is lost.
            self.links = self.links.max(refuse.links);
        }
        !matches!(
            refuse.reason,
            RefuseReason::ShuttingDown | RefuseReason::Version
        )
    }

    fn reason_to_refuse(
        &self,
        hello: &Hello,
        links: u32,
        state: Option<PairState>,
    ) -> Option<RefuseReason> {
        if hello.to != self.me || hello.from.id != self.peer {
            return Some(RefuseReason::WrongWorker);
        }
        if hello.incarnation_wanted != 0 && hello.incarnation_wanted != self.my_incarnation {
            return Some(RefuseReason::WrongIncarnation);
        }
        let Some(state) = state else {
            return Some(RefuseReason::ShuttingDown);
        };
        let is_better = match state {
            PairState::Idle => true,
            PairState::Dialing { incarnation_wanted } => {
                // This side dials a previous incarnation, so its dial cannot succeed.
                let is_stale = incarnation_wanted != 0 && incarnation_wanted != hello.incarnation;
                self.peer < self.me || is_stale
            }
            PairState::Established => {
                self.peer_incarnation != Some(hello.incarnation) || hello.links >= links
            }
        };
        (!is_better).then_some(RefuseReason::UseOther)
    }

    /// The connection count for this incarnation of the peer; 0 for a restarted peer.
    fn links_with(&self, incarnation: u64) -> u32 {
        if self
            .peer_incarnation
            .is_none_or(|known| known == incarnation)
        {
            self.links
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests;
