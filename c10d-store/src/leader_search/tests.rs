//! Searches in virtual time, through takeovers at random moments.

use c10d_socket::HostPort;
use fastrand::Rng;

use super::*;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The longest time of a search after a server has begun to lead permanently: an attempt at the previous server that has just
/// begun, two lookups, and an attempt.
const LATE_MAX: Duration = LOOKUP_INTERVAL
    .saturating_add(LOOKUP_TIME_MAX.saturating_mul(2))
    .saturating_add(ANSWER_TIME_MAX);

const LOOKUP_TIME_MAX: Duration = millis(400);
const ANSWER_TIME_MAX: Duration = millis(300);

/// The fault of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its machine refuses connections.
    Killed,
    /// It sends no answer, for example because its process is stopped or its host is isolated.
    Silent,
    /// It leads permanently.
    None,
}

/// A server while it leads. It is listed until the next one is, or none is.
#[derive(Debug)]
struct Reign {
    leads_from: Duration,
    ends_at: Duration,
    end: End,
    listed_until: Duration,
}

#[derive(Debug)]
struct World {
    reigns: Vec<Reign>,
}

impl World {
    /// Takeovers at random moments: a lease of `ttl` may outlive its server.
    fn random(rng: &mut Rng, ttl: Duration) -> Self {
        let mut reigns: Vec<Reign> = Vec::new();
        let mut now = Duration::ZERO;
        for _ in 0..rng.u64(1..4) {
            let leads_from = now;
            let ends_at = leads_from + millis(rng.u64(0..3000));
            let end = [End::Killed, End::Silent][rng.usize(0..2)];
            let listed_until = ends_at + ttl.mul_f64(rng.f64());
            reigns.push(Reign {
                leads_from,
                ends_at,
                end,
                listed_until,
            });
            // There may be a time without a leader.
            now = listed_until + millis(rng.u64(0..800) * rng.u64(0..2));
        }
        reigns.push(Reign {
            leads_from: now,
            ends_at: Duration::MAX,
            end: End::None,
            listed_until: Duration::MAX,
        });
        Self { reigns }
    }

    fn leader(&self, at: Duration) -> Option<Leader> {
        let is_listed = |reign: &Reign| reign.leads_from <= at && at < reign.listed_until;
        let index = self.reigns.iter().rposition(is_listed)?;
        Some(Leader {
            address: HostPort::new("host", 1),
            epoch: index as u64,
        })
    }

    /// The end of an attempt that begins at this time, and whether it succeeds, if nothing else ends it.
    fn attempt(&self, leader: &Leader, at: Duration, answer: Duration) -> (Duration, bool) {
        let reign = &self.reigns[usize::try_from(leader.epoch).unwrap()];
        match reign.end {
            _ if at + answer <= reign.ends_at => (at + answer, true),
            End::Killed => (at.max(reign.ends_at) + millis(1), false),
            End::Silent | End::None => (Duration::MAX, false),
        }
    }
}

/// Carries the search out as the shell does. Returns when it has ended, and whether the leader is reached.
fn run(
    rng: &mut Rng,
    world: &World,
    search: &mut LeaderSearch,
    begin: Duration,
    timeout: Duration,
) -> (Duration, bool) {
    let zero = Instant::now();
    let deadline = Deadline::after(zero + begin, timeout);
    let since_zero = |at: Instant| at - zero;
    let ends = |by: Deadline| by.instant().map_or(Duration::MAX, since_zero);
    let mut now = begin;
    search.start();
    loop {
        match search.step(zero + now, deadline) {
            Step::LookUp { by } => {
                let asked = now + LOOKUP_TIME_MAX.mul_f64(rng.f64() / 2.0);
                now = (now + LOOKUP_TIME_MAX.mul_f64(0.5 + rng.f64() / 2.0)).min(ends(by).max(now));
                search.looked_up(world.leader(asked.min(now)), zero + now);
            }
            Step::Try { leader, by } => {
                let answer = ANSWER_TIME_MAX.mul_f64(rng.f64());
                let (ended, mut is_reached) = world.attempt(&leader, now, answer);
                let mut over = ended.min(ends(by).max(now));
                is_reached &= ended == over;
                let mut asked = now + LOOKUP_INTERVAL;
                let mut other = None;
                while asked < over {
                    let found = world.leader(asked).filter(|found| is_other(&leader, found));
                    let told = asked + LOOKUP_TIME_MAX.mul_f64(rng.f64());
                    if found.is_some() && told < over {
                        (other, over, is_reached) = (found, told, false);
                    }
                    asked = told + LOOKUP_INTERVAL;
                }
                now = over;
                if is_reached {
                    search.reached();
                    return (now, true);
                }
                search.failed(other, zero + now);
            }
            Step::Pause { until } => now = since_zero(until),
            Step::GiveUp => return (now, false),
        }
    }
}

#[test]
fn a_search_through_takeovers_ends_soon_after_the_last_one() {
    let mut rng = Rng::with_seed(c10d_sim::seed());
    for round in 0..20_000 {
        let ttl = millis(rng.u64(500..5000));
        let world = World::random(&mut rng, ttl);
        let last = world.reigns.last().unwrap().leads_from;
        let begin = millis(rng.u64(0..last.as_millis() as u64 + 1000));
        let mut search = LeaderSearch::new(rng.u64(..));
        let limit = last.saturating_sub(begin) + LATE_MAX;
        let (ended, is_reached) = run(&mut rng, &world, &mut search, begin, limit);
        assert!(
            is_reached,
            "round {round}: {ended:?} from {begin:?}: {world:?}"
        );

        // A client continues its session in this way after a lost connection.
        let (again, is_reached) = run(&mut rng, &world, &mut search, ended, limit);
        assert!(
            is_reached,
            "round {round}: {again:?} from {ended:?}: {world:?}"
        );
    }
}

#[test]
fn a_search_ends_at_its_deadline() {
    let mut rng = Rng::with_seed(c10d_sim::seed());
    for end in [End::Killed, End::Silent] {
        let world = World {
            reigns: vec![Reign {
                leads_from: Duration::ZERO,
                ends_at: Duration::ZERO,
                end,
                listed_until: millis(3000),
            }],
        };
        for timeout in [0, 1, 250, 5000, 60_000].map(millis) {
            let mut search = LeaderSearch::new(0);
            let (ended, is_reached) = run(&mut rng, &world, &mut search, millis(500), timeout);
            assert!(!is_reached);
            let late = ended - millis(500);
            assert!(late >= timeout && late <= timeout + millis(1), "{late:?}");
        }
    }
}

/// Thousands of clients may come back to a server at once: each has time for its handshake.
#[test]
fn an_attempt_at_a_new_leader_has_time_and_further_ones_more_each() {
    let now = Instant::now();
    let mut search = LeaderSearch::new(0);
    let leader = |epoch| Leader {
        address: HostPort::new("host", 1),
        epoch,
    };
    let time_of = |search: &mut LeaderSearch, epoch| {
        search.looked_up(Some(leader(epoch)), now);
        let Step::Try { by, .. } = search.step(now, Deadline::NEVER) else {
            panic!("no attempt");
        };
        let time = by.remaining(now).unwrap().as_secs();
        search.failed(None, now);
        time
    };
    let times = [7, 7, 7, 7, 7, 7, 8, 8].map(|epoch| time_of(&mut search, epoch));
    assert_eq!(times, [10, 1, 2, 4, 8, 10, 10, 1]);
    search.reached();
    assert_eq!(time_of(&mut search, 8), 1);
}
