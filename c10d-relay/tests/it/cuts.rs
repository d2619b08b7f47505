//! Cuts of the relays' connections under load: every operation takes effect once, in an order that the ranks could have
//! seen.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use c10d_store::{HashStore, Store, StoreExt, TcpStore, TcpStoreOptions};

use crate::basics::{rank_of, relay_to, server};
use crate::history::{Event, Op, check};
use crate::proxy::Proxy;

const KEYS: [&str; 5] = ["number", "text", "swap", "line", "jobs"];

/// The time of the history: every call and return has its own.
#[derive(Default)]
pub(crate) struct Clock(pub(crate) AtomicU64);

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
    fn add(&mut self, key: usize, op: Op, called: u64, returned: u64) {
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
fn random_operation(store: &dyn Store, random: &mut fastrand::Rng, name: &str) -> (usize, Op) {
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

pub(crate) fn run_client(
    store: &dyn Store,
    seed: u64,
    name: &str,
    operations: usize,
    clock: &Clock,
) -> History {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut history = History::default();
    for _ in 0..operations {
        let called = clock.tick();
        let (key, op) = random_operation(store, &mut random, name);
        history.add(key, op, called, clock.tick());
    }
    // What was appended is read, and what had no reply is acknowledged.
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

/// 25 histories with 40 cuts each: connections end after a random number of bytes, in the middle of handshakes too.
#[test]
fn histories_with_a_thousand_cuts_have_an_order() {
    let first_seed = std::env::var("C10D_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = match first_seed {
        Some(seed) => seed..seed + 1,
        None => {
            let first = fastrand::u64(..1 << 40);
            first..first + 25
        }
    };
    let mut cuts = 0;
    for seed in seeds {
        cuts += one_history(seed, 40);
    }
    assert!(first_seed.is_some() || cuts >= 1000, "{cuts} cuts");
}

/// Returns the number of cuts.
fn one_history(seed: u64, cuts_min: usize) -> usize {
    let _ = env_logger::builder().is_test(true).try_init();
    let server = server();
    let clock = Arc::new(Clock::default());
    let mut random = fastrand::Rng::with_seed(seed);
    let proxies: Vec<Proxy> = (0..2).map(|_| Proxy::to(server.local_addr())).collect();
    let relays: Vec<_> = proxies
        .iter()
        .map(|proxy| relay_to(proxy.port(), c10d_relay::RelayOptions::default()))
        .collect();
    // Six ranks behind relays, and a client with a session of its own on each proxy.
    let resuming = |proxy: &Proxy| {
        let options = TcpStoreOptions::default().with_resume(Duration::from_secs(60));
        TcpStore::open("127.0.0.1", proxy.port(), options).expect("a client")
    };
    let ranks: Vec<TcpStore> = relays
        .iter()
        .flat_map(|relay| [rank_of(relay), rank_of(relay), rank_of(relay)])
        .chain(proxies.iter().map(resuming))
        .collect();
    for proxy in &proxies {
        proxy.cut_after(random.u64(..), 400);
    }
    let histories = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut clients = Vec::new();
        for (number, rank) in ranks.iter().enumerate() {
            let (clock, histories, is_over) = (&clock, &histories, &is_over);
            let cuts = || proxies.iter().map(Proxy::cuts).sum::<usize>();
            clients.push(scope.spawn(move || {
                let mut round = 0;
                // A history on fresh keys would be shorter; the keys stay, so that each round checks the last one.
                while !is_over.load(Ordering::Acquire) && round < 40 {
                    let name = format!("{number}.{round}");
                    let seed = seed ^ (number as u64) << 48 ^ round << 56;
                    let history = run_client(rank, seed, &name, 12, clock);
                    histories.lock().expect("no panic").push(history);
                    round += 1;
                    if cuts() >= cuts_min {
                        is_over.store(true, Ordering::Release);
                    }
                }
            }));
        }
        for client in clients {
            client.join().expect("no rank sees an error");
        }
    });
    for proxy in &proxies {
        proxy.cut_after(0, 0);
    }
    let histories = histories.into_inner().expect("no panic");
    if let Err(error) = check_all(histories) {
        panic!("C10D_SEED={seed}: {error}");
    }
    let cuts = proxies.iter().map(Proxy::cuts).sum::<usize>();
    assert!(cuts >= cuts_min, "C10D_SEED={seed}: {cuts} cuts only");
    cuts
}

/// A store with a defect of the kind that the check is to find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Defect {
    None,
    /// Some requests are carried out twice, as if repeated after a lost reply.
    Twice,
    /// Some requests without a reply are lost, as with PyTorch's client after a loss.
    Lost,
    /// Some reads are answered from memory.
    Old,
}

struct Broken {
    store: HashStore,
    defect: Defect,
    count: AtomicU64,
    old: Mutex<Option<Option<Vec<u8>>>>,
}

impl Broken {
    fn is_due(&self) -> bool {
        self.count.fetch_add(1, Ordering::AcqRel) % 10 == 9
    }

    fn random_operation(&self, random: &mut fastrand::Rng, name: &str) -> (usize, Op) {
        let before = random.clone();
        let is_due = self.is_due();
        if self.defect == Defect::Twice && is_due {
            let _ = random_operation(&self.store, random, name);
            *random = before;
            return random_operation(&self.store, random, name);
        }
        if self.defect == Defect::Lost && is_due {
            let other = HashStore::new();
            let (key, op) = random_operation(&other, &mut before.clone(), name);
            if matches!(op, Op::Set(_) | Op::Append(_) | Op::Push(_)) {
                *random = before;
                let _ = random_operation(&other, random, name);
                return (key, op);
            }
        }
        if self.defect == Defect::Old {
            let mut old = self.old.lock().expect("no panic");
            let now = self.store.try_get(KEYS[1]).expect("try_get");
            if is_due && let Some(value) = old.replace(now) {
                return (1, Op::Get(value.unwrap_or_default()));
            }
        }
        random_operation(&self.store, random, name)
    }
}

#[test]
fn the_check_finds_the_defects_of_a_broken_store() {
    for defect in [Defect::None, Defect::Twice, Defect::Lost, Defect::Old] {
        let mut found = 0;
        for seed in 0..20 {
            let broken = Broken {
                store: HashStore::new(),
                defect,
                count: AtomicU64::new(0),
                old: Mutex::new(None),
            };
            let clock = Clock::default();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut history = History::default();
            for _ in 0..150 {
                let called = clock.tick();
                let (key, op) = broken.random_operation(&mut random, "one");
                history.add(key, op, called, clock.tick());
            }
            found += usize::from(check_all(vec![history]).is_err());
        }
        if defect == Defect::None {
            assert_eq!(found, 0, "a good store");
        } else {
            assert!(found >= 18, "{defect:?} found in {found} of 20 histories");
        }
    }
}
