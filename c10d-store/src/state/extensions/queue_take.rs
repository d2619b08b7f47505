//! QUEUE_TAKE (docs/spec/wire-extensions.md, section 9.8).

use std::sync::Arc;

use crate::message::{ConnId, Replies, Reply};
use crate::state::StoreState;
use crate::state::count;
use crate::state::waiters::{Answer, Wants};
use crate::wire::Opcode;

/// The most bytes of the elements of one QUEUE_TAKE, with 8 bytes more for each: one reply must not fill the
/// memory for the unsent replies of a peer.
const TAKEN_BYTES_MAX: usize = 4 << 20;

impl StoreState {
    /// docs/spec/wire-extensions.md, QUEUE_TAKE: answered as soon as the queue has an element.
    pub(super) fn queue_take(
        &mut self,
        conn: ConnId,
        key: &[u8],
        max: usize,
        replies: &mut impl Replies,
    ) {
        self.cancel(conn);
        if self.queue(key).is_some() {
            self.reply_elements(conn, key, max, replies);
            return;
        }
        let origin = self.origin(Opcode::QueueTake);
        self.waiters.open(conn, Answer::Elements(max), origin);
        self.miss(conn, key, Wants::Element);
    }

    /// Takes elements from a queue, which has some, and sends them.
    pub(in crate::state) fn reply_elements(
        &mut self,
        conn: ConnId,
        key: &[u8],
        max: usize,
        replies: &mut impl Replies,
    ) {
        let elements = self.slots.take(key, max, TAKEN_BYTES_MAX);
        self.reply(replies, conn, Reply::StopWaiting);
        self.reply(replies, conn, Reply::Integer(count(elements.len())));
        self.work += elements.len() as u64;
        for element in &elements {
            self.reply(replies, conn, Reply::Value(Some(element)));
            self.slots.lent.add(element);
        }
    }

    /// Ends the wait of a connection for queues that have elements.
    pub(super) fn give_elements(&mut self, conn: ConnId, replies: &mut impl Replies) {
        let entries = self.waiters.element_entries(conn);
        let given: Vec<(u32, Arc<[u8]>)> = entries
            .filter(|(_, name)| self.queue(name).is_some())
            .map(|(at, name)| (at, Arc::clone(name)))
            .collect();
        for (at, key) in given {
            let mut woken = std::mem::take(&mut self.woken);
            if let Some(name) = self.waiters.element_given(at, &mut woken) {
                self.slots.remove_waiters(&name);
            }
            self.woken = woken;
            self.reply_to_woken(&key, replies);
        }
    }
}
