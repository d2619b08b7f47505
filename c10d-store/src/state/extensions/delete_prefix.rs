//! Deletes the names with a prefix, at once or later (docs/spec/wire-extensions.md, DELETE_PREFIX): in slices,
//! between which other requests continue.

use std::sync::Arc;
use std::time::Duration;

use crate::journal::batch::Effect;
use crate::message::{ConnId, Replies, Reply};
use crate::moment::Moment;
use crate::state::{Recorder, StoreState, count};

/// The slots that a slice visits, about half a millisecond. A deleted slot counts as several.
const SLICE: usize = 4096;

/// Beyond this many bytes of effects in no batch, the next slice waits. Requests may have eight times as many.
const GATHERED_BYTES_MAX: usize = 1 << 20;

impl StoreState {
    /// docs/spec/wire-extensions.md, DELETE_PREFIX 1 and 4.
    pub(super) fn delete_prefix(
        &mut self,
        conn: ConnId,
        prefix: &[u8],
        delay_millis: u32,
        replies: &mut impl Replies,
    ) {
        if delay_millis == 0 {
            if self.extensions.sweeps.unschedule(prefix) {
                self.record_schedule(prefix, 0);
            }
            self.begin_sweep(prefix, Some(conn));
        } else if self.extensions.sweeps.has_room_for(prefix) {
            self.recover_schedule(prefix, delay_millis);
            self.record_schedule(prefix, delay_millis);
            self.reply(replies, conn, Reply::Integer(0));
        } else {
            self.reply(replies, conn, Reply::Integer(-1));
        }
    }

    /// Carries out `Effect::Schedule`.
    pub(super) fn recover_schedule(&mut self, prefix: &[u8], delay_millis: u32) {
        if delay_millis == 0 {
            self.extensions.sweeps.unschedule(prefix);
        } else {
            let delay = Duration::from_millis(u64::from(delay_millis));
            self.extensions.sweeps.schedule(prefix, self.now, delay);
        }
    }

    /// Returns when the next scheduled deletion starts.
    pub(crate) fn next_sweep(&self) -> Option<Moment> {
        self.extensions.sweeps.next_scheduled().map(|(at, _)| *at)
    }

    /// Whether a connection waits for the end of a deletion.
    pub(crate) fn is_sweeping_for(&self, conn: ConnId) -> bool {
        self.extensions.sweeps.is_awaited_by(conn)
    }

    /// Whether [`continue_sweep`](Self::continue_sweep) can delete something now.
    pub(crate) fn can_sweep(&self) -> bool {
        let gathered_bytes = self.recorder().map_or(0, Recorder::gathered_bytes);
        !self.extensions.sweeps.queue.is_empty() && gathered_bytes <= GATHERED_BYTES_MAX
    }

    /// Starts the deletions that are due, and deletes for less than a millisecond. Returns the connection that has the reply
    /// to its request, which is complete.
    pub(crate) fn continue_sweep(&mut self, replies: &mut impl Replies) -> Option<ConnId> {
        while let Some((at, prefix)) = self.extensions.sweeps.next_scheduled()
            && *at <= self.now
        {
            let prefix = Arc::clone(prefix);
            self.look_at_all();
            self.extensions.sweeps.unschedule(&prefix);
            self.record_schedule(&prefix, 0);
            self.begin_sweep(&prefix, None);
        }
        if !self.can_sweep() {
            return None;
        }
        self.look_at_all();
        let owners = &mut self.extensions.owners;
        let deleted = self.slots.sweep(SLICE, |key, ownership| {
            owners.remove_key(ownership.owner, key);
        })?;
        let (_, asker) = self.extensions.sweeps.queue.pop_front()?;
        if let Some((next, _)) = self.extensions.sweeps.queue.front() {
            self.slots.start_sweep(next.clone());
        }
        let asker = asker?;
        self.depend_on_batch();
        self.reply(replies, asker, Reply::Integer(count(deleted)));
        Some(asker)
    }

    fn record_schedule(&mut self, prefix: &[u8], delay_millis: u32) {
        if let Some(recorder) = &mut self.slots.recorder {
            let effect = Effect::Schedule {
                prefix,
                delay_millis,
            };
            recorder.record_unnamed(effect);
        }
    }

    /// Deletes all names with the first prefix, except names with the second prefix. It replaces an earlier such
    /// deletion that has not begun.
    pub(super) fn sweep_all_but(&mut self, prefix: &[u8], kept: &[u8]) {
        let mut waiting = self.extensions.sweeps.queue.iter().skip(1);
        let earlier = waiting.position(|(sweep, asker)| asker.is_none() && sweep.keeps_of(prefix));
        if let Some(earlier) = earlier {
            self.extensions.sweeps.queue.remove(1 + earlier);
        }
        self.begin_sweep_but(prefix, Some(kept), None);
    }

    fn begin_sweep(&mut self, prefix: &[u8], asker: Option<ConnId>) {
        self.begin_sweep_but(prefix, None, asker);
    }

    fn begin_sweep_but(&mut self, prefix: &[u8], kept: Option<&[u8]>, asker: Option<ConnId>) {
        let sweep = self.slots.new_sweep(prefix, kept);
        if self.extensions.sweeps.queue.is_empty() {
            self.slots.start_sweep(sweep.clone());
        }
        self.extensions.sweeps.queue.push_back((sweep, asker));
    }
}
