//! A store that is killed under load and goes on from its journal: every operation takes effect once, in an order that
//! the ranks could have seen.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use c10d_relay::{Relay, RelayOptions};
use c10d_store::{Store, StoreError, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer};

use crate::basics::{rank_of, relay_to, wait_until};
use crate::cuts::{Clock, check_all, run_client};
use crate::memory_journal::Memory;
use crate::proxy::Proxy;

const RESTARTS: usize = 20;

/// The store, and what the ranks connect to.
struct Job {
    journal: Memory,
    server: Option<TcpStoreServer>,
    proxies: Vec<Proxy>,
    relays: Vec<Relay>,
    /// Servers that were killed: nobody hears what they say.
    ending: Vec<thread::JoinHandle<()>>,
}

impl Job {
    fn new() -> Self {
        let _ = env_logger::builder().is_test(true).try_init();
        let journal = Memory::default();
        let server = journal.serve();
        let proxies: Vec<Proxy> = (0..2).map(|_| Proxy::to(server.local_addr())).collect();
        let relays = proxies.iter();
        let relays = relays.map(|proxy| relay_to(proxy.port(), RelayOptions::default()));
        Self {
            relays: relays.collect(),
            journal,
            server: Some(server),
            proxies,
            ending: Vec::new(),
        }
    }

    /// Six ranks behind the relays, and a client with a session of its own on each proxy.
    fn ranks(&self) -> Vec<TcpStore> {
        let resuming = |proxy: &Proxy| {
            let options = TcpStoreOptions::default().with_resume(Duration::from_secs(60));
            TcpStore::open("127.0.0.1", proxy.port(), options).expect("a client")
        };
        let of_relays = self.relays.iter();
        of_relays
            .flat_map(|relay| [rank_of(relay), rank_of(relay), rank_of(relay)])
            .chain(self.proxies.iter().map(resuming))
            .collect()
    }

    /// Kills the server and starts another one. With `while_appending`, requests were carried out that are not kept.
    fn restart(&mut self, while_appending: bool) {
        if while_appending {
            self.journal.set_blocked(true);
            self.journal.wait_until_appending();
        }
        self.proxies.iter().for_each(|proxy| proxy.cut(true));
        let crashed = self.journal.crashed();
        let killed = std::mem::replace(&mut self.journal, crashed);
        let server = self.journal.serve();
        for proxy in &self.proxies {
            proxy.set_server(server.local_addr());
            proxy.mend();
        }
        let old = self.server.replace(server);
        killed.set_blocked(false);
        self.ending.push(thread::spawn(move || drop(old)));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for ending in self.ending.drain(..) {
            let _ = ending.join();
        }
    }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let seed = std::env::var("C10D_SEED");
    match seed.ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => {
            let first = fastrand::u64(..1 << 40);
            first..first + count
        }
    }
}

/// docs/wire-extensions.md, SESSION 12 to 15.
#[test]
fn histories_with_restarts_have_an_order() {
    for seed in seeds(5) {
        one_history(seed);
    }
}

fn one_history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut job = Job::new();
    let ranks = job.ranks();
    if random.bool() {
        for proxy in &job.proxies {
            proxy.cut_after(random.u64(..), 4000);
        }
    }
    let clock = Clock::default();
    let histories = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut clients = Vec::new();
        for (number, rank) in ranks.iter().enumerate() {
            let (clock, histories, is_over) = (&clock, &histories, &is_over);
            clients.push(scope.spawn(move || {
                let mut round = 0;
                while !is_over.load(Ordering::Acquire) {
                    let name = format!("{number}.{round}");
                    let seed = seed ^ (number as u64) << 48 ^ round << 56;
                    let history = run_client(rank, seed, &name, 12, clock);
                    histories.lock().expect("no panic").push(history);
                    round += 1;
                }
            }));
        }
        for _ in 0..RESTARTS {
            let at = clock.0.load(Ordering::Acquire) + random.u64(..80);
            wait_until("the ranks go on", || {
                clock.0.load(Ordering::Acquire) >= at || clients.iter().any(|it| it.is_finished())
            });
            if clients.iter().any(|it| it.is_finished()) {
                break;
            }
            job.restart(random.bool());
        }
        is_over.store(true, Ordering::Release);
        for client in clients {
            let result = client.join();
            assert!(result.is_ok(), "C10D_SEED={seed}: a rank sees an error");
        }
    });
    let histories = histories.into_inner().expect("no panic");
    if let Err(error) = check_all(histories) {
        panic!("C10D_SEED={seed}: {error}");
    }
}

/// Barriers, reads that wait, elements of queues and waits that end with their timeout.
#[test]
fn waits_barriers_and_queues_go_on_over_restarts() {
    for seed in seeds(3) {
        let mut job = Job::new();
        let ranks = job.ranks();
        let clock = Clock::default();
        let mut random = fastrand::Rng::with_seed(seed);
        let rounds = 40;
        thread::scope(|scope| {
            let mut clients = Vec::new();
            for (number, rank) in ranks.iter().enumerate() {
                let (clock, count) = (&clock, ranks.len());
                clients.push(scope.spawn(move || {
                    for round in 0..rounds {
                        one_round(rank, number, round, count);
                        clock.tick();
                    }
                }));
            }
            let mut restarts = 0;
            while restarts < RESTARTS && !clients.iter().any(|it| it.is_finished()) {
                let at = clock.0.load(Ordering::Acquire) + random.u64(..16);
                wait_until("the ranks go on", || {
                    clock.0.load(Ordering::Acquire) >= at
                        || clients.iter().any(|it| it.is_finished())
                });
                // Later there may be nothing more to append.
                let is_early = clock.0.load(Ordering::Acquire) < (ranks.len() * rounds / 2) as u64;
                job.restart(is_early && random.bool());
                restarts += 1;
            }
            assert!(restarts > RESTARTS / 2, "C10D_SEED={seed}: {restarts}");
            for client in clients {
                let result = client.join();
                assert!(result.is_ok(), "C10D_SEED={seed}: a rank sees an error");
            }
        });
        let arrived = (ranks.len() * rounds) as i64;
        assert_eq!(ranks[0].add("rounds", 0).expect("add"), arrived);
        assert_eq!(ranks[7].queue_len("shared").expect("queue_len"), 0);
    }
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
