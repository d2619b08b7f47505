//! Limits: long names, long chains, many messages, and timeouts of zero.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rpc_agent::{Registry, RetryOptions, RpcError};
use rref::{Functions, RRef, RRefError, RRefOptions, RRefs, RegisterError, ShutdownError};
use serde::{Deserialize, Serialize};

use crate::common::{
    Gate, PATIENCE, ask, group, group_of, group_that_has, group_with, make, remote_number,
    shut_down, stop, until, until_empty, until_empty_within,
};
use crate::fault_plan::FaultPlan;

type T1 = (u64, u64);
type T2 = (T1, T1);
type T3 = (T2, T2);
type T4 = (T3, T3);
type T5 = (T4, T4);
type T6 = (T5, T5);
type T7 = (T6, T6);
type T8 = (T7, T7);

#[test]
fn a_value_whose_type_has_a_very_long_name_can_be_made() {
    let workers = group_that_has(2, |functions| {
        functions
            .register("deep", |_, ()| Ok(T8::default()))
            .unwrap();
    });
    let deep: RRef<T8> = make(&workers[0], "worker1", "deep", ());
    assert_eq!(deep.to_here(Some(PATIENCE)).unwrap(), T8::default());
    drop(deep);
    shut_down(&workers);
}

#[derive(Serialize, Deserialize)]
struct Node {
    next: Mutex<Option<RRef<Self>>>,
}

#[test]
fn the_report_of_a_long_chain_is_fast() {
    let workers = group(1);
    let rrefs = &workers[0].rrefs;
    let mut head: Option<RRef<Node>> = None;
    for _ in 0..20_000 {
        let next = Mutex::new(head.take());
        head = Some(rrefs.rref(Node { next }).unwrap());
    }
    let began = Instant::now();
    let report = rrefs.leak_report().unwrap();
    let took = began.elapsed();
    assert_eq!(report.values.len(), 20_000);
    drop(head);
    workers[0].agent.shutdown_now();
    assert!(took < PATIENCE / 2, "{took:?}");
}

#[test]
fn completed_waits_leave_no_timer() {
    let gate = Gate::new();
    let workers = group_that_has(2, |functions| gate.register(functions, "slow"));
    // A tombstone has a timer too, which expires after minutes.
    let freed = remote_number(&workers, 1);
    freed.wait_ready(Some(PATIENCE)).unwrap();
    drop(freed);
    until_empty(&workers);
    let slow: RRef<i64> = make(&workers[0], "worker1", "slow", ());
    slow.wait_confirmed(Some(PATIENCE)).unwrap();
    for _ in 0..50 {
        slow.wait_ready(Some(Duration::from_millis(3))).unwrap_err();
    }
    until("no request is waiting", || {
        workers[1].rrefs.sizes().unwrap().parked_fetches == 0
    });
    let waiting = workers[1].agent.handle().metrics().retry_queue_len;
    gate.open();
    drop(slow);
    shut_down(&workers);
    assert!(waiting < 10, "{waiting} jobs are scheduled");
}

#[test]
fn many_deletions_arrive_at_a_worker_that_takes_small_messages() {
    let workers = group_with(
        2,
        |_, options| options.with_message_bytes_max(8 << 10),
        |_, _| {},
    );
    let held: Vec<RRef<i64>> = (0..2000_i64)
        .map(|n| make(&workers[0], "worker1", "number", n))
        .collect();
    for number in &held {
        number.wait_ready(Some(PATIENCE)).unwrap();
    }
    drop(held);
    until_empty_within(PATIENCE / 3, &workers);
    shut_down(&workers);
}

#[test]
fn a_value_beyond_the_limit_of_messages_is_an_error_that_names_it() {
    let workers = group_with(
        2,
        |_, options| options.with_message_bytes_max(64 << 10),
        |_, functions| {
            functions
                .register("zeros", |_, length: usize| Ok(vec![0_u8; length]))
                .unwrap();
        },
    );
    let says_so = |error: RRefError| {
        let text = error.to_string();
        assert!(matches!(error, RRefError::Codec(_)), "{text}");
        assert!(
            text.contains("more bytes than message_bytes_max, which is 65536"),
            "{text}"
        );
    };
    let call = || workers[0].rrefs.call("worker1", "number");
    let large = vec![0_u8; 1 << 20];
    says_so(call().run::<_, i64>(&large).unwrap_err());
    says_so(call().remote::<_, i64>(&large).unwrap_err());
    let zeros = || workers[0].rrefs.call("worker1", "zeros");
    says_so(zeros().run::<_, Vec<u8>>(1_usize << 20).unwrap_err());
    let kept: RRef<Vec<u8>> = zeros().remote(1_usize << 20).unwrap();
    says_so(kept.to_here(PATIENCE).unwrap_err());
    // References in a refused request are not lost.
    let number: RRef<i64> = call().remote(1_i64).unwrap();
    says_so(zeros().run::<_, i64>((&number, &large)).unwrap_err());
    assert_eq!(number.to_here(PATIENCE).unwrap(), 1);
    drop((kept, number));
    shut_down(&workers);
}

#[test]
fn a_timeout_error_names_the_time_of_the_call() {
    let gate = Gate::new();
    let workers = group_that_has(2, |functions| {
        let gate = Arc::clone(&gate);
        let wait = move |_: &_, _: &i64, ()| {
            gate.pass();
            Ok(())
        };
        functions.register_method("wait", wait).unwrap();
    });
    let number = remote_number(&workers, 1);
    number.wait_ready(Some(PATIENCE)).unwrap();
    let time = Duration::from_millis(100);
    let call = number.call("wait").with_timeout(time);
    let error = call.run::<_, ()>(()).unwrap_err();
    gate.open();
    drop(number);
    shut_down(&workers);
    assert!(
        matches!(&error, RRefError::Rpc(RpcError::Timeout { after, .. }) if *after == time),
        "{error}"
    );
}

#[test]
fn a_timeout_of_zero_checks_once_for_the_confirmation_and_the_shutdown() {
    let gate = Gate::new();
    let plan = FaultPlan::new(1).delay("rref/create", Duration::from_secs(2));
    let workers = group_of(2, &RRefOptions::new(), plan.of_rank(0), |_, functions| {
        gate.register(functions, "slow");
    });
    let rrefs = &workers[0].rrefs;
    let zero = Some(Duration::ZERO);
    let slow: RRef<i64> = rrefs.call("worker1", "slow").remote(()).unwrap();
    let error = slow.wait_confirmed(zero).unwrap_err();
    assert!(
        matches!(error, RRefError::TimedOut { after, .. } if after.is_zero()),
        "{error}"
    );
    slow.wait_confirmed(None).unwrap();
    slow.wait_confirmed(zero).unwrap();
    // The other worker still holds a value of this worker.
    let own = rrefs.rref(1_i64).unwrap();
    let held: RRef<i64> = make(&workers[1], "worker0", "number", 1_i64);
    held.wait_ready(None).unwrap();
    let error = rrefs.leave(zero).unwrap_err();
    assert!(matches!(error, ShutdownError::Missing { .. }), "{error}");
    gate.open();
    drop((slow, own, held));
    stop(&workers);
}

#[test]
fn invalid_retry_options_are_refused_when_references_are_registered() {
    let options = RRefOptions::new().with_retries(RetryOptions::default().with_jitter(2.0));
    let error = RRefs::register_with(&mut Registry::new(), Functions::new(), options).unwrap_err();
    assert!(matches!(error, RegisterError::Retries(_)), "{error}");
    let mut registry = Registry::new();
    RRefs::register(&mut registry, Functions::new()).unwrap();
    let error = RRefs::register(&mut registry, Functions::new()).unwrap_err();
    assert!(matches!(error, RegisterError::Registry(_)), "{error}");
}

#[test]
fn attempts_without_a_timeout_deliver_messages() {
    let options = RRefOptions::default().with_attempt_timeout(None);
    let workers = group_of(2, &options, |_, options| options, |_, _| {});
    let number = workers[0].rrefs.call("worker1", "number").remote(1_i64);
    let number: RRef<i64> = number.unwrap();
    let read = number.to_here(Some(Duration::from_secs(2)));
    drop(number);
    let own = workers[0].rrefs.rref(1_i64).unwrap();
    let echo: Result<RRef<i64>, _> = ask(&workers[0], "worker1", "echo", &own);
    drop((own, echo));
    until_empty_within(PATIENCE / 3, &workers);
    assert_eq!(read.unwrap(), 1);
    shut_down(&workers);
}
