//! Cuts of the relays' connections under load: every operation takes effect once, in an order that the ranks could have
//! seen.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use c10d_relay::{Relay, RelayOptions};
use c10d_sim::{Proxy, Seeds};
use c10d_store::{HashStore, Store, StoreExt, TcpStore};

use crate::basics::{rank_of, relay_to, server, wait_until};
use crate::history::Op;
use crate::workload::{
    Clock, History, KEYS, check_all, histories_have_an_order, random_operation, ranks_of,
};

const HISTORIES: u64 = 25;

/// 25 histories with 40 cuts each: connections break after a random number of bytes, including in the middle of
/// handshakes.
#[test]
fn histories_with_a_thousand_cuts_have_an_order() {
    for seed in Seeds::fresh(HISTORIES) {
        one_history(seed, 40);
    }
}

fn one_history(seed: u64, cuts_min: usize) {
    let _ = env_logger::builder().is_test(true).try_init();
    let server = server();
    let mut random = fastrand::Rng::with_seed(seed);
    let proxies: Vec<Proxy> = (0..2).map(|_| Proxy::to(server.local_addr())).collect();
    let ports: Vec<u16> = proxies.iter().map(Proxy::port).collect();
    let relays = ports.iter();
    let relays: Vec<Relay> = relays
        .map(|port| relay_to(*port, RelayOptions::default()))
        .collect();
    let ranks = ranks_of(&relays, &ports);
    for proxy in &proxies {
        proxy.cut_after(random.u64(..), 400);
    }
    let cuts = || proxies.iter().map(Proxy::cuts).sum::<usize>();
    histories_have_an_order(&ranks, seed, |traffic| {
        wait_until("the cuts", || cuts() >= cuts_min || traffic.has_ended());
    });
    for proxy in &proxies {
        proxy.cut_after(0, 0);
    }
}

/// docs/spec/wire-extensions.md, SESSION 16: the ranks of a node read long values, which travel in pieces that they share, while
/// the relay's connection is cut.
#[test]
fn values_that_ranks_share_are_whole_over_cuts() {
    const RANKS: usize = 8;
    const ROUNDS: usize = 12;
    let server = server();
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    for seed in Seeds::fresh(3) {
        let proxy = Proxy::to(server.local_addr());
        let relay = relay_to(proxy.port(), RelayOptions::default());
        let ranks: Vec<TcpStore> = (0..RANKS).map(|_| rank_of(&relay)).collect();
        proxy.cut_after(seed, 300_000);
        let mut random = fastrand::Rng::with_seed(seed);
        thread::scope(|scope| {
            let readers = ranks.iter().map(|rank| {
                scope.spawn(move || {
                    let keys = (0..ROUNDS).map(|round| format!("{seed}/{round}"));
                    keys.map(|key| rank.get(&key).expect("get"))
                        .collect::<Vec<_>>()
                })
            });
            let readers: Vec<_> = readers.collect();
            let values = (0..ROUNDS).map(|round| {
                let mut value = vec![0; random.usize(16 << 10..500_000)];
                random.fill(&mut value);
                store.set(&format!("{seed}/{round}"), &value).expect("set");
                value
            });
            let values: Vec<Vec<u8>> = values.collect();
            for reader in readers {
                assert!(reader.join().expect("no panic") == values);
            }
        });
        assert!(proxy.cuts() > 1, "{} cuts", proxy.cuts());
        proxy.cut_after(0, 0);
    }
}

/// A store with a defect of the kind that the check is to find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Defect {
    None,
    /// Some requests are carried out twice, as if repeated after a lost reply.
    Twice,
    /// Some requests without a reply are lost, like with PyTorch's client after a loss.
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
