//! Many references, one after the other and side by side: nothing stays behind.

mod common;

use std::fs;
use std::thread;

use rpc_agent::CallOptions;
use rref::RRef;

use common::{Worker, group, shut_down, until_empty};

/// So many references live at a time, in each thread.
const MANY_ALIVE: usize = 64;

/// Few of them: each is waited for on a thread of the worker that reads it, and a worker keeps its threads
/// for a while, which is memory too.
const FEW_ALIVE: usize = 4;

/// Lives of references: created, sent to a third worker, fetched there, dropped.
fn churn(worker: &Worker, lives: usize, alive_max: usize) {
    let mut alive: Vec<RRef<i64>> = Vec::with_capacity(alive_max);
    let mut reads = Vec::with_capacity(alive_max);
    let mut left = lives;
    while left > 0 {
        for _ in 0..alive_max.min(left) {
            let number: RRef<i64> = worker.rrefs.remote("worker1", "number", 1_i64).unwrap();
            let read = worker.rrefs.call_async::<_, i64>(
                "worker2",
                "read",
                &number,
                CallOptions::default(),
            );
            reads.push(read.unwrap());
            alive.push(number);
            left -= 1;
        }
        for read in reads.drain(..) {
            assert_eq!(read.wait().unwrap(), 1);
        }
        alive.clear();
    }
}

/// What this process has in memory, in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse().unwrap()
}

fn live(workers: &[Worker], lives: usize, alive_max: usize) {
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| churn(&workers[0], lives / 2, alive_max));
        }
    });
    until_empty(workers);
}

#[test]
fn a_hundred_thousand_references_leave_empty_tables() {
    let workers = group(3);
    live(&workers, 100_000, MANY_ALIVE);
    shut_down(&workers);
}

#[test]
#[expect(clippy::print_stderr, reason = "shown when the test fails")]
fn a_hundred_thousand_references_leave_flat_memory() {
    let workers = group(3);
    // The tables and the allocator have their sizes by then.
    live(&workers, 30_000, FEW_ALIVE);
    let before = resident_kib();
    live(&workers, 100_000, FEW_ALIVE);
    let after = resident_kib();
    eprintln!("{before} KiB after 30,000 lives, {after} KiB after 130,000");
    assert!(after < before + (2 << 10));
    shut_down(&workers);
}
