//! WAIT_CHANGE (docs/spec/wire-extensions.md, section 9.3).

use std::sync::Arc;

use super::pending_wait::{KnownValue, WantedKeys};
use crate::known::Known;
use crate::message::{ConnId, Keys, Payload, Replies, Reply};
use crate::state::StoreState;
use crate::state::slot::Slot;
use crate::state::waiters::{Answer, Wants};
use crate::wire::Opcode;

impl StoreState {
    /// docs/spec/wire-extensions.md, WAIT_CHANGE: answered as soon as a value exists that differs from the known one.
    pub(super) fn wait_change(
        &mut self,
        conn: ConnId,
        key: &[u8],
        offset: usize,
        length: Option<usize>,
        bytes: Payload<'_>,
        replies: &mut impl Replies,
    ) {
        let known = Known::new(offset, bytes.as_bytes(), length);
        let slot = self.slots.get(key);
        if let Some(value) = slot.and_then(Slot::value)
            && known.is_outdated_by(value.as_bytes())
        {
            self.reply(replies, conn, Reply::StopWaiting);
            self.reply_value(conn, key, replies);
            return;
        }
        // Waits that have seen the current value usually have the same known value.
        let last_known = slot
            .and_then(|slot| slot.waiters)
            .and_then(|list| self.waiters.last_known(list));
        let known = match last_known {
            Some(shared) if shared.as_known() == known => Arc::clone(shared),
            _ => self.waiters.know(KnownValue::new(offset, bytes, length)),
        };
        let origin = self.origin(Opcode::WaitChange);
        self.waiters.open(
            conn,
            Answer::Values(WantedKeys::new(Keys::from(&[key][..]))),
            origin,
        );
        self.miss(conn, key, Wants::Change(known));
    }
}
