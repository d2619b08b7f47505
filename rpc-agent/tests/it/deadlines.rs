//! Deadlines of calls over loopback, and the outcomes of expired calls.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use c10d_sim::seed;
use rpc_agent::{AgentHandle, FutureMessage, Outcome, RetryOptions, RpcError};

use crate::common::{
    Gate, Held, OpenAtEnd, PATIENCE, agent_and_raw, ask, assert_reaches, held_pair, pair,
    pair_with, retry, until, wait,
};

/// A short timeout that no other timeout in these tests has.
const SHORT: Duration = Duration::from_millis(20);

fn call(agent: &AgentHandle) -> FutureMessage {
    agent.call(1, "hold").send_bytes("held")
}

fn call_within(agent: &AgentHandle, timeout: impl Into<Option<Duration>>) -> FutureMessage {
    let call = agent.call(1, "hold").with_timeout(timeout);
    call.send_bytes("held")
}

/// Returns the expired timeout that the error of a call reports.
#[track_caller]
fn expired_after(call: &FutureMessage) -> Duration {
    match wait(call) {
        Err(RpcError::Timeout { after, .. }) => after,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn a_call_with_a_timeout_of_zero_never_runs() {
    let (agent, other) = pair_with(|_, options| options.with_timeout(Duration::ZERO), |_| {});
    let handle = agent.handle();
    for _ in 0..100 {
        // To the other worker and to itself, with an explicit timeout and with the agent's timeout.
        for worker in [1, 0] {
            let of_agent = handle.call(worker, "echo");
            for call in [of_agent.clone().with_timeout(Duration::ZERO), of_agent] {
                let error = call.send_bytes("").wait().unwrap_err();
                let is_timeout =
                    matches!(error, RpcError::Timeout { after, .. } if after.is_zero());
                assert!(is_timeout, "{error}");
                assert_eq!(error.outcome(), Outcome::NotExecuted);
            }
        }
    }
    let later = handle.call(1, "echo").with_timeout(PATIENCE);
    assert_eq!(wait(&later.send_bytes("x")).unwrap(), "x");
    assert_eq!(other.handle().metrics().requests_received, 1);
}

/// Makes calls with growing timeouts until one has started at the callee before it expires here. On a
/// loaded machine, calls with short timeouts may expire before they start.
fn expired_while_held(agent: &AgentHandle, gate: &Gate) -> (Duration, RpcError) {
    let mut timeout = SHORT;
    loop {
        let error = call_within(agent, timeout).wait().unwrap_err();
        if gate.inside() > 0 {
            return (timeout, error);
        }
        timeout *= 2;
        assert!(timeout < PATIENCE, "no call has started: {error}");
    }
}

#[test]
fn an_unanswered_call_fails_at_its_deadline_with_pytorchs_text() {
    let (agent, other, gate, _end) = held_pair(|options| options.with_timeout(SHORT));
    let began = Instant::now();
    let (timeout, error) = expired_while_held(agent.handle(), &gate);
    assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
    assert_eq!(
        error.to_string(),
        format!(
            "RPC ran for more than set timeout ({} ms) and will now be marked with an error: call of \
             `hold` on worker worker1 (id 1), the request was sent, outcome unknown",
            timeout.as_millis()
        )
    );
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert!(error.is_transient());
    let metrics = agent.handle().metrics();
    assert_eq!(
        (metrics.timeouts, metrics.calls_in_flight),
        (metrics.calls_failed, 0)
    );
    // A call to the own worker expires in the same way.
    assert_eq!(expired_after(&call(other.handle())), SHORT);
}

#[test]
fn a_call_uses_its_own_timeout_or_that_of_the_agent_at_its_begin() {
    let (agent, _other, gate, _end) = held_pair(|options| options.with_timeout(None));
    let longer = 2 * SHORT;
    assert_eq!(agent.handle().timeout(), None);
    let never = call(agent.handle());
    agent.handle().set_timeout(SHORT);
    assert_eq!(agent.handle().timeout(), Some(SHORT));
    let long = call_within(agent.handle(), PATIENCE);
    for _ in 0..3 {
        let (one, other) = (call(agent.handle()), call_within(agent.handle(), longer));
        assert_eq!(expired_after(&one), SHORT);
        assert_eq!(expired_after(&other), longer);
    }
    let short = call(agent.handle());
    agent.handle().set_timeout(None);
    let endless = [never, long, call(agent.handle())];
    assert_eq!(expired_after(&short), SHORT);
    assert!(endless.iter().all(|call| !call.is_complete()));
    gate.open();
    for call in endless {
        assert_eq!(call.wait().unwrap(), "held");
    }
}

#[test]
fn a_timeout_below_a_millisecond_expires() {
    let (agent, _other, _, _end) = held_pair(|options| options.with_timeout(PATIENCE));
    for timeout in [Duration::from_nanos(1), Duration::from_micros(999)] {
        assert_eq!(
            expired_after(&call_within(agent.handle(), timeout)),
            timeout
        );
        agent.handle().set_timeout(timeout);
        assert_eq!(
            expired_after(&call(agent.handle())),
            Duration::from_millis(1)
        );
    }
    // A call with the maximum timeout does not expire, and does not delay the expiry of others.
    let endless = call_within(agent.handle(), Duration::MAX);
    assert_eq!(
        expired_after(&call(agent.handle())),
        Duration::from_millis(1)
    );
    assert!(!endless.is_complete());
}

#[test]
fn a_late_answer_is_dropped_and_counted_and_keeps_the_connection() {
    let (agent, other, gate, _end) = held_pair(|options| options.with_timeout(PATIENCE));
    let (_, error) = expired_while_held(agent.handle(), &gate);
    assert_eq!(error.outcome(), Outcome::Unknown);
    let late = agent.handle().metrics().late_responses;
    expired_after(&call_within(other.handle(), SHORT));
    assert_eq!(agent.handle().metrics().calls_in_flight, 0);
    gate.open();
    until("the late answer arrives", || {
        agent.handle().metrics().late_responses > late
    });
    until("the late answer of the own worker arrives", || {
        other.handle().metrics().late_responses == 1
    });
    for _ in 0..3 {
        assert_reaches(&agent, 1);
    }
    let metrics = agent.handle().metrics();
    assert_eq!(
        (metrics.connections_opened, metrics.connections_lost),
        (1, 0)
    );
    assert_eq!((metrics.calls_succeeded, metrics.calls_in_flight), (3, 0));
}

#[test]
fn the_timeout_of_an_unsent_call_says_why_it_was_not_sent() {
    // The raw worker sends no Welcome.
    let (agent, _raw, _store) = agent_and_raw(|options| options);
    let error = call_within(agent.handle(), SHORT).wait().unwrap_err();
    assert!(matches!(error, RpcError::Timeout { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    assert_eq!(
        error.to_string(),
        "RPC ran for more than set timeout (20 ms) and will now be marked with an error: call of `hold` \
         on worker worker1 (id 1), the request was never sent: no connection has been made yet"
    );
}

#[test]
fn the_timeout_of_a_call_with_retries_is_that_of_all_attempts() {
    let held = Held::default();
    let (agent, _other) = pair(|registry| held.register(registry, "never"));
    let retries = RetryOptions::default().with_attempt_timeout(PATIENCE);
    let within = |timeout: Duration, retries: &RetryOptions| {
        let call = agent.handle().call(1, "never").with_timeout(timeout);
        call.with_retries(retries)
            .send_bytes("")
            .wait()
            .unwrap_err()
    };
    let last_timeout = |error: RpcError| match error {
        RpcError::RetriesExhausted { last, .. } => match *last {
            RpcError::Timeout { after, .. } => after,
            other => unreachable!("{other:?}"),
        },
        other => unreachable!("{other:?}"),
    };
    // The attempt begins somewhat later than the call, and has the rest of its time.
    assert!(last_timeout(within(SHORT, &retries)) <= SHORT);
    let shorter = retries.clone().with_timeout(SHORT);
    assert!(last_timeout(within(PATIENCE, &shorter)) <= SHORT);
    let error = within(Duration::ZERO, &retries);
    assert!(matches!(error, RpcError::Timeout { .. }), "{error:?}");
    assert_eq!(error.outcome(), Outcome::NotExecuted);
}

/// Blocks every thread of the agent that may run callbacks, and queues more of them.
fn fill_pool(agent: &AgentHandle, threads_max: usize) -> (Arc<Gate>, OpenAtEnd) {
    let gate = Gate::new();
    for _ in 0..2 * threads_max {
        let gate = Arc::clone(&gate);
        agent.spawn(move || gate.pass());
    }
    gate.await_inside(threads_max);
    let end = OpenAtEnd(Arc::clone(&gate));
    (gate, end)
}

#[test]
fn a_pool_full_of_callbacks_delays_neither_deadlines_nor_retries() {
    const THREADS_MAX: usize = 4;
    let held = Held::default();
    let (agent, other) = pair_with(
        |_, options| {
            options
                .with_handler_threads(THREADS_MAX)
                .with_threads_max(THREADS_MAX)
        },
        |registry| held.register(registry, "never"),
    );
    let handle = agent.handle();
    assert_eq!(ask(handle, 1, "echo", "").unwrap(), "");
    let (gate, _end) = fill_pool(handle, THREADS_MAX);
    let limit = Duration::from_secs(4);
    let retries = RetryOptions::default()
        .with_max_retries(3)
        .with_retry_duration(Duration::from_millis(500))
        .with_attempt_timeout(Duration::from_millis(600))
        .with_timeout(limit);
    let plain = handle.call(1, "never").with_timeout(limit).send_bytes("");
    let began = Instant::now();
    let retried = |function: &str| {
        let call = retry(handle, 1, function, &retries, "x");
        call.wait_timeout(PATIENCE / 4).expect("it ends")
    };
    let error = retried("never").unwrap_err();
    let is_exhausted = |error: &RpcError| matches!(error, RpcError::RetriesExhausted { .. });
    assert!(is_exhausted(&error), "{error}");
    assert_eq!(handle.metrics().retries_sent, 2, "{error}");
    assert!(
        began.elapsed() >= Duration::from_millis(2800),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(expired_after(&plain), limit);
    // An answered call and a lost worker need no thread of the pool either.
    assert_eq!(retried("echo").unwrap(), "x");
    drop(other);
    let error = retried("echo").unwrap_err();
    assert!(is_exhausted(&error), "{error}");
    assert_eq!(gate.inside(), THREADS_MAX, "the pool was full all the time");
}

/// Notes when a future is completed, on the thread that completes it.
struct Completed(Mutex<Option<Instant>>);

impl Wake for Completed {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() = Some(Instant::now());
    }
}

/// How late calls end while the pool is full. On an idle machine 99.9 % of them end within 20 ms.
#[test]
#[expect(clippy::print_stderr, reason = "the measurement is for the reader")]
fn deadlines_hold_with_a_full_pool() {
    const CALLS: usize = 2_000;
    const THREADS_MAX: usize = 4;
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let held = Held::default();
    let (agent, _other) = pair_with(
        |_, options| options.with_threads_max(THREADS_MAX),
        |registry| held.register(registry, "never"),
    );
    let handle = agent.handle();
    assert_eq!(ask(handle, 1, "echo", "").unwrap(), "");
    let (_gate, _end) = fill_pool(handle, THREADS_MAX);
    for with_retries in [false, true] {
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let limit = Duration::from_millis(random.u64(100..1_000));
                // The last attempt is cut to the end of the call.
                let retries = RetryOptions::default()
                    .with_max_retries(1_000)
                    .with_retry_duration(Duration::from_millis(1))
                    .with_backoff(1.0)
                    .with_attempt_timeout(Duration::from_millis(random.u64(20..200)));
                let call = handle.call(1, "never").with_timeout(limit);
                let began = Instant::now();
                let mut future = if with_retries {
                    call.with_retries(&retries).send_bytes("")
                } else {
                    call.send_bytes("")
                };
                let completed = Arc::new(Completed(Mutex::default()));
                let waker = Waker::from(Arc::clone(&completed));
                let polled = Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending(), "it ends later");
                (future, completed, began + limit)
            })
            .collect();
        let mut late: Vec<_> = calls
            .iter()
            .map(|(future, completed, deadline)| {
                let result = future.wait_timeout(PATIENCE).expect("the call ends");
                assert!(result.is_err(), "nothing answers");
                let mut at = None;
                until("its waker has run", || {
                    at = *completed.0.lock().unwrap();
                    at.is_some()
                });
                // A call with retries ends early if no other attempt fits.
                assert!(with_retries || at >= Some(*deadline), "before its deadline");
                at.unwrap().saturating_duration_since(*deadline)
            })
            .collect();
        late.sort_unstable();
        let (half, most, last) = (
            late[CALLS / 2],
            late[CALLS * 999 / 1_000 - 1],
            late[CALLS - 1],
        );
        eprintln!(
            "late, with retries: {with_retries}: 50 % {half:?}, 99.9 % {most:?}, all {last:?}"
        );
        assert!(last < PATIENCE / 4, "{last:?}");
    }
}
