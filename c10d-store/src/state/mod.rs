//! The store's state machine. Pure: no socket, clock or thread.
//!
//! Pass requests one at a time to [`StoreState::handle`], and report every closed connection with
//! [`StoreState::disconnect`]. Replies go to the caller's [`Replies`] in sending order. The behaviour is
//! specified in docs/wire.md, section 5.

#[cfg(any(test, debug_assertions))]
mod invariants;
mod known_value;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
mod waiters;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::decimal::{parse_decimal, write_decimal};
use crate::known::Known;
use crate::message::{ConnId, Keys, Payload, Replies, Reply, Request};
use crate::stored_value::Value;
use crate::wire::{WORKER_COUNT_KEY, reply_to_ping};
use known_value::KnownValue;
pub(crate) use waiters::WaitSummary;
use waiters::{Answer, ListId, Waiters, Wants, Woken};

/// Why a request is refused. The protocol has no error replies, so the connection is closed after the
/// earlier replies. A refused request changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// ADD or BARRIER on a value that is not a number.
    #[error("the value is not a decimal number")]
    NotANumber,
    /// The session handles VALIDATE, so it does not reach the state.
    #[error("unexpected VALIDATE")]
    UnexpectedValidate,
}

/// How much of a value a refused TRY_ADD returns: enough to recognize it.
const NOT_A_NUMBER_HEAD_BYTES: usize = 64;

/// All names of the store with their values, queues and waiters.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    slots: HashMap<Box<[u8]>, Slot>,
    /// The number of slots with a value.
    value_count: usize,
    waiters: Waiters,
    /// Connections that were woken by a push and have not sent their next request, each with the queue's
    /// name. If that request is not a pop, the wakeup passes to the next waiter, so that no wait continues
    /// while the queue has an element.
    pledges: HashMap<ConnId, Box<[u8]>>,
    /// Scratch space, empty between calls.
    woken: Vec<Woken>,
    emptied: Vec<Box<[u8]>>,
    /// Comparisons with known values, for the test that waits with the same known value share one.
    #[cfg(test)]
    comparisons: u64,
}

/// Everything under one name. Invariant: never entirely empty.
#[derive(Debug, Default)]
struct Slot {
    value: Option<Value>,
    /// Invariant: not empty.
    #[expect(
        clippy::box_collection,
        reason = "few names have a queue, so the slots of all others stay small"
    )]
    queue: Option<Box<VecDeque<Value>>>,
    waiters: Option<ListId>,
}

impl Slot {
    const fn exists(&self) -> bool {
        self.value.is_some() || self.queue.is_some()
    }

    const fn is_empty(&self) -> bool {
        !self.exists() && self.waiters.is_none()
    }
}

impl StoreState {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Handles one request of `conn`.
    ///
    /// # Errors
    /// [`Refusal`] if the connection must be closed.
    pub(crate) fn handle(
        &mut self,
        conn: ConnId,
        request: Request<'_>,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        if !self.pledges.is_empty() {
            self.settle_pledge(conn, Some(&request), replies);
        }
        match request {
            Request::Validate { .. } => return Err(Refusal::UnexpectedValidate),
            Request::Ping { nonce } => replies.reply(conn, Reply::Nonce(reply_to_ping(nonce))),
            Request::Set { key, value } => self.set(key, value, replies),
            Request::Get { key } => {
                let value = self.slots.get(key).and_then(|slot| slot.value.as_ref());
                replies.reply(conn, Reply::Value(value));
            }
            Request::Add { key, delta } => {
                let (sum, waiters) = self.add(key, delta)?;
                self.wake_for_value(waiters, replies);
                replies.reply(conn, Reply::Integer(sum));
            }
            Request::TryAdd { key, delta } => self.try_add(conn, key, delta, replies),
            Request::CompareSet {
                key,
                expected,
                desired,
                reports_outcome,
            } => {
                let writes = self.compares_equal(key, expected);
                if writes {
                    self.set(key, desired, replies);
                }
                if reports_outcome {
                    replies.reply(conn, Reply::Exchanged(writes));
                }
                let current = self.slots.get(key).and_then(|slot| slot.value.as_ref());
                replies.reply(
                    conn,
                    match current {
                        Some(_) => Reply::Value(current),
                        // docs/wire.md, COMPARE_SET 4.
                        None => Reply::Bytes(expected),
                    },
                );
            }
            Request::Check { keys } => {
                let ready = keys.iter().all(|key| self.key_exists(key));
                replies.reply(conn, Reply::Ready(ready));
            }
            Request::Wait { keys } => self.wait(conn, keys, replies),
            Request::WaitGet { keys } => {
                self.cancel(conn);
                self.wait_get(conn, keys, replies);
            }
            Request::WaitChange {
                key,
                offset,
                length,
                known,
            } => {
                self.cancel(conn);
                self.wait_change(conn, key, offset, length, known, replies);
            }
            Request::CancelWait => {
                self.cancel(conn);
                replies.reply(conn, Reply::WaitCanceled);
            }
            Request::Barrier { key, world_size } => {
                self.barrier(conn, key, world_size, replies)?;
            }
            Request::GetNumKeys => replies.reply(conn, Reply::Integer(count(self.value_count))),
            Request::DeleteKey { key } => {
                let deleted = self.delete(key);
                replies.reply(conn, Reply::Integer(i64::from(deleted)));
            }
            Request::Append { key, value } => self.append(key, value, replies),
            Request::MultiGet { keys } => self.reply_values(conn, keys.iter(), replies),
            Request::MultiSet { pairs } => self.multi_set(pairs, replies),
            Request::QueuePush { key, value } => self.queue_push(key, value.into_value(), replies),
            Request::QueuePop { key } => self.queue_pop(conn, key, replies),
            Request::QueueLen { key } => {
                let length = self.queue(key).map_or(0, VecDeque::len);
                replies.reply(conn, Reply::Integer(count(length)));
            }
            Request::ListKeys => {
                replies.reply(conn, Reply::Integer(count(self.value_count)));
                for (key, slot) in &self.slots {
                    if slot.value.is_some() {
                        replies.reply(conn, Reply::Bytes(key));
                    }
                }
            }
        }
        #[cfg(debug_assertions)]
        self.check_invariants_sometimes();
        Ok(())
    }

    /// Removes a closed connection: its pending wait, and a wakeup that it has not used.
    pub(crate) fn disconnect(&mut self, conn: ConnId, replies: &mut impl Replies) {
        self.cancel(conn);
        if !self.pledges.is_empty() {
            self.settle_pledge(conn, None, replies);
        }
    }

    /// Sets the current time, as the start of later waits.
    pub(crate) const fn set_now(&mut self, now: Instant) {
        self.waiters.set_now(now);
    }

    /// The number of waiting connections.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.waiting()
    }

    /// A summary of the waits, with at most `keys_max` keys.
    pub(crate) fn summary_of_waits(&self, keys_max: usize) -> WaitSummary {
        self.waiters.summary(keys_max)
    }

    /// The number of workers that have counted themselves; `None` if none has (docs/wire.md, 7.2).
    pub(crate) fn joined_workers(&self) -> Option<i64> {
        let slot = self.slots.get(WORKER_COUNT_KEY)?;
        parse_decimal(slot.value.as_ref()?.as_bytes())
    }

    /// docs/wire.md, CHECK: a value, or a queue that is not empty.
    fn key_exists(&self, key: &[u8]) -> bool {
        self.slots.get(key).is_some_and(Slot::exists)
    }

    fn queue(&self, key: &[u8]) -> Option<&VecDeque<Value>> {
        self.slots.get(key)?.queue.as_deref()
    }

    fn set(&mut self, key: &[u8], new: Payload<'_>, replies: &mut impl Replies) {
        let waiters = self.write(key, new);
        self.wake_for_value(waiters, replies);
    }

    /// docs/wire.md, MULTI_SET: all pairs are written before any wait is woken.
    fn multi_set(&mut self, pairs: Keys<'_>, replies: &mut impl Replies) {
        let mut blobs = pairs.iter();
        let mut has_waiters = false;
        while let (Some(key), Some(value)) = (blobs.next(), blobs.next()) {
            has_waiters |= self.write(key, Payload::Borrowed(value)).is_some();
        }
        if has_waiters {
            for key in pairs.iter().step_by(2) {
                let waiters = self.slots.get(key).and_then(|slot| slot.waiters);
                self.wake_for_value(waiters, replies);
            }
        }
    }

    /// Writes a value without waking its waiters, and returns them.
    fn write(&mut self, key: &[u8], new: Payload<'_>) -> Option<ListId> {
        let Some(slot) = self.slots.get_mut(key) else {
            let value = Some(new.into_value());
            self.value_count += 1;
            self.slots.insert(
                key.into(),
                Slot {
                    value,
                    ..Slot::default()
                },
            );
            return None;
        };
        match (&mut slot.value, new) {
            (Some(value), Payload::Borrowed(bytes)) => value.assign(bytes),
            (value, new) => {
                self.value_count += usize::from(value.is_none());
                *value = Some(new.into_value());
            }
        }
        slot.waiters
    }

    /// docs/wire.md, ADD and BARRIER: adds to the number at `key` without waking its waiters, and returns
    /// them.
    fn add(&mut self, key: &[u8], delta: i64) -> Result<(i64, Option<ListId>), Refusal> {
        let slot = match self.slots.get_mut(key) {
            Some(slot) => slot,
            None => self.slots.entry(key.into()).or_default(),
        };
        let current = match &slot.value {
            None => 0,
            Some(value) => parse_decimal(value.as_bytes()).ok_or(Refusal::NotANumber)?,
        };
        let sum = current.wrapping_add(delta);
        let value = slot.value.get_or_insert_with(|| {
            self.value_count += 1;
            Value::from(&[][..])
        });
        write_decimal(sum, value.make_short());
        Ok((sum, slot.waiters))
    }

    /// docs/wire.md, TRY_ADD: an ADD that reports a value that is not a number.
    fn try_add(&mut self, conn: ConnId, key: &[u8], delta: i64, replies: &mut impl Replies) {
        if let Ok((sum, waiters)) = self.add(key, delta) {
            self.wake_for_value(waiters, replies);
            replies.reply(conn, Reply::Added(sum));
            return;
        }
        let value = self.slots.get(key).and_then(|slot| slot.value.as_ref());
        let bytes = value.map_or(&[][..], Value::as_bytes);
        replies.reply(
            conn,
            Reply::NotANumber {
                head: &bytes[..bytes.len().min(NOT_A_NUMBER_HEAD_BYTES)],
                length: bytes.len(),
            },
        );
    }

    fn append(&mut self, key: &[u8], more: Payload<'_>, replies: &mut impl Replies) {
        match self.slots.get_mut(key) {
            Some(Slot {
                value: Some(value),
                waiters,
                ..
            }) => {
                value.append(more.as_bytes());
                let waiters = *waiters;
                self.wake_for_value(waiters, replies);
            }
            _ => self.set(key, more, replies),
        }
    }

    /// docs/wire.md, COMPARE_SET: whether it writes. An empty `expected` also matches a missing key.
    fn compares_equal(&self, key: &[u8], expected: &[u8]) -> bool {
        let current = self.slots.get(key).and_then(|slot| slot.value.as_ref());
        current.map_or(&[][..], Value::as_bytes) == expected
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let Some(slot) = self.slots.get_mut(key) else {
            return false;
        };
        let deleted = slot.value.take().is_some();
        if deleted {
            self.value_count -= 1;
            if slot.is_empty() {
                self.slots.remove(key);
            }
        }
        deleted
    }

    fn wait(&mut self, conn: ConnId, keys: Keys<'_>, replies: &mut impl Replies) {
        self.cancel(conn);
        if keys.iter().all(|key| self.key_exists(key)) {
            replies.reply(conn, Reply::StopWaiting);
            return;
        }
        self.waiters.open(conn, Answer::Stop);
        for key in keys.iter() {
            if !self.key_exists(key) {
                self.miss(conn, key, Wants::ValueOrElement);
            }
        }
    }

    /// docs/wire.md, WAIT_GET: answered as soon as all values exist at the same moment.
    fn wait_get(&mut self, conn: ConnId, keys: Keys<'_>, replies: &mut impl Replies) {
        let has_value =
            |state: &Self, key: &[u8]| state.slots.get(key).is_some_and(|s| s.value.is_some());
        if keys.iter().all(|key| has_value(self, key)) {
            replies.reply(conn, Reply::StopWaiting);
            self.reply_values(conn, keys.iter(), replies);
            return;
        }
        let wanted = keys.iter().map(Box::from).collect();
        self.waiters.open(conn, Answer::Values(wanted));
        for key in keys.iter() {
            if !has_value(self, key) {
                self.miss(conn, key, Wants::Value);
            }
        }
    }

    /// docs/wire.md, WAIT_CHANGE: answered as soon as a value exists that differs from the known one.
    fn wait_change(
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
        if let Some(value) = slot.and_then(|slot| slot.value.as_ref())
            && known.differs_from(value.as_bytes())
        {
            replies.reply(conn, Reply::StopWaiting);
            replies.reply(conn, Reply::Value(Some(value)));
            return;
        }
        // Waits that have seen the current value usually have the same known value.
        let last_known = slot
            .and_then(|slot| slot.waiters)
            .and_then(|list| self.waiters.last_known(list));
        let known = match last_known {
            Some(shared) if shared.as_known() == known => Arc::clone(shared),
            _ => Arc::new(KnownValue::new(offset, bytes, length)),
        };
        self.waiters.open(conn, Answer::Values([key.into()].into()));
        self.miss(conn, key, Wants::Change(known));
    }

    /// docs/wire.md, BARRIER: an ordinary counter, which an unfinished arrival creates without waking
    /// the waits for its key.
    fn barrier(
        &mut self,
        conn: ConnId,
        key: &[u8],
        world_size: i64,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        let (arrived, waiters) = self.add(key, 1)?;
        if arrived >= world_size {
            // An earlier arrival of the same connection is answered too; this request replaces any other
            // wait of it.
            self.wake_for_value(waiters, replies);
            self.cancel(conn);
            replies.reply(conn, Reply::StopWaiting);
        } else {
            self.cancel(conn);
            self.waiters.open(conn, Answer::Stop);
            self.miss(conn, key, Wants::Barrier);
        }
        Ok(())
    }

    fn queue_push(&mut self, key: &[u8], element: Value, replies: &mut impl Replies) {
        let slot = match self.slots.get_mut(key) {
            Some(slot) => slot,
            None => self.slots.entry(key.into()).or_default(),
        };
        slot.queue.get_or_insert_default().push_back(element);
        if slot.waiters.is_some() {
            self.offer_element(key, replies);
        }
    }

    fn queue_pop(&mut self, conn: ConnId, key: &[u8], replies: &mut impl Replies) {
        let length = self.queue(key).map_or(0, VecDeque::len);
        replies.reply(conn, Reply::Integer(count(length)));
        if let Some(element) = self.take_element(key) {
            replies.reply(conn, Reply::Value(Some(&element)));
        }
    }

    fn take_element(&mut self, key: &[u8]) -> Option<Value> {
        let slot = self.slots.get_mut(key)?;
        let queue = slot.queue.as_mut()?;
        let element = queue.pop_front();
        if queue.is_empty() {
            slot.queue = None;
            if slot.is_empty() {
                self.slots.remove(key);
            }
        }
        element
    }

    fn reply_values<'k>(
        &self,
        conn: ConnId,
        keys: impl Iterator<Item = &'k [u8]>,
        replies: &mut impl Replies,
    ) {
        for key in keys {
            let value = self.slots.get(key).and_then(|slot| slot.value.as_ref());
            replies.reply(conn, Reply::Value(value));
        }
    }

    fn miss(&mut self, conn: ConnId, key: &[u8], wants: Wants) {
        let slot = match self.slots.get_mut(key) {
            Some(slot) => slot,
            None => self.slots.entry(key.into()).or_default(),
        };
        let list = *slot
            .waiters
            .get_or_insert_with(|| self.waiters.new_list(key));
        self.waiters.miss(conn, list, wants);
    }

    /// Wakes waits after a write of their key.
    fn wake_for_value(&mut self, waiters: Option<ListId>, replies: &mut impl Replies) {
        let Some(list) = waiters else {
            return;
        };
        let slot = self.slots.get(self.waiters.name(list));
        let value = slot.and_then(|slot| slot.value.as_ref());
        // Waits with the same known value are adjacent, so one comparison serves all of them.
        let mut compared: Option<(Arc<KnownValue>, bool)> = None;
        let differs = |known: &Arc<KnownValue>| match &compared {
            Some((last, differs)) if Arc::ptr_eq(last, known) => *differs,
            _ => {
                #[cfg(test)]
                {
                    self.comparisons += 1;
                }
                let differs =
                    value.is_some_and(|value| known.as_known().differs_from(value.as_bytes()));
                compared = Some((Arc::clone(known), differs));
                differs
            }
        };
        let mut woken = std::mem::take(&mut self.woken);
        let emptied = self.waiters.value_written(list, differs, &mut woken);
        if let Some(name) = emptied {
            self.remove_list(&name);
        }
        for Woken { conn, answer } in woken.drain(..) {
            match answer {
                Answer::Stop => replies.reply(conn, Reply::StopWaiting),
                Answer::Values(keys) => {
                    // An earlier key may have been deleted again: then the wait continues.
                    let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
                    self.wait_get(conn, Keys::from(&keys[..]), replies);
                }
            }
        }
        self.woken = woken;
    }

    /// Wakes the first waiter of a queue that has an element.
    fn offer_element(&mut self, key: &[u8], replies: &mut impl Replies) {
        let Some(Slot {
            queue: Some(_),
            waiters: Some(list),
            ..
        }) = self.slots.get(key)
        else {
            return;
        };
        let mut woken = std::mem::take(&mut self.woken);
        if let Some(name) = self.waiters.element_pushed(*list, &mut woken) {
            self.remove_list(&name);
        }
        for Woken { conn, answer } in woken.drain(..) {
            match answer {
                Answer::Stop => {
                    self.pledges.insert(conn, key.into());
                    replies.reply(conn, Reply::StopWaiting);
                }
                Answer::Values(_) => unreachable!("an element does not end a wait for values"),
            }
        }
        self.woken = woken;
    }

    /// Handles the next request of a connection that was woken by a push (`None`: it disconnected). A pop
    /// uses the wakeup, a PING keeps it, and anything else passes it to the next waiter.
    fn settle_pledge(
        &mut self,
        conn: ConnId,
        next: Option<&Request<'_>>,
        replies: &mut impl Replies,
    ) {
        if matches!(next, Some(Request::Ping { .. })) {
            return;
        }
        let Some(queue) = self.pledges.remove(&conn) else {
            return;
        };
        match next {
            Some(Request::QueuePop { key }) if **key == *queue => {}
            _ => self.offer_element(&queue, replies),
        }
    }

    fn cancel(&mut self, conn: ConnId) {
        let mut emptied = std::mem::take(&mut self.emptied);
        self.waiters.cancel(conn, &mut emptied);
        for name in emptied.drain(..) {
            self.remove_list(&name);
        }
        self.emptied = emptied;
    }

    /// The last waiter of a name was removed.
    fn remove_list(&mut self, name: &[u8]) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.waiters = None;
            if slot.is_empty() {
                self.slots.remove(name);
            }
        }
    }
}

/// Counts are `i64` on the wire; memory ends long before their limit.
fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
