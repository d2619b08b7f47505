//! Generated jobs of 2 to 64 ranks with mixed activities, some with old or missing evidence. The law: a verdict names
//! only ranks that the generator broke, and there is no alarm while a rank computes.
//!
//! `SEED=n` repeats a job, `ROUNDS=n` generates n jobs.

use std::collections::{BTreeMap, BTreeSet};

use c10d_sim::Seeds;
use fastrand::Rng;

use super::fixtures::{Observed, in_c10d, node};
use super::{Evidence, RankEvidence, Seen, StoreWait, Verdict, judge};
use crate::announced::AnnouncedNode;
use crate::report::ReportState;

const ROUNDS: u64 = 4_000;

/// A job, and the truth about it.
#[derive(Debug)]
struct World {
    ranks: BTreeMap<usize, Rank>,
    /// The broken ranks: a verdict can name each of them.
    broken: BTreeSet<usize>,
    /// The ranks that compute, read or write, and do not wait.
    at_work: BTreeSet<usize>,
    /// Whether the broken ranks are the reason why all other ranks wait.
    is_blocked: bool,
    /// Whether the job makes progress, or will make progress.
    is_healthy: bool,
}

#[derive(Debug, Clone)]
struct Rank {
    observed: Observed,
    store_wait: Option<StoreWait>,
}

impl From<Observed> for Rank {
    fn from(observed: Observed) -> Self {
        Self {
            observed,
            store_wait: None,
        }
    }
}

/// Picks from only a few lines, so that some ranks are at the same line.
fn line(rng: &mut Rng) -> u32 {
    40 + rng.u32(0..3)
}

fn computing(rng: &mut Rng) -> Observed {
    let line = line(rng);
    match rng.u8(0..5) {
        0 => Observed::busy(&format!(
            "train.py:90 <module> > torch/nn/functional.py:{line} linear"
        )),
        // The rank pickles objects, and does not wait.
        1 => Observed::busy(&format!(
            "{} > python3.11/pickle.py:{line} dump",
            in_c10d("all_gather_object", 41)
        )),
        2 => Observed::quiet("write", "train.py:90 <module> > save.py:9 save").with(|it| {
            it.sample.idle_ms = 0;
            it.sample.io_bytes_per_second = 1 << 24;
        }),
        // The worker processes of the rank's DataLoader are at work.
        3 => Observed::quiet(
            "poll",
            "train.py:90 <module> > torch/utils/data/dataloader.py:3 _get_data",
        )
        .with(|it| {
            it.sample.idle_ms = 0;
            it.sample.others_cpu_percent = 90;
        }),
        _ => Observed::busy(&format!("train.py:90 <module> > train.py:{line} compute")),
    }
}

fn broken(rng: &mut Rng) -> Observed {
    let at = |file: &str| format!("train.py:90 <module> > {file}.py:17 load");
    let in_state = |state: char| {
        Observed::quiet("read", &at("loader")).with(|it| it.sample.state = Some(state))
    };
    match rng.u8(0..8) {
        0 => in_state('T'),
        1 => in_state('t'),
        2 => in_state('D'),
        3 => Observed::quiet(
            "read",
            "train.py:9 main > python3.11/pdb.py:380 interaction",
        ),
        4 => Observed::quiet(
            "poll",
            "train.py:90 <module> > torch/utils/data/dataloader.py:3 _get_data",
        )
        .with(|it| it.sample.dead_children = vec![9]),
        5 => Observed::quiet("flock", &at("cache")),
        6 => in_state('T').with(|it| {
            it.stacks = None;
            it.stacks_before = None;
        }),
        _ => Observed::quiet("read", &at("loader")),
    }
}

/// A rank that waits for another rank in a way that its stack does not show.
fn waiting_unseen(rng: &mut Rng) -> Observed {
    match rng.u8(0..4) {
        0 => Observed::quiet(
            "clock_nanosleep",
            "train.py:90 <module> > wait.py:3 until_there",
        ),
        1 => Observed::quiet("recvfrom", "train.py:90 <module> > torch/zmq.py:3 recv"),
        // It was stopped and continued.
        2 => Observed::quiet(
            "restart_syscall",
            "train.py:90 <module> > train.py:61 wait_for_work",
        ),
        _ => Observed::quiet("futex", "train.py:90 <module> > train.py:61 wait_for_work"),
    }
}

fn waiting(rng: &mut Rng) -> Observed {
    let function = *rng
        .choice(&["all_reduce", "broadcast", "barrier", "recv", "new_group"])
        .expect("a choice");
    Observed::waits(function, line(rng))
}

/// A rank that waits for a key of the store, which another rank should write.
fn in_store(age_ms: u64) -> Rank {
    Rank {
        observed: Observed::quiet("recvfrom", "train.py:90 <module> > train.py:70 wait"),
        store_wait: Some(StoreWait {
            meaning: "the key x".to_owned(),
            age_ms,
            is_new: age_ms < 2_000,
        }),
    }
}

/// Makes the main thread use the CPU while it waits.
fn spinning(observed: Observed) -> Observed {
    observed.with(|it| {
        it.sample.quiet_ms = 0;
        it.sample.cpu_percent = 100;
    })
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        // Most jobs are small, so that there are many.
        let size = match rng.u8(0..4) {
            0 => rng.usize(2..=64),
            _ => rng.usize(2..=8),
        };
        let mut world = Self {
            ranks: BTreeMap::new(),
            broken: BTreeSet::new(),
            at_work: BTreeSet::new(),
            is_blocked: false,
            is_healthy: false,
        };
        let one_call = waiting(rng);
        let kind = rng.u8(0..11);
        let first = rng.usize(0..size);
        let few: BTreeSet<usize> = (0..rng.usize(1..=1 + size / 4))
            .map(|offset| (first + offset * 3) % size)
            .collect();
        for rank in 0..size {
            let is_one = few.contains(&rank);
            let waits = match rng.u8(0..20) {
                0 => in_store(rng.u64(31_000..90_000)),
                1 if kind != 5 => waiting(rng).into(),
                _ => one_call.clone().into(),
            };
            let state: Rank = match (kind, is_one) {
                // Some ranks are blocked, and the other ranks wait.
                (0 | 1, true) => {
                    world.broken.insert(rank);
                    broken(rng).into()
                }
                // Some ranks compute, and the other ranks wait.
                (2, true) => {
                    world.at_work.insert(rank);
                    computing(rng).into()
                }
                // All ranks compute.
                (3, _) => {
                    world.at_work.insert(rank);
                    computing(rng).into()
                }
                // Some ranks call other collectives than most ranks.
                (4, true) => waiting(rng).into(),
                // All ranks are in one collective.
                (5, _) => one_call.clone().into(),
                // Some ranks have exited too early.
                (6, true) => {
                    world.broken.insert(rank);
                    Observed::left().into()
                }
                // Some ranks are blocked. The other ranks compute, or wait for them in ways that are not visible.
                (7, true) => {
                    world.broken.insert(rank);
                    broken(rng).into()
                }
                (7, false) if rng.u8(0..4) == 0 => {
                    world.at_work.insert(rank);
                    computing(rng).into()
                }
                // Two threads of some ranks wait for each other.
                (10, true) => {
                    world.broken.insert(rank);
                    Observed::quiet("futex", "train.py:90 <module> > train.py:33 save")
                        .thread("train.py:7 flush")
                        .into()
                }
                (1 | 7 | 8 | 10, false) if rng.u8(0..3) == 0 => waiting_unseen(rng).into(),
                // Ranks that use NCCL call collectives in a loop.
                (8, _) => spinning(one_call.clone()).into(),
                // Members join and leave. New members have no second sample yet, and are at work.
                (9, true) => {
                    world.at_work.insert(rank);
                    let mut new = computing(rng);
                    new.stacks_before = None;
                    new.into()
                }
                _ => waits,
            };
            world.ranks.insert(rank, state);
        }
        let waits = world.ranks.len() - world.broken.len();
        world.is_blocked = matches!(kind, 0 | 6) && waits > 0;
        world.is_healthy = matches!(kind, 2 | 3 | 8 | 9);
        world
    }

    /// A rank that waits has been seen elsewhere before, has moved since, or waits for a short time. A thread of a rank
    /// at work waits in the store.
    fn disturb(&mut self, rng: &mut Rng) -> bool {
        let mut is_disturbed = false;
        let disturbs = rng.u8(0..4) == 0;
        for (place, rank) in self.ranks.iter_mut().filter(|_| disturbs) {
            let sample = &mut rank.observed.sample;
            match rng.u8(0..30) {
                0 => rank.observed.stacks_before = None,
                1 => {
                    sample.quiet_ms = sample.quiet_ms.min(6_000);
                    sample.idle_ms = sample.idle_ms.min(6_000);
                }
                2 if rank.observed.stacks.is_some() => {
                    rank.observed.stacks_before = Some(vec!["train.py:3 before".to_owned()]);
                }
                3 if self.at_work.contains(place) => {
                    rank.store_wait = in_store(rng.u64(0..12_000)).store_wait;
                }
                _ => continue,
            }
            is_disturbed = true;
        }
        is_disturbed
    }

    /// Whether all of the ranks are observed.
    fn judge(&self, rng: &mut Rng) -> (Verdict, bool) {
        let ranks: Vec<(usize, &Rank)> = self.ranks.iter().map(|(&rank, it)| (rank, it)).collect();
        let per_node = rng.usize(1..=ranks.len());
        let has_gaps = rng.u8(0..2) == 0;
        let mut nodes: Vec<(AnnouncedNode, u64, u8)> = Vec::new();
        for (place, ranks) in ranks.chunks(per_node).enumerate() {
            let of_node: Vec<(usize, Observed)> = ranks
                .iter()
                .map(|(rank, it)| (*rank, it.observed.clone()))
                .collect();
            let node = node(&format!("node{place}"), self.ranks.len(), &of_node);
            let is_gap = has_gaps && place > 0 && rng.u8(0..3) == 0;
            let (ago_ms, gap) = match is_gap {
                true => (rng.u64(13_000..99_000), rng.u8(1..4)),
                false => (rng.u64(0..9_000), 0),
            };
            nodes.push((node, ago_ms, gap));
        }
        for (node, ..) in nodes.iter_mut().filter(|(.., gap)| *gap == 2) {
            node.workers
                .iter_mut()
                .for_each(|worker| worker.sample = None);
        }
        let mut evidence = Evidence::default();
        for (node, ago_ms, gap) in &nodes {
            if *gap != 3 {
                evidence.add(node, *ago_ms, |_| true);
            }
        }
        for (&rank, it) in &self.ranks {
            let host = Some("node1".to_owned());
            let other = || RankEvidence::new(Seen::NotLaunched, host);
            let known = evidence.ranks.entry(rank).or_insert_with(other);
            known.store_wait.clone_from(&it.store_wait);
        }
        let is_complete = nodes.iter().all(|(.., gap)| *gap == 0);
        match judge(&evidence) {
            Some(verdict) => (verdict, is_complete),
            None => (Verdict::default(), false),
        }
    }
}

fn check(seed: u64, tally: &mut BTreeMap<(ReportState, String), usize>) {
    let mut rng = Rng::with_seed(seed);
    let mut world = World::new(&mut rng);
    let is_disturbed = world.disturb(&mut rng);
    let (verdict, is_complete) = world.judge(&mut rng);
    let place = || format!("{verdict:#?} of {world:#?}");
    let finding = verdict.finding.as_ref();
    let named = finding
        .map(|finding| finding.culprits.0.clone())
        .unwrap_or_default();
    match verdict.state {
        ReportState::WaitingForBusyRank => {
            assert!(
                is_disturbed || named.is_subset(&world.at_work),
                "{}",
                place()
            );
        }
        _ => assert!(
            named.is_subset(&world.broken),
            "names another rank: {}",
            place()
        ),
    }
    if verdict.state == ReportState::NoProgress {
        assert!(
            world.at_work.is_empty() && !world.is_healthy,
            "a false alarm: {}",
            place()
        );
    }
    if world.is_blocked && is_complete && !is_disturbed {
        assert_eq!(verdict.state, ReportState::NoProgress, "{}", place());
        assert_eq!(named, world.broken, "{}", place());
    }
    if let Some(finding) = finding {
        let text = &finding.text;
        assert!(
            text.len() <= 800 && text.ends_with('.'),
            "{} bytes: {}",
            text.len(),
            place()
        );
        assert!(!text.contains("  ") && !text.contains(".."), "{}", place());
    }
    let kind = finding.map_or_else(String::new, |finding| format!("{:?}", finding.kind));
    let key = (verdict.state, kind);
    *tally.entry(key).or_default() += 1;
}

#[test]
fn only_broken_ranks_are_named_and_no_job_at_work_is_an_alarm() {
    let mut tally = BTreeMap::new();
    let seeds = Seeds::fresh(ROUNDS);
    let is_replay = seeds.is_replay();
    for seed in seeds {
        check(seed, &mut tally);
    }
    if !is_replay {
        let states: BTreeSet<ReportState> = tally.keys().map(|(state, _)| *state).collect();
        assert_eq!(states.len(), 4, "{tally:#?}");
    }
}
