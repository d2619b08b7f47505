//! Many deletions while messages are lost, with the default options.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use c10d_sim::seed;
use rref::{RRef, RRefOptions};

use crate::common::{PATIENCE, Worker, group_of, is_empty, make};
use crate::fault_plan::FaultPlan;

/// Far longer than a shutdown that repeats lost messages soon; a shutdown that waits for the attempt timeout of 10 s
/// for each lost message takes longer.
const SHUTDOWN: Duration = Duration::from_secs(30);

/// Creates values on the next worker, and holds them.
fn create(worker: &Worker, to: &str, count: usize) -> Vec<RRef<i64>> {
    let made: Vec<RRef<i64>> = (0..count)
        .map(|_| make(worker, to, "number", 1_i64))
        .collect();
    for rref in &made {
        rref.wait_confirmed(Some(PATIENCE)).unwrap();
    }
    made
}

/// `LONG=1`: 200,000 references.
#[test]
#[expect(clippy::print_stderr, reason = "the measured times")]
fn lost_messages_do_not_delay_the_deletions_behind_them() {
    let all = if env::var_os("LONG").is_some() {
        200_000
    } else {
        20_000
    };
    let seed = seed();
    let group = group_of(
        3,
        &RRefOptions::default(),
        |rank, options| {
            let plan = FaultPlan::new(seed + u64::from(rank)).lose(0.05);
            options.with_faults(plan)
        },
        |_, _| {},
    );
    let began = Instant::now();
    let held: Vec<_> = thread::scope(|scope| {
        let creating: Vec<_> = (1..)
            .zip(&group)
            .map(|(next, worker)| {
                scope.spawn(move || create(worker, &format!("worker{}", next % 3), all / 3))
            })
            .collect();
        creating
            .into_iter()
            .map(|made| made.join().unwrap())
            .collect()
    });
    eprintln!("{all} references created in {:?}", began.elapsed());
    let began = Instant::now();
    drop(held);
    thread::scope(|scope| {
        for worker in &group {
            scope.spawn(|| {
                worker
                    .rrefs
                    .shutdown(&worker.agent, Some(SHUTDOWN))
                    .unwrap()
            });
        }
    });
    eprintln!("and deleted in {:?}", began.elapsed());
    for worker in &group {
        assert!(is_empty(worker), "{:?}", worker.rrefs.sizes().unwrap());
        worker.agent.shutdown_now();
    }
}
