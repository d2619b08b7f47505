//! WAIT_GET (docs/spec/wire-extensions.md, section 9.2).

use super::pending_wait::WantedKeys;
use crate::message::{ConnId, Keys, Replies, Reply};
use crate::state::StoreState;
use crate::state::waiters::{Answer, Origin, Wants};
use crate::wire::Opcode;

impl StoreState {
    /// docs/spec/wire-extensions.md, WAIT_GET: answered as soon as all values exist at the same moment.
    pub(super) fn wait_get(&mut self, conn: ConnId, keys: Keys<'_>, replies: &mut impl Replies) {
        self.cancel(conn);
        if keys.iter().all(|key| self.has_value(key)) {
            self.reply(replies, conn, Reply::StopWaiting);
            self.reply_values(conn, keys.iter(), replies);
            return;
        }
        if self.is_released(conn, keys, replies) {
            return;
        }
        let origin = self.origin(Opcode::WaitGet);
        let answer = Answer::Values(WantedKeys::new(keys));
        self.waiters.open(conn, answer, origin);
        for key in keys.iter() {
            if !self.has_value(key) {
                self.miss(conn, key, Wants::Value);
            }
        }
    }

    /// The last missing key of a WAIT_GET or WAIT_CHANGE was written. An earlier one may have been deleted again: then
    /// the wait continues.
    pub(in crate::state) fn check_again(
        &mut self,
        conn: ConnId,
        mut wanted: WantedKeys,
        origin: Origin,
        replies: &mut impl Replies,
    ) {
        self.work += wanted.distinct_len() as u64;
        if wanted.distinct().all(|key| self.has_value(key)) {
            self.reply(replies, conn, Reply::StopWaiting);
            self.reply_values(conn, wanted.all(), replies);
            return;
        }
        wanted.find_distinct();
        let mut missing = Vec::new();
        for key in wanted.distinct() {
            if !self.has_value(key) {
                let waiters = &mut self.waiters;
                missing.push(self.slots.waiters_of(key, |name| waiters.new_list(name)));
            }
        }
        self.waiters.open(conn, Answer::Values(wanted), origin);
        for list in missing {
            self.waiters.miss(conn, list, Wants::Value);
        }
    }
}
