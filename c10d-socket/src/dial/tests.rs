//! Tests of the dial plan in virtual time.

use std::error::Error;

use super::*;
use crate::BackoffOptions;

const REFUSED: io::ErrorKind = io::ErrorKind::ConnectionRefused;

/// A plan, the virtual time, and each attempt with its time.
struct World {
    plan: DialPlan,
    started: Instant,
    now: Instant,
    tries: Vec<(SocketAddr, Duration)>,
}

impl World {
    fn new(limit: Duration, seed: u64) -> Self {
        let now = Instant::now();
        let backoff = Backoff::new(BackoffOptions::default(), seed);
        let target = HostPort::new("node0", 29500);
        let deadline = Deadline::after(now, limit);
        Self {
            plan: DialPlan::new(target, backoff, now, deadline),
            started: now,
            now,
            tries: Vec::new(),
        }
    }

    fn elapsed(&self) -> Duration {
        self.now - self.started
    }

    /// Runs until `outcome` returns `None` (the attempt succeeds) or the plan fails. `outcome` gets
    /// the time limit of an attempt, and returns how long it takes and how it fails.
    fn run(
        &mut self,
        addresses: &[SocketAddr],
        mut outcome: impl FnMut(SocketAddr, Duration) -> Option<(Duration, io::ErrorKind)>,
    ) -> Result<SocketAddr, ConnectError> {
        loop {
            match self.plan.step(self.now) {
                Step::LookUp { .. } => self.plan.looked_up(addresses.to_vec()),
                Step::Connect { address, by } => {
                    let time = by.remaining(self.now).unwrap();
                    self.tries.push((address, self.elapsed()));
                    let Some((taken, kind)) = outcome(address, time) else {
                        self.plan.connected();
                        return Ok(address);
                    };
                    assert!(taken <= time);
                    self.now += taken;
                    self.plan.connect_failed(self.now, kind.into());
                }
                Step::Pause { until } => {
                    assert!(until > self.now, "a delay ends later than now");
                    self.now = until;
                }
                Step::GiveUp(error) => return Err(error),
            }
        }
    }
}

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 29500))
}

#[test]
fn a_refusing_server_is_retried_until_the_deadline() {
    for seed in 0..100 {
        for limit_ms in [1, 50, 500, 5_000, 60_000] {
            let limit = Duration::from_millis(limit_ms);
            let mut world = World::new(limit, seed);
            let error = world
                .run(&[address(1)], |_, _| Some((Duration::ZERO, REFUSED)))
                .unwrap_err();
            let case = format!("seed {seed}, limit {limit:?}: {error}");
            assert!(error.is_timeout(), "{case}");
            assert!(error.elapsed() <= limit, "{case}");
            assert!(error.elapsed() >= limit * 9 / 10, "{case}");
            let (_, last_try) = world.tries[world.tries.len() - 1];
            assert_eq!(
                error.elapsed(),
                last_try,
                "the plan ends with an attempt: {case}"
            );
            assert_eq!(error.rounds(), world.tries.len() as u64, "{case}");
            assert_eq!(error.failures()[0].count(), error.rounds(), "{case}");
        }
    }
}

#[test]
fn a_server_that_starts_late_is_found_soon() {
    for seed in 0..100 {
        for up_ms in [1, 30, 300, 3_000, 30_000] {
            let up = Duration::from_millis(up_ms);
            let mut world = World::new(Duration::from_secs(300), seed);
            let started = world.started;
            let mut found = None;
            while found.is_none() {
                match world.plan.step(world.now) {
                    Step::LookUp { .. } => world.plan.looked_up(vec![address(1)]),
                    Step::Connect { .. } if world.now - started >= up => found = Some(world.now),
                    Step::Connect { .. } => world.plan.connect_failed(world.now, REFUSED.into()),
                    Step::Pause { until } => world.now = until,
                    Step::GiveUp(error) => panic!("seed {seed}: {error}"),
                }
            }
            let late = world.elapsed() - up;
            // A delay is at most 1.5 intervals, and the earlier intervals add up to twice the last.
            let allowed =
                (up * 3 / 2).min(Duration::from_millis(7_500)) + Duration::from_millis(30);
            assert!(
                late <= allowed,
                "seed {seed}: up at {up:?}, found {late:?} late"
            );
        }
    }
}

#[test]
fn permanent_errors_fail_at_once() {
    let mut world = World::new(Duration::from_secs(60), 1);
    let error = world
        .run(&[address(1), address(2)], |_, _| {
            Some((Duration::ZERO, io::ErrorKind::PermissionDenied))
        })
        .unwrap_err();
    assert!(!error.is_timeout());
    assert_eq!((error.rounds(), error.elapsed()), (1, Duration::ZERO));
    let stages: Vec<_> = error.failures().iter().map(DialFailure::stage).collect();
    let expected = [address(1), address(2)].map(DialStage::Connect);
    assert_eq!(stages, expected);
    assert!(error.source().is_some());
}

#[test]
fn one_transient_failure_makes_the_round_retry() {
    let mut world = World::new(Duration::from_secs(60), 1);
    let found = world.run(&[address(1), address(2)], {
        let mut tries = 0;
        move |to, _| {
            tries += 1;
            match to {
                _ if to == address(1) => Some((Duration::ZERO, io::ErrorKind::NetworkUnreachable)),
                _ if tries < 6 => Some((Duration::ZERO, REFUSED)),
                _ => None,
            }
        }
    });
    assert_eq!(found.unwrap(), address(2));
    let order: Vec<_> = world.tries.iter().map(|(to, _)| *to).collect();
    assert_eq!(order, [address(1), address(2)].repeat(3));
}

#[test]
fn an_unanswered_address_leaves_time_for_the_others() {
    let limit = Duration::from_secs(6);
    let mut world = World::new(limit, 1);
    let addresses = [address(1), address(2), address(3)];
    let found = world.run(&addresses, |to, time| {
        (to != address(3)).then_some((time, io::ErrorKind::TimedOut))
    });
    assert_eq!(found.unwrap(), address(3));
    let starts: Vec<_> = world.tries.iter().map(|(_, at)| at.as_secs()).collect();
    assert_eq!(starts, [0, 2, 4]);
}

#[test]
fn unanswered_addresses_use_exactly_the_time_limit() {
    let limit = Duration::from_secs(25);
    let mut world = World::new(limit, 1);
    let error = world
        .run(&[address(1)], |_, time| {
            Some((time, io::ErrorKind::TimedOut))
        })
        .unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(
        error.elapsed(),
        limit,
        "the last attempt has all the remaining time"
    );
    assert_eq!(error.rounds(), 3, "no attempt is longer than 10 s");
}

#[test]
fn a_deadline_in_the_past_still_gets_one_round() {
    let mut world = World::new(Duration::ZERO, 1);
    let error = world
        .run(&[address(1), address(2)], |_, time| {
            assert_eq!(time, Duration::ZERO);
            Some((Duration::ZERO, REFUSED))
        })
        .unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(world.tries.len(), 2, "each address once");
}

#[test]
fn a_failed_lookup_is_retried() {
    let mut world = World::new(Duration::from_secs(1), 1);
    let mut lookups = 0;
    let error = loop {
        match world.plan.step(world.now) {
            Step::LookUp { .. } => {
                lookups += 1;
                let error = io::Error::other("no such name");
                world.plan.lookup_failed(world.now, error);
            }
            Step::Pause { until } => world.now = until,
            Step::GiveUp(error) => break error,
            Step::Connect { .. } => panic!("no lookup succeeded"),
        }
    };
    assert!(error.is_timeout());
    assert!(lookups > 3);
    assert_eq!(error.failures()[0].stage(), DialStage::Lookup);
    assert_eq!(error.failures()[0].count(), lookups);
}

#[test]
fn a_failed_handshake_continues_with_the_next_address_then_the_backoff() {
    let mut world = World::new(Duration::from_secs(10), 1);
    let addresses = [address(1), address(2)];
    for expected in [address(1), address(2), address(1)] {
        assert_eq!(world.run(&addresses, |_, _| None).unwrap(), expected);
        let error = io::ErrorKind::UnexpectedEof.into();
        world.plan.handshake_failed(world.now, error);
    }
    let times: Vec<_> = world.tries.iter().map(|(_, at)| at.is_zero()).collect();
    assert_eq!(times, [true, true, false], "delays only separate rounds");

    let error = loop {
        match world.run(&addresses, |_, _| None) {
            Ok(_) => {
                let error = io::ErrorKind::UnexpectedEof.into();
                world.plan.handshake_failed(world.now, error);
            }
            Err(error) => break error,
        }
    };
    assert!(error.is_timeout());
    assert!(error.elapsed() <= Duration::from_secs(10));
    assert!(matches!(
        error.failures(),
        [first, second] if matches!(first.stage(), DialStage::Handshake(_))
            && matches!(second.stage(), DialStage::Handshake(_))
    ));
}

#[test]
fn a_failed_plan_stays_failed() {
    let mut world = World::new(Duration::from_secs(60), 1);
    let denied = |_, _| Some((Duration::ZERO, io::ErrorKind::PermissionDenied));
    world.run(&[address(1)], denied).unwrap_err();
    world.now += Duration::from_secs(100);
    let again = world.run(&[address(1)], |_, _| None).unwrap_err();
    assert!(!again.is_timeout(), "the first reason stays");
    assert_eq!(world.tries.len(), 1);
}

#[test]
fn without_a_deadline_the_plan_keeps_trying() {
    let mut world = World::new(Duration::MAX, 1);
    let mut tries = 0;
    let found = world.run(&[address(1)], |_, time| {
        assert_eq!(time, TRY_TIME_MAX);
        tries += 1;
        (tries < 10_000).then_some((time, REFUSED))
    });
    assert!(found.is_ok());
}

#[test]
fn the_ledger_is_bounded_and_counts_removed_entries() {
    let mut ledger = Ledger::default();
    for host in 0..20 {
        ledger.record(DialStage::Connect(address(host)), REFUSED.into());
        ledger.record(DialStage::Connect(address(host)), REFUSED.into());
    }
    assert_eq!(ledger.failures.len(), FAILURES_MAX);
    assert_eq!(ledger.forgotten, 8);
    let kept: u64 = ledger.failures.iter().map(|each| each.count).sum();
    assert_eq!(kept + ledger.forgotten, 40);
}

#[test]
fn progress_messages_become_rarer() {
    let start = Instant::now();
    let mut notice = Notice::new(start);
    let taken: Vec<u64> = (0..300)
        .filter(|second| notice.take(start + Duration::from_secs(*second)))
        .collect();
    assert_eq!(taken, [1, 3, 7, 15, 31, 63, 123, 183, 243]);
}

#[test]
fn one_round_tries_each_address_once_without_delay() {
    let addresses = ["10.0.0.1:1", "10.0.0.2:1"].map(|text| text.parse().unwrap());
    let mut world = World::new(Duration::from_secs(60), 1);
    world.plan = world.plan.with_rounds_max(1);
    let result = world.run(&addresses, |_, _| Some((Duration::ZERO, REFUSED)));
    let error = result.unwrap_err();
    assert_eq!((world.tries.len(), world.elapsed()), (2, Duration::ZERO));
    assert!(error.is_refused() && !error.is_timeout());
}
