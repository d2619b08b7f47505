//! A store is killed under load and continues from its journal: every operation takes effect once, in an order that
//! the ranks could have seen.

use std::thread;
use std::time::Duration;

use c10d_relay::{Relay, RelayOptions};
use c10d_sim::{Proxy, Seeds};
use c10d_store::{Store, StoreError, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer};

use crate::basics::{rank_of, relay_to, wait_until};
use crate::memory_journal::Memory;
use crate::workload::{histories_have_an_order, ranks_of, waits_barriers_and_queues_go_on};

const RESTARTS: usize = 20;

const LONG: Duration = Duration::from_secs(60);

/// The store, and the addresses that the ranks connect to.
struct Job {
    journal: Memory,
    server: Option<TcpStoreServer>,
    proxies: Vec<Proxy>,
    relays: Vec<Relay>,
    /// Killed servers: their output is not received.
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

    fn ranks(&self) -> Vec<TcpStore> {
        let ports: Vec<u16> = self.proxies.iter().map(Proxy::port).collect();
        ranks_of(&self.relays, &ports)
    }

    /// Kills the server and starts another server. With `while_appending`, some requests were carried out but not
    /// kept.
    fn restart(&mut self, while_appending: bool) {
        self.restart_and(while_appending, |_| {});
    }

    /// The same; `meanwhile` gets the server before the relays are back.
    fn restart_and(&mut self, while_appending: bool, meanwhile: impl FnOnce(&TcpStoreServer)) {
        if while_appending {
            self.journal.set_blocked(true);
            self.journal.wait_until_appending();
        }
        self.proxies.iter().for_each(|proxy| proxy.cut(true));
        let crashed = self.journal.crashed();
        let killed = std::mem::replace(&mut self.journal, crashed);
        let server = self.journal.serve();
        meanwhile(&server);
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

/// docs/spec/wire-extensions.md, SESSION 12 to 15.
#[test]
fn histories_with_restarts_have_an_order() {
    for seed in Seeds::fresh(5) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut job = Job::new();
        let ranks = job.ranks();
        if random.bool() {
            for proxy in &job.proxies {
                proxy.cut_after(random.u64(..), 4000);
            }
        }
        histories_have_an_order(&ranks, seed, |traffic| {
            let mut restarts = 0;
            while restarts < RESTARTS && traffic.advance(random.u64(..80)) {
                job.restart(random.bool());
                restarts += 1;
            }
        });
    }
}

#[test]
fn waits_barriers_and_queues_go_on_over_restarts() {
    for seed in Seeds::fresh(3) {
        let mut job = Job::new();
        let ranks = job.ranks();
        let mut random = fastrand::Rng::with_seed(seed);
        let rounds = 40;
        waits_barriers_and_queues_go_on(&ranks, rounds, |traffic| {
            let mut restarts = 0;
            while restarts < RESTARTS && traffic.advance(random.u64(..16)) {
                // Later there may be nothing more to append.
                let is_early = traffic.now() < (ranks.len() * rounds / 2) as u64;
                job.restart(is_early && random.bool());
                restarts += 1;
            }
            assert!(restarts > RESTARTS / 2, "{restarts}");
        });
    }
}

/// Waits for a key. Returns whether another client has ended that.
fn ended(rank: TcpStore, name: String) -> thread::JoinHandle<bool> {
    thread::spawn(move || {
        let result = rank.wait_all(&[&name], Some(LONG));
        assert!(
            matches!(result, Ok(()) | Err(StoreError::WaitEnded { .. })),
            "{result:?}"
        );
        result.is_err()
    })
}

/// docs/spec/wire-extensions.md, END_WAITS 4: of relays and of clients that resume. Waits begin before the restart, while the
/// server is away, and after END_WAITS.
#[test]
fn waits_that_missed_their_end_are_ended_and_later_ones_are_not() {
    let mut job = Job::new();
    let [before, away, late] = [(); 3].map(|()| job.ranks());
    let count = before.len();
    let start = |ranks: Vec<TcpStore>, kind: &str| -> Vec<_> {
        let ranks = ranks.into_iter().enumerate();
        ranks
            .map(|(rank, store)| ended(store, format!("a/{kind}/{rank}")))
            .collect()
    };
    let mut to_end = start(before, "before");
    let server = job.server.as_ref().expect("it runs");
    wait_until("all wait", || server.waiting_count() == count);
    let mut to_go_on = Vec::new();
    job.restart_and(false, |server| {
        to_end.extend(start(away, "away"));
        // Without a link, the test cannot see that they wait.
        thread::sleep(Duration::from_secs(1));
        let port = server.local_addr().port();
        let ender = TcpStore::open("127.0.0.1", port, TcpStoreOptions::default());
        let ended = ender.expect("a client").end_waits("a/");
        assert_eq!(ended.expect("a number"), 0);
        thread::sleep(Duration::from_secs(1));
        to_go_on = start(late, "late");
        thread::sleep(Duration::from_secs(1));
    });
    for wait in to_end {
        assert!(wait.join().expect("no panic"), "it was not ended");
    }
    let server = job.server.as_ref().expect("it runs");
    wait_until("the later ones wait", || server.waiting_count() == count);
    let port = server.local_addr().port();
    let setter = TcpStore::open("127.0.0.1", port, TcpStoreOptions::default()).expect("a client");
    for (rank, wait) in to_go_on.into_iter().enumerate() {
        setter.set(&format!("a/late/{rank}"), b"").expect("set");
        assert!(!wait.join().expect("no panic"), "it was ended");
    }
}

/// docs/spec/wire-extensions.md, END_WAITS 4: waits that were sent before END_WAITS and after it.
#[test]
fn waits_that_missed_their_end_at_the_same_server_are_ended() {
    let job = Job::new();
    let server = job.server.as_ref().expect("it runs");
    let [rank, later] = [(); 2].map(|()| rank_of(&job.relays[0]));
    for rank in [&rank, &later] {
        rank.set("k", b"v").expect("set");
        assert!(rank.check(&["k"]).expect("check"));
    }
    job.proxies[0].cut(true);
    wait_until("the link is lost", || !job.relays[0].is_connected());
    let wait = ended(rank, "a/away".to_owned());
    // Without a link, the test cannot see that it waits.
    thread::sleep(Duration::from_secs(1));
    let port = server.local_addr().port();
    let ender = TcpStore::open("127.0.0.1", port, TcpStoreOptions::default()).expect("a client");
    assert_eq!(ender.end_waits("a/").expect("a number"), 0);
    thread::sleep(Duration::from_secs(1));
    let later = ended(later, "a/later".to_owned());
    thread::sleep(Duration::from_secs(1));
    job.proxies[0].mend();
    assert!(wait.join().expect("no panic"), "it was not ended");
    wait_until("the later one waits", || server.waiting_count() == 1);
    ender.set("a/later", b"").expect("set");
    assert!(!later.join().expect("no panic"), "it was ended");
}
