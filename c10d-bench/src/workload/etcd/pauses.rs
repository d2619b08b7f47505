//! Measures how long the ranks behind relays wait when the leading server is lost.

use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{Store, TcpStore};
use rustix::process::Signal;

use super::candidates::Candidates;
use super::site::Site;
use crate::child::ServerChild;
use crate::failure::Failure;
use crate::report::{Goal, Row, Unit};
use crate::servers::RelayServerArgs;
use crate::workload::setting::{Setting, open_store};

const RELAYS: usize = 2;

const RANKS_PER_RELAY: usize = 4;

/// The pause between two requests of a rank.
const RANK_PAUSE: Duration = Duration::from_millis(2);

/// How long the ranks are watched, and how long of that before the loss.
const WATCHED: Duration = Duration::from_secs(5);
const BEFORE: Duration = Duration::from_secs(1);

/// How long standby servers have to start watching a new leader, which they do not report.
const SETTLING: Duration = Duration::from_secs(1);

/// A server is killed, and then one is stopped, in each round.
pub(super) fn pauses(setting: &Setting, site: &Site) -> Result<[Row; 2], Failure> {
    let rows = [
        ("pause: kill -9 of the server", 1000.0),
        ("pause: SIGSTOP of the server", 3500.0),
    ];
    let mut rows = rows.map(|(name, most)| {
        let mut row = Row::new(name, Unit::Milliseconds);
        row.goal = Some(Goal::AtMost(most));
        row
    });
    let mut candidates = Candidates::start(site, "c10d/pauses", setting.cores)?;
    let command = RelayServerArgs::command_line(candidates.address(), None);
    let relays: Vec<_> = (0..RELAYS)
        .map(|_| ServerChild::start_silent(&command, None))
        .collect::<Result<_, _>>()?;
    let ranks: Vec<_> = (0..RELAYS * RANKS_PER_RELAY)
        .map(|rank| open_store(relays[rank / RANKS_PER_RELAY].address(), None))
        .collect::<Result<_, _>>()?;
    for _ in 0..setting.rounds {
        for (row, signal) in rows.iter_mut().zip([Signal::KILL, Signal::STOP]) {
            let leader = candidates.take_leader()?;
            let lose = || leader.process().signal(signal);
            row.samples.push(longest_wait_after(lose, &ranks)?);
            drop(leader);
            candidates.refill()?;
            thread::sleep(SETTLING);
        }
    }
    Ok(rows)
}

/// The longest wait of any rank, in milliseconds.
fn longest_wait_after(
    lose: impl FnOnce() -> Result<(), Failure>,
    ranks: &[TcpStore],
) -> Result<f64, Failure> {
    let longest = thread::scope(|scope| {
        let waits: Vec<_> = (0..)
            .zip(ranks)
            .map(|(number, rank)| scope.spawn(move || longest_wait(number, rank)))
            .collect();
        thread::sleep(BEFORE);
        let lost = lose();
        let panicked = |_| Err(Failure::new("the thread of a rank panicked"));
        let waits = waits
            .into_iter()
            .map(|wait| wait.join().unwrap_or_else(panicked));
        let longest = waits.collect::<Result<Vec<_>, _>>()?.into_iter().max();
        lost.map(|()| longest.unwrap_or_default())
    })?;
    Ok(longest.as_secs_f64() * 1e3)
}

/// A rank adds to its own counter, one request after another.
fn longest_wait(number: usize, rank: &TcpStore) -> Result<Duration, Failure> {
    let key = format!("bench/pause/{number}");
    let mut sum = rank.add(&key, 0)?;
    let mut longest = Duration::ZERO;
    let end = Instant::now() + WATCHED;
    while Instant::now() < end {
        let start = Instant::now();
        let answer = rank.add(&key, 1)?;
        longest = longest.max(start.elapsed());
        sum += 1;
        if answer != sum {
            let text = format!("rank {number} got {answer} instead of {sum}");
            return Err(Failure::new(text));
        }
        thread::sleep(RANK_PAUSE);
    }
    Ok(longest)
}
