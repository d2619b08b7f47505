//! Selects the one connection that two workers use, although both may dial at the same time.
//!
//! Each side counts the connections of the pair (`links`), and every Hello, Welcome and Refuse carries the
//! sender's count. If a Hello has a lower count than the listener's, its sender did not know of the
//! listener's connection yet: the listener keeps it. If the count is the same, the sender knew of that
//! connection and has lost it: the listener replaces it. When both dial at the same time, the dial of the
//! worker with the lower id is accepted.
//!
//! No sockets, no clock. The caller decides when to dial again and what happens to calls on a lost
//! connection. It must not report events of an abandoned dial or of a replaced connection.

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
    /// Number of connections accepted so far, as far as this side knows.
    links: u32,
    state: PairState,
    is_closing: bool,
}

/// Connection state of one side.
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
            state: PairState::Idle,
            is_closing: false,
        }
    }

    pub(crate) const fn state(&self) -> PairState {
        self.state
    }

    /// Incarnation of the peer process of the last connection; `None` before the first.
    pub(crate) const fn peer_incarnation(&self) -> Option<u64> {
        self.peer_incarnation
    }

    /// Starts a dial of the process with this incarnation (0 for any) and returns the `links` of its Hello.
    ///
    /// Returns `None` while there is a connection or a dial, and after [`close`](Self::close). A dial ends
    /// with [`on_welcome`](Self::on_welcome), [`on_refuse`](Self::on_refuse),
    /// [`on_dial_failed`](Self::on_dial_failed), or a Hello that is accepted. The Hello may
    /// be built later, with [`hello_links`](Self::hello_links).
    pub(crate) fn dial(&mut self, incarnation_wanted: u64) -> Option<u32> {
        if self.state != PairState::Idle || self.is_closing {
            return None;
        }
        self.state = PairState::Dialing { incarnation_wanted };
        Some(self.hello_links(incarnation_wanted))
    }

    /// The `links` of a Hello to the process with this incarnation.
    pub(crate) fn hello_links(&self, incarnation_wanted: u64) -> u32 {
        match self.peer_incarnation {
            Some(known) if incarnation_wanted != 0 && incarnation_wanted != known => 0,
            _ => self.links,
        }
    }

    /// Accepts a Hello from the peer, and returns the `links` of the Welcome. The caller closes its dial or connection.
    ///
    /// # Errors
    /// The reason and the `links` of the Refuse to be sent instead.
    pub(crate) fn on_hello(&mut self, hello: &Hello) -> Result<u32, (RefuseReason, u32)> {
        let links = self.links_with(hello.incarnation);
        if let Some(reason) = self.reason_to_refuse(hello, links) {
            return Err((reason, links));
        }
        self.peer_incarnation = Some(hello.incarnation);
        self.links = links.max(hello.links).saturating_add(1);
        self.state = PairState::Established;
        Ok(self.links)
    }

    /// The peer accepted the current dial. False if it is another process than the dialed one: close the connection and
    /// read the address again.
    pub(crate) fn on_welcome(&mut self, welcome: &Welcome) -> bool {
        let PairState::Dialing { incarnation_wanted } = self.state else {
            debug_assert!(false, "a Welcome answers a current dial");
            return false;
        };
        if incarnation_wanted != 0 && incarnation_wanted != welcome.incarnation {
            self.state = PairState::Idle;
            return false;
        }
        self.links = self.links_with(welcome.incarnation).max(welcome.links);
        self.peer_incarnation = Some(welcome.incarnation);
        self.state = PairState::Established;
        true
    }

    /// The peer refused the current dial. Whether a later one may succeed, after a pause and with the address read
    /// again: not if the peer is shutting down or has another protocol version.
    pub(crate) fn on_refuse(&mut self, refuse: &Refuse) -> bool {
        debug_assert!(matches!(self.state, PairState::Dialing { .. }));
        self.state = PairState::Idle;
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

    /// The current dial ended without an answer.
    pub(crate) fn on_dial_failed(&mut self) {
        debug_assert!(matches!(self.state, PairState::Dialing { .. }));
        self.state = PairState::Idle;
    }

    /// The established connection was lost.
    pub(crate) fn on_lost(&mut self) {
        debug_assert_eq!(self.state, PairState::Established);
        self.state = PairState::Idle;
    }

    /// Refuses every later Hello and dial.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
    }

    fn reason_to_refuse(&self, hello: &Hello, links: u32) -> Option<RefuseReason> {
        if hello.to != self.me || hello.from.id != self.peer {
            return Some(RefuseReason::WrongWorker);
        }
        if hello.incarnation_wanted != 0 && hello.incarnation_wanted != self.my_incarnation {
            return Some(RefuseReason::WrongIncarnation);
        }
        if self.is_closing {
            return Some(RefuseReason::ShuttingDown);
        }
        let is_better = match self.state {
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
