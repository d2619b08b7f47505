//! Crashes of a store with a journal, at any moment, in virtual time: every answer that a client received before a
//! crash is still true after it.
//!
//! Clients send requests and read replies as these become durable. A crash loses the replies that are not durable;
//! clients connect again to the recovered store. The test then searches for an order of all operations, key by key:
//! an operation whose client was not answered before a crash may have taken effect before it, or never.

use std::collections::VecDeque;

use c10d_sim::{Operation, Seeds, find_order};

use crate::journal::batch::{Effect, effects};
use crate::journal::format::FORMAT_VERSION;
use crate::message::CloseReason;
use crate::message::{ConnId, Extension, Keys, Payload, Replies, Reply, Request};
use crate::state::StoreState;
use crate::state::tests::{OwnedReply, Recorder};

const CLIENTS: u64 = 4;

/// A number, a text and a queue.
const KEYS: [&[u8]; 3] = [b"n", b"t", b"q"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    Add(i64),
    Set(Vec<u8>),
    Append(Vec<u8>),
    CompareSet(Vec<u8>, Vec<u8>),
    Get,
    Delete,
    Push(Vec<u8>),
    Pop,
    Take,
    Len,
    Wait,
    /// An ephemeral key whose will is the key itself, or nothing.
    Claim(u64, Vec<u8>, bool),
    /// The connection has ended.
    End(u64),
}

impl Op {
    const fn has_reply(&self) -> bool {
        !matches!(
            self,
            Self::Set(_) | Self::Append(_) | Self::Push(_) | Self::End(_)
        )
    }

    const fn is_write(&self) -> bool {
        !matches!(self, Self::Get | Self::Len | Self::Wait)
    }

    /// The complete answer in these pieces, if they are complete.
    fn is_answered(&self, pieces: &[OwnedReply]) -> bool {
        match (self, pieces) {
            (Self::CompareSet(..), [OwnedReply::Exchanged(wrote), rest @ ..]) => {
                *wrote || !rest.is_empty()
            }
            (Self::Claim(..), [first, rest @ ..]) => {
                *first == OwnedReply::Owned || !rest.is_empty()
            }
            (Self::Pop, [OwnedReply::Integer(length), rest @ ..]) => {
                *length == 0 || !rest.is_empty()
            }
            (Self::Take, [_, OwnedReply::Integer(count), rest @ ..]) => rest.len() as i64 == *count,
            (Self::Take | Self::CompareSet(..) | Self::Claim(..) | Self::Pop, _) => false,
            (_, pieces) => !pieces.is_empty(),
        }
    }
}

/// The value and queue of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Model {
    value: Option<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
    /// The owner of the value, and its will.
    owner: Option<(u64, Option<Vec<u8>>)>,
}

impl Model {
    /// Carries out the operation. `false` if this state cannot give the answer; `None` is any answer.
    fn apply(&mut self, op: &Op, answer: Option<&[OwnedReply]>) -> bool {
        let value = self.value.clone().unwrap_or_default();
        let told = match op {
            Op::Set(new) => {
                self.value = Some(new.clone());
                return true;
            }
            Op::Append(more) => {
                self.value = Some([value, more.clone()].concat());
                return true;
            }
            Op::Push(element) => {
                self.queue.push_back(element.clone());
                return true;
            }
            Op::Add(delta) => {
                let text = String::from_utf8(value).expect("a number");
                let sum = text.parse::<i64>().unwrap_or(0) + delta;
                self.value = Some(sum.to_string().into_bytes());
                vec![OwnedReply::Integer(sum)]
            }
            Op::CompareSet(expected, desired) if value == *expected => {
                self.value = Some(desired.clone());
                vec![OwnedReply::Exchanged(true)]
            }
            Op::CompareSet(expected, _) => {
                let current = self.value.clone().unwrap_or_else(|| expected.clone());
                vec![OwnedReply::Exchanged(false), OwnedReply::Bytes(current)]
            }
            Op::Get => vec![OwnedReply::Bytes(value)],
            Op::Delete => {
                self.owner = None;
                vec![OwnedReply::Integer(i64::from(self.value.take().is_some()))]
            }
            Op::Claim(conn, new, has_will) => {
                let owner = self.owner.as_ref().map(|(owner, _)| *owner);
                if self.value.is_none() || owner == Some(*conn) {
                    self.value = Some(new.clone());
                    let will = has_will.then(|| [&b"will of "[..], new].concat());
                    self.owner = Some((*conn, will));
                    vec![OwnedReply::Owned]
                } else {
                    vec![OwnedReply::NotOwned, OwnedReply::Bytes(value)]
                }
            }
            Op::End(conn) => {
                if let Some((_, will)) = self.owner.take_if(|(owner, _)| owner == conn) {
                    self.value = will;
                }
                return true;
            }
            Op::Len => vec![OwnedReply::Integer(self.queue.len() as i64)],
            Op::Pop => {
                let length = OwnedReply::Integer(self.queue.len() as i64);
                let element = self.queue.pop_front().map(OwnedReply::Bytes);
                std::iter::once(length).chain(element).collect()
            }
            Op::Take => match self.queue.pop_front() {
                // It would wait.
                None => return false,
                Some(element) => vec![
                    OwnedReply::Stop,
                    OwnedReply::Integer(1),
                    OwnedReply::Bytes(element),
                ],
            },
            Op::Wait if self.value.is_none() && self.queue.is_empty() => return false,
            Op::Wait => vec![OwnedReply::Stop],
        };
        answer.is_none_or(|answer| answer == told)
    }
}

#[derive(Debug, Clone)]
struct Event {
    key: usize,
    op: Op,
    called: u64,
    /// The time of the answer, or of the crash.
    returned: u64,
    /// `None` if there was a crash.
    answer: Option<Vec<OwnedReply>>,
}

impl Operation for Event {
    type State = Model;

    fn after(&self, state: &Model) -> Option<Model> {
        let mut next = state.clone();
        next.apply(&self.op, self.answer.as_deref()).then_some(next)
    }

    fn times(&self) -> (u64, u64) {
        (self.called, self.returned)
    }

    /// The crash has cut it off.
    fn may_be_lost(&self) -> bool {
        self.answer.is_none()
    }
}

/// A fault that the search must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    WritesNotHeld,
    ReadsNotHeld,
    WakeupsNotHeld,
    BatchLost,
    BatchTwice,
    SnapshotOfLater,
    OwnersLiveOn,
    WillsLost,
}

/// Replies with the positions that they depend on.
#[derive(Debug, Default)]
struct Sink {
    pieces: Recorder,
    positions: Vec<u64>,
    position: u64,
}

impl Replies for Sink {
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>) {
        self.pieces.reply(conn, reply);
        self.positions.push(self.position);
    }

    fn depend_on(&mut self, position: u64) {
        self.position = position;
    }
}

#[derive(Debug, Default)]
struct Client {
    conn: u64,
    /// Operations without a reply, then at most one operation that waits for its reply: indices of events.
    pending: Vec<usize>,
    /// The part of the reply that it has read.
    read: Vec<OwnedReply>,
    /// The part that it can read once it is durable.
    unread: VecDeque<(u64, OwnedReply)>,
}

#[derive(Debug, Default, Clone)]
struct Kept {
    snapshot: Option<(u64, Vec<Vec<u8>>)>,
    batches: Vec<(u64, Vec<u8>)>,
}

struct World {
    random: fastrand::Rng,
    mutant: Mutant,
    now: u64,
    state: StoreState,
    clients: Vec<Client>,
    /// The connections that have ended since the last crash.
    ended: Vec<(u64, usize)>,
    conns: u64,
    events: Vec<Event>,
    kept: Kept,
    /// On its way to the journal.
    appending: Option<(u64, Vec<u8>)>,
    durable: u64,
    /// A snapshot on its way: its position, chunks, and whether all are copied.
    snapshot: Option<(u64, Vec<Vec<u8>>, bool)>,
}

impl World {
    fn new(seed: u64, mutant: Mutant) -> Self {
        let mut world = Self {
            random: fastrand::Rng::with_seed(seed),
            mutant,
            now: 0,
            state: StoreState::default(),
            clients: Vec::new(),
            ended: Vec::new(),
            conns: 0,
            events: Vec::new(),
            kept: Kept::default(),
            appending: None,
            durable: 0,
            snapshot: None,
        };
        world.state.start_recording(0);
        world.connect_all();
        world
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn connect_all(&mut self) {
        self.clients.clear();
        for _ in 0..CLIENTS {
            self.conns += 1;
            let conn = self.conns;
            let peer = ([127, 0, 0, 1], 1).into();
            self.state.connect(ConnId(conn), peer);
            self.clients.push(Client {
                conn,
                ..Client::default()
            });
        }
    }

    fn random_op(&mut self) -> (usize, Op) {
        let unique = self.now.to_string().into_bytes();
        let key = self.random.usize(..3);
        let op = match (key, self.random.u8(..6)) {
            (0, 0) => Op::Get,
            (0, 1) => Op::Delete,
            (0, 2) => Op::Wait,
            (0, _) => Op::Add(self.random.i64(1..4)),
            (1, 0) if self.random.bool() => Op::Claim(0, unique, self.random.bool()),
            (1, 0) => Op::Get,
            (1, 1) => Op::Delete,
            (1, 2) => Op::Append(unique),
            (1, 3) => {
                let values: Vec<_> = self.events.iter().rev().take(5).collect();
                let found = values.iter().find_map(|event| match &event.op {
                    Op::Set(value) => Some(value.clone()),
                    _ => None,
                });
                Op::CompareSet(found.unwrap_or_default(), unique)
            }
            (1, 4) => Op::Wait,
            (1, _) => Op::Set(unique),
            (_, 0) => Op::Pop,
            (_, 1) => Op::Take,
            (_, 2) => Op::Len,
            (_, 3) => Op::Wait,
            _ => Op::Push(unique),
        };
        (key, op)
    }

    /// One client sends a request.
    fn send(&mut self) {
        let index = self.random.usize(..self.clients.len());
        let last = self.clients[index].pending.last();
        if last.is_some_and(|event| self.events[*event].op.has_reply()) {
            return;
        }
        let called = self.tick();
        let (key, mut op) = self.random_op();
        if let Op::Claim(conn, ..) = &mut op {
            *conn = self.clients[index].conn;
        }
        self.clients[index].pending.push(self.events.len());
        self.events.push(Event {
            key,
            op: op.clone(),
            called,
            returned: u64::MAX,
            answer: None,
        });
        let conn = self.clients[index].conn;
        let key = KEYS[key];
        let keys = [key];
        let will;
        let request = match &op {
            Op::Add(delta) => Request::Add { key, delta: *delta },
            Op::Set(value) => Request::Set {
                key,
                value: Payload::Borrowed(value),
            },
            Op::Append(value) => Request::Append {
                key,
                value: Payload::Borrowed(value),
            },
            Op::CompareSet(expected, desired) => Request::Extension(Extension::CompareExchange {
                key,
                expected,
                desired: Payload::Borrowed(desired),
            }),
            Op::Claim(_, value, has_will) => {
                will = [&b"will of "[..], value].concat();
                Request::Extension(Extension::SetEphemeral {
                    key,
                    value,
                    will_key: if *has_will { key } else { b"" },
                    will_value: &will,
                })
            }
            Op::End(_) => unreachable!("no request"),
            Op::Get => Request::Get { key },
            Op::Delete => Request::DeleteKey { key },
            Op::Push(value) => Request::QueuePush {
                key,
                value: Payload::Borrowed(value),
            },
            Op::Pop => Request::QueuePop { key },
            Op::Take => Request::Extension(Extension::QueueTake { key, max: 1 }),
            Op::Len => Request::QueueLen { key },
            Op::Wait => Request::Wait {
                keys: Keys::from(&keys[..]),
            },
        };
        let mut sink = Sink::default();
        let handled = self.state.handle(ConnId(conn), request, &mut sink);
        handled.expect("no refusal");
        self.route(sink, Some((conn, op.is_write())));
    }

    /// Gives the clients their replies, which a mutant does not hold.
    fn route(&mut self, sink: Sink, requester: Option<(u64, bool)>) {
        for ((conn, piece), mut position) in sink.pieces.0.into_iter().zip(sink.positions) {
            let kind = match requester {
                Some((requester, is_write)) if requester == conn => {
                    if is_write {
                        Mutant::WritesNotHeld
                    } else {
                        Mutant::ReadsNotHeld
                    }
                }
                _ => Mutant::WakeupsNotHeld,
            };
            if self.mutant == kind {
                position = 0;
            }
            let client = self.clients.iter_mut().find(|client| client.conn == conn);
            if let Some(client) = client {
                client.unread.push_back((position, piece));
            }
        }
    }

    /// Clients read what is durable.
    fn read(&mut self) {
        for index in 0..self.clients.len() {
            while let Some((position, _)) = self.clients[index].unread.front()
                && *position <= self.durable
                && let Some((_, piece)) = self.clients[index].unread.pop_front()
            {
                let now = self.tick();
                let client = &mut self.clients[index];
                client.read.push(piece);
                let last = *client.pending.last().expect("a reply to something");
                if !self.events[last].op.is_answered(&client.read) {
                    continue;
                }
                self.events[last].answer = Some(std::mem::take(&mut client.read));
                for event in client.pending.drain(..) {
                    self.events[event].returned = now;
                    self.events[event].answer.get_or_insert_default();
                }
            }
        }
    }

    /// Hands a batch to the journal, or has it durable. Sometimes a snapshot begins, continues or is complete.
    fn keep(&mut self) {
        let recorder = self.state.recorder_mut().expect("a journal");
        if let Some((position, batch)) = self.appending.take() {
            self.kept.batches.push((position, batch));
            self.durable = position;
            recorder.appended();
            return;
        }
        if let Some(batch) = recorder.take_batch(&mut Vec::new()) {
            if self.snapshot.is_none() && self.random.u8(..3) == 0 {
                self.state.start_chunks(batch.0, FORMAT_VERSION);
                self.snapshot = Some((batch.0, Vec::new(), false));
            }
            self.appending = Some(batch);
        }
    }

    fn copy(&mut self) {
        let Some((position, chunks, is_copied)) = &mut self.snapshot else {
            return;
        };
        if !*is_copied {
            let (more, is_done) = self.state.copy_chunks(1);
            chunks.extend(more);
            *is_copied = is_done;
        } else if *position <= self.durable {
            let (mut position, chunks, _) = self.snapshot.take().expect("it is there");
            if self.mutant == Mutant::SnapshotOfLater {
                position += 1;
            }
            self.kept.batches.retain(|(batch, _)| *batch > position);
            self.kept.snapshot = Some((position, chunks));
        }
    }

    /// The process exits, perhaps after a batch was kept and before this was reported.
    fn crash(&mut self) {
        if self.random.bool()
            && let Some(batch) = self.appending.take()
        {
            self.kept.batches.push(batch);
        }
        self.appending = None;
        self.snapshot = None;
        let now = self.tick();
        for client in &self.clients {
            for event in &client.pending {
                self.events[*event].returned = now;
            }
        }
        // The keys of direct connections expire, even if the connections have ended before.
        let left = self.ended.iter().map(|(conn, _)| *conn);
        let ended: Vec<u64> = left.chain(self.clients.iter().map(|it| it.conn)).collect();
        for (_, event) in self.ended.drain(..) {
            self.events[event].returned = now;
        }
        for conn in ended {
            self.events.push(Event {
                key: 1,
                op: Op::End(conn),
                // After all requests of the connection.
                called: now + 1,
                returned: now + 2,
                answer: Some(Vec::new()),
            });
        }
        self.now += 2;
        let batches = &mut self.kept.batches;
        if !batches.is_empty() {
            let index = self.random.usize(..batches.len());
            match self.mutant {
                Mutant::BatchLost => drop(batches.remove(index)),
                Mutant::BatchTwice => batches.insert(index, batches[index].clone()),
                _ => {}
            }
        }
        self.recover();
        self.connect_all();
    }

    fn recover(&mut self) {
        self.state = StoreState::default();
        self.durable = 0;
        let snapshot = self.kept.snapshot.iter().flat_map(|(position, chunks)| {
            let chunks = chunks.iter();
            chunks.map(|chunk| (*position, chunk))
        });
        let batches = self.kept.batches.iter();
        let batches = batches.map(|(position, batch)| (*position, batch));
        for (position, bytes) in snapshot.chain(batches) {
            self.durable = position;
            // That of a mutant does not match its checksum.
            let read = effects(position, bytes).or_else(|_| effects(position - 1, bytes));
            for effect in read.expect("intact") {
                let mut effect = effect.expect("intact");
                if self.mutant == Mutant::WillsLost
                    && let Effect::Own { will_key, .. } = &mut effect
                {
                    *will_key = b"";
                }
                // A mutant may take what is not there.
                let _ = self.state.recover(effect);
            }
        }
        self.state.start_recording(self.durable);
        if self.mutant != Mutant::OwnersLiveOn {
            self.state.end_recovered();
        }
    }

    fn step(&mut self) {
        match self.random.u8(..100) {
            0..45 => self.send(),
            45..70 => self.keep(),
            70..80 => self.copy(),
            80..97 => self.read(),
            97..99 => self.crash(),
            _ => self.leave(),
        }
    }

    /// A client leaves, and another client connects: a pending operation may still take effect.
    fn leave(&mut self) {
        let index = self.random.usize(..self.clients.len());
        let conn = ConnId(self.clients[index].conn);
        let now = self.tick();
        // It may be durable before the next crash.
        self.events.push(Event {
            key: 1,
            op: Op::End(conn.0),
            called: now,
            returned: u64::MAX,
            answer: None,
        });
        self.ended.push((conn.0, self.events.len() - 1));
        let mut sink = Sink::default();
        self.state.disconnect(conn, CloseReason::Peer, &mut sink);
        self.route(sink, None);
        self.conns += 1;
        let peer = ([127, 0, 0, 1], 1).into();
        self.state.connect(ConnId(self.conns), peer);
        self.clients[index] = Client {
            conn: self.conns,
            ..Client::default()
        };
    }

    fn has_order(&self) -> bool {
        (0..KEYS.len()).all(|key| {
            let of_key = self.events.iter().filter(|event| event.key == key);
            // A read or wait that was not answered has no effect.
            let of_key = of_key.filter(|event| event.answer.is_some() || event.op.is_write());
            find_order(&of_key.cloned().collect::<Vec<_>>(), |_| true).is_ok()
        })
    }
}

fn run(seed: u64, mutant: Mutant) -> World {
    let mut world = World::new(seed, mutant);
    for _ in 0..300 {
        world.step();
    }
    // The rest of the history is read from the recovered store.
    world.crash();
    for _ in 0..3 * CLIENTS {
        world.send();
        world.keep();
        world.keep();
        world.read();
    }
    world
}

#[test]
fn what_a_client_was_told_is_true_after_a_crash() {
    for seed in Seeds::fresh(300) {
        assert!(run(seed, Mutant::None).has_order(), "no order");
    }
}

#[test]
fn each_way_to_say_or_keep_too_much_or_little_is_found() {
    for mutant in [
        Mutant::WritesNotHeld,
        Mutant::ReadsNotHeld,
        Mutant::WakeupsNotHeld,
        Mutant::BatchLost,
        Mutant::BatchTwice,
        Mutant::SnapshotOfLater,
        Mutant::OwnersLiveOn,
        Mutant::WillsLost,
    ] {
        let found = (0..300).find(|seed| !run(*seed, mutant).has_order());
        assert!(found.is_some(), "{mutant:?} was not found");
    }
}
