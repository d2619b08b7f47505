//! References while messages are lost, duplicated and delayed.

use std::thread;
use std::time::Duration;

use c10d_sim::seed;
use fastrand::Rng;
use rref::{RRef, RRefError};

use crate::common::{SHORT, Worker, end, group_of, quick};
use crate::fault_plan::FaultPlan;

/// Creates, reads, shares and drops references at random. The value of a held reference must always exist. Returns
/// how many reads succeeded.
fn run_program(worker: &Worker, workers: u32, rounds: u32, mut rng: Rng) -> u32 {
    let mut held: Vec<(RRef<i64>, i64)> = Vec::new();
    let mut reads = 0;
    let mut check = |read: Result<i64, RRefError>, number: i64| match read {
        Ok(read) => {
            assert_eq!(read, number);
            reads += 1;
        }
        Err(error @ (RRefError::Deleted { .. } | RRefError::OwnerLost { .. })) => {
            panic!("{error}")
        }
        // The call was lost; calls are not repeated.
        Err(_) => {}
    };
    for _ in 0..rounds {
        let to = format!("worker{}", rng.u32(..workers));
        let place = (!held.is_empty()).then(|| rng.usize(..held.len()));
        match (rng.u8(..8), place) {
            (0..=1, _) | (_, None) => {
                let number = rng.i64(..);
                let made = worker.rrefs.call(to.as_str(), "number").remote(number);
                held.push((made.unwrap(), number));
            }
            (2, Some(place)) => {
                let (rref, number) = &held[place];
                check(rref.to_here(Some(SHORT)), *number);
            }
            (3, Some(place)) => {
                let (rref, number) = &held[place];
                let read = worker
                    .rrefs
                    .call(to.as_str(), "read soon")
                    .with_timeout(SHORT)
                    .run(rref);
                check(read, *number);
            }
            (4, Some(place)) => {
                let (rref, number) = &held[place];
                let echo = worker
                    .rrefs
                    .call(to.as_str(), "echo")
                    .with_timeout(SHORT)
                    .run(rref);
                if let Ok(echo) = echo {
                    let number = *number;
                    held.push((echo, number));
                }
            }
            (5, Some(place)) => {
                // The reference is dropped right after it was sent. The receiver can still use it.
                let (rref, number) = held.swap_remove(place);
                let read = worker
                    .rrefs
                    .call(to.as_str(), "read soon")
                    .with_timeout(SHORT)
                    .send(&rref);
                drop(rref);
                if let Ok(read) = read {
                    check(read.wait(), number);
                }
            }
            (_, Some(place)) => drop(held.swap_remove(place)),
        }
    }
    reads
}

fn run_group(seed: u64, workers: u32, rounds: u32, faults: impl Fn(FaultPlan) -> FaultPlan) {
    let plans: Vec<_> = (0..workers)
        .map(|rank| faults(FaultPlan::new(seed + u64::from(rank))))
        .collect();
    // Short, so that a lost message is probed soon. A message that arrives after its probe makes no difference.
    let options = quick().with_probe_after(Duration::from_millis(300));
    let group = group_of(
        workers,
        &options,
        |rank, options| options.with_faults(plans[rank as usize].clone()),
        |_, _| {},
    );
    let reads: u32 = thread::scope(|scope| {
        let running: Vec<_> = (0..)
            .zip(&group)
            .map(|(rank, worker)| {
                let rng = Rng::with_seed(seed ^ (rank + 1));
                scope.spawn(move || run_program(worker, workers, rounds, rng))
            })
            .collect();
        running
            .into_iter()
            .map(|program| program.join().unwrap())
            .sum()
    });
    assert!(reads > 0, "no value has been read");
    let injected: u64 = plans.iter().map(|plan| plan.injected().total()).sum();
    assert!(injected > 0, "no fault was injected");
    end(&group);
}

#[test]
fn late_messages_free_no_value_early_and_leak_none() {
    let late = Duration::from_millis(30);
    run_group(seed(), 4, 150, |plan| plan.delay_randomly(0.3, late));
}

#[test]
fn duplicated_messages_free_no_value_early_and_leak_none() {
    let late = Duration::from_millis(10);
    run_group(seed(), 3, 150, |plan| {
        plan.duplicate(0.3).delay_randomly(0.2, late)
    });
}

#[test]
fn lost_messages_free_no_value_early_and_leak_none() {
    run_group(seed(), 3, 100, |plan| plan.lose(0.05).duplicate(0.05));
}

#[test]
fn every_control_message_can_fail_several_times() {
    run_group(seed(), 3, 60, |plan| {
        let plan = plan.fail("rref/control", 3).fail("rref/controls", 3);
        plan.fail("rref/create", 2)
    });
}
