//! The state against a naive model that scans everything: the same requests must get the same
//! replies in the same order.

use std::collections::{BTreeMap, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;

use super::StoreState;
use super::tests::{Recorder, Said};
use crate::decimal::parse_decimal;
use crate::message::{ConnId, Keys, Payload, Request};
use crate::sim::cases;

/// A request, or the end of a connection.
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
    WaitChange(u8, Knows),
    Cancel,
    NumKeys,
    Delete(u8),
    Append(u8, Vec<u8>),
    MultiGet(Vec<u8>),
    MultiSet(Vec<(u8, Vec<u8>)>),
    Push(u8, Vec<u8>),
    Pop(u8),
    Len(u8),
    Barrier(u8, i64),
    Ping,
    Disconnect,
}

/// What a waiter knows: the bytes at an offset, and perhaps the length.
#[derive(Debug, Clone)]
struct Knows {
    offset: usize,
    bytes: Vec<u8>,
    length: Option<usize>,
}

impl Knows {
    /// The document's sentence, byte by byte.
    fn is_true_of(&self, value: &[u8]) -> bool {
        let is_there = |(index, byte): (usize, &u8)| value.get(self.offset + index) == Some(byte);
        value.len() >= self.offset
            && self.bytes.iter().enumerate().all(is_there)
            && self.length.is_none_or(|length| value.len() == length)
    }
}

/// The keys are single bytes, few enough to collide.
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

/// Mostly a value that may well be there, or its first byte: else no wait would last.
fn knows() -> impl Strategy<Value = Knows> {
    let whole = |bytes: Vec<u8>| Knows {
        offset: 0,
        length: Some(bytes.len()),
        bytes,
    };
    let head = |bytes: Vec<u8>| Knows {
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
            |(offset, bytes, length)| Knows { offset, bytes, length }
        ),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Operation::Set(k, v)),
        3 => (key(), value(), value(), any::<bool>())
            .prop_map(|(k, e, d, tells)| Operation::CompareSet(k, e, d, tells)),
        1 => key().prop_map(Operation::Get),
        3 => (key(), -3..4_i64).prop_map(|(k, d)| Operation::Add(k, d)),
        2 => (key(), -3..4_i64).prop_map(|(k, d)| Operation::TryAdd(k, d)),
        1 => vec(key(), 0..4).prop_map(Operation::Check),
        6 => vec(key(), 0..4).prop_map(Operation::Wait),
        4 => vec(key(), 0..4).prop_map(Operation::WaitGet),
        6 => (key(), knows()).prop_map(|(k, knows)| Operation::WaitChange(k, knows)),
        3 => Just(Operation::Cancel),
        1 => Just(Operation::NumKeys),
        4 => key().prop_map(Operation::Delete),
        2 => (key(), value()).prop_map(|(k, v)| Operation::Append(k, v)),
        1 => vec(key(), 0..4).prop_map(Operation::MultiGet),
        2 => vec((key(), value()), 0..4).prop_map(Operation::MultiSet),
        4 => (key(), value()).prop_map(|(k, v)| Operation::Push(k, v)),
        4 => key().prop_map(Operation::Pop),
        1 => key().prop_map(Operation::Len),
        4 => (key(), 0..5_i64).prop_map(|(k, n)| Operation::Barrier(k, n)),
        1 => Just(Operation::Ping),
        2 => Just(Operation::Disconnect),
    ]
}

#[derive(Debug, Clone)]
enum Kind {
    Wait,
    Barrier,
    WaitGet,
    WaitChange(Knows),
}

#[derive(Debug)]
struct Pending {
    conn: u64,
    kind: Kind,
    /// What is still missing: the key, and when the entry was made.
    missing: Vec<(u8, u64)>,
    wanted: Vec<u8>,
}

/// The document's sentences, carried out the slow way.
#[derive(Debug, Default)]
struct Model {
    values: BTreeMap<u8, Vec<u8>>,
    queues: BTreeMap<u8, VecDeque<Vec<u8>>>,
    pending: Vec<Pending>,
    pledges: BTreeMap<u64, u8>,
    clock: u64,
    said: Vec<(u64, Said)>,
}

impl Model {
    fn say(&mut self, conn: u64, said: Said) {
        self.said.push((conn, said));
    }

    fn has_element(&self, key: u8) -> bool {
        self.queues.get(&key).is_some_and(|queue| !queue.is_empty())
    }

    fn is_there(&self, key: u8) -> bool {
        self.values.contains_key(&key) || self.has_element(key)
    }

    fn value(&self, key: u8) -> Said {
        Said::Bytes(self.values.get(&key).cloned().unwrap_or_default())
    }

    /// The waits that miss `key`, the one that began to miss it first in front.
    fn waiting_for(&self, key: u8) -> Vec<(u64, u64)> {
        let mut entries = Vec::new();
        for pending in &self.pending {
            for (missing, since) in &pending.missing {
                if *missing == key {
                    entries.push((*since, pending.conn));
                }
            }
        }
        entries.sort_unstable();
        entries
    }

    /// Takes one entry off a wait; the wait, if nothing is missing any more.
    fn count_down(&mut self, conn: u64, since: u64) -> Option<Pending> {
        let index = self.pending.iter().position(|p| p.conn == conn)?;
        let pending = &mut self.pending[index];
        pending.missing.retain(|(_, entry)| *entry != since);
        pending
            .missing
            .is_empty()
            .then(|| self.pending.remove(index))
    }

    fn wake(&mut self, key: u8) {
        let mut over = Vec::new();
        for (since, conn) in self.waiting_for(key) {
            let value = &self.values[&key];
            let knows_it = |p: &Pending| match &p.kind {
                Kind::WaitChange(knows) => p.conn == conn && knows.is_true_of(value),
                Kind::Wait | Kind::Barrier | Kind::WaitGet => false,
            };
            if !self.pending.iter().any(knows_it) {
                over.extend(self.count_down(conn, since));
            }
        }
        for pending in over {
            match pending.kind {
                Kind::WaitGet => self.wait_get(pending.conn, &pending.wanted),
                Kind::WaitChange(_) => self.say_changed(pending.conn, key),
                Kind::Wait | Kind::Barrier => self.say(pending.conn, Said::Stop),
            }
        }
    }

    fn offer(&mut self, key: u8) {
        if !self.has_element(key) {
            return;
        }
        for (since, conn) in self.waiting_for(key) {
            let wants_value = |p: &Pending| {
                p.conn == conn && matches!(p.kind, Kind::WaitGet | Kind::WaitChange(_))
            };
            if self.pending.iter().any(wants_value) {
                continue;
            }
            if self.count_down(conn, since).is_some() {
                self.pledges.insert(conn, key);
                self.say(conn, Said::Stop);
                return;
            }
        }
    }

    fn write(&mut self, key: u8, value: Vec<u8>) {
        self.values.insert(key, value);
        self.wake(key);
    }

    fn cancel(&mut self, conn: u64) {
        self.pending.retain(|pending| pending.conn != conn);
    }

    fn miss(&mut self, conn: u64, kind: Kind, keys: Vec<u8>, wanted: &[u8]) {
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
            self.say(conn, Said::Stop);
            for key in keys {
                let value = self.value(*key);
                self.say(conn, value);
            }
        } else {
            self.miss(conn, Kind::WaitGet, missing, keys);
        }
    }

    fn wait_change(&mut self, conn: u64, key: u8, knows: Knows) {
        match self.values.get(&key) {
            Some(value) if !knows.is_true_of(value) => self.say_changed(conn, key),
            _ => self.miss(conn, Kind::WaitChange(knows), vec![key], &[]),
        }
    }

    fn say_changed(&mut self, conn: u64, key: u8) {
        self.say(conn, Said::Stop);
        let value = self.value(key);
        self.say(conn, value);
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

    /// Carries out an operation; `false` when the connection is to be closed.
    fn step(&mut self, conn: u64, operation: &Operation) -> bool {
        if !matches!(operation, Operation::Ping)
            && let Some(queue) = self.pledges.remove(&conn)
            && !matches!(operation, Operation::Pop(key) if *key == queue)
        {
            if matches!(operation, Operation::Disconnect) {
                self.cancel(conn);
            }
            self.offer(queue);
        }
        match operation.clone() {
            Operation::Set(key, value) => self.write(key, value),
            Operation::CompareSet(key, expected, desired, reports_outcome) => {
                let current = self.values.get(&key).cloned();
                let writes = current.clone().unwrap_or_default() == expected;
                if writes {
                    self.write(key, desired.clone());
                }
                if reports_outcome {
                    self.say(conn, Said::Exchanged(writes));
                }
                let kept = current.unwrap_or(expected);
                self.say(conn, Said::Bytes(if writes { desired } else { kept }));
            }
            Operation::Get(key) => {
                let value = self.value(key);
                self.say(conn, value);
            }
            Operation::Add(key, delta) => match self.add(key, delta) {
                Some(sum) => {
                    self.wake(key);
                    self.say(conn, Said::Integer(sum));
                }
                None => return false,
            },
            Operation::TryAdd(key, delta) => match self.add(key, delta) {
                Some(sum) => {
                    self.wake(key);
                    self.say(conn, Said::Added(sum));
                }
                None => {
                    let mut head = self.values[&key].clone();
                    let length = head.len();
                    head.truncate(64);
                    self.say(conn, Said::NotANumber(head, length));
                }
            },
            Operation::Check(keys) => {
                let ready = keys.iter().all(|key| self.is_there(*key));
                self.say(conn, Said::Ready(ready));
            }
            Operation::Wait(keys) => {
                self.cancel(conn);
                let missing: Vec<u8> = keys
                    .iter()
                    .copied()
                    .filter(|key| !self.is_there(*key))
                    .collect();
                if missing.is_empty() {
                    self.say(conn, Said::Stop);
                } else {
                    self.miss(conn, Kind::Wait, missing, &[]);
                }
            }
            Operation::WaitGet(keys) => {
                self.cancel(conn);
                self.wait_get(conn, &keys);
            }
            Operation::WaitChange(key, knows) => {
                self.cancel(conn);
                self.wait_change(conn, key, knows);
            }
            Operation::Cancel => {
                self.cancel(conn);
                self.say(conn, Said::Canceled);
            }
            Operation::NumKeys => self.say(conn, Said::Integer(self.values.len() as i64)),
            Operation::Delete(key) => {
                let deleted = self.values.remove(&key).is_some();
                self.say(conn, Said::Integer(i64::from(deleted)));
            }
            Operation::Append(key, more) => {
                let mut value = self.values.get(&key).cloned().unwrap_or_default();
                value.extend(more);
                self.write(key, value);
            }
            Operation::MultiGet(keys) => {
                for key in keys {
                    let value = self.value(key);
                    self.say(conn, value);
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
                self.offer(key);
            }
            Operation::Pop(key) => {
                let queue = self.queues.entry(key).or_default();
                let length = queue.len() as i64;
                let element = queue.pop_front();
                self.say(conn, Said::Integer(length));
                if let Some(element) = element {
                    self.say(conn, Said::Bytes(element));
                }
            }
            Operation::Len(key) => {
                let length = self.queues.get(&key).map_or(0, VecDeque::len);
                self.say(conn, Said::Integer(length as i64));
            }
            Operation::Barrier(key, world_size) => match self.add(key, 1) {
                Some(arrived) if arrived >= world_size => {
                    self.wake(key);
                    self.cancel(conn);
                    self.say(conn, Said::Stop);
                }
                Some(_) => {
                    self.cancel(conn);
                    self.miss(conn, Kind::Barrier, vec![key], &[]);
                }
                None => return false,
            },
            Operation::Ping => self.say(conn, Said::Nonce(3)),
            Operation::Disconnect => self.cancel(conn),
        }
        true
    }
}

/// Carries out an operation on the real state; `false` when it refuses.
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
            handle!(Request::CompareSet {
                key: &one(key),
                expected,
                desired: Payload::Borrowed(desired),
                reports_outcome: *reports_outcome
            })
        }
        Operation::Get(key) => handle!(Request::Get { key: &one(key) }),
        Operation::Add(key, delta) => handle!(Request::Add {
            key: &one(key),
            delta: *delta
        }),
        Operation::TryAdd(key, delta) => handle!(Request::TryAdd {
            key: &one(key),
            delta: *delta
        }),
        Operation::Check(keys) => with_keys!(keys, |keys| Request::Check { keys }),
        Operation::Wait(keys) => with_keys!(keys, |keys| Request::Wait { keys }),
        Operation::WaitGet(keys) => with_keys!(keys, |keys| Request::WaitGet { keys }),
        Operation::WaitChange(key, knows) => handle!(Request::WaitChange {
            key: &one(key),
            offset: knows.offset,
            length: knows.length,
            known: Payload::Borrowed(&knows.bytes)
        }),
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
        Operation::Len(key) => handle!(Request::QueueLen { key: &one(key) }),
        Operation::Barrier(key, world_size) => handle!(Request::Barrier {
            key: &one(key),
            world_size: *world_size
        }),
        Operation::Ping => handle!(Request::Ping { nonce: 3 }),
        Operation::Disconnect => {
            state.disconnect(conn, out);
            true
        }
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Four connections, three keys, any order. A failure prints its case, which then replays from
    /// the regressions file.
    #[test]
    fn the_state_answers_as_the_model_does(
        script in vec((0..4_u64, operation()), 1..60),
    ) {
        let mut state = StoreState::new();
        let mut model = Model::default();
        for (index, (conn, operation)) in script.iter().enumerate() {
            let mut out = Recorder::default();
            let mut went_on = step(&mut state, *conn, operation, &mut out);
            let mut model_went_on = model.step(*conn, operation);
            if !went_on {
                state.disconnect(ConnId(*conn), &mut out);
                went_on = true;
                if !model_went_on {
                    model.step(*conn, &Operation::Disconnect);
                    model_went_on = true;
                }
            }
            state.check_invariants();
            let said = std::mem::take(&mut model.said);
            prop_assert_eq!(out.0, said, "step {} {:?}", index, operation);
            prop_assert_eq!(went_on, model_went_on, "step {} {:?}", index, operation);
        }
    }
}
