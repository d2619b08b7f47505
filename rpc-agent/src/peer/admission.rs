//! Which requests of a peer may begin: bounded queues, and back pressure for a peer that does not read its answers.

use super::request::Request;
use crate::segmented_queue::SegmentedQueue;

/// The requests of one peer that have not begun.
#[derive(Default)]
pub(super) struct Admission {
    /// All that have not begun: parked, or waiting for a thread.
    queued: usize,
    /// Those that wait until the peer has read some of its answers.
    parked: SegmentedQueue<Request>,
    /// Requests refused while the peer did not read.
    refused_unread: usize,
}

/// What happens to a request that arrived.
pub(super) enum Admitted {
    /// A thread may run it.
    Run(Request),
    /// It waits here.
    Parked,
    /// Too many wait already.
    Full,
}

impl Admission {
    /// Decides on a request that arrived. `has_backlog`: more bytes are unsent to this peer than the limit, so that
    /// further answers would pile up.
    pub(super) fn admit(
        &mut self,
        request: Request,
        has_backlog: bool,
        queued_max: usize,
    ) -> Admitted {
        if self.queued >= queued_max {
            return Admitted::Full;
        }
        self.queued += 1;
        if has_backlog {
            self.parked.push_back(request);
            return Admitted::Parked;
        }
        Admitted::Run(request)
    }

    /// A thread is about to run a request that was admitted. `None`: it is parked now.
    pub(super) fn begin(&mut self, request: Request, has_backlog: bool) -> Option<Request> {
        if has_backlog {
            self.parked.push_back(request);
            return None;
        }
        self.queued = self.queued.saturating_sub(1);
        Some(request)
    }

    /// A request that was admitted is not run.
    pub(super) fn cancel(&mut self) {
        self.queued = self.queued.saturating_sub(1);
    }

    /// A request was refused while the peer had a backlog. True when it was one too many: refusals take no place in
    /// any queue, so only this bounds a peer that sends requests and reads nothing.
    pub(super) fn refused_unread(&mut self, queued_max: usize) -> bool {
        self.refused_unread += 1;
        self.refused_unread > queued_max
    }

    /// The peer has read: the parked requests may run.
    pub(super) fn unpark(&mut self) -> impl Iterator<Item = Request> + '_ {
        self.refused_unread = 0;
        self.parked.drain()
    }

    /// The connection ended: drops the parked requests and returns how many these were.
    pub(super) fn connection_ended(&mut self) -> usize {
        let parked = std::mem::take(&mut self.parked).len();
        self.queued = self.queued.saturating_sub(parked);
        self.refused_unread = 0;
        parked
    }

    pub(super) fn queued(&self) -> usize {
        self.queued
    }
}
