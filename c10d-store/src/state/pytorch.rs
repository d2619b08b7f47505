//! PyTorch's store: the commands of docs/spec/wire.md.

use std::collections::VecDeque;
use std::sync::Arc;

use super::extensions::KnownValue;
use super::slot::Slot;
use super::waiters::{Answer, ListId, Wants, Woken};
use super::{Refusal, StoreState, WOKEN_KEPT, count, work_of};
use crate::message::{ConnId, Keys, Payload, Replies, Reply, Request};
use crate::stored_value::Value;
use crate::wire::Opcode;

impl StoreState {
    /// Notes, checks and carries out one request of `conn`. The event loop makes these three steps itself, because it adds
    /// its own checks.
    ///
    /// # Errors
    /// [`Refusal`] if the connection must be closed.
    #[cfg(any(test, fuzzing, feature = "sim"))]
    pub(crate) fn handle(
        &mut self,
        conn: ConnId,
        request: Request<'_>,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        self.note_request(conn, &request);
        if self.must_check(&request) && self.check_request(conn, &request, replies)? {
            return Ok(());
        }
        self.carry_out(conn, request, replies)
    }

    /// Carries out one request of `conn` after [`note_request`](Self::note_request), and, if
    /// [`must_check`](Self::must_check), after [`check_request`](Self::check_request) has returned `false`.
    ///
    /// # Errors
    /// [`Refusal`] if the connection must be closed.
    #[inline]
    pub(crate) fn carry_out(
        &mut self,
        conn: ConnId,
        request: Request<'_>,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        match request {
            Request::Validate { .. } => return Err(Refusal::UnexpectedValidate),
            Request::Ping { nonce } => {
                let nonce = self.answer_to_ping(nonce);
                self.reply(replies, conn, Reply::Nonce(nonce));
            }
            Request::Set { key, value } => self.set(key, value, replies),
            Request::Get { key } => self.reply_value(conn, key, replies),
            Request::Add { key, delta } => {
                let (sum, waiters) = self.slots.add(key, delta, self.writer())?;
                self.wake_for_value(waiters, replies);
                self.reply(replies, conn, Reply::Integer(sum));
            }
            Request::CompareSet {
                key,
                expected,
                desired,
            } => {
                if self.compares_equal(key, expected) {
                    self.set(key, desired, replies);
                }
                self.reply_compared(conn, key, expected, replies);
            }
            Request::Check { keys } => {
                let ready = keys.iter().all(|key| self.key_exists(key));
                self.reply(replies, conn, Reply::Ready(ready));
            }
            Request::Wait { keys } => self.wait(conn, keys, replies),
            Request::CancelWait => {
                self.waits_cancelled += u64::from(self.cancel(conn));
                self.reply(replies, conn, Reply::WaitCanceled);
            }
            Request::Barrier { key, world_size } => {
                self.barrier(conn, key, world_size, replies)?;
            }
            Request::GetNumKeys => self.reply_count(conn, replies),
            Request::DeleteKey { key } => {
                let deleted = self.delete(key);
                self.reply(replies, conn, Reply::Integer(i64::from(deleted)));
            }
            Request::Append { key, value } => {
                self.work += work_of(value.as_bytes());
                let waiters = self.slots.append(key, value, self.writer());
                self.wake_for_value(waiters, replies);
            }
            Request::MultiGet { keys } => self.reply_values(conn, keys.iter(), replies),
            Request::MultiSet { pairs } => self.multi_set(pairs, replies),
            Request::QueuePush { key, value } => self.queue_push(key, value.into_value(), replies),
            Request::QueuePop { key } => self.queue_pop(conn, key, replies),
            Request::QueueLen { key } => {
                let length = self.queue(key).map_or(0, VecDeque::len);
                self.reply(replies, conn, Reply::Integer(count(length)));
            }
            Request::ListKeys => self.list_keys(conn, replies),
            #[cfg(feature = "extensions")]
            Request::Extension(extension) => self.extend(conn, extension, replies)?,
        }
        #[cfg(debug_assertions)]
        self.check_invariants_sometimes();
        Ok(())
    }

    fn reply_count(&self, conn: ConnId, replies: &mut impl Replies) {
        let values = count(self.slots.value_count());
        self.reply(replies, conn, Reply::Integer(values));
    }

    fn list_keys(&mut self, conn: ConnId, replies: &mut impl Replies) {
        self.reply_count(conn, replies);
        let (listing, is_new) = self.slots.listing();
        if is_new {
            self.work += self.slots.value_count() as u64;
        }
        self.reply(replies, conn, Reply::Encoded(&listing));
    }

    /// docs/spec/wire.md, COMPARE_SET: the value, now that the request was carried out.
    pub(super) fn reply_compared(
        &self,
        conn: ConnId,
        key: &[u8],
        expected: &[u8],
        replies: &mut impl Replies,
    ) {
        let current = self.slots.get(key).and_then(Slot::value);
        let reply = match current {
            Some(_) => Reply::Value(current),
            // docs/spec/wire.md, COMPARE_SET 4.
            None => Reply::Bytes(expected),
        };
        self.reply(replies, conn, reply);
    }

    /// docs/spec/wire.md, CHECK: a value, or a queue that is not empty.
    pub(super) fn key_exists(&self, key: &[u8]) -> bool {
        self.slots.get(key).is_some_and(Slot::exists)
    }

    /// Whether the key has a value. An element of a queue is not a value.
    pub(super) fn has_value(&self, key: &[u8]) -> bool {
        let slot = self.slots.get(key);
        slot.is_some_and(|slot| slot.stored.is_some())
    }

    pub(super) fn queue(&self, key: &[u8]) -> Option<&VecDeque<Value>> {
        self.slots.get(key)?.queue.as_deref()
    }

    /// Removes a value and its ownership. Returns `false` if the key has no value.
    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(deleted) = self.slots.delete(key) else {
            return false;
        };
        if let Some(ownership) = deleted.ownership {
            self.disown(key, &ownership);
        }
        true
    }

    #[inline(always)] // Most requests.
    pub(super) fn set(&mut self, key: &[u8], new: Payload<'_>, replies: &mut impl Replies) {
        self.work += work_of(new.as_bytes());
        let waiters = self.slots.write(key, new, self.writer());
        self.wake_for_value(waiters, replies);
    }

    /// docs/spec/wire.md, MULTI_SET: all pairs are written before any wait is woken.
    pub(super) fn multi_set(&mut self, pairs: Keys<'_>, replies: &mut impl Replies) {
        let mut blobs = pairs.iter();
        let mut has_waiters = false;
        let writer = self.writer();
        while let (Some(key), Some(value)) = (blobs.next(), blobs.next()) {
            self.work += work_of(value);
            let waiters = self.slots.write(key, Payload::Borrowed(value), writer);
            has_waiters |= waiters.is_some();
        }
        if has_waiters {
            for key in pairs.iter().step_by(2) {
                let waiters = self.slots.get(key).and_then(|slot| slot.waiters);
                self.wake_for_value(waiters, replies);
            }
        }
    }

    /// docs/spec/wire.md, COMPARE_SET: whether it writes. An empty `expected` also matches a missing key.
    pub(super) fn compares_equal(&self, key: &[u8], expected: &[u8]) -> bool {
        let current = self.slots.get(key).and_then(Slot::value);
        current.map_or(&[][..], Value::as_bytes) == expected
    }

    pub(super) fn wait(&mut self, conn: ConnId, keys: Keys<'_>, replies: &mut impl Replies) {
        self.cancel(conn);
        if keys.iter().all(|key| self.key_exists(key)) {
            self.reply(replies, conn, Reply::StopWaiting);
            return;
        }
        if self.is_released(conn, keys, replies) {
            return;
        }
        let origin = self.origin(Opcode::Wait);
        self.waiters.open(conn, Answer::Stop, origin);
        for key in keys.iter() {
            if !self.key_exists(key) {
                self.miss(conn, key, Wants::ValueOrElement);
            }
        }
    }

    /// docs/spec/wire.md, BARRIER: an ordinary counter, which an unfinished arrival creates without waking
    /// the waits for its key.
    pub(super) fn barrier(
        &mut self,
        conn: ConnId,
        key: &[u8],
        world_size: i64,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        let (arrived, waiters) = self.slots.add(key, 1, self.writer())?;
        if arrived >= world_size {
            // An earlier arrival of the same connection is also answered; this request replaces any other wait of the
            // connection.
            self.wake_for_value(waiters, replies);
            self.cancel(conn);
            self.reply(replies, conn, Reply::StopWaiting);
        } else {
            self.cancel(conn);
            self.wait_for_others(conn, key);
        }
        Ok(())
    }

    /// Waits at a barrier.
    pub(super) fn wait_for_others(&mut self, conn: ConnId, key: &[u8]) {
        let origin = self.origin(Opcode::Barrier);
        self.waiters.open(conn, Answer::Stop, origin);
        self.miss(conn, key, Wants::Barrier);
    }

    pub(super) fn queue_push(&mut self, key: &[u8], element: Value, replies: &mut impl Replies) {
        if self.slots.push(key, element).is_some() {
            self.offer_element(key, replies);
        }
    }

    pub(super) fn queue_pop(&mut self, conn: ConnId, key: &[u8], replies: &mut impl Replies) {
        let length = self.queue(key).map_or(0, VecDeque::len);
        let element = self.slots.pop(key);
        self.reply(replies, conn, Reply::Integer(count(length)));
        if let Some(element) = element {
            self.reply(replies, conn, Reply::Value(Some(&element)));
            self.slots.lent.add(&element);
        }
    }

    /// Sends a value, and records that the connection has read it.
    #[inline(always)] // Most requests.
    pub(super) fn reply_value(&mut self, conn: ConnId, key: &[u8], replies: &mut impl Replies) {
        let stored = self.slots.get(key).and_then(|slot| slot.stored.as_ref());
        if let Some(stored) = stored {
            self.extensions.note_read(conn, stored);
        }
        self.reply(
            replies,
            conn,
            Reply::Value(stored.map(|stored| &stored.value)),
        );
    }

    pub(super) fn reply_values<'k>(
        &mut self,
        conn: ConnId,
        keys: impl Iterator<Item = &'k [u8]>,
        replies: &mut impl Replies,
    ) {
        for key in keys {
            self.reply_value(conn, key, replies);
        }
    }

    pub(super) fn miss(&mut self, conn: ConnId, key: &[u8], wants: Wants) {
        let waiters = &mut self.waiters;
        let list = self.slots.waiters_of(key, |name| waiters.new_list(name));
        self.waiters.miss(conn, list, wants);
    }

    /// Wakes waits after a write of their key.
    pub(super) fn wake_for_value(&mut self, waiters: Option<ListId>, replies: &mut impl Replies) {
        let Some(list) = waiters else {
            return;
        };
        self.keep_waiting_connections(list);
        let slot = self.slots.get(self.waiters.name(list));
        let value = slot.and_then(Slot::value);
        // Waits with the same known value are adjacent, so one comparison serves all of them.
        let mut compared = None;
        let differs = |known: &Arc<KnownValue>| match compared {
            // Known values are not made in between, so an equal address means the same value.
            Some((last, differs)) if last == Arc::as_ptr(known) => differs,
            _ => {
                #[cfg(test)]
                {
                    self.comparisons += 1;
                }
                self.work += work_of(known.as_known().bytes());
                let differs =
                    value.is_some_and(|value| known.as_known().is_outdated_by(value.as_bytes()));
                compared = Some((Arc::as_ptr(known), differs));
                differs
            }
        };
        let mut woken = std::mem::take(&mut self.woken);
        let emptied = self.waiters.value_written(list, differs, &mut woken);
        if let Some(name) = emptied {
            self.slots.remove_waiters(&name);
        }
        for woken in woken.drain(..) {
            let conn = woken.conn;
            match woken.answer {
                Answer::Stop => self.reply(replies, conn, Reply::StopWaiting),
                Answer::Values(wanted) => self.check_again(conn, wanted, woken.origin, replies),
                Answer::Elements(_) | Answer::Event => {
                    unreachable!("a value does not end a wait for an element or for news")
                }
            }
        }
        woken.shrink_to(WOKEN_KEPT);
        self.woken = woken;
    }

    /// Wakes the first waiter of a queue that has an element.
    pub(super) fn offer_element(&mut self, key: &[u8], replies: &mut impl Replies) {
        let Some(Slot {
            queue: Some(_),
            waiters: Some(list),
            ..
        }) = self.slots.get(key)
        else {
            return;
        };
        let list = *list;
        self.keep_waiting_connections(list);
        let mut woken = std::mem::take(&mut self.woken);
        if let Some(name) = self.waiters.element_pushed(list, &mut woken) {
            self.slots.remove_waiters(&name);
        }
        self.woken = woken;
        self.reply_to_woken(key, replies);
    }

    /// Replies to the connections whose waits an element of this queue has ended.
    pub(super) fn reply_to_woken(&mut self, key: &[u8], replies: &mut impl Replies) {
        let mut woken = std::mem::take(&mut self.woken);
        for Woken { conn, answer, .. } in woken.drain(..) {
            match answer {
                Answer::Stop => {
                    self.reserved_wakeups.insert(conn, key.into());
                    self.reply(replies, conn, Reply::StopWaiting);
                }
                Answer::Elements(max) => self.reply_elements(conn, key, max, replies),
                Answer::Values(_) | Answer::Event => {
                    unreachable!("an element does not end a wait for values or for news")
                }
            }
        }
        woken.shrink_to(WOKEN_KEPT);
        self.woken = woken;
    }

    /// Handles the next request of a connection that was woken by a push (`None`: it disconnected). A pop
    /// uses the wakeup, a PING keeps it, and anything else passes it to the next waiter.
    pub(super) fn return_wakeup(
        &mut self,
        conn: ConnId,
        next: Option<&Request<'_>>,
        replies: &mut impl Replies,
    ) {
        if matches!(next, Some(Request::Ping { .. })) {
            return;
        }
        let Some(queue) = self.reserved_wakeups.remove(&conn) else {
            return;
        };
        // Whether the queue has an element decides who is woken.
        let _ = self.queue(&queue);
        if next.and_then(Request::popped_queue) != Some(&*queue) {
            self.offer_element(&queue, replies);
        }
    }

    /// Removes the wait of a connection; `false` if it has none.
    pub(super) fn cancel(&mut self, conn: ConnId) -> bool {
        let mut emptied = std::mem::take(&mut self.emptied);
        let answer = self.waiters.cancel(conn, &mut emptied);
        if let Some(Answer::Event) = &answer {
            self.poll_ended(conn);
        }
        for name in emptied.drain(..) {
            self.slots.remove_waiters(&name);
        }
        self.emptied = emptied;
        answer.is_some()
    }
}
