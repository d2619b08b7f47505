//! Up to four members in every order of what can happen to them.

use super::process::Process;
use super::world::{Budget, World};
use crate::options::GroupOptions;

/// The exploration ends at states with more attempts than this.
const ATTEMPTS_MAX: u32 = 3;

/// Whether to explore with more faults, which takes a minute in a debug build.
fn is_long() -> bool {
    std::env::var_os("LONG").is_some()
}

/// What to explore.
struct Shape {
    name: &'static str,
    /// Id and incarnation of each process.
    processes: &'static [(u64, u64)],
    size_min: usize,
    /// Whether it begins with the first generation of those with ids below 10.
    is_formed: bool,
    budget: Budget,
    /// Fewer mean that the exploration has become incomplete.
    states_min: usize,
}

#[expect(clippy::print_stdout, reason = "the counts are for readers")]
fn explore(shape: &Shape) {
    let processes = shape.processes.iter();
    let processes = processes.map(|(id, incarnation)| Process::new(*id, *incarnation));
    let options = GroupOptions::new(shape.size_min);
    let mut start = World::new(options, processes.collect(), shape.budget);
    if shape.is_formed {
        start.form(|it| it.incarnation.0 == 1 && it.id.0 < 10);
    }
    // In each state, the group also comes to its end.
    let mut commits_max = 0;
    let found = c10d_sim::explore(start, usize::MAX, |world, _, _| {
        commits_max = commits_max.max(world.history.commits());
        world.clone().end();
        world.attempts() <= ATTEMPTS_MAX
    });
    let states = found.states;
    let Shape {
        name, states_min, ..
    } = shape;
    println!("{name}: {states} states, up to {commits_max} generations");
    assert!(states >= *states_min, "{name}: only {states} states");
    assert!(commits_max >= 1, "no generation was explored");
}

const NONE: Budget = Budget {
    kills: 0,
    stops: 0,
    losses: 0,
    copies: 0,
    failing_calls: 0,
    late: 0,
    leaves: 0,
    restarts: 0,
    is_split: false,
    steps: 0,
    asks_for_changes: false,
};

const KILL: Budget = Budget { kills: 1, ..NONE };

const TWO: &[(u64, u64)] = &[(1, 1), (2, 1)];
const THREE: &[(u64, u64)] = &[(1, 1), (2, 1), (3, 1)];
const FOUR: &[(u64, u64)] = &[(1, 1), (2, 1), (3, 1), (4, 1)];
/// A second process of member 1.
const REPLACED: &[(u64, u64)] = &[(1, 1), (1, 2), (2, 1)];
/// Members 10 and higher join later.
const TWO_AND_ONE: &[(u64, u64)] = &[(1, 1), (2, 1), (10, 1)];
const THREE_AND_ONE: &[(u64, u64)] = &[(1, 1), (2, 1), (3, 1), (10, 1)];

const fn forming(
    name: &'static str,
    processes: &'static [(u64, u64)],
    size_min: usize,
    budget: Budget,
    states_min: usize,
) -> Shape {
    Shape {
        name,
        processes,
        size_min,
        is_formed: false,
        budget,
        states_min,
    }
}

const fn formed(
    name: &'static str,
    processes: &'static [(u64, u64)],
    size_min: usize,
    budget: Budget,
    states_min: usize,
) -> Shape {
    Shape {
        is_formed: true,
        ..forming(name, processes, size_min, budget, states_min)
    }
}

#[test]
fn a_death_at_each_point() {
    explore(&forming("2 form, a death", TWO, 1, KILL, 2_400));
    explore(&forming("2 form, replaced", REPLACED, 2, KILL, 3_300));
    explore(&formed("3, a death", THREE, 2, KILL, 500));
    explore(&formed("4, a death", FOUR, 2, KILL, 4_600));
    if is_long() {
        explore(&formed("2 and one, a death", TWO_AND_ONE, 2, KILL, 39_300));
        let two = Budget { kills: 2, ..NONE };
        explore(&formed("4, two deaths", FOUR, 2, two, 132_000));
        explore(&formed(
            "3 and one, a death",
            THREE_AND_ONE,
            2,
            KILL,
            958_000,
        ));
    }
}

#[test]
fn messages_are_lost_and_repeated() {
    let lost = Budget {
        losses: 1,
        is_split: true,
        ..NONE
    };
    explore(&forming("2 form, a loss", TWO, 2, lost, 300));
    let lost = Budget { kills: 1, ..lost };
    explore(&formed("2, a loss, a death", TWO, 1, lost, 3_800));
    let copied = Budget { copies: 1, ..NONE };
    explore(&forming("2 form, a copy", TWO, 1, copied, 1_900));
    if is_long() {
        explore(&formed("3, a loss, a death", THREE, 1, lost, 154_000));
        let copied = Budget {
            copies: 2,
            kills: 1,
            ..NONE
        };
        explore(&formed("3, two copies, a death", THREE, 1, copied, 372_000));
        explore(&forming(
            "2 form, two copies, a death",
            TWO,
            1,
            copied,
            158_000,
        ));
    }
}

#[test]
fn silence_and_timers_at_each_point() {
    let stop = Budget { stops: 1, ..NONE };
    explore(&formed("3, a stop", THREE, 2, stop, 1_800));
    explore(&formed("4, a stop", FOUR, 2, stop, 15_200));
    let late = Budget { late: 1, ..NONE };
    explore(&forming("2 form, a timer", TWO, 1, late, 2_100));
    let both = Budget { stops: 1, ..late };
    explore(&formed("2, a stop, a timer", TWO, 1, both, 9_500));
    if is_long() {
        explore(&formed("2 and one, a stop", TWO_AND_ONE, 2, stop, 102_000));
        explore(&forming("2 form, a stop, a timer", TWO, 1, both, 53_600));
        let more = Budget { late: 2, ..both };
        explore(&formed("3, a stop, two timers", THREE, 2, more, 99_000));
    }
}

#[test]
fn members_leave_at_each_point() {
    let leave = Budget {
        leaves: 1,
        steps: 1,
        ..NONE
    };
    explore(&formed("2, a leave", TWO, 1, leave, 5_300));
    let asked = Budget {
        asks_for_changes: true,
        ..leave
    };
    explore(&formed("2, a leave, asked for", TWO, 1, asked, 14_900));
    if is_long() {
        let split = Budget {
            is_split: true,
            ..asked
        };
        explore(&formed(
            "2, a leave, asked for, split",
            TWO,
            1,
            split,
            47_000,
        ));
        explore(&formed("2 and one, a leave", TWO_AND_ONE, 1, leave, 80_100));
        let two = Budget { leaves: 2, ..leave };
        explore(&forming("2 form, two leaves", TWO, 1, two, 145_000));
        let death = Budget { kills: 1, ..leave };
        explore(&formed("3, a leave, a death", THREE, 1, death, 267_000));
    }
}

#[test]
fn the_service_restarts_at_each_point() {
    let restart = Budget {
        restarts: 1,
        ..NONE
    };
    explore(&forming("2 form, a restart", TWO, 2, restart, 1_400));
    let steps = Budget {
        steps: 2,
        ..restart
    };
    explore(&formed("2, a restart, steps", TWO, 1, steps, 6_300));
    if is_long() {
        let death = Budget {
            kills: 1,
            ..restart
        };
        explore(&forming(
            "2 form, a restart, a death",
            TWO,
            1,
            death,
            196_000,
        ));
        explore(&formed("3, a restart, a death", THREE, 2, death, 330_000));
        let asked = Budget {
            asks_for_changes: true,
            leaves: 1,
            ..steps
        };
        let name = "2, a restart, a leave, asked for";
        explore(&formed(name, TWO, 1, asked, 1_300_000));
    }
}

#[test]
fn calls_fail_at_each_point() {
    let failing = Budget {
        failing_calls: 2,
        ..NONE
    };
    explore(&forming(
        "2 form, two failing calls",
        TWO,
        1,
        failing,
        3_800,
    ));
    let death = Budget {
        failing_calls: 1,
        kills: 1,
        ..NONE
    };
    explore(&formed(
        "3, a failing call, a death",
        THREE,
        2,
        death,
        2_700,
    ));
    if is_long() {
        explore(&formed(
            "4, a failing call, a death",
            FOUR,
            2,
            death,
            63_100,
        ));
    }
}
