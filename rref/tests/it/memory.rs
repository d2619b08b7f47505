//! What references cost: memory, threads, and time in a message.

use std::time::Instant;
use std::{env, fs};

use rref::RRef;

use crate::common::{PATIENCE, Worker, group, shut_down};

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
    numbers.map(Result::unwrap).collect()
}

#[test]
#[ignore = "measures the whole process"]
#[expect(clippy::print_stderr, reason = "the measured numbers")]
fn what_references_cost() {
    let count = env::var("REFS").map_or(200_000, |count| count.parse().unwrap());
    let burst = env::var("BURST").map_or(1000, |count| count.parse().unwrap());
    let workers = group(2);
    let _warm = create(&workers[0], 10_000);
    let before = status("VmRSS:");
    let mut held = Vec::with_capacity(count);
    let began = Instant::now();
    let mut threads = 0;
    while held.len() < count {
        let batch = create(&workers[0], burst);
        for one in &batch {
            one.wait_confirmed(PATIENCE).unwrap();
        }
        threads = threads.max(status("Threads:"));
        held.extend(batch);
    }
    let bytes = (status("VmRSS:") - before) * 1024 / count;
    eprintln!("{count} references: {bytes} bytes each, peak {} KiB, {threads} threads, {:?}", status("VmHWM:"), began.elapsed());
    let began = Instant::now();
    drop(held);
    crate::common::until("the users are deleted", || {
        workers[1].rrefs.sizes().unwrap().forks <= 10_000
    });
    eprintln!("dropped in {:?}", began.elapsed());
    drop(_warm);
    shut_down(&workers);
}

#[test]
#[ignore = "measures the whole process"]
#[expect(clippy::print_stderr, reason = "the measured numbers")]
fn what_references_in_a_message_cost() {
    let workers = crate::common::group_with(3, |_, options| options, |_, functions| {
        functions.register("count", |_, refs: Vec<RRef<i64>>| Ok(refs.len())).unwrap();
    });
    let held: Vec<_> = create(&workers[0], 65_000);
    for one in &held {
        one.wait_confirmed(PATIENCE).unwrap();
    }
    for to in ["worker1", "worker2"] {
        let began = Instant::now();
        let call = workers[0].rrefs.call(to, "count").with_timeout(PATIENCE);
        assert_eq!(call.run::<_, usize>(&held).unwrap(), 65_000);
        eprintln!("65,000 references to {to}: {:?}, {} threads", began.elapsed(), status("Threads:"));
    }
    drop(held);
    shut_down(&workers);
}
