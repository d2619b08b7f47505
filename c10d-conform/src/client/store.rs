//! A store as PyTorch's, deliberately simple: requests in, replies out. Clients are judged against it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::request::{Opcode, Request, length_word, number_word};

pub(crate) const READY: u8 = 0;
pub(crate) const NOT_READY: u8 = 1;
pub(crate) const CANCELLED: u8 = 1;

type Bytes = Vec<u8>;

/// A reply and the connection that it is for.
pub(crate) type Replies = Vec<(u64, Bytes)>;

/// The request closes its connection: the protocol has no other answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

#[derive(Debug, Default)]
pub(crate) struct Store {
    values: BTreeMap<Bytes, Bytes>,
    queues: BTreeMap<Bytes, VecDeque<Bytes>>,
    /// In the order of their arrival, one for a connection at most.
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    connection: u64,
    missing: BTreeSet<Bytes>,
}

impl Store {
    pub(crate) fn value(&self, key: &[u8]) -> Option<&Bytes> {
        self.values.get(key)
    }

    /// Whether a WAIT or a BARRIER of the connection is unanswered.
    pub(crate) fn is_waiting(&self, connection: u64) -> bool {
        self.waiters.iter().any(|it| it.connection == connection)
    }

    pub(crate) fn is_waiting_for(&self, connection: u64, key: &[u8]) -> bool {
        let waits = |it: &Waiter| it.connection == connection && it.missing.contains(key);
        self.waiters.iter().any(waits)
    }

    /// The connection has ended, or given up its wait.
    pub(crate) fn forget(&mut self, connection: u64) {
        self.waiters.retain(|it| it.connection != connection);
    }

    pub(crate) fn set(&mut self, key: &[u8], value: Bytes, replies: &mut Replies) {
        self.values.insert(key.to_vec(), value);
        self.wake(key, replies);
    }

    /// Carries a request out. VALIDATE is for the connection to judge.
    pub(crate) fn apply(
        &mut self,
        connection: u64,
        request: &Request,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let reply = |bytes: Bytes, replies: &mut Replies| replies.push((connection, bytes));
        let first = |list: &[Bytes]| list.first().cloned().unwrap_or_default();
        let (key, value) = (first(&request.keys), first(&request.values));
        match request.opcode {
            Opcode::SET => self.set(&key, value, replies),
            Opcode::MULTI_SET => {
                for (key, value) in request.keys.iter().zip(&request.values) {
                    self.set(key, value.clone(), replies);
                }
            }
            Opcode::APPEND => {
                self.values.entry(key.clone()).or_default().extend(value);
                self.wake(&key, replies);
            }
            Opcode::GET => reply(self.blob(&key), replies),
            Opcode::MULTI_GET => {
                let blobs: Vec<Bytes> = request.keys.iter().map(|key| self.blob(key)).collect();
                reply(blobs.concat(), replies);
            }
            Opcode::COMPARE_SET => {
                let desired = request.values.get(1).cloned().unwrap_or_default();
                let current = self.values.get(&key);
                let answer = match current {
                    Some(current) if *current != value => current.clone(),
                    None if !value.is_empty() => value,
                    _ => {
                        self.set(&key, desired.clone(), replies);
                        desired
                    }
                };
                reply(blob(&answer), replies);
            }
            Opcode::ADD => {
                let sum = self.number(&key)?.wrapping_add(request.number);
                self.set(&key, sum.to_string().into_bytes(), replies);
                reply(number_word(sum).to_vec(), replies);
            }
            Opcode::CHECK => {
                let is_ready = request.keys.iter().all(|key| self.exists(key));
                reply(vec![if is_ready { READY } else { NOT_READY }], replies);
            }
            Opcode::WAIT => {
                let keys = request.keys.iter().filter(|key| !self.exists(key));
                let missing: BTreeSet<Bytes> = keys.cloned().collect();
                if missing.is_empty() {
                    reply(vec![READY], replies);
                } else {
                    self.wait(connection, missing);
                }
            }
            Opcode::CANCEL_WAIT => {
                self.forget(connection);
                reply(vec![CANCELLED], replies);
            }
            Opcode::GETNUMKEYS => reply(length_word(self.values.len()).to_vec(), replies),
            Opcode::DELETE_KEY => {
                let count = usize::from(self.values.remove(&key).is_some());
                reply(length_word(count).to_vec(), replies);
            }
            Opcode::LIST_KEYS => {
                let keys = self.values.keys().map(|key| blob(key));
                let count = length_word(self.values.len()).to_vec();
                reply(
                    [count].into_iter().chain(keys).collect::<Vec<_>>().concat(),
                    replies,
                );
            }
            Opcode::PING => {
                let nonce = number_word(request.number);
                reply(nonce[..4].to_vec(), replies);
            }
            Opcode::QUEUE_PUSH => {
                self.queues.entry(key.clone()).or_default().push_back(value);
                self.wake_one(&key, replies);
            }
            Opcode::QUEUE_POP => {
                let queue = self.queues.entry(key).or_default();
                let length = length_word(queue.len()).to_vec();
                let element = queue.pop_front().map(|it| blob(&it)).unwrap_or_default();
                reply([length, element].concat(), replies);
            }
            Opcode::QUEUE_LEN => {
                let length = self.queues.get(&key).map_or(0, VecDeque::len);
                reply(length_word(length).to_vec(), replies);
            }
            Opcode::BARRIER => {
                let arrived = self.number(&key)?.wrapping_add(1);
                self.values
                    .insert(key.clone(), arrived.to_string().into_bytes());
                if arrived >= request.number {
                    self.wake(&key, replies);
                    reply(vec![READY], replies);
                } else {
                    self.wait(connection, BTreeSet::from([key]));
                }
            }
            _ => return Err(Refused),
        }
        Ok(())
    }

    fn exists(&self, key: &[u8]) -> bool {
        let has_element = |queue: &VecDeque<Bytes>| !queue.is_empty();
        self.values.contains_key(key) || self.queues.get(key).is_some_and(has_element)
    }

    fn blob(&self, key: &[u8]) -> Bytes {
        blob(self.values.get(key).map_or(&[], Vec::as_slice))
    }

    /// A value as `strtoll` reads it.
    fn number(&self, key: &[u8]) -> Result<i64, Refused> {
        let Some(value) = self.values.get(key) else {
            return Ok(0);
        };
        let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
        let start = value.iter().take_while(|byte| is_space(byte)).count();
        let text = &value[start..];
        let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
        let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit());
        let text = &text[..sign + digits.count()];
        let text = std::str::from_utf8(text).map_err(|_| Refused)?;
        text.parse().map_err(|_| Refused)
    }

    fn wait(&mut self, connection: u64, missing: BTreeSet<Bytes>) {
        self.forget(connection);
        self.waiters.push(Waiter {
            connection,
            missing,
        });
    }

    pub(crate) fn wake(&mut self, key: &[u8], replies: &mut Replies) {
        self.waiters.retain_mut(|waiter| {
            let is_woken = waiter.missing.remove(key) && waiter.missing.is_empty();
            if is_woken {
                replies.push((waiter.connection, vec![READY]));
            }
            !is_woken
        });
    }

    fn wake_one(&mut self, key: &[u8], replies: &mut Replies) {
        let first = self.waiters.iter().position(|it| it.missing.contains(key));
        let Some(waiter) = first.map(|index| &mut self.waiters[index]) else {
            return;
        };
        waiter.missing.remove(key);
        if waiter.missing.is_empty() {
            let connection = waiter.connection;
            replies.push((connection, vec![READY]));
            self.forget(connection);
        }
    }
}

pub(crate) fn blob(bytes: &[u8]) -> Bytes {
    [&length_word(bytes.len())[..], bytes].concat()
}
