//! Which short jobs run, in which order: a function of the seed.

use fastrand::Rng;

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// One node, whose worker uses its store.
    Succeeds,
    /// One node, whose output goes to files too.
    Logs,
    Fails,
    /// Its worker fails once.
    Restarts,
    TwoNodes,
    /// A worker of two nodes fails once.
    TwoNodesRestart,
    /// SIGTERM, while the worker runs.
    IsCancelled,
    /// SIGKILL, while the worker runs.
    IsKilled,
    /// The same, with its workers in the rendezvous' store. Then it is started again, and succeeds.
    IsKilledAndRepeated,
    /// Waits for a second node, which never comes, until its join timeout.
    TimesOut,
    /// Its worker uses its store through a relay of the launcher.
    Relays,
    /// Its worker uses the rendezvous' store.
    SharesTheStore,
    /// Two nodes that meet in a file.
    MeetsInAFile,
}

impl Kind {
    /// Of each 100 jobs.
    const SHARES: [(Self, u32); 13] = [
        (Self::Succeeds, 30),
        (Self::Logs, 5),
        (Self::Fails, 9),
        (Self::Restarts, 9),
        (Self::TwoNodes, 10),
        (Self::TwoNodesRestart, 5),
        (Self::IsCancelled, 8),
        (Self::IsKilled, 7),
        (Self::IsKilledAndRepeated, 2),
        (Self::TimesOut, 4),
        (Self::Relays, 4),
        (Self::SharesTheStore, 4),
        (Self::MeetsInAFile, 3),
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Succeeds => "succeeds",
            Self::Logs => "succeeds, with log files",
            Self::Fails => "fails",
            Self::Restarts => "fails once, restarts",
            Self::TwoNodes => "two nodes",
            Self::TwoNodesRestart => "two nodes, restart",
            Self::IsCancelled => "SIGTERM",
            Self::IsKilled => "SIGKILL",
            Self::IsKilledAndRepeated => "SIGKILL, started again",
            Self::TimesOut => "no second node",
            Self::Relays => "with --relay",
            Self::SharesTheStore => "workers in the rendezvous' store",
            Self::MeetsInAFile => "two nodes, store in a file",
        }
    }

    pub(super) const fn nodes(self) -> usize {
        match self {
            Self::TwoNodes | Self::TwoNodesRestart | Self::MeetsInAFile => 2,
            _ => 1,
        }
    }

    /// Whether its workers' keys are in the store of the rendezvous, which one such job at a time may use.
    pub(super) const fn shares_the_store(self) -> bool {
        matches!(self, Self::IsKilledAndRepeated | Self::SharesTheStore)
    }
}

/// Where the nodes of a job meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Durable,
    /// The durable store, through the relay that runs all the time.
    Relayed,
    /// The store without a directory.
    Memory,
}

/// A short job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) place: Place,
    /// The workers of each node.
    pub(super) workers: usize,
}

/// The job with this number. It depends on no other one.
pub(super) fn plan(seed: u64, number: u64) -> Plan {
    let mut random = Rng::with_seed(seed.wrapping_add(number));
    // Numbers that are close are similar seeds.
    random = Rng::with_seed(random.u64(..));
    let mut ticket = random.u32(..100);
    let mut kind = Kind::Succeeds;
    for (of_share, share) in Kind::SHARES {
        kind = of_share;
        if ticket < share {
            break;
        }
        ticket -= share;
    }
    let place = match random.u8(..4) {
        // Jobs with their workers there take turns, so one store has all of them.
        _ if kind.shares_the_store() => Place::Durable,
        0 => Place::Relayed,
        1 => Place::Memory,
        _ => Place::Durable,
    };
    Plan {
        number,
        kind,
        place,
        workers: random.usize(1..=2),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_seed_has_all_kinds_in_their_shares() {
        assert_eq!(Kind::SHARES.iter().map(|it| it.1).sum::<u32>(), 100);
        let mut counts = BTreeMap::new();
        for number in 0..10_000 {
            let plan = plan(7, number);
            assert_eq!(plan, super::plan(7, number));
            *counts.entry(plan.kind).or_insert(0_u32) += 1;
        }
        for (kind, share) in Kind::SHARES {
            let count = counts[&kind];
            assert!(
                (share * 70..=share * 130).contains(&count),
                "{kind:?}: {count}"
            );
        }
        let others = (0..100).filter(|number| plan(7, *number) != plan(8, *number));
        assert!(others.count() > 50);
    }
}
