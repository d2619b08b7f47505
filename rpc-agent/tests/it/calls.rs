//! Calls between agents over loopback: payloads, destinations, callbacks, sharing of a connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use c10d_sim::seed;
use rpc_agent::{
    AgentHandle, Destination, FUNCTION_NAME_BYTES_MAX, FutureMessage, Outcome, RpcError, WorkerInfo,
};

use crate::common::{
    Gate, OpenAtEnd, PATIENCE, ask, assert_reaches, group, group_with, held_pair, noise, pair,
    until,
};

/// Maximum payload bytes of one frame.
const PART_BYTES: usize = 128 << 10;

const LARGE_BYTES: usize = 64 << 20;

#[test]
fn payloads_of_any_length_are_echoed_unchanged() {
    let seed = seed();
    let agents = group(2);
    let around = |bytes: usize| [bytes - 1, bytes, bytes + 1];
    let sizes = [
        [0, 1, 4096],
        around(64 << 10),
        around(PART_BYTES),
        around(1 << 20),
    ];
    for (from, to) in [(0, 1), (1, 0)] {
        for bytes in sizes.into_iter().flatten() {
            let sent = noise(seed ^ bytes as u64, bytes);
            let answer = ask(agents[from].handle(), to, "echo", sent.clone()).unwrap();
            assert!(answer == sent, "{bytes} bytes from {from} to {to}");
        }
    }
}

#[test]
fn each_of_many_concurrent_calls_receives_its_own_answer() {
    let seed = seed();
    let agents = group(3);
    thread::scope(|scope| {
        for from in 0..3_u64 {
            let agents = &agents;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ from);
                let calls: Vec<_> = (0..700)
                    .map(|_| {
                        // Mostly small payloads, and some of several parts.
                        let bits = random.u32(0..19);
                        let sent = noise(random.u64(..), random.usize(0..1 << bits));
                        let to = random.u32(0..3);
                        let answer = agents[from as usize]
                            .handle()
                            .call(to, "echo")
                            .send_bytes(sent.clone());
                        (sent, answer)
                    })
                    .collect();
                for (sent, answer) in calls {
                    assert!(answer.wait().unwrap() == sent, "{} bytes", sent.len());
                }
            });
        }
    });
    for agent in &agents {
        let metrics = agent.handle().metrics();
        assert_eq!((metrics.calls_succeeded, metrics.calls_in_flight), (700, 0));
    }
}

#[test]
fn a_worker_can_call_itself() {
    let (_, agent) = pair(|_| {});
    for bytes in [0, 5, 2 * PART_BYTES] {
        let sent = noise(7, bytes);
        assert!(ask(agent.handle(), "worker1", "echo", sent.clone()).unwrap() == sent);
    }
    let error = ask(agent.handle(), 1, "ehco", "").unwrap_err();
    assert!(matches!(error, RpcError::NoSuchFunction { .. }), "{error}");
    assert_eq!(agent.handle().metrics().connections_opened, 0);
}

#[test]
fn a_worker_is_called_by_name_id_or_both() {
    let (agent, other) = pair(|_| {});
    let info = other.handle().me().clone();
    assert_eq!(info, WorkerInfo::new("worker1", 1).unwrap());
    let to: [Destination<'_>; 5] = [
        "worker1".into(),
        1.into(),
        info.id.into(),
        (&info.name).into(),
        (&info).into(),
    ];
    for to in to {
        assert_reaches(&agent, to);
    }
    assert_eq!(agent.handle().worker("worker1").unwrap(), info);
    assert_eq!(
        agent.handle().workers(),
        [agent.handle().me().clone(), info]
    );
}

#[test]
fn a_worker_outside_the_group_cannot_be_called() {
    let (agent, _other) = pair(|_| {});
    let by_name = ask(agent.handle(), "nobody", "echo", "").unwrap_err();
    assert_eq!(
        by_name.to_string(),
        "name:worker0,rank:0 could not find destination name nobody"
    );
    let by_id = ask(agent.handle(), 7, "echo", "").unwrap_err();
    assert_eq!(
        by_id.to_string(),
        "name:worker0,rank:0 could not find destination id 7"
    );
    let wrong = WorkerInfo::new("worker0", 1).unwrap();
    let by_both = ask(agent.handle(), &wrong, "echo", "").unwrap_err();
    for error in [by_name, by_id, by_both] {
        assert!(matches!(error, RpcError::NoSuchWorker { .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::NotExecuted);
        assert!(!error.is_transient());
    }
}

#[test]
fn the_error_names_an_unregistered_function() {
    let (agent, _other) = pair(|_| {});
    let longest = "f".repeat(FUNCTION_NAME_BYTES_MAX);
    let too_long = "f".repeat(FUNCTION_NAME_BYTES_MAX + 1);
    for function in ["ehco", "", &longest, &too_long] {
        let error = ask(agent.handle(), "worker1", function, "").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "call of `{function}` on worker worker1 (id 1): the worker has no function of \
                 this name; register it before its agent starts"
            )
        );
        assert!(matches!(error, RpcError::NoSuchFunction { .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::NotExecuted);
    }
    assert_reaches(&agent, "worker1");
    assert_eq!(agent.handle().metrics().connections_opened, 1);
}

#[test]
fn exceeding_the_callees_limit_fails_only_that_call() {
    const BYTES_MAX: usize = 200_000;
    let gate = Gate::new();
    let agents = group_with(
        2,
        |rank, options| match rank {
            0 => options,
            _ => options.with_message_bytes_max(BYTES_MAX as u64),
        },
        |_, registry| {
            let double = |_: &_, payload: &[u8]| Ok([payload, payload].concat());
            registry.register("double", double).unwrap();
            gate.register(registry, "hold");
        },
    );
    let [agent, other] = &agents[..] else {
        unreachable!()
    };
    let _end = OpenAtEnd(Arc::clone(&gate));
    let before = agent.handle().call(1, "hold").send_bytes("");
    gate.await_inside(1);
    let most = noise(1, BYTES_MAX);
    assert!(ask(agent.handle(), 1, "echo", most.clone()).unwrap() == most);
    let error = ask(agent.handle(), 1, "echo", noise(1, BYTES_MAX + 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "call of `echo` on worker worker1 (id 1): the request has 200001 bytes, the lower \
         message_bytes_max of both workers is 200000"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    // In the other direction, the answer exceeds the limit.
    let error = ask(other.handle(), 0, "double", noise(1, BYTES_MAX / 2 + 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "call of `double` on worker worker0 (id 0): the answer has 200002 bytes, the lower \
         message_bytes_max of both workers is 200000"
    );
    assert_eq!(error.outcome(), Outcome::Executed);
    assert!(!error.is_transient());
    gate.open();
    assert_eq!(before.wait().unwrap(), "");
    assert_eq!(agent.handle().metrics().connections_opened, 1);
}

/// Whether the thread is one of a pool, so it runs functions and callbacks.
fn is_pool_thread(name: &str) -> bool {
    let number = name.strip_prefix("rpc-").unwrap_or_default();
    number.parse::<u64>().is_ok()
}

#[test]
fn a_callback_on_a_pending_call_runs_on_the_pool() {
    let (agent, _other, gate, _end) = held_pair(|options| options);
    let (sender, receiver) = mpsc::channel();
    let register = |call: &FutureMessage| {
        let sender = sender.clone();
        call.on_complete(move |result| {
            let name = thread::current().name().unwrap_or_default().to_owned();
            sender.send((result.is_ok(), name)).unwrap();
        });
    };
    let held = agent.handle().call(1, "hold").send_bytes("");
    // The polling thread expires the call.
    let expired = agent
        .handle()
        .call(1, "hold")
        .with_timeout(Duration::from_millis(1))
        .send_bytes("");
    register(&held);
    register(&expired);
    let (is_ok, name) = receiver.recv_timeout(PATIENCE).unwrap();
    assert!(!is_ok && is_pool_thread(&name), "{name}");
    gate.open();
    // The waiting thread reads the answer itself, but the callback runs on the pool.
    held.wait().unwrap();
    let (is_ok, name) = receiver.recv_timeout(PATIENCE).unwrap();
    assert!(is_ok && is_pool_thread(&name), "{name}");
}

#[test]
fn a_callback_can_call_and_wait() {
    let (agent, other, gate, _end) = held_pair(|options| options);
    let (sender, receiver) = mpsc::channel();
    // More nested callbacks than the pool has threads.
    let callbacks = 50;
    let calls: Vec<_> = (0..callbacks)
        .map(|_| {
            let call = agent.handle().call(1, "hold").send_bytes("a");
            let handle = agent.handle().clone();
            let sender = sender.clone();
            call.on_complete(move |result| {
                let first = ask(&handle, 1, "echo", result.clone().unwrap());
                let next = handle.call(0, "echo").send_bytes(first.unwrap());
                next.on_complete(move |result| {
                    let last = ask(&handle, "worker1", "echo", result.clone().unwrap());
                    sender.send(last.unwrap()).unwrap();
                });
            });
            call
        })
        .collect();
    gate.open();
    for call in calls {
        call.wait().unwrap();
    }
    for _ in 0..callbacks {
        assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), "a");
    }
    drop(other);
}

/// Repeats calls with `payload` until stopped, and counts the answers.
fn keep_streaming(
    agent: AgentHandle,
    to: u32,
    payload: Bytes,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            assert!(ask(&agent, to, "echo", payload.clone()).unwrap() == payload);
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
}

#[test]
fn large_payloads_do_not_delay_small_ones() {
    const SMALL_CALLS: usize = 64;
    let agents = group(2);
    let payload = noise(3, LARGE_BYTES);
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let streams: Vec<_> = [(0, 1), (1, 0)]
        .map(|(from, to): (usize, u32)| {
            let handle = agents[from].handle().clone();
            let stop = Arc::clone(&stop);
            keep_streaming(handle, to, payload.clone(), stop, Arc::clone(&count))
        })
        .into();
    until("large payloads are in flight", || {
        agents
            .iter()
            .all(|agent| agent.handle().metrics().bytes_sent > 1 << 20)
    });
    for n in 0..SMALL_CALLS {
        let small = noise(n as u64, 64);
        assert_eq!(
            ask(
                agents[n % 2].handle(),
                1 - n as u32 % 2,
                "echo",
                small.clone()
            )
            .unwrap(),
            small
        );
    }
    // If small calls were queued behind large ones, each would wait for at least one large call.
    let large_calls = count.load(Ordering::SeqCst);
    stop.store(true, Ordering::SeqCst);
    assert!(
        large_calls < SMALL_CALLS / 4,
        "{large_calls} calls of 64 MiB ended during {SMALL_CALLS} of 64 bytes"
    );
    for stream in streams {
        stream.join().unwrap();
    }
}

#[test]
fn two_workers_that_call_each_other_at_the_same_time_use_one_connection() {
    for round in 0..50 {
        let agents = group(2);
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for n in 0..4_usize {
                let (agents, barrier) = (&agents, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let (from, to) = (n % 2, 1 - n as u32 % 2);
                    for _ in 0..3 {
                        let answer = ask(agents[from].handle(), to, "echo", "first");
                        assert_eq!(answer.unwrap(), "first", "in round {round}");
                    }
                });
            }
        });
        for agent in &agents {
            let metrics = agent.handle().metrics();
            assert_eq!(
                (metrics.connections_opened, metrics.connections_lost),
                (1, 0),
                "{:?} in round {round}",
                agent.handle().me()
            );
        }
    }
}
