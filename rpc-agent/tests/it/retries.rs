//! Calls with retries: which failures are retried, and how the calls end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use c10d_sim::Proxy;
use rpc_agent::{
    Agent, FutureMessage, HandlerError, NotSent, Outcome, Registry, Reply, RetryGroup,
    RetryOptions, RetryOptionsError, RpcError,
};

use crate::common::{PATIENCE, options, pair, pair_with, registry, shared_store, start_all, until};
use crate::fault_plan::FaultPlan;
use crate::raw::{ERROR, REQUEST, RawWorker, address_of, frame, publish, read_frame, send};

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

#[track_caller]
fn wait(future: &FutureMessage) -> Result<Bytes, RpcError> {
    future.wait_timeout(PATIENCE).expect("the call completes")
}

/// Two workers. The fault plan applies to the requests of the first one.
fn pair_with_faults(faults: &FaultPlan, fill: impl Fn(&mut Registry)) -> (Agent, Agent) {
    let adjust = |rank, options: rpc_agent::AgentOptions| match rank {
        0 => options.with_faults(faults.clone()),
        _ => options,
    };
    pair_with(adjust, fill)
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

/// An agent whose only other worker is a raw worker.
fn agent_and_raw() -> (Agent, RawWorker) {
    let store = shared_store();
    let raw = RawWorker::join(&*store, 1, "worker1", 5);
    let me = (options(0).with_world_size(2), registry(|_| {}));
    let agent = start_all(&store, vec![me]).remove(0).unwrap();
    (agent, raw)
}

#[test]
fn a_call_succeeds_with_its_last_retry() {
    for failures in 0..=5 {
        let faults = FaultPlan::new(1).fail("count", failures);
        let runs = Runs::default();
        let (agent, _other) = pair_with_faults(&faults, |registry| runs.register(registry));
        let retries = quick(failures);
        let call = agent
            .handle()
            .call("worker1", "count")
            .with_retries(&retries)
            .send_bytes("x");
        assert_eq!(wait(&call).unwrap(), "x");
        assert_eq!(faults.injected().failed, u64::from(failures));
        assert_eq!(runs.total(), 1, "the failed attempts were not sent");
        let metrics = agent.handle().metrics();
        assert_eq!(metrics.retries_sent, u64::from(failures));
        assert_eq!((metrics.retries_exhausted, metrics.retry_queue_len), (0, 0));
    }
}

#[test]
fn one_attempt_that_may_have_run_makes_the_outcome_of_all_unknown() {
    let (agent, raw) = agent_and_raw();
    let call = agent
        .handle()
        .call("worker1", "f")
        .with_retries(&quick(1))
        .send_bytes("x");
    let mut link = raw.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    // The first attempt was read. The second attempt fails because the connection is refused.
    drop(raw);
    drop(link);
    let error = wait(&call).unwrap_err();
    let RpcError::RetriesExhausted { outcome, last, .. } = &error else {
        unreachable!("{error:?}");
    };
    assert!(matches!(**last, RpcError::NotSent { .. }), "{last:?}");
    assert_eq!(
        (*outcome, error.outcome()),
        (Outcome::Unknown, Outcome::Unknown)
    );
}

#[test]
fn an_attempt_that_may_have_run_counts_when_the_next_one_has_no_such_function() {
    let (agent, raw) = agent_and_raw();
    let call = agent
        .handle()
        .call("worker1", "f")
        .with_retries(&quick(3))
        .send_bytes("x");
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
    let (agent, raw) = agent_and_raw();
    let call = agent
        .handle()
        .call("worker1", "f")
        .with_retries(&quick(3))
        .send_bytes("x");
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
fn a_call_without_retries_left_fails_with_the_last_cause() {
    let faults = FaultPlan::new(1).fail("*", 3);
    let (agent, _other) = pair_with_faults(&faults, |_| {});
    let call = agent
        .handle()
        .call("worker1", "echo")
        .with_retries(&quick(2))
        .send_bytes("x");
    let error = wait(&call).unwrap_err();
    let RpcError::RetriesExhausted {
        max_retries: 2,
        attempts: 3,
        outcome: Outcome::NotExecuted,
        last,
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(
        matches!(
            &**last,
            RpcError::NotSent {
                cause: NotSent::Injected,
                ..
            }
        ),
        "{last:?}"
    );
    assert_eq!(
        error.to_string(),
        "The RPC has not succeeded after the specified number of max retries (2). Attempts: 3, the \
         last one: call of `echo` on worker worker1 (id 1) was not sent: Send attempt failed \
         intentionally"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    let metrics = agent.handle().metrics();
    assert_eq!((metrics.retries_sent, metrics.retries_exhausted), (2, 1));
    // The next call with the same payload is the fourth send.
    let call = agent
        .handle()
        .call("worker1", "echo")
        .with_retries(&quick(0))
        .send_bytes("x");
    assert_eq!(wait(&call).unwrap(), "x");
}

#[test]
fn without_retries_the_first_failure_is_the_last_attempt() {
    let faults = FaultPlan::new(1).fail("echo", 1);
    let (agent, _other) = pair_with_faults(&faults, |_| {});
    let call = agent
        .handle()
        .call("worker1", "echo")
        .with_retries(&quick(0))
        .send_bytes("x");
    let error = wait(&call).unwrap_err();
    assert!(
        matches!(
            error,
            RpcError::RetriesExhausted {
                max_retries: 0,
                attempts: 1,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(agent.handle().metrics().retries_sent, 0);
}

#[test]
fn a_function_runs_again_for_each_lost_answer() {
    const CALLS: u64 = 40;
    let faults = FaultPlan::new(11).lose_answers(0.5);
    let runs = Runs::default();
    let adjust = |rank, options: rpc_agent::AgentOptions| match rank {
        1 => options.with_faults(faults.clone()),
        _ => options,
    };
    let (agent, _other) = pair_with(adjust, |registry| runs.register(registry));
    let retries = quick(1000).with_max_delay(Duration::from_millis(5));
    let retries = retries.with_attempt_timeout(Duration::from_millis(50));
    let payloads: Vec<Bytes> = (0..CALLS).map(|number| number.to_string().into()).collect();
    let calls: Vec<_> = payloads
        .iter()
        .map(|payload| {
            agent
                .handle()
                .call("worker1", "count")
                .with_retries(&retries)
                .send_bytes(payload.clone())
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
fn errors_of_a_function_are_retried_only_if_requested() {
    let asked = Arc::new(AtomicU64::new(0));
    let (agent, _other) = pair(|registry| {
        let asked = Arc::clone(&asked);
        registry
            .register("refuse", move |_, _| {
                asked.fetch_add(1, Ordering::SeqCst);
                Err(HandlerError::new("no"))
            })
            .unwrap();
    });
    let call = agent
        .handle()
        .call("worker1", "refuse")
        .with_retries(&quick(5))
        .send_bytes("");
    let error = wait(&call).unwrap_err();
    assert!(
        matches!(&error, RpcError::Remote { message, .. } if **message == *"no"),
        "{error:?}"
    );
    assert_eq!(asked.load(Ordering::SeqCst), 1);

    let retries = quick(2).retry_executed(true);
    let call = agent
        .handle()
        .call("worker1", "refuse")
        .with_retries(&retries)
        .send_bytes("");
    let error = wait(&call).unwrap_err();
    assert!(
        matches!(error, RpcError::RetriesExhausted { attempts: 3, .. }),
        "{error:?}"
    );
    assert_eq!(error.outcome(), Outcome::Executed);
    assert_eq!(asked.load(Ordering::SeqCst), 4);

    let call = agent
        .handle()
        .call("worker1", "nothing")
        .with_retries(&quick(5))
        .send_bytes("");
    let error = wait(&call).unwrap_err();
    assert!(
        matches!(error, RpcError::NoSuchFunction { .. }),
        "{error:?}"
    );
    let call = agent
        .handle()
        .call("nobody", "echo")
        .with_retries(&quick(5))
        .send_bytes("");
    let error = wait(&call).unwrap_err();
    assert!(matches!(error, RpcError::NoSuchWorker { .. }), "{error:?}");
    assert_eq!(agent.handle().metrics().retries_sent, 2);
}

#[test]
fn invalid_options_fail_the_call_and_nothing_is_sent() {
    let (agent, other) = pair(|_| {});
    let cases = [
        (
            quick(1).with_backoff(0.5),
            "maxRetries cannot be exponentially decaying.",
        ),
        (
            quick(1).with_jitter(2.0),
            "the jitter must be within 0 to 1, but is 2",
        ),
        (
            quick(1).with_attempt_timeout(Duration::ZERO),
            "the timeout of an attempt must not be zero",
        ),
    ];
    for (retries, expected_text) in cases {
        let call = agent
            .handle()
            .call("worker1", "echo")
            .with_retries(&retries)
            .send_bytes("");
        let error = call.try_get().expect("the call fails at once").unwrap_err();
        assert_eq!(error.to_string(), expected_text);
        assert_eq!(error.outcome(), Outcome::NotExecuted);
    }
    let call = agent
        .handle()
        .call("worker1", "echo")
        .with_retries(&quick(1).with_jitter(2.0))
        .send_bytes("");
    assert!(matches!(
        call.try_get(),
        Some(Err(RpcError::RetryOptions(
            RetryOptionsError::Jitter { .. }
        )))
    ));
    assert_eq!(agent.handle().metrics().calls_started, 0);
    assert_eq!(other.handle().metrics().requests_received, 0);
}

#[test]
fn a_retry_uses_a_new_connection_after_a_cut() {
    let store = shared_store();
    let replies: Arc<Mutex<Vec<Reply>>> = Arc::default();
    let fill = |registry: &mut Registry| {
        let replies = Arc::clone(&replies);
        registry
            .register_deferred("first waits", move |_, payload, reply| {
                let mut replies = replies.lock().unwrap();
                if replies.is_empty() {
                    replies.push(reply);
                } else {
                    reply.send(Ok(payload));
                }
            })
            .unwrap();
    };
    let workers = [0, 1].map(|rank| (options(rank).with_world_size(2), registry(fill)));
    let agents = start_all(&store, workers.into());
    let agents: Vec<Agent> = agents.into_iter().map(Result::unwrap).collect();
    let (address, incarnation) = address_of(&*store, 1);
    let proxy = Proxy::to(address);
    publish(&*store, 1, "worker1", proxy.port(), incarnation);

    let call = agents[0]
        .handle()
        .call("worker1", "first waits")
        .with_retries(&quick(3))
        .send_bytes("x");
    until("the first attempt has arrived", || {
        !replies.lock().unwrap().is_empty()
    });
    proxy.cut(false);
    assert_eq!(wait(&call).unwrap(), "x");
    let metrics = agents[0].handle().metrics();
    assert_eq!((metrics.retries_sent, metrics.reconnects), (1, 1));
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
                let call = agent
                    .handle()
                    .call("worker1", "echo")
                    .with_retries(&retries)
                    .send_bytes(payload.clone());
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
    let arrived = Mutex::new(arrived);
    let store = shared_store();
    let mut functions = Registry::new();
    functions
        .register_deferred("hold", move |_, _, reply| {
            let _ = arrived.lock().unwrap().send(reply);
        })
        .unwrap();
    let workers = vec![
        (options(0).with_world_size(2), registry(|_| {})),
        (options(1).with_world_size(2), functions),
    ];
    let agents = start_all(&store, workers);
    let agents: Vec<Agent> = agents.into_iter().map(Result::unwrap).collect();
    let agent = &agents[0];

    let retries = quick(1000).with_attempt_timeout(Duration::from_millis(100));
    let call = agent
        .handle()
        .call("worker1", "hold")
        .with_retries(&retries)
        .send_bytes("");
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
    agents[0].shutdown_now();
    assert_eq!(completions.load(Ordering::SeqCst), 1);
}

#[test]
fn many_calls_that_fail_together_are_all_retried() {
    const CALLS: u64 = 200;
    let faults = FaultPlan::new(1).fail("count", 2);
    let runs = Runs::default();
    let (agent, _other) = pair_with_faults(&faults, |registry| runs.register(registry));
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let payload = number.to_string();
            agent
                .handle()
                .call("worker1", "count")
                .with_retries(&quick(2))
                .send_bytes(payload)
        })
        .collect();
    for (number, call) in (0..CALLS).zip(&calls) {
        assert_eq!(wait(call).unwrap(), number.to_string());
    }
    assert_eq!(runs.total(), CALLS);
    let metrics = agent.handle().metrics();
    assert_eq!(
        (metrics.retries_sent, metrics.retry_queue_len),
        (2 * CALLS, 0)
    );
}

#[test]
fn shutdown_fails_all_calls_with_retries() {
    const WAITING: usize = 25;
    const SENT: usize = 15;
    let faults = FaultPlan::new(1).fail("echo", u32::MAX);
    let held: Arc<Mutex<Vec<Reply>>> = Arc::default();
    let (agent, _other) = pair_with_faults(&faults, |registry| {
        let held = Arc::clone(&held);
        registry
            .register_deferred("hold", move |_, _, reply| held.lock().unwrap().push(reply))
            .unwrap();
    });
    let completions = Arc::new(AtomicU64::new(0));
    let begin = |function: &str, count: usize| -> Vec<FutureMessage> {
        let calls = (0..count).map(|number| {
            let payload = number.to_string();
            let retries = slow().with_attempt_timeout(Duration::MAX);
            let call = agent
                .handle()
                .call("worker1", function)
                .with_retries(&retries)
                .send_bytes(payload);
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
        queued == WAITING as u64 && held.lock().unwrap().len() == SENT
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
    let late = agent
        .handle()
        .call("worker1", "echo")
        .with_retries(&quick(3))
        .send_bytes("");
    let error = late.try_get().expect("the call fails at once").unwrap_err();
    assert!(matches!(error, RpcError::Shutdown { .. }), "{error:?}");
    assert_eq!(error.outcome(), Outcome::NotExecuted);
}

#[test]
fn callbacks_of_calls_with_retries_run_on_the_pool() {
    let faults = FaultPlan::new(1).fail("echo", 2);
    let (agent, _other) = pair_with_faults(&faults, |_| {});
    let (sender, receiver) = mpsc::channel();
    let here = move || {
        let name = thread::current().name().unwrap_or("").to_owned();
        let _ = sender.send(name);
    };
    // The injected failures occur on the thread that polls, without an answer from the other worker.
    let exhausted = agent
        .handle()
        .call("worker1", "echo")
        .with_retries(&quick(1))
        .send_bytes("a");
    let succeeded = agent
        .handle()
        .call("worker1", "echo")
        .with_retries(&quick(2))
        .send_bytes("b");
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
    assert!(wait(&exhausted).is_err());
    assert!(wait(&succeeded).is_ok());
    for _ in 0..4 {
        let name = receiver.recv_timeout(PATIENCE).unwrap();
        // A callback on a complete future runs on the registering thread.
        let is_registrar = thread::current().name() == Some(name.as_str());
        assert!(is_registrar || name.starts_with("rpc-"), "{name}");
    }
}

#[test]
fn calls_of_a_worker_to_itself_are_retried_too() {
    let faults = FaultPlan::new(1).fail("echo", 2);
    let (agent, _other) = pair_with_faults(&faults, |_| {});
    let call = agent
        .handle()
        .call("worker0", "echo")
        .with_retries(&quick(2))
        .send_bytes("x");
    assert_eq!(wait(&call).unwrap(), "x");
    assert_eq!(agent.handle().metrics().retries_sent, 2);
}

#[test]
fn abandoned_calls_of_a_group_end_with_exhausted_retries_and_no_others() {
    const WAITING: usize = 25;
    let faults = FaultPlan::new(1).fail("echo", u32::MAX);
    let held: Arc<Mutex<Vec<Reply>>> = Arc::default();
    let (agent, other) = pair_with_faults(&faults, |registry| {
        let held = Arc::clone(&held);
        registry
            .register_deferred("hold", move |_, _, reply| held.lock().unwrap().push(reply))
            .unwrap();
    });
    let to = other.handle().me().id;
    let group = RetryGroup::new();
    let grouped = slow().with_group(&group);
    let waiting: Vec<_> = (0..WAITING)
        .map(|_| {
            agent
                .handle()
                .call(to, "echo")
                .with_retries(&grouped)
                .send_bytes("")
        })
        .collect();
    let others = [
        agent
            .handle()
            .call(agent.handle().me().id, "echo")
            .with_retries(&grouped)
            .send_bytes(""),
        agent
            .handle()
            .call(to, "echo")
            .with_retries(&slow())
            .send_bytes(""),
        agent
            .handle()
            .call(to, "echo")
            .with_retries(&slow().with_group(&RetryGroup::new()))
            .send_bytes(""),
    ];
    let retries = grouped.clone().with_attempt_timeout(Duration::MAX);
    let sent = agent
        .handle()
        .call(to, "hold")
        .with_retries(&retries)
        .send_bytes("");
    until("all calls are waiting or in flight", || {
        let queued = agent.handle().metrics().retry_queue_len;
        queued == WAITING as u64 + 3 && held.lock().unwrap().len() == 1
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
    let later = agent
        .handle()
        .call(to, "echo")
        .with_retries(&grouped)
        .send_bytes("");
    until("the call waits for its next attempt", || {
        agent.handle().metrics().retry_queue_len == 4
    });
    assert!(!later.is_complete());
}
