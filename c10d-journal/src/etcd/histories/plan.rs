//! The faults of the processes and the network of a history. A seed determines all of them.

use std::time::Duration;

pub(super) const CANDIDATES: usize = 3;
pub(super) const MEMBERS: usize = 3;
/// Relays, and clients that follow the store themselves.
pub(super) const CLIENTS: usize = 4;

/// The time when the last fault begins at the latest.
const FAULTS_END: Duration = Duration::from_millis(3500);

/// The number of a candidate, counted from the leader at the beginning of the fault, which is 0.
pub(super) type Offset = usize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// The route of a candidate to some members of etcd.
    Etcd(Offset, [bool; MEMBERS]),
    /// The route of a relay or a client to a candidate.
    Client(usize, Offset),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Connections end, and further connections are closed.
    Closed,
    /// Nothing arrives, and connections end only when the fault does.
    Silent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL. Another process takes its place at the end of the fault.
    Kill(Offset),
    /// SIGSTOP, and SIGCONT.
    Pause(Offset),
    /// The candidate stops in order. Another process takes its place at the end of the fault.
    Stop(Offset),
    KillMember(usize),
    PauseMember(usize),
    Cut(Link, Cut),
    Slow(Link, Duration),
}

/// A fault, and when it begins and how long it lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) begins: Duration,
    pub(super) lasts: Duration,
    pub(super) fault: Fault,
}

impl Planned {
    pub(super) fn ends(&self) -> Duration {
        self.begins + self.lasts
    }
}

/// Three to six faults. Some are longer than a lease of a second, some are not, and they may overlap.
pub(super) fn plan(seed: u64) -> Vec<Planned> {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(3..=6);
    let planned = (0..count).map(|_| Planned {
        begins: millis(random.u64(..FAULTS_END.as_millis() as u64)),
        lasts: millis(random.u64(100..2200)),
        fault: fault(&mut random),
    });
    planned.collect()
}

fn fault(random: &mut fastrand::Rng) -> Fault {
    match random.u8(..12) {
        0 | 1 => Fault::Kill(candidate(random)),
        2..4 => Fault::Pause(candidate(random)),
        4 => Fault::Stop(candidate(random)),
        5 => Fault::KillMember(random.usize(..MEMBERS)),
        6 => Fault::PauseMember(random.usize(..MEMBERS)),
        7..10 => {
            let cut = if random.bool() {
                Cut::Closed
            } else {
                Cut::Silent
            };
            Fault::Cut(link(random), cut)
        }
        // Calls of etcd have 400 ms at first: those that take longer are carried out late.
        _ => {
            let delay_max = [60, 250, 700][random.usize(..3)];
            let delay = millis(random.u64(10..delay_max));
            Fault::Slow(link(random), delay)
        }
    }
}

/// Often the leading candidate.
fn candidate(random: &mut fastrand::Rng) -> Offset {
    random.usize(..2 * CANDIDATES).saturating_sub(CANDIDATES)
}

fn link(random: &mut fastrand::Rng) -> Link {
    if random.u8(..3) == 0 {
        return Link::Client(random.usize(..CLIENTS), candidate(random));
    }
    let candidate = candidate(random);
    if random.bool() {
        return Link::Etcd(candidate, [true; MEMBERS]);
    }
    let mut members = [(); MEMBERS].map(|()| random.bool());
    members[random.usize(..MEMBERS)] = true;
    Link::Etcd(candidate, members)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_seed_gives_the_same_plan() {
    for seed in 0..100 {
        assert_eq!(plan(seed), plan(seed));
    }
    assert_ne!(plan(1), plan(2));
}
