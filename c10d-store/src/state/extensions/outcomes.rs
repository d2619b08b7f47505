//! Writes that report their outcome (docs/spec/wire-extensions.md, sections 9.4, 9.5 and 9.14).

use crate::message::{ConnId, Payload, Replies, Reply, Request};
use crate::state::StoreState;
use crate::state::slot::Slot;
use crate::stored_value::Value;

/// How much of a value a refused TRY_ADD returns: enough to recognize it.
const NOT_A_NUMBER_HEAD_BYTES: usize = 64;

impl StoreState {
    /// docs/spec/wire-extensions.md, COMPARE_EXCHANGE 1.
    pub(super) fn compare_exchange(
        &mut self,
        conn: ConnId,
        key: &[u8],
        expected: &[u8],
        desired: Payload<'_>,
        replies: &mut impl Replies,
    ) {
        let writes = self.compares_equal(key, expected);
        if writes {
            self.set(key, desired, replies);
        }
        self.reply(replies, conn, Reply::Exchanged(writes));
        if !writes {
            self.reply_compared(conn, key, expected, replies);
        }
    }

    /// docs/spec/wire-extensions.md, TRY_ADD: an ADD that reports a value that is not a number.
    pub(super) fn try_add(
        &mut self,
        conn: ConnId,
        key: &[u8],
        delta: i64,
        replies: &mut impl Replies,
    ) {
        if let Ok((sum, waiters)) = self.slots.add(key, delta, self.writer()) {
            self.wake_for_value(waiters, replies);
            self.reply(replies, conn, Reply::Added(sum));
            return;
        }
        let value = self.slots.get(key).and_then(Slot::value);
        let bytes = value.map_or(&[][..], Value::as_bytes);
        let reply = Reply::NotANumber {
            head: &bytes[..bytes.len().min(NOT_A_NUMBER_HEAD_BYTES)],
            length: bytes.len(),
        };
        self.reply(replies, conn, reply);
    }

    /// docs/spec/wire-extensions.md, REFUSAL 3: the request changes nothing, but is one.
    pub(super) fn report_full(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        (used, limit): (usize, usize),
        replies: &mut impl Replies,
    ) {
        if request.outline().command.is_wait() {
            self.cancel(conn);
        }
        self.reply(replies, conn, Reply::Full { used, limit });
    }
}
