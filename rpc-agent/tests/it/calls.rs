//! Calls between agents over loopback: payloads, destinations, callbacks, sharing of a connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{self, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use c10d_sim::seed;
use rpc_agent::{
    Agent, AgentHandle, Context, FUNCTION_NAME_BYTES_MAX, FutureMessage, HandlerError, Outcome,
    RpcError, RpcFuture, WorkerInfo, join_all,
};

use crate::common::{Gate, OpenAtEnd, PATIENCE, group, group_with, noise, pair, pair_with, until};

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
            let answer = agents[from]
                .handle()
                .call(to, "echo")
                .send_bytes(sent.clone())
                .wait()
                .unwrap();
            assert!(answer == sent, "{bytes} bytes from {from} to {to}");
        }
    }
}

#[test]
fn payloads_of_64_mib_travel_in_both_directions_at_once() {
    let agents = group(2);
    let sent = [noise(1, LARGE_BYTES), noise(2, LARGE_BYTES)];
    let answers = [(0, 1), (1, 0)].map(|(from, to)| {
        let payload = sent[from].clone();
        agents[from]
            .handle()
            .call(to as u32, "echo")
            .send_bytes(payload)
    });
    for (sent, answer) in sent.iter().zip(answers) {
        assert!(answer.wait().unwrap() == sent);
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
        assert!(
            agent
                .handle()
                .call("worker1", "echo")
                .send_bytes(sent.clone())
                .wait()
                .unwrap()
                == sent
        );
    }
    let error = agent
        .handle()
        .call(1, "ehco")
        .send_bytes("")
        .wait()
        .unwrap_err();
    assert!(matches!(error, RpcError::NoSuchFunction { .. }), "{error}");
    assert_eq!(agent.handle().metrics().connections_opened, 0);
}

#[test]
fn a_worker_is_called_by_name_id_or_both() {
    let (agent, other) = pair(|_| {});
    let info = other.handle().me().clone();
    assert_eq!(info, WorkerInfo::new("worker1", 1).unwrap());
    assert_eq!(
        agent
            .handle()
            .call("worker1", "echo")
            .send_bytes("name")
            .wait()
            .unwrap(),
        "name"
    );
    assert_eq!(
        agent
            .handle()
            .call(1, "echo")
            .send_bytes("id")
            .wait()
            .unwrap(),
        "id"
    );
    assert_eq!(
        agent
            .handle()
            .call(info.id, "echo")
            .send_bytes("id")
            .wait()
            .unwrap(),
        "id"
    );
    assert_eq!(
        agent
            .handle()
            .call(&info.name, "echo")
            .send_bytes("name")
            .wait()
            .unwrap(),
        "name"
    );
    assert_eq!(
        agent
            .handle()
            .call(&info, "echo")
            .send_bytes("both")
            .wait()
            .unwrap(),
        "both"
    );
    assert_eq!(agent.handle().worker("worker1").unwrap(), info);
    assert_eq!(
        agent.handle().workers(),
        [agent.handle().me().clone(), info]
    );
}

#[test]
fn a_worker_outside_the_group_cannot_be_called() {
    let (agent, _other) = pair(|_| {});
    let by_name = agent
        .handle()
        .call("nobody", "echo")
        .send_bytes("")
        .wait()
        .unwrap_err();
    assert_eq!(
        by_name.to_string(),
        "name:worker0,rank:0 could not find destination name nobody"
    );
    let by_id = agent
        .handle()
        .call(7, "echo")
        .send_bytes("")
        .wait()
        .unwrap_err();
    assert_eq!(
        by_id.to_string(),
        "name:worker0,rank:0 could not find destination id 7"
    );
    let wrong = WorkerInfo::new("worker0", 1).unwrap();
    let by_both = agent
        .handle()
        .call(&wrong, "echo")
        .send_bytes("")
        .wait()
        .unwrap_err();
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
        let error = agent
            .handle()
            .call("worker1", function)
            .send_bytes("")
            .wait()
            .unwrap_err();
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
    assert_eq!(
        agent
            .handle()
            .call("worker1", "echo")
            .send_bytes("on")
            .wait()
            .unwrap(),
        "on"
    );
    assert_eq!(agent.handle().metrics().connections_opened, 1);
}

fn double(_: &Context, payload: &[u8]) -> Result<Vec<u8>, HandlerError> {
    Ok([payload, payload].concat())
}

#[test]
fn a_message_beyond_the_limit_fails_with_both_sizes_and_keeps_the_connection() {
    const BYTES_MAX: usize = 300_000;
    let (agent, _other) = pair_with(
        |_, options| options.with_message_bytes_max(BYTES_MAX as u64),
        |registry| registry.register("double", double).unwrap(),
    );
    let most = noise(1, BYTES_MAX);
    assert!(
        agent
            .handle()
            .call(1, "echo")
            .send_bytes(most.clone())
            .wait()
            .unwrap()
            == most
    );

    let request = agent
        .handle()
        .call(1, "echo")
        .send_bytes(noise(1, BYTES_MAX + 1))
        .wait()
        .unwrap_err();
    assert_eq!(
        request.to_string(),
        "call of `echo` on worker worker1 (id 1): the request has 300001 bytes, the lower \
         message_bytes_max of both workers is 300000"
    );
    assert_eq!(request.outcome(), Outcome::NotExecuted);

    let answer = agent
        .handle()
        .call(1, "double")
        .send_bytes(noise(1, BYTES_MAX / 2 + 1))
        .wait()
        .unwrap_err();
    assert_eq!(
        answer.to_string(),
        "call of `double` on worker worker1 (id 1): the answer has 300002 bytes, the lower \
         message_bytes_max of both workers is 300000"
    );
    assert_eq!(answer.outcome(), Outcome::Executed);
    assert!(!answer.is_transient());

    assert_eq!(
        agent
            .handle()
            .call(1, "echo")
            .send_bytes("on")
            .wait()
            .unwrap(),
        "on"
    );
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
            registry.register("double", double).unwrap();
            let gate = Arc::clone(&gate);
            let hold = move |_: &Context, _: &[u8]| {
                gate.pass();
                Ok(Vec::new())
            };
            registry.register("hold", hold).unwrap();
        },
    );
    let [agent, other] = &agents[..] else {
        unreachable!()
    };
    let _end = OpenAtEnd(Arc::clone(&gate));
    let before = agent.handle().call(1, "hold").send_bytes("");
    gate.await_inside(1);
    let error = agent
        .handle()
        .call(1, "echo")
        .send_bytes(noise(1, BYTES_MAX + 1))
        .wait()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "call of `echo` on worker worker1 (id 1): the request has 200001 bytes, the lower \
         message_bytes_max of both workers is 200000"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    // In the other direction, the answer exceeds the limit.
    let error = other
        .handle()
        .call(0, "double")
        .send_bytes(noise(1, BYTES_MAX / 2 + 1))
        .wait()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "call of `double` on worker worker0 (id 0): the answer has 200002 bytes, the lower \
         message_bytes_max of both workers is 200000"
    );
    gate.open();
    assert_eq!(before.wait().unwrap(), "");
    assert_eq!(agent.handle().metrics().connections_opened, 1);
}

/// A minimal `block_on`.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut task::Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
    }
}

#[test]
fn calls_can_be_awaited_without_an_async_runtime() {
    async fn chain(agent: &AgentHandle) -> Result<Bytes, RpcError> {
        let first = agent.call("worker1", "echo").send_bytes("first").await?;
        let second = agent.call("worker1", "echo").send_bytes(first);
        // Awaits the future by reference, then by value.
        assert_eq!((&second).await?, "first");
        second.await
    }
    let (agent, _other) = pair(|_| {});
    assert_eq!(block_on(chain(agent.handle())).unwrap(), "first");
    let missing = agent.handle().call("worker1", "ehco").send_bytes("");
    assert!(matches!(
        block_on(missing),
        Err(RpcError::NoSuchFunction { .. })
    ));
}

/// Two workers. The second one answers `hold` when the gate opens.
fn held_pair() -> (Agent, Agent, Arc<Gate>, OpenAtEnd) {
    let gate = Gate::new();
    let (agent, other) = pair(|registry| {
        let gate = Arc::clone(&gate);
        registry
            .register("hold", move |_, payload| {
                gate.pass();
                Ok(payload.to_vec())
            })
            .unwrap();
    });
    let end = OpenAtEnd(Arc::clone(&gate));
    (agent, other, gate, end)
}

fn thread_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

/// Whether the thread is one of a pool, so it runs functions and callbacks.
fn is_pool_thread(name: &str) -> bool {
    let number = name.strip_prefix("rpc-").unwrap_or_default();
    number.parse::<u64>().is_ok()
}

#[test]
fn a_callback_on_a_completed_call_runs_at_once() {
    let (agent, _other) = pair(|_| {});
    let answer = agent.handle().call(1, "echo").send_bytes("here");
    answer.wait().unwrap();
    let ran = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&ran);
    answer.on_complete(move |result| {
        *seen.lock().unwrap() = Some((thread::current().id(), result.clone().unwrap()));
    });
    let ran = ran.lock().unwrap().take();
    assert_eq!(ran, Some((thread::current().id(), "here".into())));
}

#[test]
fn a_callback_on_a_pending_call_runs_on_the_pool() {
    let (agent, _other, gate, _end) = held_pair();
    let (sender, receiver) = mpsc::channel();
    let register = |call: &FutureMessage| {
        let sender = sender.clone();
        call.on_complete(move |result| {
            let is_ok = result.is_ok();
            let name = thread_name();
            sender.send((is_ok, name)).unwrap();
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
    let (agent, other, gate, _end) = held_pair();
    let (sender, receiver) = mpsc::channel();
    // More nested callbacks than the pool has threads.
    let callbacks = 50;
    let calls: Vec<_> = (0..callbacks)
        .map(|_| {
            let call = agent.handle().call(1, "hold").send_bytes("a");
            let handle = agent.handle().clone();
            let sender = sender.clone();
            call.on_complete(move |result| {
                let first = handle
                    .call(1, "echo")
                    .send_bytes(result.clone().unwrap())
                    .wait();
                let next = handle.call(0, "echo").send_bytes(first.unwrap());
                next.on_complete(move |result| {
                    let last = handle
                        .call("worker1", "echo")
                        .send_bytes(result.clone().unwrap())
                        .wait();
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

#[test]
#[expect(clippy::panic, reason = "that is what is tested")]
fn a_panicking_callback_does_not_affect_others() {
    let (agent, _other, gate, _end) = held_pair();
    let ran = Arc::new(AtomicUsize::new(0));
    let call = agent.handle().call(1, "hold").send_bytes("");
    for callback in 0..6 {
        let ran = Arc::clone(&ran);
        call.on_complete(move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            assert!(callback % 2 == 1, "callback {callback} panics");
        });
    }
    let child = call.then(|_| -> Result<Bytes, RpcError> { panic!("on purpose") });
    let after = call.then(|result| Ok(result?.len()));
    gate.open();
    call.wait().unwrap();
    assert_eq!(after.wait().unwrap(), 0);
    let broken = child.wait().unwrap_err();
    assert_eq!(
        broken.to_string(),
        "a continuation of a future panicked: on purpose"
    );
    assert_eq!(ran.load(Ordering::SeqCst), 6);
    // A panicking callback that runs at once, on the registering thread.
    call.on_complete(|_| panic!("on purpose"));
    assert_eq!(
        agent
            .handle()
            .call(1, "echo")
            .send_bytes("on")
            .wait()
            .unwrap(),
        "on"
    );
}

#[test]
fn calls_can_be_chained_and_joined() {
    let (agent, _other) = pair(|_| {});
    let handle = agent.handle().clone();
    let twice = agent
        .handle()
        .call(1, "echo")
        .send_bytes("abc")
        .and_then(move |answer| {
            handle
                .call(1, "echo")
                .send_bytes([answer.clone(), answer].concat())
        })
        .then(|answer| Ok(answer?.len()));
    assert_eq!(twice.wait().unwrap(), 6);

    let calls = (0..100_u32).map(|n| agent.handle().call(1, "echo").send_bytes(n.to_string()));
    let all: RpcFuture<Vec<Bytes>> = join_all(calls.collect());
    for (n, answer) in all.wait().unwrap().into_iter().enumerate() {
        assert_eq!(answer, n.to_string());
    }
}

#[test]
fn dropping_a_future_does_not_cancel_its_call() {
    let (sender, receiver) = mpsc::channel();
    let (agent, _other) = pair(move |registry| {
        let sender = Mutex::new(sender.clone());
        registry
            .register("record", move |_, payload| {
                sender.lock().unwrap().send(payload.to_vec()).unwrap();
                Ok(Vec::new())
            })
            .unwrap();
    });
    drop(agent.handle().call(1, "record").send_bytes("small"));
    drop(
        agent
            .handle()
            .call(1, "record")
            .send_bytes(noise(1, 1 << 20)),
    );
    let mut payloads: Vec<_> = (0..2)
        .map(|_| receiver.recv_timeout(PATIENCE).unwrap())
        .collect();
    payloads.sort_by_key(Vec::len);
    assert_eq!(payloads[0], b"small");
    assert!(payloads[1] == noise(1, 1 << 20));
    until("both calls end", || {
        agent.handle().metrics().calls_succeeded == 2
    });
    assert_eq!(agent.handle().metrics().calls_in_flight, 0);
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
            let answer = agent
                .call(to, "echo")
                .send_bytes(payload.clone())
                .wait()
                .unwrap();
            assert!(answer == payload);
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
            agents[n % 2]
                .handle()
                .call(1 - n as u32 % 2, "echo")
                .send_bytes(small.clone())
                .wait()
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
fn small_payloads_do_not_delay_a_large_one() {
    let (agent, _other) = pair(|_| {});
    let payload = noise(4, 8 << 20);
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let streams: Vec<_> = (0..16)
        .map(|n| {
            let stop = Arc::clone(&stop);
            keep_streaming(
                agent.handle().clone(),
                1,
                noise(n, 1000),
                stop,
                Arc::clone(&count),
            )
        })
        .collect();
    until("small payloads are in flight", || {
        count.load(Ordering::SeqCst) > 0
    });
    assert!(
        agent
            .handle()
            .call(1, "echo")
            .send_bytes(payload.clone())
            .wait()
            .unwrap()
            == payload
    );
    stop.store(true, Ordering::SeqCst);
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
                        let answer = agents[from]
                            .handle()
                            .call(to, "echo")
                            .send_bytes("first")
                            .wait();
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

#[cfg(feature = "typed")]
mod typed {
    use rpc_agent::{HandlerError, Outcome, RetryOptions, RpcError};

    use crate::common::{pair, until};

    #[test]
    fn values_are_called_with_and_returned() {
        let (agent, _other) = pair(|registry| {
            registry
                .register_typed("add", |_, (a, b): (i64, i64)| Ok(a + b))
                .unwrap();
            registry
                .register_typed("join", |_, words: Vec<String>| Ok(words.concat()))
                .unwrap();
        });
        assert_eq!(
            agent
                .handle()
                .call("worker1", "add")
                .run::<(i64, i64), i64>((1, 2))
                .unwrap(),
            3
        );
        let sum = agent
            .handle()
            .call(1, "add")
            .send::<(i64, i64), i64>((-5, 2));
        assert_eq!(sum.wait().unwrap(), -3);
        let words = vec!["a".to_owned(), "bc".to_owned()];
        let retries = RetryOptions::default();
        let joined = agent
            .handle()
            .call(1, "join")
            .with_retries(&retries)
            .send::<_, String>(words);
        assert_eq!(joined.wait().unwrap(), "abc");
    }

    #[test]
    fn a_value_of_another_type_is_an_error_that_names_the_type() {
        let (agent, _other) = pair(|registry| {
            registry
                .register_typed("length", |_, text: String| Ok(text.len() as u64))
                .unwrap();
            registry
                .register_typed("fail", |_, ()| -> Result<(), _> {
                    Err(HandlerError::new("no"))
                })
                .unwrap();
        });
        // Sends a string length of 7 without the string's bytes.
        let arguments = agent
            .handle()
            .call(1, "length")
            .run::<u8, u64>(7)
            .unwrap_err();
        assert!(
            matches!(
                arguments,
                RpcError::Remote {
                    panicked: false,
                    ..
                }
            ),
            "{arguments}"
        );
        let error_text = arguments.to_string();
        assert!(
            error_text.contains("wrong arguments") && error_text.contains("String"),
            "{error_text}"
        );

        let result = agent
            .handle()
            .call(1, "length")
            .run::<&str, (u64, u64)>("abc")
            .unwrap_err();
        assert!(matches!(result, RpcError::Codec { .. }), "{result}");
        assert_eq!(result.outcome(), Outcome::Executed);
        let error_text = result.to_string();
        assert!(
            error_text.starts_with("call of `length` on worker worker1 (id 1): ")
                && error_text.contains("(u64, u64)"),
            "{error_text}"
        );
        let remote = agent
            .handle()
            .call(1, "fail")
            .run::<(), ()>(())
            .unwrap_err();
        assert_eq!(
            remote.to_string(),
            "Error on Node 1: call of `fail` on worker worker1 (id 1): the function failed: no"
        );
        until("nothing is in flight", || {
            agent.handle().metrics().calls_in_flight == 0
        });
    }
}
