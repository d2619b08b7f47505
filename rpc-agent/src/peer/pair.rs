//! Which connection two workers use: one, though both may dial at the same time.
//!
//! Each side counts the connections of the pair (`links`), and every Hello, Welcome and Refuse carries the
//! sender's count. A Hello with a lower count than the listener's was sent before its sender knew of the
//! connection that the listener holds, so the listener keeps that one. A Hello with the same count was sent
//! by a side that knew of it and has lost it, so the listener replaces it. When both dial at the same time,
//! the dial of the worker with the lower id is accepted.
//!
//! Knows neither sockets nor the clock. When to dial again, and what became of calls on a connection that
//! was lost, is decided elsewhere; which of its connections an event belongs to, the caller knows: the
//! events of a dial that was given up, or of a connection that was replaced, are not reported here.

use crate::wire::{Hello, Refuse, RefuseReason, Welcome};
use crate::worker::WorkerId;

/// One side's view of the connections of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    me: WorkerId,
    my_incarnation: u64,
    peer: WorkerId,
    /// Of the process that `links` counts connections with.
    peer_incarnation: Option<u64>,
    /// The number of the last connection that was accepted, as far as this side knows.
    links: u32,
    state: PairState,
    is_closing: bool,
}

/// What this side has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PairState {
    /// No connection, and no attempt to make one.
    Idle,
    /// An attempt, from its begin to the answer to its Hello.
    Dialing {
        /// Of the process that is dialed; 0 for any.
        incarnation_wanted: u64,
    },
    /// A connection in use.
    Established,
}

/// What to answer to a Hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A Welcome with these `links`; the connection is established.
    Accept {
        links: u32,
        /// What is to be closed, now that this connection is used.
        instead_of: PairState,
    },
    /// A Refuse with these `links`; the connection is to be closed.
    Refuse { reason: RefuseReason, links: u32 },
}

/// What a Refuse means for who dialed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterRefuse {
    /// The peer has another connection, or is making one. Should it not come, dial again after a pause.
    AwaitPeer,
    /// Another process is at this address: read the address again, and dial again after a pause.
    ReadAddress,
    /// The peer is about to end, or of another version: it takes no calls.
    GiveUp,
}

/// What a Welcome means for who dialed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterWelcome {
    /// The connection is established.
    Established,
    /// Another process than the wanted one has answered: close, and read the address again.
    ReadAddress,
}

impl Pair {
    /// No connection yet. The two ids differ.
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

    /// What this side has.
    pub(crate) const fn state(&self) -> PairState {
        self.state
    }

    /// The process at the other end of the last connection.
    pub(crate) const fn peer_incarnation(&self) -> Option<u64> {
        self.peer_incarnation
    }

    /// Begins a dial of the process with this incarnation (0 for any); returns the `links` of the Hello,
    /// or `None` when there is a connection or a dial already.
    ///
    /// A dial lasts until [`on_welcome`](Self::on_welcome), [`on_refuse`](Self::on_refuse),
    /// [`on_dial_failed`](Self::on_dial_failed), or an [`Answer::Accept`] instead of it. The Hello may be
    /// built later, with [`hello_links`](Self::hello_links).
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

    /// Decides about a Hello of the peer.
    pub(crate) fn on_hello(&mut self, hello: &Hello) -> Answer {
        let links = self.links_with(hello.incarnation);
        if let Some(reason) = self.reason_to_refuse(hello, links) {
            return Answer::Refuse { reason, links };
        }
        self.peer_incarnation = Some(hello.incarnation);
        self.links = links.max(hello.links).saturating_add(1);
        Answer::Accept {
            links: self.links,
            instead_of: std::mem::replace(&mut self.state, PairState::Established),
        }
    }

    /// The present dial was accepted.
    pub(crate) fn on_welcome(&mut self, welcome: &Welcome) -> AfterWelcome {
        let PairState::Dialing { incarnation_wanted } = self.state else {
            debug_assert!(false, "only a dial that goes on is answered");
            return AfterWelcome::ReadAddress;
        };
        if incarnation_wanted != 0 && incarnation_wanted != welcome.incarnation {
            self.state = PairState::Idle;
            return AfterWelcome::ReadAddress;
        }
        self.links = self.links_with(welcome.incarnation).max(welcome.links);
        self.peer_incarnation = Some(welcome.incarnation);
        self.state = PairState::Established;
        AfterWelcome::Established
    }

    /// The present dial was refused.
    pub(crate) fn on_refuse(&mut self, refuse: &Refuse) -> AfterRefuse {
        debug_assert!(matches!(self.state, PairState::Dialing { .. }));
        self.state = PairState::Idle;
        match refuse.reason {
            RefuseReason::UseOther => {
                // The next Hello shall not be refused for the same reason: by then this side has had the
                // time to learn of that connection, and if it has not got it, has lost it.
                self.links = self.links.max(refuse.links);
                AfterRefuse::AwaitPeer
            }
            RefuseReason::WrongWorker | RefuseReason::WrongIncarnation => AfterRefuse::ReadAddress,
            RefuseReason::ShuttingDown | RefuseReason::Version => AfterRefuse::GiveUp,
        }
    }

    /// The present dial ended without an answer.
    pub(crate) fn on_dial_failed(&mut self) {
        debug_assert!(matches!(self.state, PairState::Dialing { .. }));
        self.state = PairState::Idle;
    }

    /// The established connection ended.
    pub(crate) fn on_lost(&mut self) {
        debug_assert_eq!(self.state, PairState::Established);
        self.state = PairState::Idle;
    }

    /// From now on every Hello is refused, and nothing is dialed.
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
                // A dial of another process than the one that is there now comes to nothing.
                let is_gone = incarnation_wanted != 0 && incarnation_wanted != hello.incarnation;
                self.peer < self.me || is_gone
            }
            PairState::Established => {
                self.peer_incarnation != Some(hello.incarnation) || hello.links >= links
            }
        };
        (!is_better).then_some(RefuseReason::UseOther)
    }

    /// The count of connections with one process of the peer: a restarted one has had none.
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
