//! Which faults happen when, and to what: the same for each side of a run.

use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The number of nodes of a job, and of ranks of each node.
pub(super) const NODES: usize = 4;
pub(super) const RANKS_PER_NODE: usize = 2;
pub(super) const RANKS: usize = NODES * RANKS_PER_NODE;

/// The time from one fault to the next.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);

/// The latest time of a fault within its interval. The rest of the interval is for its consequences.
const LATENESS_MAX_MS: u64 = 5000;

/// How long a host without power stays away.
const HOST_AWAY_MS: u64 = 5000;

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// SIGKILL of a rank.
    KillRank,
    /// SIGKILL of two or three ranks at once.
    KillRanks,
    /// SIGSTOP of a rank for some seconds.
    StopRank,
    /// SIGKILL of a launcher and all other processes of its node.
    KillLauncher,
    /// SIGSTOP of a launcher for some seconds.
    StopLauncher,
    /// SIGKILL of a node's relay.
    KillRelay,
    /// SIGKILL of the process that serves the store.
    KillStore,
    /// The host of the process that serves the store is cut off at once, and loses all its processes.
    LoseStoreHost,
    /// A node's link is down for some seconds.
    Cut,
    /// A node's link is slow for some seconds.
    Slow,
    /// The file system of the checkpoint and the logs is full for some seconds.
    FillDisk,
}

impl Kind {
    pub(super) const ALL: [Self; 11] = [
        Self::KillRank,
        Self::KillRanks,
        Self::StopRank,
        Self::KillLauncher,
        Self::StopLauncher,
        Self::KillRelay,
        Self::KillStore,
        Self::LoseStoreHost,
        Self::Cut,
        Self::Slow,
        Self::FillDisk,
    ];

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::KillRank => "kill -9 of a rank",
            Self::KillRanks => "kill -9 of several ranks",
            Self::StopRank => "SIGSTOP of a rank",
            Self::KillLauncher => "kill -9 of a launcher and its node's processes",
            Self::StopLauncher => "SIGSTOP of a launcher",
            Self::KillRelay => "kill -9 of a relay",
            Self::KillStore => "kill -9 of the process that serves the store",
            Self::LoseStoreHost => "loss of the host that serves the store",
            Self::Cut => "a node's link is down",
            Self::Slow => "a node's link is slow",
            Self::FillDisk => "the disk is full",
        }
    }

    /// How long it lasts, in milliseconds, if it has an end.
    const fn lengths_ms(self) -> Option<(u64, u64)> {
        match self {
            Self::StopRank | Self::Cut | Self::Slow => Some((3000, 8000)),
            // This is longer than the 15 s after which other launchers consider it lost.
            Self::StopLauncher => Some((3000, 20_000)),
            Self::FillDisk => Some((5000, 10_000)),
            Self::LoseStoreHost => Some((HOST_AWAY_MS, HOST_AWAY_MS + 1)),
            _ => None,
        }
    }
}

/// The place of a rank: its node, and its local rank there. Its rank in the job may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Seat {
    pub(super) node: usize,
    pub(super) local: usize,
}

impl Seat {
    pub(super) const fn of(index: usize) -> Self {
        Self {
            node: index / RANKS_PER_NODE,
            local: index % RANKS_PER_NODE,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// The time since the begin of the faults.
    pub(super) at_ms: u64,
    pub(super) kind: Kind,
    /// The seats of the ranks that are hit. A fault of a node hits the node of the first seat.
    pub(super) seats: Vec<Seat>,
    /// The length of the fault; 0 if it has no end.
    pub(super) length_ms: u64,
}

impl Fault {
    pub(super) fn node(&self) -> usize {
        self.seats.first().map_or(0, |seat| seat.node)
    }
}

/// The faults that a side and this machine support.
#[derive(Debug, Clone, Copy)]
pub(super) struct Abilities {
    /// Relays are separate processes.
    pub(super) has_relays: bool,
    /// Each node has a separate network, and the checkpoint has a file system.
    pub(super) has_namespaces: bool,
}

impl Abilities {
    pub(super) const fn allow(self, kind: Kind) -> bool {
        match kind {
            Kind::KillRelay => self.has_relays,
            Kind::Cut | Kind::Slow | Kind::FillDisk => self.has_namespaces,
            _ => true,
        }
    }
}

/// Plans one fault in each interval. Each kind occurs once before a kind occurs again.
pub(super) fn plan(seed: u64, length: Duration) -> Vec<Fault> {
    let mut random = Rng::with_seed(seed);
    let mut bag = Vec::new();
    let intervals = (length.as_secs() / INTERVAL.as_secs()).max(1);
    let begin = |index| index * INTERVAL.as_millis() as u64;
    (0..intervals)
        .map(|index| {
            if bag.is_empty() {
                bag.extend(Kind::ALL);
                random.shuffle(&mut bag);
            }
            let kind = bag.pop().unwrap_or(Kind::KillRank);
            let mut seats: Vec<Seat> = (0..RANKS).map(Seat::of).collect();
            random.shuffle(&mut seats);
            let several = random.usize(2..=3);
            seats.truncate(if kind == Kind::KillRanks { several } else { 1 });
            let (min, max) = kind.lengths_ms().unwrap_or((0, 1));
            Fault {
                at_ms: begin(index) + random.u64(0..LATENESS_MAX_MS),
                kind,
                seats,
                length_ms: random.u64(min..max),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        assert_eq!(plan(7, HOUR), plan(7, HOUR));
        assert_ne!(plan(7, HOUR), plan(8, HOUR));
        // A shorter run has the first faults of a longer one.
        let short = plan(7, HOUR / 6);
        assert_eq!(short[..], plan(7, HOUR)[..short.len()]);
    }

    #[test]
    fn each_interval_has_one_fault_that_ends_in_it() {
        for seed in 0..100 {
            let faults = plan(seed, HOUR);
            assert_eq!(faults.len(), 120);
            for (fault, begin) in faults.iter().zip((0..).step_by(30_000)) {
                let end = fault.at_ms + fault.length_ms;
                assert!(fault.at_ms >= begin && end < begin + 30_000, "{fault:?}");
                assert!(!fault.seats.is_empty(), "{fault:?}");
            }
        }
    }

    #[test]
    fn all_kinds_come_before_one_comes_again() {
        for seed in 0..100 {
            for kinds in plan(seed, HOUR).chunks_exact(Kind::ALL.len()) {
                let kinds: BTreeSet<_> = kinds.iter().map(|it| it.kind).collect();
                assert_eq!(kinds.len(), Kind::ALL.len());
            }
        }
    }

    #[test]
    fn a_side_gets_what_it_has() {
        let nothing = Abilities {
            has_relays: false,
            has_namespaces: false,
        };
        let left_out = Kind::ALL.into_iter().filter(|kind| !nothing.allow(*kind));
        let expected = [Kind::KillRelay, Kind::Cut, Kind::Slow, Kind::FillDisk];
        assert_eq!(left_out.collect::<Vec<_>>(), expected);
    }
}
