//! The operations of ranks on the store while it is disturbed, and the check that all their results have an order.
//!
//! The whole-system tests include this file, and use a part of it.

#![allow(dead_code, reason = "see above")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{HostPort, Relay};
use c10d_store::{Store, StoreAddress, StoreError, StoreExt, TcpStore, TcpStoreOptions};

use crate::history::{Event, Op, check};

/// Longer than the ranks need to continue, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Three ranks behind each relay, and on each port of the store a client with a separate session.
pub(crate) fn ranks_of(relays: &[Relay], ports: &[u16]) -> Vec<TcpStore> {
    let at = |port: &u16| HostPort::new("127.0.0.1", *port).into();
    let addresses: Vec<StoreAddress> = ports.iter().map(at).collect();
    ranks_at(relays, &addresses)
}

/// The same with clients at these addresses.
pub(crate) fn ranks_at(relays: &[Relay], addresses: &[StoreAddress]) -> Vec<TcpStore> {
    let behind = |relay: &Relay| {
        let port = relay.local_addrs()[0].port();
        let open = |options| TcpStore::open("127.0.0.1", port, options).expect("a rank");
        [(); 3].map(|()| open(TcpStoreOptions::default()))
    };
    let resuming = |address: &StoreAddress| {
        let options = TcpStoreOptions::default().with_resume(Duration::from_secs(60));
        TcpStore::open_at(address, options).expect("a rank")
    };
    let ranks = relays.iter().flat_map(behind);
    ranks.chain(addresses.iter().map(resuming)).collect()
}

/// Ranks at work.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) clock: Clock,
    is_over: AtomicBool,
    has_ended: AtomicBool,
}

impl Traffic {
    /// The time, in calls and returns.
    pub(crate) fn now(&self) -> u64 {
        self.clock.0.load(Ordering::Acquire)
    }

    /// Whether a rank has ended: it is done, or has seen an error.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Waits for this number of calls and returns, or for the end of a rank, and returns whether all ranks are at
    /// work.
    #[track_caller]
    pub(crate) fn advance(&self, ticks: u64) -> bool {
        let at = self.now() + ticks;
        let started = Instant::now();
        while self.now() < at && !self.has_ended() {
            assert!(started.elapsed() < LONG, "the ranks do not go on");
            thread::sleep(Duration::from_millis(1));
        }
        !self.has_ended()
    }
}

/// Sets the flag when it is dropped, including during a panic.
pub(crate) struct SetAtEnd<'f>(pub(crate) &'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Has each rank work in a separate thread, until `disturb` has returned, or until the rank is done.
fn run<R: Send>(
    ranks: &[TcpStore],
    work: impl Fn(usize, &TcpStore, &Traffic) -> R + Sync,
    disturb: impl FnOnce(&Traffic),
) -> Vec<R> {
    let traffic = Traffic::default();
    thread::scope(|scope| {
        let is_over = SetAtEnd(&traffic.is_over);
        let mut threads = Vec::new();
        for (number, rank) in ranks.iter().enumerate() {
            let (traffic, work) = (&traffic, &work);
            threads.push(scope.spawn(move || {
                let _has_ended = SetAtEnd(&traffic.has_ended);
                work(number, rank, traffic)
            }));
        }
        disturb(&traffic);
        drop(is_over);
        let results = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.unwrap_or_else(|_| panic!("a rank sees an error"))
        });
        results.collect()
    })
}

/// Random operations of all ranks on a few keys, until `disturb` has returned.
pub(crate) fn histories_have_an_order(
    ranks: &[TcpStore],
    seed: u64,
    disturb: impl FnOnce(&Traffic),
) {
    if let Err(error) = check_all(histories(ranks, seed, Duration::ZERO, disturb)) {
        panic!("{error}");
    }
}

/// The same, unchecked, with a pause before each operation: a search for an order takes long for thousands.
pub(crate) fn histories(
    ranks: &[TcpStore],
    seed: u64,
    pause: Duration,
    disturb: impl FnOnce(&Traffic),
) -> Vec<History> {
    let work = |number: usize, rank: &TcpStore, traffic: &Traffic| {
        let mut histories = Vec::new();
        // A history on fresh keys would be shorter; the keys stay, so that each round checks the last one.
        while !traffic.is_over.load(Ordering::Acquire) {
            let round = histories.len() as u64;
            let name = format!("{number}.{round}");
            let seed = seed ^ (number as u64) << 48 ^ round << 56;
            histories.push(run_client(rank, seed, &name, (12, pause), &traffic.clock));
        }
        histories
    };
    let histories = run(ranks, work, disturb);
    histories.into_iter().flatten().collect()
}

/// Barriers, waiting reads, elements of queues and waits that time out, in this number of rounds. `disturb` may
/// return earlier.
pub(crate) fn waits_barriers_and_queues_go_on(
    ranks: &[TcpStore],
    rounds: usize,
    disturb: impl FnOnce(&Traffic),
) {
    let count = ranks.len();
    let work = |number: usize, rank: &TcpStore, traffic: &Traffic| {
        for round in 0..rounds {
            one_round(rank, number, round, count);
            traffic.clock.tick();
        }
    };
    run(ranks, work, disturb);
    let arrived = (count * rounds) as i64;
    assert_eq!(ranks[0].add("rounds", 0).expect("add"), arrived);
    let left = ranks[count - 1].queue_len("shared").expect("queue_len");
    assert_eq!(left, 0);
}

pub(crate) const KEYS: [&str; 5] = ["number", "text", "swap", "line", "jobs"];

/// The time of the history: every call and return has its own.
#[derive(Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel)
    }
}

/// One client's part of the history, by key.
#[derive(Default)]
pub(crate) struct History {
    events: Vec<(usize, Event)>,
    /// Commands without a reply since the last reply.
    unacknowledged: Vec<usize>,
}

impl History {
    pub(crate) fn add(&mut self, key: usize, op: Op, called: u64, returned: u64) {
        let has_reply = !matches!(op, Op::Set(_) | Op::Append(_) | Op::Push(_));
        let event = Event {
            op,
            called,
            returned: if has_reply { returned } else { u64::MAX },
        };
        if has_reply {
            for index in self.unacknowledged.drain(..) {
                self.events[index].1.returned = returned;
            }
        } else {
            self.unacknowledged.push(self.events.len());
        }
        self.events.push((key, event));
    }
}

/// Carries out a random operation on one of the keys, and returns it with its result.
pub(crate) fn random_operation(
    store: &dyn Store,
    random: &mut fastrand::Rng,
    name: &str,
) -> (usize, Op) {
    let key = random.usize(..KEYS.len());
    let unique = format!("{name}.{} ", random.u32(..)).into_bytes();
    let read = |key: &str| Op::Get(store.try_get(key).expect("try_get").unwrap_or_default());
    let op = match (key, random.u8(..4)) {
        (0, 0) => read(KEYS[0]),
        (0, _) => {
            let delta = random.i64(1..5);
            let sum = store.add(KEYS[0], delta).expect("add");
            Op::Add { delta, sum }
        }
        (1 | 3, 0) => read(KEYS[key]),
        (1, _) => {
            store.set(KEYS[1], &unique).expect("set");
            Op::Set(unique)
        }
        (2, 0) => read(KEYS[2]),
        (2, _) => {
            let expected = store.try_get(KEYS[2]).expect("try_get").unwrap_or_default();
            let answer = store.compare_set(KEYS[2], &expected, &unique);
            let wrote = answer.expect("compare_set").swapped().expect("it is known");
            Op::CompareSet {
                expected,
                desired: unique,
                wrote,
            }
        }
        (3, _) => {
            store.append(KEYS[3], &unique).expect("append");
            Op::Append(unique)
        }
        (_, 0 | 1) => {
            store.queue_push(KEYS[4], &unique).expect("queue_push");
            Op::Push(unique)
        }
        _ => Op::Pop(store.try_queue_pop(KEYS[4]).expect("try_queue_pop")),
    };
    (key, op)
}

/// A few operations, each after a pause, with a read after each operation without a reply.
fn run_client(
    store: &dyn Store,
    seed: u64,
    name: &str,
    (operations, pause): (usize, Duration),
    clock: &Clock,
) -> History {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut history = History::default();
    for _ in 0..operations {
        thread::sleep(pause);
        let called = clock.tick();
        let (key, op) = random_operation(store, &mut random, name);
        history.add(key, op, called, clock.tick());
    }
    // Appended values are read, and operations without a reply are acknowledged.
    let called = clock.tick();
    let read = store.try_get(KEYS[3]).expect("try_get").unwrap_or_default();
    history.add(3, Op::Get(read), called, clock.tick());
    let called = clock.tick();
    let sum = store.add(KEYS[0], 0).expect("add");
    history.add(0, Op::Add { delta: 0, sum }, called, clock.tick());
    history
}

pub(crate) fn check_all(histories: Vec<History>) -> Result<(), String> {
    let events: Vec<(usize, Event)> = histories.into_iter().flat_map(|it| it.events).collect();
    for (index, key) in KEYS.iter().enumerate() {
        let of_key = events.iter().filter(|(key, _)| *key == index);
        let of_key: Vec<Event> = of_key.map(|(_, event)| event.clone()).collect();
        check(&of_key).map_err(|error| format!("{key}: {error}"))?;
    }
    Ok(())
}

fn one_round(rank: &TcpStore, number: usize, round: usize, count: usize) {
    let key = format!("value.{round}");
    if round % count == number {
        rank.set(&key, &key).expect("set");
    }
    assert_eq!(rank.get(&key).expect("get"), key.as_bytes());
    rank.barrier(&format!("barrier.{round}"), count)
        .expect("barrier");
    rank.add("rounds", 1).expect("add");
    // Each takes what its neighbour pushes, and one of those that all share.
    let mine = format!("queue.{}", (number + 1) % count);
    rank.queue_push(&mine, &key).expect("queue_push");
    rank.queue_push("shared", &key).expect("queue_push");
    let taken = rank.queue_pop(&format!("queue.{number}"));
    assert_eq!(taken.expect("queue_pop"), key.as_bytes());
    assert!(
        rank.queue_pop("shared")
            .expect("queue_pop")
            .starts_with(b"value.")
    );
    let short = Duration::from_millis(1);
    let error = rank.wait_timeout(&["never"], short).expect_err("a timeout");
    let is_late = matches!(
        error,
        StoreError::Timeout { .. } | StoreError::NoReply { .. }
    );
    assert!(is_late, "{error}");
}
