//! How long the ranks behind relays wait when the server that serves, or etcd's leader, is lost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::Store;
use rustix::process::Signal;

use super::candidates::Candidates;
use super::gateway::{Gateway, base64};
use super::site::Site;
use crate::child::ServerChild;
use crate::failure::Failure;
use crate::report::{Goal, Row, Unit};
use crate::servers::RelayServerArgs;
use crate::workload::setting::{Setting, open_store};

const RELAYS: usize = 2;

const RANKS_PER_RELAY: usize = 4;

/// Between two requests of a rank.
const RANK_PAUSE: Duration = Duration::from_millis(2);

/// How long the ranks are watched after a loss, besides the time until all have gone on.
const WATCHED: Duration = Duration::from_secs(4);

/// How many answers show that a rank has gone on.
const ANSWERS: u64 = 20;

/// How long servers have to watch over the one that has taken over, which they do not tell.
const SETTLING: Duration = Duration::from_secs(1);

/// How long a rank may wait for an answer, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long a bare write waits for a member: it is lost if that member forwards it to a leader that has ended.
const BARE_TIMEOUT: Duration = Duration::from_millis(200);

const BARE_PAUSE: Duration = Duration::from_millis(5);

/// The floor of the last row is the time in which etcd confirms no write to bare clients of the members that are left.
pub(super) fn pauses(setting: &Setting, site: &mut Site) -> Result<[Row; 3], Failure> {
    let rows = [
        ("pause: kill -9 of the server", Goal::AtMost(1000.0)),
        ("pause: SIGSTOP of the server", Goal::AtMost(3500.0)),
        (
            "pause: kill -9 of etcd's leader",
            Goal::AboveFloorAtMost(500.0),
        ),
    ];
    let mut rows = rows.map(|(name, goal)| {
        let mut row = Row::new(name, Unit::Milliseconds);
        row.goal = Some(goal);
        row
    });
    let mut candidates = Candidates::start(site, "c10d/pauses", setting.cores)?;
    let command = RelayServerArgs::command_line(candidates.address(), None);
    let relays: Vec<_> = (0..RELAYS)
        .map(|_| ServerChild::start_silent(&command, None))
        .collect::<Result<_, _>>()?;
    let ranks = Ranks::new(RELAYS * RANKS_PER_RELAY);
    thread::scope(|scope| {
        for rank in 0..RELAYS * RANKS_PER_RELAY {
            let (ranks, relay) = (&ranks, relays[rank / RANKS_PER_RELAY].address());
            scope.spawn(move || ranks.run(rank, relay));
        }
        let _ends = EndOnDrop(&ranks.is_over);
        ranks.go_on()?;
        for _ in 0..setting.rounds {
            let leader = candidates.take_leader()?;
            let pause = ranks.longest_wait_after(|| drop(leader))?;
            rows[0].samples.push(pause);
            refill(&mut candidates)?;

            let leader = candidates.take_leader()?;
            let stop = || leader.process().signal(Signal::STOP);
            let mut stopped = Ok(());
            let pause = ranks.longest_wait_after(|| stopped = stop())?;
            stopped?;
            rows[1].samples.push(pause);
            drop(leader);
            refill(&mut candidates)?;

            let [pause, outage] = without_etcd_leader(&ranks, site)?;
            rows[2].samples.push(pause);
            rows[2].floor.push(outage);
        }
        Ok(())
    })
    .map(|()| rows)
}

fn refill(candidates: &mut Candidates) -> Result<(), Failure> {
    candidates.refill()?;
    thread::sleep(SETTLING);
    Ok(())
}

/// The longest wait of a rank, and etcd's own outage.
fn without_etcd_leader(ranks: &Ranks, site: &mut Site) -> Result<[f64; 2], Failure> {
    let leader = site.leader()?;
    let mut left = site.clients();
    left.remove(leader);
    let writes = BareWrites::default();
    let pause = thread::scope(|scope| {
        for member in left {
            let writes = &writes;
            scope.spawn(move || writes.run(member));
        }
        let _ends = EndOnDrop(&writes.is_over);
        thread::sleep(SETTLING);
        ranks.longest_wait_after(|| {
            writes.start();
            site.kill(leader);
        })
    })?;
    site.restart(leader)?;
    thread::sleep(SETTLING);
    Ok([pause, writes.outage()?])
}

/// Ends threads of a scope, after an error too.
struct EndOnDrop<'f>(&'f AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ranks that add to a counter each, one request after another.
struct Ranks {
    ranks: Vec<Rank>,
    is_over: AtomicBool,
    /// Of the first rank that has one.
    failure: Mutex<Option<Failure>>,
}

#[derive(Default)]
struct Rank {
    answers: AtomicU64,
    longest_us: AtomicU64,
}

impl Ranks {
    fn new(count: usize) -> Self {
        Self {
            ranks: (0..count).map(|_| Rank::default()).collect(),
            is_over: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    fn run(&self, rank: usize, relay: SocketAddr) {
        if let Err(error) = self.add(rank, relay) {
            let failure = Failure::new(format!("rank {rank}: {error}"));
            self.failure().get_or_insert(failure);
        }
    }

    fn add(&self, number: usize, relay: SocketAddr) -> Result<(), Failure> {
        let store = open_store(relay, None)?;
        let key = format!("bench/pause/{number}");
        let rank = &self.ranks[number];
        let mut sum = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let start = Instant::now();
            let answer = store.add(&key, 1)?;
            let time = start.elapsed().as_micros() as u64;
            sum += 1;
            if answer != sum {
                let detail = format!("{answer} instead of {sum}");
                return Err(Failure::wrong_answer(relay, "ADD", detail));
            }
            rank.longest_us.fetch_max(time, Ordering::Relaxed);
            rank.answers.fetch_add(1, Ordering::Relaxed);
            thread::sleep(RANK_PAUSE);
        }
        Ok(())
    }

    /// In milliseconds, from a loss until all ranks have gone on.
    fn longest_wait_after(&self, loss: impl FnOnce()) -> Result<f64, Failure> {
        for rank in &self.ranks {
            rank.longest_us.store(0, Ordering::Relaxed);
        }
        loss();
        thread::sleep(WATCHED);
        self.go_on()?;
        let longest = self.ranks.iter().map(|it| &it.longest_us);
        let longest = longest.map(|it| it.load(Ordering::Relaxed)).max();
        Ok(longest.unwrap_or(0) as f64 / 1e3)
    }

    /// Waits until all ranks have got some more answers.
    fn go_on(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + TIMEOUT;
        let answers = |rank: &Rank| rank.answers.load(Ordering::Relaxed);
        let before: Vec<_> = self.ranks.iter().map(answers).collect();
        loop {
            if let Some(failure) = self.failure().take() {
                return Err(failure);
            }
            let mut ranks = self.ranks.iter().zip(&before);
            if ranks.all(|(rank, before)| answers(rank) >= before + ANSWERS) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "a rank got no answer within {TIMEOUT:?}"
                )));
            }
            thread::sleep(RANK_PAUSE);
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes of bare clients, each to a member of its own.
#[derive(Default)]
struct BareWrites {
    is_over: AtomicBool,
    confirmed: Mutex<Option<Confirmed>>,
}

#[derive(Clone, Copy)]
struct Confirmed {
    last: Instant,
    longest: Duration,
}

impl BareWrites {
    fn run(&self, member: SocketAddr) {
        let write = format!(r#"{{"key":"{0}","value":"{0}"}}"#, base64("bench"));
        let mut gateway = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let connected = match gateway.take() {
                Some(gateway) => Ok(gateway),
                None => Gateway::connect(member, BARE_TIMEOUT),
            };
            let written = connected.and_then(|mut gateway| {
                gateway.post("/v3/kv/put", &write)?;
                Ok(gateway)
            });
            if let Ok(usable) = written {
                gateway = Some(usable);
                self.confirm(Instant::now());
            }
            thread::sleep(BARE_PAUSE);
        }
    }

    /// Forgets what was before now.
    fn start(&self) {
        *self.confirmed() = Some(Confirmed {
            last: Instant::now(),
            longest: Duration::ZERO,
        });
    }

    fn confirm(&self, now: Instant) {
        if let Some(confirmed) = &mut *self.confirmed() {
            let pause = now.saturating_duration_since(confirmed.last);
            confirmed.longest = confirmed.longest.max(pause);
            confirmed.last = now;
        }
    }

    /// The longest time without a write, in milliseconds.
    fn outage(&self) -> Result<f64, Failure> {
        let confirmed = *self.confirmed();
        let confirmed = confirmed.ok_or_else(|| Failure::new("etcd confirms no write"))?;
        Ok(confirmed.longest.as_secs_f64() * 1e3)
    }

    fn confirmed(&self) -> MutexGuard<'_, Option<Confirmed>> {
        self.confirmed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
