//! The connections that closed last.

use std::collections::VecDeque;
use std::sync::Arc;

use super::activity::{Activity, PastActivity};
use crate::message::ConnectionId;
use crate::snapshot::{Closed, ConnectionRecord, PendingWait};

/// How many closed connections are kept at least: as many as a large job has ranks. About 3 MiB.
pub(super) const CLOSED_KEPT: usize = 16_384;

/// The connections in one block.
const BLOCK: usize = 64;

/// A connection that has closed.
#[derive(Debug, Clone)]
struct ClosedConnection {
    activity: PastActivity,
    wait: Option<Box<PendingWait>>,
    closed: Closed,
}

/// The last closed connections, at least [`CLOSED_KEPT`] and less than a block more. In shared blocks, so that a
/// clone costs microseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct ClosedConnections {
    /// Full blocks, in the order of closing.
    blocks: VecDeque<Arc<[ClosedConnection]>>,
    /// The connections after them, less than a block.
    last: Vec<ClosedConnection>,
}

impl ClosedConnections {
    /// Adds a connection. Calls `dropped` for each that is no longer kept.
    pub(super) fn push(
        &mut self,
        activity: &Activity,
        wait: Option<PendingWait>,
        closed: Closed,
        mut dropped: impl FnMut(ConnectionId),
    ) {
        let before = self.last.last().map(|last| &last.activity);
        self.last.push(ClosedConnection {
            activity: activity.ended(before),
            wait: wait.map(Box::new),
            closed,
        });
        if self.last.len() < BLOCK {
            return;
        }
        self.blocks.push_back(self.last.drain(..).collect());
        if self.blocks.len() > CLOSED_KEPT / BLOCK {
            let oldest = self.blocks.pop_front();
            for connection in oldest.iter().flat_map(|block| block.iter()) {
                dropped(connection.activity.id());
            }
        }
    }

    /// The connections in the order of closing.
    pub(super) fn records(&self) -> impl Iterator<Item = ConnectionRecord> {
        let in_blocks = self.blocks.iter().flat_map(|block| block.iter());
        in_blocks.chain(&self.last).map(|closed| {
            let mut record = closed.activity.to_record();
            record.wait = closed.wait.as_deref().cloned();
            record.closed = Some(closed.closed);
            record
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::CloseReason;
    use crate::moment::Moment;

    /// docs/spec/wire-extensions.md, ANNOUNCE 3.
    #[test]
    fn the_last_ones_are_kept_and_each_other_one_is_dropped_once() {
        let mut closed = ClosedConnections::default();
        let mut dropped = Vec::new();
        let count = 3 * CLOSED_KEPT as u64 + 5;
        for id in 1..=count {
            let peer = ([127, 0, 0, 1], 1).into();
            let activity = Activity::new(ConnectionId(id), peer, Moment::default());
            let by_peer = Closed {
                at: std::time::Duration::ZERO,
                reason: CloseReason::Peer,
            };
            closed.push(&activity, None, by_peer, |id| dropped.push(id.0));
        }
        let kept: Vec<u64> = closed.records().map(|record| record.id.0).collect();
        assert!((CLOSED_KEPT..CLOSED_KEPT + BLOCK).contains(&kept.len()));
        dropped.extend(kept);
        assert_eq!(dropped, (1..=count).collect::<Vec<_>>());
    }
}
