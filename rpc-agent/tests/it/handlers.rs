//! Functions over loopback: concurrency, panics, errors, nested calls, deferred answers, queue limits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rpc_agent::{
    Agent, AgentHandle, Context, FutureMessage, HandlerError, Outcome, Registry, Reply, RpcError,
    join_all,
};

use crate::common::{Gate, OpenAtEnd, PATIENCE, group_with, noise, pair, pair_with, until};

fn call(agent: &AgentHandle, to: u32, function: &str, payload: &'static str) -> FutureMessage {
    agent.call(to, function).send_bytes(payload)
}

fn calls(agent: &AgentHandle, count: usize, function: &str) -> Vec<FutureMessage> {
    (0..count).map(|_| call(agent, 1, function, "")).collect()
}

/// Two workers. The second one has `handler_threads` threads and a function `hold` that waits at the gate.
fn held_pair(handler_threads: usize) -> (Agent, Agent, Arc<Gate>, OpenAtEnd) {
    let gate = Gate::new();
    let (agent, other) = pair_with(
        |_, options| options.with_handler_threads(handler_threads),
        |registry| register_hold(registry, &gate),
    );
    let end = OpenAtEnd(Arc::clone(&gate));
    (agent, other, gate, end)
}

fn register_hold(registry: &mut Registry, gate: &Arc<Gate>) {
    let gate = Arc::clone(gate);
    registry
        .register("hold", move |_, payload| {
            gate.pass();
            Ok(payload.to_vec())
        })
        .unwrap();
}

#[test]
fn as_many_functions_run_at_once_as_there_are_handler_threads() {
    for threads in [1, 2, 5, 16] {
        let gate = Gate::new();
        let (agent, other) = pair_with(
            |_, options| options.with_handler_threads(threads),
            |registry| {
                let gate = Arc::clone(&gate);
                registry
                    .register("meet", move |_, _| {
                        gate.pass_with(threads);
                        Ok(Vec::new())
                    })
                    .unwrap();
            },
        );
        join_all(calls(agent.handle(), 4 * threads, "meet"))
            .wait()
            .unwrap();
        assert_eq!(gate.inside_peak(), threads);
        until("all calls are counted", || {
            other.handle().metrics().requests_handled == 4 * threads as u64
        });
    }
}

#[test]
fn a_slow_function_does_not_delay_fast_ones() {
    let (agent, _other, gate, _end) = held_pair(4);
    // In the first round, the worker does not know yet that the function is slow.
    for round in 1..=3 {
        let slow = call(agent.handle(), 1, "hold", "slow");
        for _ in 0..50 {
            assert_eq!(
                agent
                    .handle()
                    .call(1, "echo")
                    .send_bytes("fast")
                    .wait()
                    .unwrap(),
                "fast"
            );
        }
        join_all(calls(agent.handle(), 200, "echo")).wait().unwrap();
        assert!(!slow.is_complete(), "in round {round}");
        if round == 3 {
            gate.open();
            assert_eq!(slow.wait().unwrap(), "slow");
        }
    }
}

#[test]
fn slow_functions_delay_no_others_while_a_handler_thread_is_free() {
    for round in 0..20 {
        // Each round starts new workers, which do not know yet which functions are slow.
        let (agent, other, gate, _end) = held_pair(4);
        let slow = calls(agent.handle(), 3, "hold");
        for _ in 0..20 {
            assert_eq!(
                agent
                    .handle()
                    .call(1, "echo")
                    .send_bytes("fast")
                    .wait()
                    .unwrap(),
                "fast",
                "in round {round}"
            );
        }
        let last = call(agent.handle(), 1, "hold", "");
        gate.await_inside(4);
        // All handler threads are busy, but the worker can still make calls.
        assert_eq!(
            other
                .handle()
                .call(0, "echo")
                .send_bytes("mine")
                .wait()
                .unwrap(),
            "mine",
            "in round {round}"
        );
        gate.open();
        join_all(slow).wait().unwrap();
        last.wait().unwrap();
    }
}

#[test]
fn a_worker_whose_only_handler_thread_is_busy_receives_answers_and_runs_callbacks() {
    let (agent, other, gate, _end) = held_pair(1);
    let slow = call(agent.handle(), 1, "hold", "");
    gate.await_inside(1);
    let waiting = call(agent.handle(), 1, "echo", "");
    let (sender, receiver) = mpsc::channel();
    for n in 0..50 {
        let answer = other.handle().call(0, "echo").send_bytes("mine");
        let sender = sender.clone();
        answer.on_complete(move |result| sender.send((n, result.clone().unwrap())).unwrap());
    }
    for _ in 0..50 {
        let (_, answer) = receiver.recv_timeout(PATIENCE).unwrap();
        assert_eq!(answer, "mine");
    }
    assert_eq!(
        other
            .handle()
            .call(0, "echo")
            .send_bytes("waited for")
            .wait()
            .unwrap(),
        "waited for"
    );
    // The only handler thread is busy, so this request is queued.
    until("the request is queued", || {
        other.handle().metrics().handler_queue_len == 1
    });
    assert!(!waiting.is_complete());
    gate.open();
    slow.wait().unwrap();
    waiting.wait().unwrap();
}

#[test]
#[expect(clippy::panic, reason = "that is what is tested")]
fn a_panic_is_an_error_with_worker_function_and_message() {
    let (agent, other) = pair(|registry| {
        registry
            .register("say", |_, _| panic!("out of paper"))
            .unwrap();
        registry
            .register("format", |_, payload| {
                panic!("{} bytes are odd", payload.len())
            })
            .unwrap();
        registry
            .register("throw", |_, _| std::panic::panic_any(7_u8))
            .unwrap();
    });
    let before = "Error on Node 1: call of ";
    for (function, expected_text) in [
        ("say", "out of paper"),
        ("format", "3 bytes are odd"),
        ("throw", "(the panic message is not text)"),
    ] {
        for (caller, place) in [(&agent, "over the wire"), (&other, "at home")] {
            let error = caller
                .handle()
                .call("worker1", function)
                .send_bytes("abc")
                .wait()
                .unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "{before}`{function}` on worker worker1 (id 1): the function panicked: {expected_text}"
                ),
                "{place}"
            );
            assert!(
                matches!(error, RpcError::Remote { panicked: true, .. }),
                "{error:?}"
            );
            assert_eq!(error.outcome(), Outcome::Executed);
            assert!(!error.is_transient());
        }
    }
    assert_eq!(other.handle().metrics().handler_panics, 6);
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
fn the_error_of_a_function_keeps_its_text() {
    let (agent, _other) = pair(|registry| {
        registry
            .register("fail", |_, payload| {
                Err(HandlerError::new(String::from_utf8_lossy(payload)))
            })
            .unwrap();
        registry
            .register("parse", |_, payload| {
                let number: u8 = std::str::from_utf8(payload)?.parse()?;
                Ok(vec![number])
            })
            .unwrap();
    });
    let long = "é".repeat(100_000);
    for expected_text in ["", "no", "kein Blatt für é → ü", &long] {
        let error = agent
            .handle()
            .call(1, "fail")
            .send_bytes(expected_text.to_owned())
            .wait()
            .unwrap_err();
        let RpcError::Remote {
            call,
            message,
            panicked: false,
        } = &error
        else {
            unreachable!("{error:?}");
        };
        assert_eq!(
            (&*call.to.name.to_string(), &*call.function),
            ("worker1", "fail")
        );
        // The text is cut to at most 64 KiB, at a character boundary.
        assert!(
            expected_text.starts_with(&**message),
            "{} bytes",
            message.len()
        );
        assert!(message.len() == expected_text.len() || message.len() > 60_000);
        assert_eq!(error.outcome(), Outcome::Executed);
    }
    assert_eq!(
        &agent
            .handle()
            .call(1, "parse")
            .send_bytes("200")
            .wait()
            .unwrap()[..],
        [200]
    );
    assert_eq!(
        agent
            .handle()
            .call(1, "parse")
            .send_bytes("300")
            .wait()
            .unwrap_err()
            .to_string(),
        "Error on Node 1: call of `parse` on worker worker1 (id 1): the function failed: number too \
         large to fit in target type"
    );
}

/// Registers `down`: calls the other worker with `number - 1` and returns the answer plus one.
fn register_down(registry: &mut Registry) {
    registry
        .register("down", |context, payload| {
            let depth: u32 = std::str::from_utf8(payload)?.parse()?;
            if depth == 0 {
                return Ok(b"0".to_vec());
            }
            let other = context.caller();
            let below = context
                .agent()
                .call(other, "down")
                .send_bytes((depth - 1).to_string())
                .wait()?;
            let below: u32 = std::str::from_utf8(&below)?.parse()?;
            Ok((below + 1).to_string().into_bytes())
        })
        .unwrap();
}

#[test]
fn nested_calls_can_be_deeper_than_the_handler_threads() {
    let agents = group_with(
        2,
        |_, options| options.with_handler_threads(2),
        |_, registry| register_down(registry),
    );
    for _ in 0..3 {
        assert_eq!(
            agents[0]
                .handle()
                .call(1, "down")
                .send_bytes("40")
                .wait()
                .unwrap(),
            "40"
        );
    }
    let both: Vec<_> = (0..4)
        .flat_map(|_| {
            [
                call(agents[0].handle(), 1, "down", "40"),
                call(agents[1].handle(), 0, "down", "40"),
            ]
        })
        .collect();
    for answer in join_all(both).wait().unwrap() {
        assert_eq!(answer, "40");
    }
    // A worker that calls itself is its own caller.
    assert_eq!(
        agents[0]
            .handle()
            .call(0, "down")
            .send_bytes("40")
            .wait()
            .unwrap(),
        "40"
    );
}

#[test]
fn nested_calls_beyond_the_thread_limit_fail_and_the_workers_continue() {
    let agents = group_with(
        2,
        |_, options| {
            options
                .with_handler_threads(2)
                .with_threads_max(8)
                .with_timeout(None)
        },
        |_, registry| register_down(registry),
    );
    for to in [1, 0, 1] {
        let error = call(agents[0].handle(), to, "down", "100")
            .wait_timeout(PATIENCE)
            .unwrap()
            .unwrap_err();
        let error_text = error.to_string();
        assert!(
            error_text.contains("was refused by the worker: all 8 threads wait for nested calls"),
            "{error_text}"
        );
        assert_eq!(
            agents[0]
                .handle()
                .call(to, "down")
                .send_bytes("6")
                .wait()
                .unwrap(),
            "6"
        );
    }
    for agent in &agents {
        until("no thread waits", || {
            agent.handle().metrics().threads_waiting == 0
        });
        assert!(
            agent.handle().metrics().threads <= 9,
            "{:?}",
            agent.handle().metrics()
        );
    }
}

#[test]
fn a_function_can_call_its_own_worker() {
    let (agent, other) = pair_with(
        |_, options| options.with_handler_threads(1),
        |registry| {
            registry
                .register("again", |context, payload| {
                    let agent = context.agent();
                    let by_name = agent
                        .call("worker1", "echo")
                        .send_bytes(payload.to_vec())
                        .wait()?;
                    let answers =
                        [0, 1].map(|to| agent.call(to, "echo").send_bytes(by_name.clone()));
                    let answers = join_all(answers.into()).wait()?;
                    Ok(answers.concat())
                })
                .unwrap();
        },
    );
    assert_eq!(
        agent
            .handle()
            .call(1, "again")
            .send_bytes("ab")
            .wait()
            .unwrap(),
        "abab"
    );
    assert_eq!(
        other
            .handle()
            .call(1, "again")
            .send_bytes("ab")
            .wait()
            .unwrap(),
        "abab"
    );
}

#[test]
fn a_deferred_function_answers_from_another_thread_and_occupies_none() {
    const CALLS: usize = 60;
    type Taken = Vec<(Vec<u8>, Reply)>;
    let replies: Arc<Mutex<Taken>> = Arc::default();
    let (agent, other) = pair_with(
        |_, options| options.with_handler_threads(1),
        |registry| {
            let replies = Arc::clone(&replies);
            registry
                .register_deferred("later", move |_, payload, reply| {
                    replies.lock().unwrap().push((payload.to_vec(), reply));
                })
                .unwrap();
        },
    );
    let waiting: Vec<_> = (0..CALLS)
        .map(|n| agent.handle().call(1, "later").send_bytes(n.to_string()))
        .collect();
    until("the test has all replies", || {
        replies.lock().unwrap().len() == CALLS
    });
    assert_eq!(other.handle().metrics().requests_deferred, CALLS as u64);
    assert_eq!(
        agent
            .handle()
            .call(1, "echo")
            .send_bytes("meanwhile")
            .wait()
            .unwrap(),
        "meanwhile"
    );
    assert!(waiting.iter().all(|call| !call.is_complete()));

    let taken = std::mem::take(&mut *replies.lock().unwrap());
    let answering = thread::spawn(move || {
        for (n, (payload, reply)) in taken.into_iter().rev().enumerate() {
            match n % 3 {
                0 => reply.send(Ok(payload)),
                1 => reply.send(Err::<Vec<u8>, _>(HandlerError::new("not today"))),
                _ => drop(reply),
            }
        }
    });
    answering.join().unwrap();
    let mut ends = [0; 3];
    for (n, call) in waiting.into_iter().enumerate() {
        match call.wait() {
            Ok(answer) => {
                assert_eq!(answer, n.to_string());
                ends[0] += 1;
            }
            Err(error) => {
                let error_text = error.to_string();
                let expected = [
                    "the function failed: not today",
                    "the function failed: the function dropped its reply without an answer",
                ];
                let which = expected
                    .iter()
                    .position(|expected_text| error_text.ends_with(expected_text));
                ends[which.unwrap() + 1] += 1;
            }
        }
    }
    assert_eq!(ends, [CALLS / 3; 3]);
    until("all calls are counted", || {
        other.handle().metrics().requests_deferred == 0
    });
}

#[test]
#[expect(clippy::panic, reason = "that is what is tested")]
fn a_deferred_function_that_panics_fails_its_call() {
    let (agent, other) = pair(|registry| {
        registry
            .register_deferred("later", |_, _, _reply| panic!("on purpose"))
            .unwrap();
    });
    for caller in [&agent, &other] {
        let error = caller
            .handle()
            .call(1, "later")
            .send_bytes("")
            .wait()
            .unwrap_err();
        assert!(
            matches!(&error, RpcError::Remote { panicked: true, message, .. } if &**message == "on purpose"),
            "{error:?}"
        );
    }
    assert_eq!(other.handle().metrics().handler_panics, 2);
}

#[test]
fn the_context_has_the_caller_the_function_and_the_deadline() {
    let (agent, other) = pair(|registry| {
        let describe = |context: &Context, _: &[u8]| {
            let left = context.deadline().remaining(Instant::now());
            let left = left.map_or(u64::MAX, |left| left.as_millis() as u64);
            let who = format!(
                "{} {} {} {left}",
                context.caller(),
                context.function(),
                context.agent().me(),
            );
            Ok(who.into_bytes())
        };
        registry.register("describe", describe).unwrap();
        registry.register("also", describe).unwrap();
    });
    let ask = |agent: &AgentHandle, function: &str, timeout: Option<Duration>| {
        let answer = agent
            .call(1, function)
            .with_timeout(timeout)
            .send_bytes("")
            .wait()
            .unwrap();
        let answer = String::from_utf8(answer.to_vec()).unwrap();
        let (who, left) = answer.rsplit_once(' ').unwrap();
        (who.to_owned(), left.parse::<u64>().unwrap())
    };
    let (who, left) = ask(agent.handle(), "describe", Some(PATIENCE));
    assert_eq!(
        who,
        "WorkerInfo(id=0, name=worker0) describe WorkerInfo(id=1, name=worker1)"
    );
    assert!(left > 0 && left <= PATIENCE.as_millis() as u64, "{left} ms");
    let (who, left) = ask(other.handle(), "also", None);
    assert_eq!(
        who,
        "WorkerInfo(id=1, name=worker1) also WorkerInfo(id=1, name=worker1)"
    );
    assert_eq!(left, u64::MAX);
    let (_, left) = ask(agent.handle(), "also", None);
    assert_eq!(left, u64::MAX);
}

#[test]
fn requests_beyond_the_queue_are_refused() {
    const QUEUED_MAX: usize = 3;
    let gate = Gate::new();
    let (agent, other) = pair_with(
        |_, options| {
            options
                .with_handler_threads(1)
                .with_requests_queued_max(QUEUED_MAX)
        },
        |registry| register_hold(registry, &gate),
    );
    let _end = OpenAtEnd(Arc::clone(&gate));
    let first = call(agent.handle(), 1, "hold", "");
    gate.await_inside(1);
    let queued = calls(agent.handle(), QUEUED_MAX, "hold");
    // This request follows the other requests on the same connection.
    let error = agent
        .handle()
        .call(1, "echo")
        .send_bytes("")
        .wait()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "call of `echo` on worker worker1 (id 1) was refused by the worker: 3 requests of \
         this worker wait already"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    assert!(error.is_transient());
    assert_eq!(other.handle().metrics().requests_refused, 1);
    // The limit applies to each caller separately.
    let own = other.handle().call(1, "hold").send_bytes("");
    gate.open();
    first.wait().unwrap();
    own.wait().unwrap();
    join_all(queued).wait().unwrap();
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
fn a_request_whose_deadline_passed_in_the_queue_is_not_run() {
    const TIMEOUT: Duration = Duration::from_millis(20);
    let gate = Gate::new();
    let marks = Arc::new(AtomicUsize::new(0));
    let (agent, other) = pair_with(
        |_, options| options.with_handler_threads(1),
        |registry| {
            register_hold(registry, &gate);
            let marks = Arc::clone(&marks);
            registry
                .register("mark", move |_, _| {
                    marks.fetch_add(1, Ordering::SeqCst);
                    Ok(Vec::new())
                })
                .unwrap();
        },
    );
    let _end = OpenAtEnd(Arc::clone(&gate));
    let first = call(agent.handle(), 1, "hold", "");
    gate.await_inside(1);
    let late = agent
        .handle()
        .call(1, "mark")
        .with_timeout(TIMEOUT)
        .send_bytes("");
    until("the request has arrived", || {
        other.handle().metrics().requests_received == 2
    });
    let came_before = Instant::now();
    assert!(matches!(late.wait(), Err(RpcError::Timeout { .. })));
    until("the request has expired at the callee", || {
        came_before.elapsed() > TIMEOUT
    });
    gate.open();
    first.wait().unwrap();
    // Requests run in order, and a later request has run, so the expired request was dequeued.
    agent
        .handle()
        .call(1, "echo")
        .send_bytes("")
        .wait()
        .unwrap();
    assert_eq!(marks.load(Ordering::SeqCst), 0);
    assert_eq!(other.handle().metrics().requests_refused, 1);
}

#[test]
fn a_function_can_keep_and_return_its_payload() {
    let kept: Arc<Mutex<Vec<bytes::Bytes>>> = Arc::default();
    let (agent, _other) = pair(|registry| {
        let kept = Arc::clone(&kept);
        registry
            .register_bytes("keep", move |_, payload| {
                kept.lock().unwrap().push(payload.clone());
                Ok(payload)
            })
            .unwrap();
    });
    let sent: Vec<_> = (0..100).map(|n| noise(n, 37 * n as usize)).collect();
    let answers: Vec<_> = sent
        .iter()
        .map(|sent| agent.handle().call(1, "keep").send_bytes(sent.clone()))
        .collect();
    let answers = join_all(answers).wait().unwrap();
    assert!(answers == sent);
    let mut kept = std::mem::take(&mut *kept.lock().unwrap());
    kept.sort_by_key(|payload| payload.len());
    assert!(kept == sent);
}
