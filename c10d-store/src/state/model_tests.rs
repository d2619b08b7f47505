//! Compares the state with a naive model that scans everything: the same requests must get the same
//! replies in the same order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;

use super::StoreState;
use super::tests::{OwnedReply, Recorder};
use crate::decimal::parse_decimal;
use crate::message::CloseReason;
use crate::message::{ConnId, Extension, Keys, Payload, Request};
use crate::sim::cases;

/// A request, or a disconnect.
#[derive(Debug, Clone)]
enum Operation {
    Set(u8, Vec<u8>),
    CompareSet(u8, Vec<u8>, Vec<u8>, bool),
    Get(u8),
    Add(u8, i64),
    TryAdd(u8, i64),
    Check(Vec<u8>),
    Wait(Vec<u8>),
    WaitGet(Vec<u8>),
    WaitChange(u8, KnownPart),
    Cancel,
    NumKeys,
    Delete(u8),
    Append(u8, Vec<u8>),
    MultiGet(Vec<u8>),
    MultiSet(Vec<(u8, Vec<u8>)>),
    Push(u8, Vec<u8>),
    Pop(u8),
    Take(u8, usize),
    Len(u8),
    Barrier(u8, i64),
    EndWaits(Option<u8>),
    DeletePrefix(u8),
    Claim(u8, Vec<u8>, Option<(u8, Vec<u8>)>),
    Ping,
    Disconnect,
    Away,
    Back,
}

/// The known part of a waiter's value: the bytes at an offset, and possibly the length.
#[derive(Debug, Clone)]
struct KnownPart {
    offset: usize,
    bytes: Vec<u8>,
    length: Option<usize>,
}

impl KnownPart {
    /// Whether a value is as known (docs/spec/wire-extensions.md, section 9.3), compared byte by byte.
    fn matches(&self, value: &[u8]) -> bool {
        let is_same = |(index, byte): (usize, &u8)| value.get(self.offset + index) == Some(byte);
        value.len() >= self.offset
            && self.bytes.iter().enumerate().all(is_same)
            && self.length.is_none_or(|length| value.len() == length)
    }
}

/// A key of one byte. There are few keys, so that requests collide.
fn key() -> impl Strategy<Value = u8> {
    b'a'..=b'c'
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (-9..99_i64).prop_map(|number| number.to_string().into_bytes()),
        1 => Just(Vec::new()),
        1 => Just(b"text".to_vec()),
    ]
}

/// Mostly a likely current value or its first byte. With other values few requests would have to wait.
fn known_part() -> impl Strategy<Value = KnownPart> {
    let whole = |bytes: Vec<u8>| KnownPart {
        offset: 0,
        length: Some(bytes.len()),
        bytes,
    };
    let head = |bytes: Vec<u8>| KnownPart {
        offset: 0,
        length: None,
        bytes: bytes[..bytes.len().min(1)].to_vec(),
    };
    let small = (0..4_i64).prop_map(|number| number.to_string().into_bytes());
    prop_oneof![
        3 => value().prop_map(whole),
        3 => small.prop_map(whole),
        3 => value().prop_map(head),
        1 => (0..4_usize, value(), prop::option::of(0..4_usize)).prop_map(
            |(offset, bytes, length)| KnownPart { offset, bytes, length }
        ),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Operation::Set(k, v)),
        3 => (key(), value(), value(), any::<bool>())
            .prop_map(|(k, e, d, reports)| Operation::CompareSet(k, e, d, reports)),
        1 => key().prop_map(Operation::Get),
        3 => (key(), -3..4_i64).prop_map(|(k, d)| Operation::Add(k, d)),
        2 => (key(), -3..4_i64).prop_map(|(k, d)| Operation::TryAdd(k, d)),
        1 => vec(key(), 0..4).prop_map(Operation::Check),
        6 => vec(key(), 0..4).prop_map(Operation::Wait),
        4 => vec(key(), 0..4).prop_map(Operation::WaitGet),
        6 => (key(), known_part()).prop_map(|(k, known)| Operation::WaitChange(k, known)),
        3 => Just(Operation::Cancel),
        1 => Just(Operation::NumKeys),
        4 => key().prop_map(Operation::Delete),
        2 => (key(), value()).prop_map(|(k, v)| Operation::Append(k, v)),
        1 => vec(key(), 0..4).prop_map(Operation::MultiGet),
        2 => vec((key(), value()), 0..4).prop_map(Operation::MultiSet),
        4 => (key(), value()).prop_map(|(k, v)| Operation::Push(k, v)),
        4 => key().prop_map(Operation::Pop),
        5 => (key(), 1..4_usize).prop_map(|(k, max)| Operation::Take(k, max)),
        1 => key().prop_map(Operation::Len),
        4 => (key(), 0..5_i64).prop_map(|(k, n)| Operation::Barrier(k, n)),
        3 => prop::option::of(key()).prop_map(Operation::EndWaits),
        3 => key().prop_map(Operation::DeletePrefix),
        5 => (key(), value(), prop::option::of((key(), value())))
            .prop_map(|(k, v, will)| Operation::Claim(k, v, will)),
        1 => Just(Operation::Ping),
        2 => Just(Operation::Disconnect),
        4 => Just(Operation::Away),
        4 => Just(Operation::Back),
    ]
}

#[derive(Debug, Clone)]
enum Kind {
    Wait,
    Barrier,
    WaitGet,
    WaitChange(KnownPart),
    Take(usize),
}

#[derive(Debug)]
struct Pending {
    conn: u64,
    kind: Kind,
    /// The missing keys, each with the time at which its entry was made.
    missing: Vec<(u8, u64)>,
    wanted: Vec<u8>,
}

#[derive(Debug)]
struct Owned {
    key: u8,
    conn: u64,
    will: Option<(u8, Vec<u8>)>,
}

/// A slow and simple implementation of docs/spec/wire.md.
#[derive(Debug, Default)]
struct Model {
    values: BTreeMap<u8, Vec<u8>>,
    queues: BTreeMap<u8, VecDeque<Vec<u8>>>,
    pending: Vec<Pending>,
    /// The connections that a push has woken and that have not used the wakeup, each with its queue.
    pledges: BTreeMap<u64, u8>,
    /// The owners of keys, each with its will. In the order in which the keys were first set.
    owned: Vec<Owned>,
    /// The connections whose waits were ended by their last request.
    ended: BTreeSet<u64>,
    /// The connections whose sessions have no link.
    away: BTreeSet<u64>,
    clock: u64,
    replies: Vec<(u64, OwnedReply)>,
}

impl Model {
    fn reply(&mut self, conn: u64, reply: OwnedReply) {
        self.replies.push((conn, reply));
    }

    fn has_element(&self, key: u8) -> bool {
        self.queues.get(&key).is_some_and(|queue| !queue.is_empty())
    }

    fn key_exists(&self, key: u8) -> bool {
        self.values.contains_key(&key) || self.has_element(key)
    }

    fn value(&self, key: u8) -> OwnedReply {
        OwnedReply::Bytes(self.values.get(&key).cloned().unwrap_or_default())
    }

    /// The waits that miss `key`, oldest entry first, those that are away last: the time of the entry and the connection.
    fn waiting_for(&self, key: u8) -> Vec<(u64, u64)> {
        let mut entries = Vec::new();
        for pending in &self.pending {
            for (missing, since) in &pending.missing {
                if *missing == key {
                    entries.push((*since, pending.conn));
                }
            }
        }
        entries.sort_unstable_by_key(|(since, conn)| (self.away.contains(conn), *since));
        entries
    }

    /// Its waits leave their places.
    fn move_entries(&mut self, conn: u64) {
        for pending in self.pending.iter_mut().filter(|p| p.conn == conn) {
            for (_, since) in &mut pending.missing {
                self.clock += 1;
                *since = self.clock;
            }
        }
    }

    fn come_back(&mut self, conn: u64) {
        self.move_entries(conn);
        let waits = self.pending.iter().find(|p| p.conn == conn);
        let takes = |p: &&Pending| matches!(p.kind, Kind::Wait | Kind::Barrier | Kind::Take(_));
        let missing = waits.filter(takes).map(|p| p.missing.clone());
        for (key, since) in missing.unwrap_or_default() {
            if self.has_element(key)
                && let Some(pending) = self.remove_entry(conn, since)
            {
                self.give(conn, key, &pending.kind);
            }
        }
    }

    fn give(&mut self, conn: u64, key: u8, kind: &Kind) {
        if let Kind::Take(max) = kind {
            self.reply_elements(conn, key, *max);
        } else {
            self.pledges.insert(conn, key);
            self.reply(conn, OwnedReply::Stop);
        }
    }

    /// Removes one entry of a wait. Returns the wait if no key is missing any more.
    fn remove_entry(&mut self, conn: u64, since: u64) -> Option<Pending> {
        let index = self.pending.iter().position(|p| p.conn == conn)?;
        let pending = &mut self.pending[index];
        pending.missing.retain(|(_, entry)| *entry != since);
        pending
            .missing
            .is_empty()
            .then(|| self.pending.remove(index))
    }

    fn wake(&mut self, key: u8) {
        let mut complete = Vec::new();
        for (since, conn) in self.waiting_for(key) {
            let value = &self.values[&key];
            let is_unchanged = |p: &Pending| match &p.kind {
                Kind::WaitChange(known) => p.conn == conn && known.matches(value),
                Kind::Take(_) => p.conn == conn,
                Kind::Wait | Kind::Barrier | Kind::WaitGet => false,
            };
            if !self.pending.iter().any(is_unchanged) {
                complete.extend(self.remove_entry(conn, since));
            }
        }
        for pending in complete {
            match pending.kind {
                Kind::WaitGet => self.wait_get(pending.conn, &pending.wanted),
                Kind::WaitChange(_) => self.reply_changed(pending.conn, key),
                Kind::Wait | Kind::Barrier => self.reply(pending.conn, OwnedReply::Stop),
                Kind::Take(_) => unreachable!("a value is not an element"),
            }
        }
    }

    fn offer_element(&mut self, key: u8) {
        if !self.has_element(key) {
            return;
        }
        for (since, conn) in self.waiting_for(key) {
            let wants_value = |p: &Pending| {
                p.conn == conn && matches!(p.kind, Kind::WaitGet | Kind::WaitChange(_))
            };
            if self.pending.iter().any(wants_value) || self.away.contains(&conn) {
                continue;
            }
            if let Some(pending) = self.remove_entry(conn, since) {
                return self.give(conn, key, &pending.kind);
            }
        }
    }

    fn reply_elements(&mut self, conn: u64, key: u8, max: usize) {
        let queue = self.queues.entry(key).or_default();
        let taken: Vec<_> = queue.drain(..max.min(queue.len())).collect();
        self.reply(conn, OwnedReply::Stop);
        self.reply(conn, OwnedReply::Integer(taken.len() as i64));
        for element in taken {
            self.reply(conn, OwnedReply::Bytes(element));
        }
    }

    fn write(&mut self, key: u8, value: Vec<u8>) {
        self.values.insert(key, value);
        self.wake(key);
    }

    fn end_keys(&mut self, conn: u64) {
        let owned = std::mem::take(&mut self.owned);
        let (ended, others) = owned.into_iter().partition(|owned| owned.conn == conn);
        self.owned = others;
        let ended: Vec<Owned> = ended;
        for owned in &ended {
            self.values.remove(&owned.key);
        }
        let wills: Vec<(u8, Vec<u8>)> = ended.into_iter().filter_map(|owned| owned.will).collect();
        for (key, value) in &wills {
            self.values.insert(*key, value.clone());
        }
        for (key, _) in wills {
            self.wake(key);
        }
    }

    fn cancel(&mut self, conn: u64) {
        self.pending.retain(|pending| pending.conn != conn);
    }

    fn add_wait(&mut self, conn: u64, kind: Kind, keys: Vec<u8>, wanted: &[u8]) {
        let missing = keys
            .into_iter()
            .map(|key| {
                self.clock += 1;
                (key, self.clock)
            })
            .collect();
        self.pending.push(Pending {
            conn,
            kind,
            missing,
            wanted: wanted.to_vec(),
        });
    }

    fn wait_get(&mut self, conn: u64, keys: &[u8]) {
        let missing: Vec<u8> = keys
            .iter()
            .copied()
            .filter(|key| !self.values.contains_key(key))
            .collect();
        if missing.is_empty() {
            self.reply(conn, OwnedReply::Stop);
            for key in keys {
                let value = self.value(*key);
                self.reply(conn, value);
            }
        } else {
            self.add_wait(conn, Kind::WaitGet, missing, keys);
        }
    }

    fn wait_change(&mut self, conn: u64, key: u8, known: KnownPart) {
        match self.values.get(&key) {
            Some(value) if !known.matches(value) => self.reply_changed(conn, key),
            _ => self.add_wait(conn, Kind::WaitChange(known), vec![key], &[]),
        }
    }

    fn reply_changed(&mut self, conn: u64, key: u8) {
        self.reply(conn, OwnedReply::Stop);
        let value = self.value(key);
        self.reply(conn, value);
    }

    fn add(&mut self, key: u8, delta: i64) -> Option<i64> {
        let current = match self.values.get(&key) {
            Some(text) => parse_decimal(text)?,
            None => 0,
        };
        let sum = current.wrapping_add(delta);
        self.values.insert(key, sum.to_string().into_bytes());
        Some(sum)
    }

    /// Executes an operation. Returns `false` if the connection must be closed.
    fn step(&mut self, conn: u64, operation: &Operation) -> bool {
        if matches!(operation, Operation::Away) && self.away.insert(conn) {
            self.move_entries(conn);
        }
        if !matches!(operation, Operation::Ping | Operation::Back)
            && let Some(queue) = self.pledges.remove(&conn)
            && !matches!(operation, Operation::Pop(key) | Operation::Take(key, _) if *key == queue)
        {
            if matches!(operation, Operation::Disconnect) {
                self.cancel(conn);
            }
            self.offer_element(queue);
        }
        let was_ended =
            !matches!(operation, Operation::Away | Operation::Back) && self.ended.remove(&conn);
        match operation.clone() {
            Operation::EndWaits(prefix) => {
                let is_meant = |pending: &Pending| {
                    let mut missing = pending.missing.iter();
                    missing.any(|(key, _)| prefix.is_none_or(|prefix| prefix == *key))
                };
                let meant = self.pending.iter().filter(|pending| is_meant(pending));
                let conns: BTreeSet<u64> = meant.map(|pending| pending.conn).collect();
                for conn in &conns {
                    self.cancel(*conn);
                    self.ended.insert(*conn);
                    self.reply(*conn, OwnedReply::Canceled);
                }
                self.reply(conn, OwnedReply::Integer(conns.len() as i64));
            }
            Operation::DeletePrefix(key) => {
                let value = self.values.remove(&key);
                let queue = self.queues.remove(&key).filter(|queue| !queue.is_empty());
                self.owned.retain(|owned| owned.key != key);
                let count = i64::from(value.is_some() || queue.is_some());
                self.reply(conn, OwnedReply::Integer(count));
            }
            Operation::Cancel if was_ended => {}
            Operation::Set(key, value) => self.write(key, value),
            Operation::CompareSet(key, expected, desired, reports_outcome) => {
                let current = self.values.get(&key).cloned();
                let writes = current.clone().unwrap_or_default() == expected;
                if writes {
                    self.write(key, desired.clone());
                }
                if reports_outcome {
                    self.reply(conn, OwnedReply::Exchanged(writes));
                }
                let kept = current.unwrap_or(expected);
                if !(reports_outcome && writes) {
                    self.reply(conn, OwnedReply::Bytes(if writes { desired } else { kept }));
                }
            }
            Operation::Get(key) => {
                let value = self.value(key);
                self.reply(conn, value);
            }
            Operation::Add(key, delta) => match self.add(key, delta) {
                Some(sum) => {
                    self.wake(key);
                    self.reply(conn, OwnedReply::Integer(sum));
                }
                None => return false,
            },
            Operation::TryAdd(key, delta) => match self.add(key, delta) {
                Some(sum) => {
                    self.wake(key);
                    self.reply(conn, OwnedReply::Added(sum));
                }
                None => {
                    let mut head = self.values[&key].clone();
                    let length = head.len();
                    head.truncate(64);
                    self.reply(conn, OwnedReply::NotANumber(head, length));
                }
            },
            Operation::Check(keys) => {
                let ready = keys.iter().all(|key| self.key_exists(*key));
                self.reply(conn, OwnedReply::Ready(ready));
            }
            Operation::Wait(keys) => {
                self.cancel(conn);
                let missing: Vec<u8> = keys
                    .iter()
                    .copied()
                    .filter(|key| !self.key_exists(*key))
                    .collect();
                if missing.is_empty() {
                    self.reply(conn, OwnedReply::Stop);
                } else {
                    self.add_wait(conn, Kind::Wait, missing, &[]);
                }
            }
            Operation::WaitGet(keys) => {
                self.cancel(conn);
                self.wait_get(conn, &keys);
            }
            Operation::WaitChange(key, known) => {
                self.cancel(conn);
                self.wait_change(conn, key, known);
            }
            Operation::Cancel => {
                self.cancel(conn);
                self.reply(conn, OwnedReply::Canceled);
            }
            Operation::NumKeys => self.reply(conn, OwnedReply::Integer(self.values.len() as i64)),
            Operation::Delete(key) => {
                let deleted = self.values.remove(&key).is_some();
                self.owned.retain(|owned| owned.key != key);
                self.reply(conn, OwnedReply::Integer(i64::from(deleted)));
            }
            Operation::Append(key, more) => {
                let mut value = self.values.get(&key).cloned().unwrap_or_default();
                value.extend(more);
                self.write(key, value);
            }
            Operation::MultiGet(keys) => {
                for key in keys {
                    let value = self.value(key);
                    self.reply(conn, value);
                }
            }
            Operation::MultiSet(pairs) => {
                for (key, value) in &pairs {
                    self.values.insert(*key, value.clone());
                }
                for (key, _) in pairs {
                    self.wake(key);
                }
            }
            Operation::Push(key, element) => {
                self.queues.entry(key).or_default().push_back(element);
                self.offer_element(key);
            }
            Operation::Pop(key) => {
                let queue = self.queues.entry(key).or_default();
                let length = queue.len() as i64;
                let element = queue.pop_front();
                self.reply(conn, OwnedReply::Integer(length));
                if let Some(element) = element {
                    self.reply(conn, OwnedReply::Bytes(element));
                }
            }
            Operation::Take(key, max) => {
                self.cancel(conn);
                if self.has_element(key) {
                    self.reply_elements(conn, key, max);
                } else {
                    self.add_wait(conn, Kind::Take(max), vec![key], &[]);
                }
            }
            Operation::Len(key) => {
                let length = self.queues.get(&key).map_or(0, VecDeque::len);
                self.reply(conn, OwnedReply::Integer(length as i64));
            }
            Operation::Barrier(key, world_size) => match self.add(key, 1) {
                Some(arrived) if arrived >= world_size => {
                    self.wake(key);
                    self.cancel(conn);
                    self.reply(conn, OwnedReply::Stop);
                }
                Some(_) => {
                    self.cancel(conn);
                    self.add_wait(conn, Kind::Barrier, vec![key], &[]);
                }
                None => return false,
            },
            Operation::Claim(key, value, will) => {
                let owned = self.owned.iter_mut().find(|owned| owned.key == key);
                match owned {
                    Some(owned) if owned.conn == conn => owned.will = will,
                    None if !self.values.contains_key(&key) => {
                        self.owned.push(Owned { key, conn, will });
                    }
                    _ => {
                        self.reply(conn, OwnedReply::NotOwned);
                        let value = self.value(key);
                        self.reply(conn, value);
                        return true;
                    }
                }
                self.write(key, value);
                self.reply(conn, OwnedReply::Owned);
            }
            Operation::Ping => self.reply(conn, OwnedReply::Nonce(3)),
            Operation::Disconnect => {
                self.cancel(conn);
                self.away.remove(&conn);
                self.end_keys(conn);
            }
            Operation::Away => {}
            Operation::Back => {
                if self.away.remove(&conn) {
                    self.come_back(conn);
                }
            }
        }
        true
    }
}

/// Executes an operation on the real state. Returns `false` if the state refuses it.
fn step(state: &mut StoreState, conn: u64, operation: &Operation, out: &mut Recorder) -> bool {
    let conn = ConnId(conn);
    let one = |key: &u8| [*key];
    let list = |keys: &[u8]| keys.iter().map(|key| vec![*key]).collect::<Vec<_>>();
    macro_rules! handle {
        ($request:expr) => {
            state.handle(conn, $request, out).is_ok()
        };
    }
    macro_rules! with_keys {
        ($keys:expr, $make:expr) => {{
            let owned = list($keys);
            let keys: Vec<&[u8]> = owned.iter().map(|key| &key[..]).collect();
            handle!($make(Keys::from(&keys[..])))
        }};
    }
    match operation {
        Operation::Set(key, value) => handle!(Request::Set {
            key: &one(key),
            value: Payload::Borrowed(value)
        }),
        Operation::CompareSet(key, expected, desired, reports_outcome) => {
            let desired = Payload::Borrowed(desired);
            let key = &one(key);
            match reports_outcome {
                true => handle!(Request::Extension(Extension::CompareExchange {
                    key,
                    expected,
                    desired
                })),
                false => handle!(Request::CompareSet {
                    key,
                    expected,
                    desired
                }),
            }
        }
        Operation::Get(key) => handle!(Request::Get { key: &one(key) }),
        Operation::Add(key, delta) => handle!(Request::Add {
            key: &one(key),
            delta: *delta
        }),
        Operation::TryAdd(key, delta) => handle!(Request::Extension(Extension::TryAdd {
            key: &one(key),
            delta: *delta
        })),
        Operation::Check(keys) => with_keys!(keys, |keys| Request::Check { keys }),
        Operation::Wait(keys) => with_keys!(keys, |keys| Request::Wait { keys }),
        Operation::WaitGet(keys) => {
            with_keys!(keys, |keys| Request::Extension(Extension::WaitGet { keys }))
        }
        Operation::WaitChange(key, known) => handle!(Request::Extension(Extension::WaitChange {
            key: &one(key),
            offset: known.offset,
            length: known.length,
            known: Payload::Borrowed(&known.bytes)
        })),
        Operation::Cancel => handle!(Request::CancelWait),
        Operation::NumKeys => handle!(Request::GetNumKeys),
        Operation::Delete(key) => handle!(Request::DeleteKey { key: &one(key) }),
        Operation::Append(key, value) => handle!(Request::Append {
            key: &one(key),
            value: Payload::Borrowed(value)
        }),
        Operation::MultiGet(keys) => with_keys!(keys, |keys| Request::MultiGet { keys }),
        Operation::MultiSet(pairs) => {
            let keys: Vec<[u8; 1]> = pairs.iter().map(|(key, _)| [*key]).collect();
            let blobs: Vec<&[u8]> = keys
                .iter()
                .zip(pairs)
                .flat_map(|(key, (_, value))| [&key[..], &value[..]])
                .collect();
            handle!(Request::MultiSet {
                pairs: Keys::from(&blobs[..])
            })
        }
        Operation::Push(key, value) => handle!(Request::QueuePush {
            key: &one(key),
            value: Payload::Borrowed(value)
        }),
        Operation::Pop(key) => handle!(Request::QueuePop { key: &one(key) }),
        Operation::Take(key, max) => handle!(Request::Extension(Extension::QueueTake {
            key: &one(key),
            max: *max
        })),
        Operation::Len(key) => handle!(Request::QueueLen { key: &one(key) }),
        Operation::Barrier(key, world_size) => handle!(Request::Barrier {
            key: &one(key),
            world_size: *world_size
        }),
        Operation::Claim(key, value, will) => {
            let will = will.as_ref().map(|(key, value)| ([*key], &value[..]));
            let (will_key, will_value) = match &will {
                Some((key, value)) => (&key[..], *value),
                None => (&[][..], &[][..]),
            };
            handle!(Request::Extension(Extension::SetEphemeral {
                key: &one(key),
                value,
                will_key,
                will_value,
            }))
        }
        Operation::DeletePrefix(key) => {
            let accepted = handle!(Request::Extension(Extension::DeletePrefix {
                prefix: &one(key),
                delay_millis: 0,
            }));
            while state.can_sweep() {
                state.continue_sweep(out);
            }
            accepted
        }
        Operation::EndWaits(prefix) => {
            let prefix = prefix.as_ref().map(one);
            handle!(Request::Extension(Extension::EndWaits {
                prefix: prefix.as_ref().map_or(&[], |prefix| prefix),
            }))
        }
        Operation::Ping => handle!(Request::Ping { nonce: 3 }),
        Operation::Disconnect => {
            state.disconnect(conn, CloseReason::Peer, out);
            true
        }
        Operation::Away | Operation::Back => {
            state.set_away(conn, matches!(operation, Operation::Away), out);
            true
        }
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Four connections and three keys, in any order. A failing case is printed, and stored in the
    /// regression file that later runs replay first.
    #[test]
    fn the_state_replies_like_the_model(
        script in vec((0..4_u64, operation()), 1..60),
    ) {
        let mut state = StoreState::default();
        let mut model = Model::default();
        for (index, (conn, operation)) in script.iter().enumerate() {
            let mut out = Recorder::default();
            let is_accepted = step(&mut state, *conn, operation, &mut out);
            let model_accepts = model.step(*conn, operation);
            prop_assert_eq!(is_accepted, model_accepts, "step {} {:?}", index, operation);
            if !is_accepted {
                state.disconnect(ConnId(*conn), CloseReason::Refused, &mut out);
                model.step(*conn, &Operation::Disconnect);
            }
            state.check_invariants();
            let expected = std::mem::take(&mut model.replies);
            prop_assert_eq!(out.0, expected, "step {} {:?}", index, operation);
        }
    }
}
