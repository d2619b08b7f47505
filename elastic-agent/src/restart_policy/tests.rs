//! Histories of failures, in virtual time.

use std::collections::BTreeSet;

use c10d_sim::Seeds;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn worker(rank: usize, code: i32) -> FailedWorker {
    FailedWorker {
        rank,
        exit: ExitKind::Code(code),
        was_stopped: false,
        fatal_error: None,
    }
}

fn fatal(rank: usize) -> FailedWorker {
    FailedWorker {
        fatal_error: Some("ImportError: x".to_owned()),
        ..worker(rank, 1)
    }
}

fn stopped(worker: FailedWorker) -> FailedWorker {
    FailedWorker {
        was_stopped: true,
        ..worker
    }
}

fn at(step: u64) -> RoundProgress {
    RoundProgress {
        step: Some(step),
        has_unnumbered: false,
    }
}

const NO_PROGRESS: RoundProgress = RoundProgress {
    step: None,
    has_unnumbered: false,
};

fn rules(change: impl FnOnce(&mut RestartRules)) -> RestartRules {
    let mut rules = RestartRules::default();
    change(&mut rules);
    rules
}

fn policy(change: impl FnOnce(&mut RestartRules)) -> RestartPolicy {
    RestartPolicy::new(rules(change))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The decisions about failures with these steps, one second apart.
fn decisions(policy: &mut RestartPolicy, steps: &[Option<u64>]) -> String {
    let decide = |(second, step): (u64, &Option<u64>)| {
        let progress = step.map_or(NO_PROGRESS, at);
        match policy.after_failure(seconds(second), &[worker(0, 1)], progress) {
            Decision::Restart => 'r',
            Decision::Exhausted => 'x',
            Decision::EndJob(_) => 'e',
        }
    };
    (0..).zip(steps).map(decide).collect()
}

#[test]
fn without_rules_no_restart_is_allowed_and_other_nodes_are_left_alone() {
    assert_eq!(decisions(&mut policy(|_| ()), &[None]), "x");
}

#[test]
fn max_restarts_counts_all_restarts() {
    let mut policy = policy(|it| it.max_restarts = Some(2));
    assert_eq!(policy.left(Duration::ZERO), 2);
    assert_eq!(decisions(&mut policy, &[Some(1), Some(2), Some(3)]), "rrx");
    assert_eq!((policy.used(), policy.left(HOUR * 9)), (2, 0));
}

#[test]
fn a_budget_refills_when_its_window_has_passed() {
    let window = HOUR;
    let mut policy = policy(|it| {
        it.budget = Some(RestartBudget {
            restarts: 2,
            window,
        })
    });
    let mut fail = |now| policy.after_failure(now, &[worker(0, 1)], NO_PROGRESS);
    assert_eq!(fail(seconds(0)), Decision::Restart);
    assert_eq!(fail(seconds(100)), Decision::Restart);
    assert_eq!(fail(seconds(3599)), Decision::Exhausted);
    // The first restart is an hour ago; the second one counts until 3700 s.
    assert_eq!(fail(seconds(3600)), Decision::Restart);
    assert_eq!(fail(seconds(3699)), Decision::Exhausted);
    assert_eq!(fail(seconds(3700)), Decision::Restart);
    assert_eq!(policy.used(), 4);
}

#[test]
fn a_budget_and_a_maximum_both_hold() {
    let mut policy = policy(|it| {
        it.max_restarts = Some(3);
        it.budget = Some(RestartBudget {
            restarts: 2,
            window: seconds(10),
        });
    });
    let mut fail = |now| policy.after_failure(seconds(now), &[worker(0, 1)], NO_PROGRESS);
    assert_eq!(
        [fail(0), fail(1), fail(2)],
        [Decision::Restart, Decision::Restart, Decision::Exhausted]
    );
    assert_eq!(
        [fail(20), fail(40)],
        [Decision::Restart, Decision::Exhausted]
    );
}

#[test]
fn restarts_that_bring_no_progress_end_the_job() {
    let limited = || policy(|it| it.max_without_progress = Some(2));
    // At the same step, at an earlier step, or without a step.
    assert_eq!(
        decisions(&mut limited(), &[Some(5), Some(5), Some(5)]),
        "rre"
    );
    assert_eq!(
        decisions(&mut limited(), &[Some(5), Some(3), Some(4)]),
        "rre"
    );
    assert_eq!(decisions(&mut limited(), &[None, None, None]), "rre");
    // With progress there is no end.
    let steps: Vec<_> = (0..100).map(Some).collect();
    assert_eq!(decisions(&mut limited(), &steps), "r".repeat(100));
    assert_eq!(
        decisions(
            &mut limited(),
            &[Some(5), Some(5), Some(6), Some(6), Some(6)]
        ),
        "rrrre"
    );
    let mut policy = limited();
    decisions(&mut policy, &[Some(5), Some(5)]);
    let end = policy.after_failure(HOUR, &[worker(0, 1)], at(5));
    let text = "2 restarts in a row brought no progress beyond step 5";
    assert_eq!(end, Decision::EndJob(text.to_owned()));
}

#[test]
fn progress_without_a_number_counts() {
    let mut policy = policy(|it| it.max_without_progress = Some(1));
    let touched = RoundProgress {
        step: None,
        has_unnumbered: true,
    };
    for second in 0..10 {
        let decision = policy.after_failure(seconds(second), &[worker(0, 1)], touched);
        assert_eq!(decision, Decision::Restart);
    }
    let decision = policy.after_failure(HOUR, &[worker(0, 1)], NO_PROGRESS);
    assert!(matches!(decision, Decision::EndJob(_)), "{decision:?}");
}

#[test]
fn progress_of_a_round_that_members_ended_counts_too() {
    let mut policy = policy(|it| it.max_without_progress = Some(1));
    assert_eq!(decisions(&mut policy, &[Some(5)]), "r");
    policy.note_progress(at(6));
    assert_eq!(decisions(&mut policy, &[Some(6)]), "r");
}

#[test]
fn an_exit_code_of_the_list_ends_the_job_even_without_restarts_left() {
    for restarts in [0, 5] {
        let mut policy = policy(|it| {
            it.max_restarts = Some(restarts);
            it.final_exit_codes = BTreeSet::from([93, -6]);
        });
        // A worker that exits so because it is stopped does not ask for an end.
        let failed = [worker(0, 1), stopped(worker(1, 93))];
        assert_eq!(policy.final_exit(&failed), None);
        let failed = [worker(0, 1), worker(2, 93)];
        let text = "worker with rank 2 ended with exit code 93, after which the job is not to be restarted";
        let decision = policy.after_failure(Duration::ZERO, &failed, NO_PROGRESS);
        assert_eq!(decision, Decision::EndJob(text.to_owned()));
        let exit = ExitKind::Signal {
            number: 6,
            has_dumped_core: true,
        };
        let failed = [FailedWorker {
            exit,
            ..worker(0, 1)
        }];
        assert!(policy.final_exit(&failed).unwrap().contains("SIGABRT"));
    }
}

#[test]
fn an_error_of_the_program_ends_the_job_if_all_workers_that_ended_have_one() {
    let mut policy = policy(|it| it.max_restarts = Some(5));
    let mut decide = |failed: &[FailedWorker]| policy.after_failure(HOUR, failed, NO_PROGRESS);
    let text = "worker with rank 1 would fail at each start: ImportError: x";
    let end = Decision::EndJob(text.to_owned());
    assert_eq!(decide(&[fatal(1)]), end);
    assert_eq!(decide(&[fatal(1), fatal(2), stopped(worker(3, 143))]), end);
    assert_eq!(decide(&[fatal(1), worker(2, 1)]), Decision::Restart);
    assert_eq!(decide(&[stopped(fatal(1))]), Decision::Restart);
    assert_eq!(decide(&[]), Decision::Restart);
}

#[test]
fn an_error_of_the_program_is_restarted_if_the_user_wants() {
    let mut policy = policy(|it| {
        it.max_restarts = Some(1);
        it.restarts_on_fatal_errors = true;
    });
    let mut decide = || policy.after_failure(HOUR, &[fatal(0)], NO_PROGRESS);
    assert_eq!(
        [decide(), decide()],
        [Decision::Restart, Decision::Exhausted]
    );
}

#[test]
fn without_restarts_left_an_error_of_the_program_is_an_ordinary_failure() {
    let decision = policy(|_| ()).after_failure(HOUR, &[fatal(0)], NO_PROGRESS);
    assert_eq!(decision, Decision::Exhausted);
}

/// Random rules and histories. The invariants hold after each failure, and no restart follows an exit code of the list.
#[test]
fn random_histories_keep_the_limits() {
    Seeds::fresh(500).for_each(random_history);
}

fn random_history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let rules = rules(|it| {
        it.max_restarts = random.bool().then(|| random.usize(..6));
        it.budget = random.bool().then(|| RestartBudget {
            restarts: random.usize(..4),
            window: seconds(random.u64(1..50)),
        });
        it.max_without_progress = random.bool().then(|| random.usize(..4));
        it.restarts_on_fatal_errors = random.bool();
        it.final_exit_codes = BTreeSet::from([93]);
    });
    let mut policy = RestartPolicy::new(rules);
    let mut now = Duration::ZERO;
    for _ in 0..random.usize(1..60) {
        now += seconds(random.u64(..20));
        let failed: Vec<FailedWorker> = (0..random.usize(1..4))
            .map(|rank| {
                let one = match random.u8(..8) {
                    0 => worker(rank, 93),
                    1 => fatal(rank),
                    _ => worker(rank, 1),
                };
                if random.u8(..4) == 0 {
                    stopped(one)
                } else {
                    one
                }
            })
            .collect();
        let progress = RoundProgress {
            step: random.bool().then(|| random.u64(..20)),
            has_unnumbered: random.u8(..10) == 0,
        };
        let (used, left) = (policy.used(), policy.left(now));
        let decision = policy.after_failure(now, &failed, progress);
        policy.check_invariants(now);
        let is_final = failed
            .iter()
            .any(|it| !it.was_stopped && it.exit.code() == 93);
        match decision {
            Decision::Restart => {
                assert!(!is_final);
                assert_eq!(policy.used(), used + 1);
                // Progress refills the allowance for restarts without it.
                let refills = policy.rules.max_without_progress.is_some();
                assert!(left > 0 || refills, "{policy:?}");
            }
            Decision::Exhausted => assert!(!is_final && policy.left(now) == 0),
            Decision::EndJob(_) => assert_eq!(policy.used(), used),
        }
    }
}
