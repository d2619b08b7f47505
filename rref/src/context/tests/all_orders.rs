//! Explores every order of events of short programs on three workers.
//!
//! In each state, each thread may take its next step, each packet may arrive, and the budget may allow faults. States
//! that were visited before are skipped. The retry of a lost request is not modeled as a step: it equals a late
//! arrival. A lost answer is modeled as a copy of the request whose answer is ignored.

use std::time::Instant;

use crate::context::Carrier;

use super::world::{Budget, Op, Thread, World};

/// The creator, the owner, and a third worker.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Explores all states. Returns how many there are, and the largest number of values of one.
fn explore(threads: &[Thread], budget: Budget) -> (usize, usize) {
    let start = World::new(3, threads.to_vec(), budget, Instant::now());
    let mut values_max = 0;
    let found = c10d_sim::explore(start, usize::MAX, |world, _, is_end| {
        if is_end {
            world.check_end();
        }
        values_max = values_max.max(world.values());
        true
    });
    assert!(found.ends > 0);
    (found.states, values_max)
}

/// Whether to explore completely, which takes minutes in a debug build.
fn is_long() -> bool {
    std::env::var_os("LONG").is_some()
}

/// [`explore_all`] with `LONG` set, like in CI; otherwise an exploration without faults, which takes a second and
/// must visit `regular_min` states.
fn explore_long((regular_min, states_min): (usize, usize), threads: &[Thread]) {
    if is_long() {
        return explore_all(states_min, threads);
    }
    let (states, values_max) = explore(threads, Budget::default());
    assert_eq!(values_max, 1, "the program creates a value");
    assert!(states >= regular_min, "only {states} states");
}

/// Explores the program without faults, and with each kind of fault once. Fails if it visits fewer than `states_min`
/// states in all, because then the exploration has become incomplete.
fn explore_all(states_min: usize, threads: &[Thread]) {
    explore_with_values(1, states_min, threads);
}

/// [`explore_all`] of a program that creates up to `values_max` values.
fn explore_with_values(values_max: usize, states_min: usize, threads: &[Thread]) {
    let no_faults = Budget::default();
    let budgets = [
        no_faults,
        Budget {
            copies: 1,
            ..no_faults
        },
        Budget {
            stalls: 1,
            ..no_faults
        },
        Budget {
            lost_calls: 1,
            ..no_faults
        },
        Budget {
            call_copies: 1,
            ..no_faults
        },
        Budget {
            not_delivered: 1,
            failing_functions: 1,
            ..no_faults
        },
    ];
    let mut states = 0;
    for budget in budgets {
        let (found, created) = explore(threads, budget);
        assert_eq!(created, values_max, "created values");
        states += found;
    }
    assert!(states >= states_min, "only {states} states");
}

const CREATE: Op = Op::CreateRemote { slot: 0, owner: B };
const FETCH: Op = Op::Fetch { slot: 0 };
const DROP: Op = Op::Drop { slot: 0 };

const fn send(to: usize, slot_there: u32) -> Op {
    Op::Send {
        slot: 0,
        to,
        slot_there,
        carrier: Carrier::Answer,
    }
}

const fn call(to: usize, slot_there: u32) -> Op {
    Op::Send {
        slot: 0,
        to,
        slot_there,
        carrier: Carrier::Call,
    }
}

#[test]
fn create_fetch_and_drop() {
    explore_all(200, &[Thread::new(A, &[CREATE, FETCH, DROP])]);
}

#[test]
fn drop_before_the_creation_is_confirmed() {
    explore_all(150, &[Thread::new(A, &[CREATE, DROP])]);
}

#[test]
fn fork_to_a_third() {
    explore_all(
        5_000,
        &[
            Thread::new(A, &[CREATE, call(C, 0), DROP]),
            Thread::new(C, &[FETCH, DROP]),
        ],
    );
}

#[test]
fn drop_on_receipt() {
    explore_all(
        4_000,
        &[
            Thread::new(A, &[CREATE, call(C, 0), DROP]),
            Thread::new(C, &[DROP]),
        ],
    );
}

#[test]
fn fork_of_a_fork() {
    explore_long(
        (1, 100_000),
        &[
            Thread::new(A, &[CREATE, send(C, 0), DROP]),
            Thread::new(C, &[send(A, 7), DROP]),
            Thread::new(A, &[Op::Fetch { slot: 7 }, Op::Drop { slot: 7 }]),
        ],
    );
}

#[test]
fn fork_back_to_the_owner() {
    explore_all(
        2_500,
        &[
            Thread::new(A, &[CREATE, call(B, 0), DROP]),
            Thread::new(B, &[FETCH, DROP]),
        ],
    );
}

#[test]
fn two_forks_at_once() {
    explore_long(
        (1, 40_000),
        &[
            Thread::new(A, &[CREATE, send(C, 0), call(B, 0), DROP]),
            Thread::new(B, &[DROP]),
            Thread::new(C, &[DROP]),
        ],
    );
}

#[test]
fn the_owner_shares_its_value_with_two() {
    explore_all(
        1_500,
        &[
            Thread::new(
                B,
                &[Op::CreateLocal { slot: 0 }, call(A, 0), send(C, 0), DROP],
            ),
            Thread::new(A, &[FETCH, DROP]),
            Thread::new(C, &[DROP]),
        ],
    );
}

#[test]
fn a_reference_is_sent_forwarded_and_returned_to_its_owner() {
    explore_long(
        (1, 25_000),
        &[
            Thread::new(B, &[Op::CreateLocal { slot: 0 }, send(A, 0), DROP]),
            Thread::new(A, &[call(C, 0), DROP]),
            Thread::new(C, &[send(B, 5), DROP]),
            Thread::new(B, &[Op::Fetch { slot: 5 }, Op::Drop { slot: 5 }]),
        ],
    );
}

#[test]
fn self_creation_shared_with_another_and_with_itself() {
    explore_all(
        900,
        &[
            Thread::new(
                B,
                &[Op::CreateHere { slot: 0 }, call(B, 5), send(C, 0), DROP],
            ),
            Thread::new(B, &[Op::Drop { slot: 5 }]),
            Thread::new(C, &[FETCH, DROP]),
        ],
    );
}

#[test]
fn a_failed_encoding_leaves_no_fork() {
    explore_all(
        3_000,
        &[
            Thread::new(
                A,
                &[CREATE, Op::FailToSend { slot: 0, to: C }, send(A, 3), DROP],
            ),
            Thread::new(A, &[Op::Fetch { slot: 3 }, Op::Drop { slot: 3 }]),
        ],
    );
}

const CREATE_PROMISED: Op = Op::CreatePromised { slot: 0 };
const SET: Op = Op::SetValue { slot: 0 };
const SET_ERROR: Op = Op::SetValueError { slot: 0 };

#[test]
fn a_value_is_set_before_or_after_its_fetch() {
    explore_all(
        300,
        &[
            Thread::new(B, &[CREATE_PROMISED, call(A, 0), SET, DROP]),
            Thread::new(A, &[FETCH, DROP]),
        ],
    );
}

#[test]
fn a_value_is_set_while_its_reference_is_forwarded() {
    explore_all(
        3_000,
        &[
            Thread::new(B, &[CREATE_PROMISED, call(A, 0), SET, DROP]),
            Thread::new(A, &[call(C, 0), DROP]),
            Thread::new(C, &[FETCH, DROP]),
        ],
    );
}

#[test]
fn a_set_error_fails_waiting_and_later_fetches() {
    explore_with_values(
        0,
        1_000,
        &[
            Thread::new(
                B,
                &[CREATE_PROMISED, call(A, 0), send(C, 0), SET_ERROR, DROP],
            ),
            Thread::new(A, &[FETCH, DROP]),
            Thread::new(C, &[FETCH, DROP]),
        ],
    );
}

#[test]
fn a_value_is_set_by_a_reference_that_returned_to_its_owner() {
    explore_all(
        1_000,
        &[
            Thread::new(B, &[CREATE_PROMISED, call(A, 0), DROP]),
            Thread::new(A, &[call(B, 5), FETCH, DROP]),
            Thread::new(B, &[Op::SetValue { slot: 5 }, Op::Drop { slot: 5 }]),
        ],
    );
}

#[test]
fn of_two_concurrent_set_values_one_is_refused() {
    explore_all(
        300,
        &[
            Thread::new(B, &[CREATE_PROMISED, call(A, 0), call(B, 5), SET, DROP]),
            Thread::new(B, &[Op::SetValue { slot: 5 }, Op::Drop { slot: 5 }]),
            Thread::new(A, &[FETCH, DROP]),
        ],
    );
}

#[test]
fn a_value_that_is_never_set_is_fetched_and_dropped() {
    explore_with_values(
        0,
        200,
        &[
            Thread::new(B, &[CREATE_PROMISED, call(A, 0), DROP]),
            Thread::new(A, &[FETCH, DROP]),
        ],
    );
}

/// Takes a minute or two in a release build: `cargo test --release -p rref two_copies -- --ignored`.
#[test]
#[ignore = "takes long in a debug build"]
fn two_copies_a_stall_a_lost_and_a_copied_call_in_one_run() {
    let budget = Budget {
        copies: 2,
        stalls: 1,
        lost_calls: 1,
        call_copies: 1,
        not_delivered: 1,
        failing_functions: 1,
    };
    let (states, _) = explore(
        &[
            Thread::new(A, &[CREATE, call(C, 0), DROP]),
            Thread::new(C, &[FETCH, DROP]),
        ],
        budget,
    );
    assert!(states >= 100_000, "only {states} states");
}
