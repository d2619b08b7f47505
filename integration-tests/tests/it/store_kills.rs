//! A store process that is killed under load and goes on from its directory: every operation takes effect once, in an
//! order that the ranks could have seen.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use c10d_relay::{HostPort, Relay, RelayOptions};
use c10d_sim::Seeds;
use c10d_store::{StoreExt, TcpStore, TcpStoreOptions};
use integration_tests::durable_store::DurableStore;
use integration_tests::watchdog::Watchdog;
use tempfile::TempDir;

use crate::workload::{
    SetAtEnd, Traffic, histories_have_an_order, ranks_of, waits_barriers_and_queues_go_on,
};

/// Those of one history.
const KILLS: u64 = 20;

/// Without `C10D_KILLS`.
const KILLS_DEFAULT: u64 = 40;

/// Longer than a history with outages of 20 s takes.
const HISTORY_LIMIT: Duration = Duration::from_secs(600);

/// A store, and the relays of two nodes.
struct Job {
    _folder: TempDir,
    store: DurableStore,
    relays: Vec<Relay>,
    random: fastrand::Rng,
}

impl Job {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DurableStore::start(&folder.path().join("store"), &[]);
        let relay = |()| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let target = HostPort::new("127.0.0.1", store.address().port());
            let relay = Relay::start(target, vec![listener], RelayOptions::default());
            relay.expect("a relay")
        };
        Self {
            relays: [(), ()].map(relay).into(),
            _folder: folder,
            store,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Six ranks behind the relays, and two clients with sessions of their own.
    fn ranks(&self) -> Vec<TcpStore> {
        let port = self.store.address().port();
        ranks_of(&self.relays, &[port, port])
    }

    /// Kills the store `KILLS` times, after so many calls and returns at most, and starts it again.
    fn kill_and_restart(&mut self, traffic: &Traffic, ticks_max: u64) -> u64 {
        let mut kills = 0;
        while kills < KILLS && traffic.advance(self.random.u64(..ticks_max)) {
            self.store.kill();
            kills += 1;
            thread::sleep(self.outage());
            if self.random.u8(..8) == 0 {
                // While it reads what it has kept, or when the first session is back.
                let time = Duration::from_millis(self.random.u64(..60));
                self.store.restart_and_kill_after(time);
                kills += 1;
            }
            self.store.restart();
        }
        kills
    }

    /// Mostly none, rarely as long as a relay tolerates.
    fn outage(&mut self) -> Duration {
        let longest = if is_long_run() { 20_000 } else { 1_000 };
        Duration::from_millis(match self.random.u8(..40) {
            0 => self.random.u64(..=longest),
            1..16 => self.random.u64(..300),
            _ => 0,
        })
    }
}

/// How often the store is to be killed.
fn kills_wanted() -> Option<u64> {
    let kills = std::env::var("C10D_KILLS");
    kills.ok().and_then(|kills| kills.parse().ok())
}

fn is_long_run() -> bool {
    kills_wanted().is_some()
}

/// docs/spec/wire-extensions.md, SESSION 12 to 15.
#[test]
#[expect(clippy::print_stderr, reason = "how far a long run is")]
fn histories_with_kills_of_the_store_have_an_order() {
    let mut kills = 0;
    for seed in Seeds::fresh(kills_wanted().unwrap_or(KILLS_DEFAULT).div_ceil(KILLS)) {
        let name = "histories_with_kills_of_the_store_have_an_order";
        let _watchdog = Watchdog::start(name, HISTORY_LIMIT);
        eprintln!("SEED={seed} ({kills} kills before it)");
        let mut job = Job::new(seed);
        let ranks = job.ranks();
        let has_snapshots = is_long_run() && job.random.u8(..4) == 0;
        let port = job.store.address().port();
        let mut history = || {
            histories_have_an_order(&ranks, seed, |traffic| {
                kills += job.kill_and_restart(traffic, 80);
            });
        };
        if has_snapshots {
            beside_long_writes(port, history);
        } else {
            history();
        }
    }
    eprintln!("{kills} kills");
}

/// Has the journal grow, so that it writes snapshots.
fn beside_long_writes(port: u16, body: impl FnOnce()) {
    let options = TcpStoreOptions::default().with_resume(Duration::from_secs(60));
    let store = TcpStore::open("127.0.0.1", port, options).expect("a client");
    let value = vec![7; 2 << 20];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                store.set("long", &value).expect("set");
                store.ping().expect("ping");
            }
        });
        let _is_over = SetAtEnd(&is_over);
        body();
    });
}

#[test]
fn waits_barriers_and_queues_go_on_over_kills_of_the_store() {
    let histories = kills_wanted().map_or(1, |kills| (kills / KILLS / 10).max(1));
    for seed in Seeds::fresh(histories) {
        let name = "waits_barriers_and_queues_go_on_over_kills_of_the_store";
        let _watchdog = Watchdog::start(name, HISTORY_LIMIT);
        let mut job = Job::new(seed);
        let ranks = job.ranks();
        waits_barriers_and_queues_go_on(&ranks, 40, |traffic| {
            let kills = job.kill_and_restart(traffic, 16);
            assert!(kills > KILLS / 2, "{kills}");
        });
    }
}
