//! A request that a node posts for each holder until it is answered.

use super::message::{Request, RequestKind};
use crate::values::node::NodeId;

/// A request is posted again after 2 intervals of heartbeats, and then each time after twice as long, up to 2 intervals
/// times two to the power of this.
const DOUBLINGS_MAX: u32 = 8;

#[derive(Debug)]
pub(super) struct Posting {
    pub(super) kind: RequestKind,
    pub(super) number: u32,
    /// The number of the first request of this goal: an answer to any later one is one to the goal.
    pub(super) since: u32,
    /// The epoch of the holder to which it was posted.
    pub(super) epoch: Option<u64>,
    doublings: u32,
}

impl Posting {
    /// Creates a posting of a request. `epoch` is the epoch of a holder that has received the
    /// request already.
    pub(super) const fn new(kind: RequestKind, number: u32, epoch: Option<u64>) -> Self {
        Self {
            kind,
            number,
            since: number,
            epoch,
            doublings: 0,
        }
    }

    /// Replaces the request, which is then to be posted again.
    pub(super) const fn replace(&mut self, kind: RequestKind, number: u32) {
        self.kind = kind;
        self.number = number;
        self.epoch = None;
    }

    /// Notes that the request is posted to the holder of this epoch. Returns after how many intervals of heartbeats to
    /// post it again: a holder that dies takes with it what it took from the queue.
    pub(super) fn post(&mut self, epoch: Option<u64>) -> u32 {
        let is_again = self.epoch == epoch;
        self.doublings = if is_again {
            (self.doublings + 1).min(DOUBLINGS_MAX)
        } else {
            0
        };
        self.epoch = epoch;
        2 << self.doublings
    }

    /// The request of the node `me`, for the holder to which it is posted.
    pub(super) fn request(&self, me: &NodeId, index: u32) -> Request {
        Request {
            index,
            number: self.number,
            epoch: self.epoch.unwrap_or_default(),
            node: me.clone(),
            kind: self.kind,
        }
    }
}
