//! Calls with retries: which failures are retried, and how the calls end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use rpc_agent::{
    FutureMessage, Outcome, Registry, Reply, RetryGroup, RetryOptions, RetryOptionsError, RpcError,
};

use crate::common::{
    Held, PATIENCE, agent_and_raw, group_with, pair, pair_with, retry, until, wait,
};
use crate::fault_plan::FaultPlan;
use crate::raw::{ERROR, REQUEST, frame, read_frame, send};

/// Pauses of 2, 3, 4 ms and so on; no timeout per attempt.
fn quick(max_retries: u32) -> RetryOptions {
    RetryOptions::default()
        .with_max_retries(max_retries)
        .with_retry_duration(Duration::from_millis(2))
        .with_attempt_timeout(Duration::MAX)
}

/// Pauses that are longer than a test, so that no retry happens during it.
fn slow() -> RetryOptions {
    RetryOptions::default().with_retry_duration(Duration::from_secs(3600))
}

/// Implements the function `count`: it counts its runs per payload and returns the payload.
#[derive(Debug, Clone, Default)]
struct Runs(Arc<Mutex<HashMap<Bytes, u64>>>);

impl Runs {
    fn register(&self, registry: &mut Registry) {
        let runs = self.clone();
        registry
            .register_bytes("count", move |_, payload| {
                *runs.0.lock().unwrap().entry(payload.clone()).or_default() += 1;
                Ok(payload)
            })
            .unwrap();
    }

    fn of(&self, payload: &Bytes) -> u64 {
        self.0.lock().unwrap().get(payload).copied().unwrap_or(0)
    }

    fn total(&self) -> u64 {
        self.0.lock().unwrap().values().sum()
    }
}

#[test]
fn a_call_succeeds_with_its_last_retry() {
    for failures in 0..=2 {
        // Of another worker, and its own.
        for to in ["worker1", "worker0"] {
            let faults = FaultPlan::new(1).fail("count", failures);
            let runs = Runs::default();
            let agents = group_with(2, faults.of_rank(0), |_, registry| runs.register(registry));
            let retries = quick(failures);
            let call = retry(agents[0].handle(), to, "count", &retries, "x");
            assert_eq!(wait(&call).unwrap(), "x");
            assert_eq!(faults.injected().failed, u64::from(failures));
            assert_eq!(runs.total(), 1, "the failed attempts were not sent");
            let metrics = agents[0].handle().metrics();
            assert_eq!(metrics.retries_sent, u64::from(failures));
            assert_eq!((metrics.retries_exhausted, metrics.retry_queue_len), (0, 0));
        }
    }
}

#[test]
fn an_attempt_that_may_have_run_counts_when_the_next_one_has_no_such_function() {
    let (agent, raw, _store) = agent_and_raw(|options| options);
    let call = retry(agent.handle(), "worker1", "f", &quick(3), "x");
    let mut link = raw.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    drop(link);
    let mut link = raw.accept_link();
    let asked = read_frame(&mut link);
    send(&mut link, &frame(ERROR, 0, 3, asked.id, b""));
    let error = wait(&call).unwrap_err();
    let RpcError::RetriesExhausted {
        max_retries: 3,
        attempts: 2,
        outcome: Outcome::Unknown,
        last,
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(
        matches!(**last, RpcError::NoSuchFunction { .. }),
        "{last:?}"
    );
    assert_eq!(
        error.to_string(),
        "The RPC has not succeeded after the specified number of max retries (3). Stopped early. \
         Attempts: 2, and one of them may have run, the last one: call of `f` on worker worker1 (id 1): the \
         worker has no function of this name; register it before its agent starts"
    );
}

#[test]
fn an_attempt_that_may_have_run_counts_when_the_agent_shuts_down_during_the_next_one() {
    let (agent, raw, _store) = agent_and_raw(|options| options);
    let call = retry(agent.handle(), "worker1", "f", &quick(3), "x");
    let mut link = raw.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    drop(link);
    // The second attempt waits for a Welcome that the raw worker never sends.
    let _silent = raw.accept();
    agent.shutdown_now();
    let error = call
        .try_get()
        .expect("shutdown completes all calls")
        .unwrap_err();
    assert!(matches!(error, RpcError::Shutdown { .. }), "{error:?}");
    assert_eq!(error.outcome(), Outcome::Unknown);
}

#[test]
fn a_function_runs_again_for_each_lost_answer() {
    const CALLS: u64 = 40;
    let faults = FaultPlan::new(11).lose_answers(0.5);
    let runs = Runs::default();
    let (agent, _other) = pair_with(faults.of_rank(1), |registry| runs.register(registry));
    let retries = quick(1000).with_max_delay(Duration::from_millis(5));
    let retries = retries.with_attempt_timeout(Duration::from_millis(50));
    let payloads: Vec<Bytes> = (0..CALLS).map(|number| number.to_string().into()).collect();
    let calls: Vec<_> = payloads
        .iter()
        .map(|payload| {
            retry(
                agent.handle(),
                "worker1",
                "count",
                &retries,
                payload.clone(),
            )
        })
        .collect();
    for (payload, call) in payloads.iter().zip(&calls) {
        assert_eq!(wait(call).unwrap(), payload);
        assert!(runs.of(payload) >= 1);
    }
    let lost = faults.injected().answers_lost;
    assert!(lost > 0);
    // On a loaded machine a slow call may also be repeated, and a request may arrive after its deadline, so that it
    // does not run.
    assert!(
        runs.total() >= CALLS + lost,
        "{} runs, {lost} lost",
        runs.total()
    );
    let sent = agent.handle().metrics().retries_sent;
    let repeated = runs.total() - CALLS;
    assert!(sent >= repeated, "{sent} retries, {repeated} further runs");
}

#[test]
fn invalid_options_fail_the_call_and_nothing_is_sent() {
    let (agent, other) = pair(|_| {});
    let invalid = quick(1).with_jitter(2.0);
    let call = retry(agent.handle(), "worker1", "echo", &invalid, "");
    let error = call.try_get().expect("the call fails at once").unwrap_err();
    assert!(
        matches!(
            error,
            RpcError::RetryOptions(RetryOptionsError::Jitter { .. })
        ),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "the jitter must be within 0 to 1, but is 2"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    assert_eq!(agent.handle().metrics().calls_started, 0);
    assert_eq!(other.handle().metrics().requests_received, 0);
}

#[test]
fn calls_with_retries_succeed_over_connections_that_are_cut_repeatedly() {
    let faults = FaultPlan::new(5).cut(0.2);
    let (agent, _other) = pair_with(|_, options| options.with_faults(faults.clone()), |_| {});
    let retries = quick(10_000).with_max_delay(Duration::from_millis(5));
    for round in 0..5 {
        let payloads = (0..20).map(|number| Bytes::from(format!("{round} {number}")));
        let calls: Vec<_> = payloads
            .map(|payload| {
                let call = retry(agent.handle(), "worker1", "echo", &retries, payload.clone());
                (payload, call)
            })
            .collect();
        for (payload, call) in &calls {
            assert_eq!(wait(call).unwrap(), payload);
        }
    }
    assert!(faults.injected().cut > 0);
    let metrics = agent.handle().metrics();
    assert!(metrics.retries_sent > 0);
    assert_eq!((metrics.calls_in_flight, metrics.retry_queue_len), (0, 0));
}

#[test]
fn an_answer_to_a_timed_out_attempt_completes_nothing() {
    let (arrived, attempts) = mpsc::channel();
    let (agent, _other) = pair(|registry| {
        let arrived = Mutex::new(arrived.clone());
        let hold = move |_: &_, _, reply| {
            let _ = arrived.lock().unwrap().send(reply);
        };
        registry.register_deferred("hold", hold).unwrap();
    });

    let retries = quick(1000).with_attempt_timeout(Duration::from_millis(100));
    let call = retry(agent.handle(), "worker1", "hold", &retries, "");
    let completions = Arc::new(AtomicU64::new(0));
    call.on_complete({
        let completions = Arc::clone(&completions);
        move |_| {
            completions.fetch_add(1, Ordering::SeqCst);
        }
    });
    // When the second attempt arrives, the first one has timed out.
    let first: Reply = attempts.recv_timeout(PATIENCE).unwrap();
    let mut latest = attempts.recv_timeout(PATIENCE).unwrap();
    first.send(Ok("late"));
    until("the late answer is dropped", || {
        agent.handle().metrics().late_responses == 1
    });
    // Answer the latest attempt until one answer arrives in time.
    let answer = loop {
        while let Ok(later) = attempts.try_recv() {
            latest = later;
        }
        latest.send(Ok("in time"));
        if let Some(result) = call.wait_timeout(Duration::from_millis(100)) {
            break result;
        }
        latest = attempts.recv_timeout(PATIENCE).unwrap();
    };
    assert_eq!(answer.unwrap(), "in time");
    until("the callback has run", || {
        completions.load(Ordering::SeqCst) == 1
    });
    agent.shutdown_now();
    assert_eq!(completions.load(Ordering::SeqCst), 1);
}

#[test]
fn shutdown_fails_all_calls_with_retries() {
    const WAITING: usize = 25;
    const SENT: usize = 15;
    let faults = FaultPlan::new(1).fail("echo", u32::MAX);
    let held = Held::default();
    let (agent, _other) = pair_with(faults.of_rank(0), |registry| {
        held.register(registry, "hold")
    });
    let completions = Arc::new(AtomicU64::new(0));
    let begin = |function: &str, count: usize| -> Vec<FutureMessage> {
        let calls = (0..count).map(|number| {
            let payload = number.to_string();
            let retries = slow().with_attempt_timeout(Duration::MAX);
            let call = retry(agent.handle(), "worker1", function, &retries, payload);
            let completions = Arc::clone(&completions);
            call.on_complete(move |_| {
                completions.fetch_add(1, Ordering::SeqCst);
            });
            call
        });
        calls.collect()
    };
    let waiting = begin("echo", WAITING);
    let sent = begin("hold", SENT);
    until("all calls are waiting or in flight", || {
        let queued = agent.handle().metrics().retry_queue_len;
        queued == WAITING as u64 && held.len() == SENT
    });
    agent.shutdown_now();
    let never_sent = waiting.iter().map(|call| (call, Outcome::NotExecuted));
    let sent = sent.iter().map(|call| (call, Outcome::Unknown));
    for (call, outcome) in never_sent.chain(sent) {
        let error = call
            .try_get()
            .expect("shutdown completes all calls")
            .unwrap_err();
        assert!(matches!(error, RpcError::Shutdown { .. }), "{error:?}");
        assert_eq!(error.outcome(), outcome);
    }
    let metrics = agent.handle().metrics();
    assert_eq!((metrics.retry_queue_len, metrics.calls_in_flight), (0, 0));
    // Shutdown waits for callbacks as well.
    assert_eq!(completions.load(Ordering::SeqCst), (WAITING + SENT) as u64);
    // Later calls fail at once.
    let late = retry(agent.handle(), "worker1", "echo", &quick(3), "");
    let error = late.try_get().expect("the call fails at once").unwrap_err();
    assert!(matches!(error, RpcError::Shutdown { .. }), "{error:?}");
    assert_eq!(error.outcome(), Outcome::NotExecuted);
}

#[test]
fn callbacks_of_calls_with_retries_run_on_the_pool() {
    let faults = FaultPlan::new(1).fail("echo", 2);
    let (agent, _other) = pair_with(faults.of_rank(0), |_| {});
    let (sender, receiver) = mpsc::channel();
    let here = move || {
        let name = thread::current().name().unwrap_or("").to_owned();
        let _ = sender.send(name);
    };
    // The injected failures occur on the thread that polls, without an answer from the other worker.
    let exhausted = retry(agent.handle(), "worker1", "echo", &quick(1), "a");
    let succeeded = retry(agent.handle(), "worker1", "echo", &quick(2), "b");
    for call in [&exhausted, &succeeded] {
        let on_complete = here.clone();
        call.on_complete(move |_| on_complete());
        let then = here.clone();
        let child = call.then(move |result| {
            then();
            result
        });
        let _ = wait(&child);
    }
    let error = wait(&exhausted).unwrap_err().to_string();
    let injected = "was not sent: Send attempt failed intentionally";
    assert!(error.ends_with(injected), "{error}");
    assert_eq!(wait(&succeeded).unwrap(), "b");
    assert_eq!(agent.handle().metrics().retries_exhausted, 1);
    for _ in 0..4 {
        let name = receiver.recv_timeout(PATIENCE).unwrap();
        // A callback on a complete future runs on the registering thread.
        let is_registrar = thread::current().name() == Some(name.as_str());
        assert!(is_registrar || name.starts_with("rpc-"), "{name}");
    }
}

#[test]
fn abandoned_calls_of_a_group_end_with_exhausted_retries_and_no_others() {
    const WAITING: usize = 25;
    let faults = FaultPlan::new(1).fail("echo", u32::MAX);
    let held = Held::default();
    let (agent, other) = pair_with(faults.of_rank(0), |registry| {
        held.register(registry, "hold")
    });
    let to = other.handle().me().id;
    let group = RetryGroup::new();
    let grouped = slow().with_group(&group);
    let waiting: Vec<_> = (0..WAITING)
        .map(|_| retry(agent.handle(), to, "echo", &grouped, ""))
        .collect();
    let elsewhere = slow().with_group(&RetryGroup::new());
    let others = [
        retry(agent.handle(), agent.handle().me().id, "echo", &grouped, ""),
        retry(agent.handle(), to, "echo", &slow(), ""),
        retry(agent.handle(), to, "echo", &elsewhere, ""),
    ];
    let retries = grouped.clone().with_attempt_timeout(Duration::MAX);
    let sent = retry(agent.handle(), to, "hold", &retries, "");
    until("all calls are waiting or in flight", || {
        let queued = agent.handle().metrics().retry_queue_len;
        queued == WAITING as u64 + 3 && held.len() == 1
    });
    agent.handle().abandon_retries(&group, to);
    for call in &waiting {
        let error = wait(call).unwrap_err();
        assert!(
            matches!(error, RpcError::RetriesExhausted { attempts: 1, .. }),
            "{error:?}"
        );
        assert_eq!(error.outcome(), Outcome::NotExecuted);
        assert!(error.to_string().contains("abandoned"), "{error}");
    }
    // The attempt in flight stays in flight, and is the last one.
    assert!(!sent.is_complete());
    other.shutdown_now();
    let error = wait(&sent).unwrap_err();
    assert!(
        matches!(error, RpcError::RetriesExhausted { attempts: 1, .. }),
        "{error:?}"
    );
    assert_eq!(error.outcome(), Outcome::Unknown);
    // Calls to other workers, calls outside the group and later calls continue.
    assert!(!others.iter().any(FutureMessage::is_complete));
    let later = retry(agent.handle(), to, "echo", &grouped, "");
    until("the call waits for its next attempt", || {
        agent.handle().metrics().retry_queue_len == 4
    });
    assert!(!later.is_complete());
}
