//! The cost of references: memory, calls, and time in a message.

use std::time::Instant;
use std::{env, fs};

use rref::{RRef, RRefOptions};

use crate::common::{PATIENCE, Worker, group, group_of, shut_down, until};
use crate::own_process::in_own_process;

/// The most bytes of a reference on its owner and its user together.
const BYTES_MAX: usize = 600;

/// A number of `/proc/self/status`.
fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let number = line.split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

fn create(worker: &Worker, count: usize) -> Vec<RRef<i64>> {
    let numbers = 0..i64::try_from(count).unwrap();
    let numbers = numbers.map(|number| worker.rrefs.call("worker1", "number").remote(number));
    let created: Vec<RRef<i64>> = numbers.map(Result::unwrap).collect();
    for one in &created {
        one.wait_confirmed(PATIENCE).unwrap();
    }
    created
}

/// `REFS=n` makes n references.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(clippy::print_stderr, reason = "the measured numbers")]
fn a_reference_costs_few_bytes_on_both_workers_together() {
    if !in_own_process("memory::a_reference_costs_few_bytes_on_both_workers_together") {
        return;
    }
    let count = env::var("REFS").map_or(50_000, |count| count.parse().unwrap());
    let workers = group(2);
    // Threads and buffers, which a process has once: references do not cause their memory.
    let warm: Vec<_> = (0..10).flat_map(|_| create(&workers[0], 1000)).collect();
    let before = status("VmRSS:");
    let mut held = Vec::with_capacity(count);
    let began = Instant::now();
    while held.len() < count {
        held.extend(create(&workers[0], 1000));
    }
    let bytes = (status("VmRSS:") - before) * 1024 / held.len();
    let (threads, took) = (status("Threads:"), began.elapsed());
    eprintln!("{count} references: {bytes} bytes each, {threads} threads, {took:?}");
    drop((warm, held));
    until("the users are deleted", || {
        workers[1].rrefs.sizes().unwrap().forks == 0
    });
    shut_down(&workers);
    assert!(bytes <= BYTES_MAX, "{bytes} bytes each");
}

/// With the owner, which only accepts them, and with another worker, which registers each at its owner.
/// `REFS=n` sends n references.
#[test]
#[cfg(target_os = "linux")]
#[expect(clippy::print_stderr, reason = "the measured times")]
fn references_in_a_message_are_registered_together() {
    let count = env::var("REFS").map_or(20_000, |count| count.parse().unwrap());
    // A short timeout of attempts would repeat large batches on a busy machine.
    let workers = group_of(
        3,
        &RRefOptions::default(),
        |_, options| options,
        |_, functions| {
            functions
                .register("count", |_, refs: Vec<RRef<i64>>| Ok(refs.len()))
                .unwrap();
        },
    );
    let held = create(&workers[0], count);
    for to in ["worker1", "worker2"] {
        let received = |worker: &Worker| worker.agent.handle().metrics().requests_received;
        let before: u64 = workers.iter().map(received).sum();
        let began = Instant::now();
        let call = workers[0].rrefs.call(to, "count").with_timeout(PATIENCE);
        assert_eq!(call.run::<_, usize>(&held).unwrap(), count);
        let took = began.elapsed();
        until("the parents are released", || {
            workers[0].rrefs.sizes().unwrap().pending_children == 0
        });
        let calls = workers.iter().map(received).sum::<u64>() - before;
        let threads = status("Threads:");
        eprintln!("{count} references to {to}: {took:?}, {calls} calls, {threads} threads");
        assert!(calls < 1000, "{calls} calls for {count} references");
    }
    drop(held);
    shut_down(&workers);
}
