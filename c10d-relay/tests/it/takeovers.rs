//! A store that another process takes over, at another port: every operation takes effect once, in an order that the ranks
//! could have seen.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use c10d_relay::{Relay, RelayOptions};
use c10d_sim::Seeds;
use c10d_socket::{Cancel, Deadline, HostPort, Moment};
use c10d_store::{
    DataLost, Leader, Lookup, ServerOptions, Store, StoreAddress, StoreExt, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};

use crate::basics::{listener, rank_of, soon, wait_until};
use crate::history::Op;
use crate::memory_journal::{Candidate, Memory};
use crate::workload::{
    Clock, History, KEYS, SetAtEnd, check_all, histories_have_an_order, ranks_at,
    waits_barriers_and_queues_go_on,
};

/// How long a leader may answer after it was last confirmed.
const LEASE: Duration = Duration::from_millis(300);

const RENEWED_EVERY: Duration = Duration::from_millis(20);

/// A server that leads at epoch `LOST` is none: the store has lost data.
const LOST: u64 = u64::MAX;

/// A directory that names the leading server.
#[derive(Debug, Default)]
pub(crate) struct Directory(Mutex<Option<Leader>>);

impl Directory {
    fn set(&self, server: &TcpStoreServer, epoch: u64) {
        let port = server.local_addr().port();
        *self.0.lock().expect("no panic") = Some(Leader {
            address: HostPort::new("127.0.0.1", port),
            epoch,
        });
    }
}

impl Lookup for Directory {
    fn name(&self) -> String {
        "memory://directory".to_owned()
    }

    fn leader(
        &self,
        _: Deadline,
        _: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>> {
        match self.0.lock().expect("no panic").clone() {
            Some(Leader { epoch: LOST, .. }) => {
                Err(DataLost("etcd was restored".to_owned()).into())
            }
            leader => Ok(leader),
        }
    }
}

/// How a server stops to lead.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Kill,
    /// It is stopped for longer than its lease, and continues after another server has taken over.
    Pause,
    Shutdown,
}

/// Two servers, a leader and a standby, and relays.
struct Job {
    log: Memory,
    directory: Arc<Directory>,
    leader: (Candidate, TcpStoreServer),
    standby: (Candidate, TcpStoreServer),
    /// How many candidates there were.
    count: u64,
    /// The candidate whose engine renews its lease.
    renewed: Arc<Mutex<Option<Candidate>>>,
    relays: Vec<Relay>,
    /// Servers that were paused.
    paused: Vec<(Candidate, TcpStoreServer)>,
}

impl Job {
    fn new(relays: usize) -> Self {
        let _ = env_logger::builder().is_test(true).try_init();
        let log = Memory::default();
        let candidate = |number| {
            let candidate = log.candidate(number);
            let server = candidate.stand_by(ServerOptions::default());
            (candidate, server)
        };
        let (leader, standby) = (candidate(0), candidate(1));
        let directory = Arc::new(Directory::default());
        let mut job = Self {
            log,
            directory,
            leader,
            standby,
            count: 2,
            renewed: Arc::default(),
            relays: Vec::new(),
            paused: Vec::new(),
        };
        job.log.lead(0);
        job.begin_to_lead();
        let start = |_| Relay::start(job.address(), listener(), RelayOptions::default());
        job.relays = (0..relays).map(|it| start(it).expect("a relay")).collect();
        job
    }

    fn address(&self) -> StoreAddress {
        StoreAddress::LookedUp(Arc::clone(&self.directory) as _)
    }

    /// Three ranks behind each relay, and two clients that follow the store themselves.
    fn ranks(&self) -> Vec<TcpStore> {
        ranks_at(&self.relays, &[self.address(), self.address()])
    }

    fn begin_to_lead(&self) {
        let (candidate, server) = &self.leader;
        self.log.wait_until_led_by(candidate.number());
        self.directory.set(server, self.log.epoch());
        *self.renewed.lock().expect("no panic") = Some(candidate.clone());
    }

    /// Ends the leading server; the standby takes over. With `while_appending`, some requests were carried out but
    /// not kept.
    fn take_over(&mut self, end: End, while_appending: bool) {
        if while_appending && end != End::Shutdown {
            self.log.set_blocked(true);
            self.log.wait_until_appending();
        }
        *self.renewed.lock().expect("no panic") = None;
        let next = self.log.candidate(self.count);
        self.count += 1;
        let server = next.stand_by(ServerOptions::default());
        let standby = std::mem::replace(&mut self.standby, (next, server));
        let (old, old_server) = std::mem::replace(&mut self.leader, standby);
        let number = self.leader.0.number();
        match end {
            End::Kill => {
                self.log.lead(number);
                old.authority.end("it was killed");
            }
            End::Pause => {
                // It answers nothing while it is stopped, and finds its lease expired when it continues.
                old.authority.withdraw();
                self.log.lead(number);
                self.paused.push((old, old_server));
            }
            End::Shutdown => {
                old_server.shutdown();
                self.log.lead(number);
            }
        }
        self.begin_to_lead();
        self.log.set_blocked(false);
    }

    /// Renews the leader's lease until the flag is set.
    fn renew(renewed: &Mutex<Option<Candidate>>, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            if let Some(candidate) = &*renewed.lock().expect("no panic") {
                candidate.renew(LEASE);
            }
            thread::sleep(RENEWED_EVERY);
        }
    }
}

/// Runs while leases are renewed.
fn with_leases<T>(renewed: &Mutex<Option<Candidate>>, run: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _set = SetAtEnd(&is_over);
        scope.spawn(|| Job::renew(renewed, &is_over));
        run()
    })
}

/// docs/spec/wire-extensions.md, SESSION 12 to 15, 17 and 18.
#[test]
fn histories_with_takeovers_have_an_order() {
    for seed in Seeds::fresh(4) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut job = Job::new(2);
        let renewed = Arc::clone(&job.renewed);
        with_leases(&renewed, || {
            let ranks = job.ranks();
            histories_have_an_order(&ranks, seed, |traffic| {
                for end in [End::Kill, End::Pause, End::Shutdown, End::Kill, End::Kill] {
                    if !traffic.advance(random.u64(..80)) {
                        return;
                    }
                    job.take_over(end, random.bool());
                }
                // All have gone over.
                traffic.advance(100);
            });
        });
    }
}

#[test]
fn waits_barriers_and_queues_go_on_over_takeovers() {
    for seed in Seeds::fresh(2) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut job = Job::new(2);
        let renewed = Arc::clone(&job.renewed);
        with_leases(&renewed, || {
            let ranks = job.ranks();
            waits_barriers_and_queues_go_on(&ranks, 40, |traffic| {
                let mut takeovers = 0;
                while takeovers < 8 && traffic.advance(random.u64(..24)) {
                    let end = if takeovers == 3 {
                        End::Pause
                    } else {
                        End::Kill
                    };
                    job.take_over(end, false);
                    takeovers += 1;
                }
                assert!(takeovers > 4, "{takeovers}");
            });
        });
    }
}

/// One rank writes at the new leader. Another rank, whose relay still has its link to the old leader, then reads that
/// value.
fn read_after_a_takeover(is_checked: bool) -> Result<(), String> {
    let mut job = Job::new(1);
    let renewed = Arc::clone(&job.renewed);
    with_leases(&renewed, || {
        let (clock, mut history) = (Clock::default(), History::default());
        let rank = rank_of(&job.relays[0]);
        let mut event = |key: usize, op: &dyn Fn() -> Op| {
            let called = clock.tick();
            let op = op();
            history.add(key, op, called, clock.tick());
        };
        let set = |store: &TcpStore, value: &[u8]| {
            store.set(KEYS[1], value).expect("set");
            Op::Set(value.to_vec())
        };
        // Acknowledges what has no reply.
        let add = |store: &TcpStore| {
            let sum = store.add(KEYS[0], 1).expect("add");
            Op::Add { delta: 1, sum }
        };
        event(1, &|| set(&rank, b"old"));
        event(0, &|| add(&rank));
        if !is_checked {
            // Like a server that does not read the clock.
            let hour = Duration::from_secs(3600);
            job.leader.0.renew(hour);
        }
        let old = job.leader.0.clone();
        *job.renewed.lock().expect("no panic") = None;
        let next = job.log.candidate(job.count);
        let server = next.stand_by(ServerOptions::default());
        let standby = std::mem::replace(&mut job.standby, (next, server));
        let paused = std::mem::replace(&mut job.leader, standby);
        if is_checked {
            wait_until("the lease ends", || !old.authority.is_valid(Moment::now()));
        }
        job.log.lead(job.leader.0.number());
        job.begin_to_lead();
        let other = TcpStore::open_at(&job.address(), TcpStoreOptions::default());
        let other = other.expect("the new leader");
        event(1, &|| set(&other, b"new"));
        event(0, &|| add(&other));
        event(1, &|| Op::Get(rank.get(KEYS[1]).expect("get")));
        drop(paused);
        check_all(vec![history])
    })
}

#[test]
fn the_check_finds_a_server_that_answers_after_its_time() {
    read_after_a_takeover(true).expect("an order");
    assert!(read_after_a_takeover(false).is_err());
}

#[test]
fn a_loss_of_data_ends_a_relay_at_once() {
    let job = Job::new(1);
    let renewed = Arc::clone(&job.renewed);
    with_leases(&renewed, || {
        let rank = rank_of(&job.relays[0]);
        let waiting = thread::spawn(move || rank.get("never"));
        wait_until("it waits", || job.leader.1.waiting_count() == 1);
        job.directory.set(&job.leader.1, LOST);
        *job.renewed.lock().expect("no panic") = None;
        job.leader.0.authority.end("etcd was restored");
        waiting.join().expect("no panic").expect_err("no store");
        let ended = job.relays[0].wait_until_connected(soon(), &Cancel::NEVER);
        let error = ended.expect_err("no store").to_string();
        assert!(error.contains("etcd was restored"), "{error}");
    });
}

#[test]
fn a_relay_goes_on_though_a_silent_server_refuses_nothing() {
    let mut job = Job::new(1);
    let renewed = Arc::clone(&job.renewed);
    with_leases(&renewed, || {
        let rank = rank_of(&job.relays[0]);
        let waiting = thread::spawn(move || rank.get("later").map(|value| (rank, value)));
        wait_until("it waits", || job.leader.1.waiting_count() == 1);
        job.take_over(End::Pause, false);
        // The wait is moved without a request of the rank.
        wait_until("it waits at the new one", || {
            job.leader.1.waiting_count() == 1
        });
        let other = TcpStore::open_at(&job.address(), TcpStoreOptions::default());
        other.expect("a client").set("later", b"it").expect("set");
        let (_, value) = waiting.join().expect("no panic").expect("get");
        assert_eq!(value, b"it");
    });
}
