//! Functions over loopback: concurrency, panics, errors, nested calls, deferred answers, queue limits.

use std::thread;
use std::time::{Duration, Instant};

use rpc_agent::{
    AgentHandle, Context, FutureMessage, HandlerError, Outcome, Registry, RpcError, join_all,
};

use crate::common::{
    Held, PATIENCE, ask, assert_reaches, group_with, held_pair, pair, pair_with, until, wait,
};

fn call(agent: &AgentHandle, to: u32, function: &str, payload: &'static str) -> FutureMessage {
    agent.call(to, function).send_bytes(payload)
}

fn calls(agent: &AgentHandle, count: usize, function: &str) -> Vec<FutureMessage> {
    (0..count).map(|_| call(agent, 1, function, "")).collect()
}

#[test]
fn slow_functions_delay_no_others_while_a_handler_thread_is_free() {
    for round in 0..20 {
        // Each round starts new workers, which do not know yet which functions are slow.
        let (agent, other, gate, _end) = held_pair(|options| options.with_handler_threads(4));
        let slow = calls(agent.handle(), 3, "hold");
        for _ in 0..20 {
            assert_eq!(
                ask(agent.handle(), 1, "echo", "fast").unwrap(),
                "fast",
                "in round {round}"
            );
        }
        let last = call(agent.handle(), 1, "hold", "");
        gate.await_inside(4);
        // All handler threads are busy, but the worker can still make calls.
        assert_eq!(
            ask(other.handle(), 0, "echo", "mine").unwrap(),
            "mine",
            "in round {round}"
        );
        gate.open();
        join_all(slow).wait().unwrap();
        last.wait().unwrap();
    }
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
        registry
            .register_deferred("later", |_, _, _reply| panic!("on purpose"))
            .unwrap();
    });
    let before = "Error on Node 1: call of ";
    for (function, expected_text) in [
        ("say", "out of paper"),
        ("format", "3 bytes are odd"),
        ("throw", "(the panic message is not text)"),
        ("later", "on purpose"),
    ] {
        for (caller, place) in [(&agent, "over the wire"), (&other, "at home")] {
            let error = ask(caller.handle(), "worker1", function, "abc").unwrap_err();
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
    assert_eq!(other.handle().metrics().handler_panics, 8);
    assert_reaches(&agent, 1);
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
        let error = ask(agent.handle(), 1, "fail", expected_text.to_owned()).unwrap_err();
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
    assert_eq!(&ask(agent.handle(), 1, "parse", "200").unwrap()[..], [200]);
    assert_eq!(
        ask(agent.handle(), 1, "parse", "300")
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
            let below = ask(context.agent(), other, "down", (depth - 1).to_string())?;
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
        assert_eq!(ask(agents[0].handle(), 1, "down", "40").unwrap(), "40");
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
    assert_eq!(ask(agents[0].handle(), 0, "down", "40").unwrap(), "40");
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
        let error = wait(&call(agents[0].handle(), to, "down", "100")).unwrap_err();
        let error_text = error.to_string();
        assert!(
            error_text.contains("was refused by the worker: all 8 threads wait for nested calls"),
            "{error_text}"
        );
        assert_eq!(ask(agents[0].handle(), to, "down", "6").unwrap(), "6");
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
fn a_deferred_function_answers_from_another_thread_and_occupies_none() {
    const CALLS: usize = 60;
    let held = Held::default();
    let (agent, other) = pair_with(
        |_, options| options.with_handler_threads(1),
        |registry| held.register(registry, "later"),
    );
    let waiting: Vec<_> = (0..CALLS)
        .map(|n| agent.handle().call(1, "later").send_bytes(n.to_string()))
        .collect();
    held.await_len(CALLS);
    assert_eq!(other.handle().metrics().requests_deferred, CALLS as u64);
    assert_reaches(&agent, 1);
    assert!(waiting.iter().all(|call| !call.is_complete()));

    let replies = held.take();
    let answering = thread::spawn(move || {
        for (n, reply) in replies.into_iter().enumerate() {
            match n % 3 {
                0 => reply.send(Ok("answer")),
                1 => reply.send(Err::<Vec<u8>, _>(HandlerError::new("not today"))),
                _ => drop(reply),
            }
        }
    });
    answering.join().unwrap();
    let mut ends = [0; 3];
    for call in waiting {
        let end = match call.wait() {
            Ok(answer) => std::str::from_utf8(&answer).unwrap().to_owned(),
            Err(error) => error.to_string(),
        };
        let expected = [
            "the function failed: not today",
            "the function failed: the function dropped its reply without an answer",
            "answer",
        ];
        let which = expected.iter().position(|expected| end.ends_with(expected));
        ends[which.unwrap()] += 1;
    }
    assert_eq!(ends, [CALLS / 3; 3]);
    until("all calls are counted", || {
        other.handle().metrics().requests_deferred == 0
    });
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
    let (agent, other, gate, _end) = held_pair(|options| {
        let options = options.with_handler_threads(1);
        options.with_requests_queued_max(QUEUED_MAX)
    });
    let first = call(agent.handle(), 1, "hold", "");
    gate.await_inside(1);
    let queued = calls(agent.handle(), QUEUED_MAX, "hold");
    // This request follows the other requests on the same connection.
    let error = ask(agent.handle(), 1, "echo", "").unwrap_err();
    assert_eq!(
        error.to_string(),
        "call of `echo` on worker worker1 (id 1) was refused by the worker: 3 requests of \
         this worker wait already"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
    assert!(error.is_transient());
    assert_eq!(other.handle().metrics().requests_refused, 1);
    // The refusal may be sent before the pool has the requests that were read with it.
    until("the others are queued", || {
        other.handle().metrics().handler_queue_len == QUEUED_MAX as u64
    });
    // The limit applies to each caller separately.
    let own = other.handle().call(1, "hold").send_bytes("");
    gate.open();
    first.wait().unwrap();
    own.wait().unwrap();
    join_all(queued).wait().unwrap();
    assert_reaches(&agent, 1);
}

#[test]
fn a_request_whose_deadline_passed_in_the_queue_is_not_run() {
    const TIMEOUT: Duration = Duration::from_millis(20);
    let (agent, other, gate, _end) = held_pair(|options| options.with_handler_threads(1));
    let first = call(agent.handle(), 1, "hold", "");
    gate.await_inside(1);
    let late = agent.handle().call(1, "echo").with_timeout(TIMEOUT);
    let late = late.send_bytes("late");
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
    ask(agent.handle(), 1, "echo", "").unwrap();
    // A function is counted after its answer.
    until("both functions are counted", || {
        other.handle().metrics().requests_handled == 2
    });
    assert_eq!(other.handle().metrics().requests_refused, 1);
}
