//! The deletions of names with a prefix that wait for their turn or their time (docs/spec/wire-extensions.md, DELETE_PREFIX).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::slots::Sweep;
use crate::journal::batch::{BatchWriter, Effect};
use crate::message::ConnId;
use crate::moment::Moment;

/// The most prefixes that are deleted later.
pub(super) const SCHEDULED_MAX: usize = 4096;

/// The memory of a scheduled prefix besides its bytes.
pub(super) const SCHEDULED_BYTES: usize = 256;

/// The deletions in progress, the first of them under way, and the scheduled deletions.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// The deletions, each with the connection that waits for its end.
    pub(super) queue: VecDeque<(Sweep, Option<ConnId>)>,
    scheduled: BTreeMap<Arc<[u8]>, (Moment, Duration)>,
    by_time: BTreeSet<(Moment, Arc<[u8]>)>,
    /// The bytes of the scheduled prefixes, with [`SCHEDULED_BYTES`] more for each.
    pub(super) scheduled_bytes: usize,
}

impl Sweeps {
    /// Whether the connection waits for the end of a deletion.
    pub(super) fn is_awaited_by(&self, conn: ConnId) -> bool {
        self.queue.iter().any(|(_, asker)| *asker == Some(conn))
    }

    /// The connection has ended.
    pub(super) fn forget(&mut self, conn: ConnId) {
        for (_, asker) in &mut self.queue {
            asker.take_if(|asker| *asker == conn);
        }
    }

    /// Whether there is room for this prefix among the scheduled ones.
    pub(super) fn has_room_for(&self, prefix: &[u8]) -> bool {
        self.scheduled.len() < SCHEDULED_MAX || self.scheduled.contains_key(prefix)
    }

    /// Schedules the deletion of a prefix, replacing an earlier schedule.
    pub(super) fn schedule(&mut self, prefix: &[u8], now: Moment, delay: Duration) {
        self.unschedule(prefix);
        let prefix: Arc<[u8]> = prefix.into();
        let at = now + delay;
        self.scheduled_bytes += SCHEDULED_BYTES + prefix.len();
        self.by_time.insert((at, Arc::clone(&prefix)));
        self.scheduled.insert(prefix, (at, delay));
    }

    /// A prefix is not scheduled any more; `false` if it was not.
    pub(super) fn unschedule(&mut self, prefix: &[u8]) -> bool {
        let Some((prefix, (at, _))) = self.scheduled.remove_entry(prefix) else {
            return false;
        };
        self.scheduled_bytes -= SCHEDULED_BYTES + prefix.len();
        self.by_time.remove(&(at, prefix));
        true
    }

    /// The scheduled prefix with the earliest time.
    pub(super) fn next_scheduled(&self) -> Option<&(Moment, Arc<[u8]>)> {
        self.by_time.first()
    }

    /// Writes the scheduled deletions, for a snapshot of the journal.
    pub(super) fn write(&self, writer: &mut BatchWriter) {
        for (prefix, (_, delay)) in &self.scheduled {
            // It was received as a `u32`.
            let delay_millis = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
            writer.push(Effect::Schedule {
                prefix,
                delay_millis,
            });
        }
    }
}
