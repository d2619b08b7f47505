//! END_WAITS (docs/spec/wire-extensions.md, section 9.11), and the END_WAITS that sessions have missed.

use crate::journal::batch::Effect;
use crate::message::{ConnId, Replies, Reply};
use crate::moment::Moment;
use crate::session::ResentWait;
use crate::state::StoreState;
use crate::state::count;

impl StoreState {
    /// docs/spec/wire-extensions.md, END_WAITS 1.
    pub(super) fn end_waits(&mut self, conn: ConnId, prefix: &[u8], replies: &mut impl Replies) {
        if self.extensions.missed_ends.has_sessions() {
            // A wait that has ended late counts as ended for this request, too, once its end is durable.
            self.depend_on_batch();
        }
        let ended = self.end_waits_of(prefix, replies);
        self.remember_end(prefix);
        self.reply(replies, conn, Reply::Integer(count(ended)));
    }

    /// Ends the waits for names with a prefix. Returns how many.
    pub(super) fn end_waits_of(&mut self, prefix: &[u8], replies: &mut impl Replies) -> usize {
        let waiting = self.waiters.waiting_for_prefix(prefix);
        self.work += waiting.len() as u64;
        if !waiting.is_empty() {
            self.depend_on_batch();
        }
        for waiting in &waiting {
            self.end_wait_of(*waiting, replies);
        }
        waiting.len()
    }

    pub(super) fn end_wait_of(&mut self, waiting: ConnId, replies: &mut impl Replies) {
        self.extensions.directory.keep(waiting, &self.waiters);
        self.cancel(waiting);
        self.extensions.ended_waits.insert(waiting);
        self.reply(replies, waiting, Reply::WaitCanceled);
        self.waits_cancelled += 1;
    }

    /// Sets whether the last request of a connection was a wait that END_WAITS has ended. A kept reply of a session shows it.
    pub(crate) fn set_wait_ended(&mut self, conn: ConnId, was_ended: bool) {
        if was_ended {
            self.extensions.ended_waits.insert(conn);
        } else if !self.extensions.ended_waits.is_empty() {
            self.extensions.ended_waits.remove(&conn);
        }
    }

    /// This server of the journal has this number, and sessions of earlier servers may return with waits
    /// (docs/spec/wire-extensions.md, END_WAITS 4), until [`forget_ends`](Self::forget_ends).
    pub(crate) const fn expect_sessions(&mut self, server: u32) {
        self.extensions.missed_ends.expect_sessions(server);
    }

    /// There are sessions, which may lose their links and send waits in the meantime (docs/spec/wire-extensions.md,
    /// END_WAITS 4).
    pub(crate) const fn remember_ends(&mut self) {
        self.extensions.missed_ends.remember();
    }

    /// Sessions of earlier servers can no longer return.
    pub(crate) fn forget_ends(&mut self) {
        self.extensions.missed_ends.forget();
    }

    /// Remembers an END_WAITS of this server for sessions that return later.
    pub(super) fn remember_end(&mut self, prefix: &[u8]) {
        if let Some(server) = self.extensions.missed_ends.add(prefix, self.now)
            && let Some(recorder) = &mut self.slots.recorder
        {
            recorder.record_unnamed(Effect::EndWaits { prefix, server });
        }
    }

    /// A wait of this connection was sent again, and was carried out. Ends it if its session, which was accepted at this
    /// time, has missed an END_WAITS (docs/spec/wire-extensions.md, END_WAITS 4).
    pub(crate) fn end_if_missed(
        &mut self,
        conn: ConnId,
        wait: ResentWait,
        accepted: Moment,
        replies: &mut impl Replies,
    ) {
        let Some(waiting) = self.waiters.waiting_of(conn) else {
            return;
        };
        self.work += u64::from(waiting.missing) + self.extensions.missed_ends.len() as u64;
        let missed = self.extensions.missed_ends.missed_by(wait, accepted);
        let names = || self.waiters.missing_of(waiting);
        let is_ended = !missed.is_empty() && names().any(|name| missed.has(name));
        if is_ended {
            self.depend_on_batch();
            self.end_wait_of(conn, replies);
        }
    }

    /// Like END_WAITS, for a wait that arrives after it was carried out. Does nothing if the connection does not
    /// wait.
    pub(crate) fn end_missed_wait(
        &mut self,
        conn: ConnId,
        wait: ResentWait,
        accepted: Moment,
        replies: &mut impl Replies,
    ) {
        self.look_at_all();
        self.end_if_missed(conn, wait, accepted, replies);
    }
}
