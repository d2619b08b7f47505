//! A snapshot that is copied in slices, while requests continue, equals a snapshot that is read at once at its start.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use c10d_sim::Seeds;

use crate::message::{CloseReason, ConnectionId};
use crate::message::{ConnId, Extension, Keys, Payload, Request};
use crate::moment::Moment;
use crate::snapshot::{ConnectionRecord, Counters, KeyRecord, QueueRecord, Snapshot, Version};
use crate::state::slot::Writer;
use crate::state::slots::Slots;
use crate::state::tests::Recorder;
use crate::state::{SNAPSHOT_SLICE, StoreState};

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

/// The parts of a snapshot, in a fixed order.
#[derive(Debug, PartialEq)]
struct Parts {
    now: Duration,
    connections: Vec<ConnectionRecord>,
    closed: Vec<ConnectionRecord>,
    keys: Vec<KeyRecord>,
    queues: Vec<QueueRecord>,
    announcements: Vec<crate::snapshot::Announcement>,
    counters: Counters,
}

impl Parts {
    fn sorted(mut self) -> Self {
        self.connections.sort_by_key(|connection| connection.id);
        self.keys.sort_by(|a, b| a.key.cmp(&b.key));
        self.queues.sort_by(|a, b| a.key.cmp(&b.key));
        self
    }

    fn of(snapshot: Snapshot) -> Self {
        assert_eq!(snapshot.keys_left_out, 0);
        let parts = Self {
            now: snapshot.now,
            connections: snapshot.connections,
            closed: snapshot.closed,
            keys: snapshot.keys,
            queues: snapshot.queues,
            announcements: snapshot.announcements,
            counters: snapshot.counters,
        };
        parts.sorted()
    }

    /// Reads everything at once, without what slices need.
    fn read_at_once(state: &StoreState) -> Self {
        let (connections, closed) = state.extensions.directory.records(&state.waiters);
        let mut keys = Vec::new();
        let mut queues = Vec::new();
        for (key, slot) in state.slots.iter() {
            if let Some(stored) = &slot.stored {
                let written = stored.written;
                let mut record = KeyRecord::new(
                    key,
                    stored.value.as_bytes(),
                    Version(written.version.get()),
                    written.writer,
                    written.at.since_start(),
                );
                record.previous = stored.previous.map(|previous| {
                    let version = Version(previous.version.get());
                    (version, previous.writer, previous.at.since_start())
                });
                keys.push(record);
            }
            if let Some(queue) = &slot.queue {
                let (key, length) = ((**key).into(), queue.len());
                queues.push(QueueRecord { key, length });
            }
        }
        let parts = Self {
            now: state.now.since_start(),
            connections,
            closed,
            keys,
            queues,
            announcements: state.extensions.announcements.to_vec(),
            counters: state.counters(),
        };
        parts.sorted()
    }
}

/// Connections that send random requests.
struct World {
    random: fastrand::Rng,
    state: StoreState,
    /// By slot: the generation, and whether it is open and has sent nothing.
    connections: Vec<(u32, Phase)>,
    step: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Closed,
    New,
    Open,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            state: StoreState::default(),
            connections: vec![(0, Phase::Closed); 12],
            step: 0,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.random.usize(0..20);
        let long = if number == 0 { 200 } else { 0 };
        format!("/key{number}{}", "-".repeat(long)).into_bytes()
    }

    fn keys(&mut self) -> Vec<Vec<u8>> {
        let most = if self.random.u8(0..20) == 0 { 30 } else { 4 };
        let count = self.random.usize(0..most);
        (0..count).map(|_| self.key()).collect()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.u8(0..6) {
            0 => vec![b'x'; 300],
            1 => b"text".to_vec(),
            2 => vec![b'1'; 20_000],
            _ => self.random.u8(0..5).to_string().into_bytes(),
        }
    }

    fn step(&mut self) {
        self.step += 1;
        self.state
            .set_now(Moment::from(Duration::from_micros(self.step)));
        let slot = self.random.usize(0..self.connections.len());
        let (generation, phase) = self.connections[slot];
        let conn = ConnId::new(slot as u32, generation);
        match phase {
            Phase::Closed => {
                let conn = ConnId::new(slot as u32, generation + 1);
                self.state.connect(conn, PEER);
                self.connections[slot] = (generation + 1, Phase::New);
            }
            Phase::New if self.random.u8(0..10) == 0 => {
                self.state.hand_over(conn);
                self.connections[slot].1 = Phase::Closed;
            }
            Phase::Open if self.random.u8(0..12) == 0 => self.close(conn, CloseReason::Peer),
            Phase::New | Phase::Open => {
                self.connections[slot].1 = Phase::Open;
                self.request(conn);
            }
        }
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        self.state
            .disconnect(conn, reason, &mut Recorder::default());
        self.connections[conn.slot() as usize].1 = Phase::Closed;
    }

    fn request(&mut self, conn: ConnId) {
        let (key, value, other) = (&self.key()[..], &self.value()[..], &self.value()[..]);
        let keys = self.keys();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let mut pairs = Vec::new();
        for key in &keys {
            pairs.extend([*key, value]);
        }
        let (keys, pairs) = (Keys::from(&keys[..]), Keys::from(&pairs[..]));
        let number = self.random.i64(0..4);
        let payload = Payload::Borrowed(value);
        let request = match self.random.u8(0..24) {
            0..3 => Request::Set {
                key,
                value: payload,
            },
            3..5 => Request::Get { key },
            5 => Request::Add { key, delta: number },
            6 => Request::Extension(Extension::TryAdd { key, delta: number }),
            7 => Request::Append {
                key,
                value: payload,
            },
            8..10 => Request::DeleteKey { key },
            10 => Request::MultiSet { pairs },
            11 => Request::MultiGet { keys },
            12..15 => Request::Wait { keys },
            15 => Request::Extension(Extension::WaitGet { keys }),
            16 => Request::Extension(Extension::WaitChange {
                key,
                offset: 0,
                length: None,
                known: payload,
            }),
            17 => Request::Barrier {
                key,
                world_size: number,
            },
            18 => Request::CancelWait,
            19 => Request::QueuePush {
                key,
                value: payload,
            },
            20 => Request::QueuePop { key },
            21 => Request::Extension(Extension::Announce { bytes: payload }),
            22 => Request::Ping { nonce: 4711 },
            _ => Request::Extension(Extension::CompareExchange {
                key,
                expected: other,
                desired: payload,
            }),
        };
        let refused = self.state.handle(conn, request, &mut Recorder::default());
        if refused.is_err() {
            self.close(conn, CloseReason::Refused);
        }
    }

    /// Closes enough connections that the oldest records will be dropped soon.
    fn fill_closed(&mut self) {
        for number in 0..super::closed::CLOSED_KEPT as u32 + 60 {
            let conn = ConnId::new(1_000, number);
            self.state.connect(conn, PEER);
            if number % 1_000 == 0 {
                let bytes = Payload::Borrowed(b"announcement");
                let announce = Request::Extension(Extension::Announce { bytes });
                let mut replies = Recorder::default();
                let handled = self.state.handle(conn, announce, &mut replies);
                handled.expect("never refused");
            }
            self.state
                .disconnect(conn, CloseReason::Failed, &mut Recorder::default());
        }
    }

    /// Runs a snapshot in slices between random steps, and compares it.
    fn check_snapshot(&mut self) {
        let expected = Parts::read_at_once(&self.state);
        self.state.start_snapshot(self.state.counters());
        let slice = 1 << self.random.u32(0..8);
        loop {
            for _ in 0..self.random.u8(0..6) {
                self.step();
            }
            if let Some(image) = self.state.continue_snapshot(slice) {
                let snapshot = image.to_snapshot(SystemTime::UNIX_EPOCH);
                assert_eq!(Parts::of(snapshot), expected);
                break;
            }
        }
        self.state.check_invariants();
    }
}

fn history(seed: u64) {
    let mut world = World::new(seed);
    if seed.is_multiple_of(32) {
        world.fill_closed();
    }
    for _ in 0..6 {
        for _ in 0..world.random.u8(0..120) {
            world.step();
        }
        world.check_snapshot();
    }
}

#[test]
fn a_snapshot_in_slices_equals_one_at_once() {
    Seeds::fixed(60).for_each(history);
}

#[test]
fn keys_beyond_the_limit_are_counted() {
    let mut slots = Slots::default();
    let writer = Writer {
        connection: ConnectionId(1),
        at: Moment::default(),
    };
    for number in 0..10 {
        let key = format!("{number}").into_bytes();
        slots.write(&key, Payload::Borrowed(b"value"), writer);
    }
    slots.start_copy(4);
    // A change copies first, so it takes one of the four places.
    slots.write(b"0", Payload::Borrowed(b"changed"), writer);
    slots.write(b"new", Payload::Borrowed(b"later"), writer);
    let mut budget = usize::MAX;
    let image = slots.copy_slice(&mut budget).expect("all at once");
    assert_eq!((image.keys.len(), image.left_out), (4, 6));
}

/// 16,384 connections, each with a wait and a key, and as many closed ones.
fn large_state() -> StoreState {
    let mut state = StoreState::default();
    let mut replies = Recorder::default();
    for slot in 0..super::closed::CLOSED_KEPT as u32 {
        let conn = ConnId::new(slot, 0);
        state.connect(conn, PEER);
        state.disconnect(conn, CloseReason::Peer, &mut replies);
        let conn = ConnId::new(slot, 1);
        state.connect(conn, PEER);
        let key = format!("/default_pg/0//cpu//0/{slot}").into_bytes();
        let missing = format!("/default_pg/0//cpu//0/{}", slot + 1);
        let wanted = [missing.as_bytes(), b"/a", b"/b"];
        let requests = [
            Request::Ping { nonce: slot },
            Request::Set {
                key: &key,
                value: Payload::Borrowed(&[7; 200]),
            },
            Request::Get { key: &key },
            Request::Wait {
                keys: Keys::from(&wanted[..]),
            },
        ];
        for request in requests {
            let handled = state.handle(conn, request, &mut replies);
            handled.expect("a legal request");
        }
        replies.0.clear();
    }
    state
}

/// The processor time of this thread, so that other processes do not count.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("not negative")
}

/// The cost of a snapshot for the server's thread. Run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "measures, so it needs a release build"]
#[expect(clippy::print_stdout, reason = "the test reports what it measured")]
fn a_snapshot_of_16_384_connections_takes_short_slices() {
    let mut state = large_state();
    let mut rounds = Vec::new();
    for _ in 0..50 {
        let (mut slices, mut longest) = (0, Duration::ZERO);
        let started = processor_time();
        let mut slice_started = started;
        state.start_snapshot(state.counters());
        let image = loop {
            let image = state.continue_snapshot(SNAPSHOT_SLICE);
            let now = processor_time();
            slices += 1;
            longest = longest.max(now - slice_started);
            slice_started = now;
            if let Some(image) = image {
                break image;
            }
        };
        let total = slice_started - started;
        let snapshot = image.to_snapshot(SystemTime::UNIX_EPOCH);
        let on_caller = processor_time() - slice_started;
        assert_eq!(snapshot.connections.len(), 16_384);
        assert_eq!(snapshot.keys.len(), 16_384);
        assert_eq!(snapshot.counters.waits, 16_384);
        rounds.push((total, longest, on_caller, slices));
    }
    rounds.sort();
    let (total, longest, on_caller, slices) = rounds[rounds.len() / 2];
    let longest_of_all = rounds.iter().map(|round| round.1).max();
    println!(
        "median: {slices} slices, {total:?} in all, the longest {longest:?}; on the caller's thread {on_caller:?}"
    );
    println!("the longest slice of all: {longest_of_all:?}");
    assert!(longest_of_all < Some(Duration::from_millis(5)));
    assert!(total < Duration::from_millis(5));
}
