//! A store that is killed under load and goes on from its journal: every operation takes effect once, in an order that
//! the ranks could have seen.

use std::thread;

use c10d_relay::{Relay, RelayOptions};
use c10d_store::{TcpStore, TcpStoreServer};

use crate::basics::relay_to;
use crate::memory_journal::Memory;
use crate::proxy::Proxy;
use crate::workload::{histories_have_an_order, ranks_of, seeds, waits_barriers_and_queues_go_on};

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

    fn ranks(&self) -> Vec<TcpStore> {
        let ports: Vec<u16> = self.proxies.iter().map(Proxy::port).collect();
        ranks_of(&self.relays, &ports)
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

/// docs/spec/wire-extensions.md, SESSION 12 to 15.
#[test]
fn histories_with_restarts_have_an_order() {
    for seed in seeds(5) {
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
    for seed in seeds(3) {
        let mut job = Job::new();
        let ranks = job.ranks();
        let mut random = fastrand::Rng::with_seed(seed);
        let rounds = 40;
        waits_barriers_and_queues_go_on(&ranks, seed, rounds, |traffic| {
            let mut restarts = 0;
            while restarts < RESTARTS && traffic.advance(random.u64(..16)) {
                // Later there may be nothing more to append.
                let is_early = traffic.now() < (ranks.len() * rounds / 2) as u64;
                job.restart(is_early && random.bool());
                restarts += 1;
            }
            assert!(restarts > RESTARTS / 2, "C10D_SEED={seed}: {restarts}");
        });
    }
}
