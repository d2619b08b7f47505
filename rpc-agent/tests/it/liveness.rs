//! Liveness: no thread waits indefinitely for work that only the agent's own threads can do.

use std::sync::{Arc, mpsc};

use rpc_agent::{HandlerError, RetryOptions, RpcError};

use crate::common::{
    Gate, OpenAtEnd, PATIENCE, ask, group_with, noise, options, pair, pair_with, retry,
    shared_store, shut_down_all, start_one, until,
};
use crate::fault_plan::FaultPlan;

#[test]
fn a_call_made_in_a_callback_is_sent_while_the_callback_blocks() {
    let (caller, _server) = pair(|_| {});
    for _ in 0..50 {
        let (sender, answers) = mpsc::channel();
        let handle = caller.handle().clone();
        let first = caller.handle().call(1, "echo").send_bytes("first");
        first.on_complete(move |_| {
            let (inner, answered) = mpsc::channel();
            let second = handle.call(1, "echo").send_bytes("second");
            second.on_complete(move |answer| inner.send(answer.clone()).unwrap());
            // Blocks without `RpcFuture::wait`, so the agent does not know that this thread waits.
            sender.send(answered.recv_timeout(PATIENCE)).unwrap();
        });
        // The waiting thread reads the answer itself, so the callback runs on a thread that does not poll.
        assert_eq!(first.wait().unwrap(), "first");
        let answer = answers.recv_timeout(2 * PATIENCE).unwrap().unwrap();
        assert_eq!(answer.unwrap(), "second");
    }
}

#[test]
fn a_call_made_in_a_function_is_sent_while_the_function_blocks() {
    let (caller, _server) = pair(|registry| {
        registry
            .register("blocks", |context, _| {
                let (inner, answered) = mpsc::channel();
                let call = context.agent().call(0, "echo").send_bytes("x");
                call.on_complete(move |answer| inner.send(answer.clone()).unwrap());
                let answer = answered.recv_timeout(PATIENCE).unwrap();
                answer
                    .map(Vec::from)
                    .map_err(|error| HandlerError::new(error.to_string()))
            })
            .unwrap();
    });
    let calls = [(); 4].map(|()| caller.handle().call(1, "blocks").send_bytes(""));
    for call in calls {
        assert_eq!(call.wait().unwrap(), "x");
    }
}

#[test]
fn with_one_handler_thread_a_function_can_wait_for_retries_and_continuations() {
    let (caller, _server) = pair_with(
        |_, options| options.with_threads_max(1),
        |registry| {
            registry
                .register("nested", |context, payload| {
                    let retries = RetryOptions::default();
                    let agent = context.agent();
                    let first = retry(agent, 0, "echo", &retries, payload.to_vec());
                    let second = first.then(|answer| answer).wait_timeout(PATIENCE / 3);
                    match second {
                        Some(answer) => Ok(answer.unwrap().to_vec()),
                        None => Err(HandlerError::new("its callback did not run")),
                    }
                })
                .unwrap();
        },
    );
    for _ in 0..10 {
        let payload = noise(1, 100);
        let answer = ask(caller.handle(), 1, "nested", payload.clone());
        assert_eq!(answer.unwrap(), payload);
    }
}

#[test]
fn a_refusal_reaches_a_function_that_waits_for_another_call() {
    let agents = group_with(
        2,
        |_, options| options,
        |_, registry| {
            registry
                .register("asks back", |context, _| {
                    let caller = context.caller().id.get();
                    match ask(context.agent(), caller, "nothing", "") {
                        Err(RpcError::NoSuchFunction { .. }) => Ok(Vec::new()),
                        other => Err(HandlerError::new(format!("{other:?}"))),
                    }
                })
                .unwrap();
            registry
                .register("passes on", |context, _| {
                    let answer = ask(context.agent(), 1, "asks back", "");
                    answer
                        .map(Vec::from)
                        .map_err(|error| HandlerError::new(error.to_string()))
                })
                .unwrap();
        },
    );
    // The function runs on the first worker and calls the second one, which calls the first one.
    assert_eq!(ask(agents[0].handle(), 0, "passes on", "").unwrap(), "");
}

#[test]
fn a_panic_in_on_peer_lost_does_not_affect_the_agent() {
    // Each sent request cuts its connection.
    let faults = FaultPlan::new(1).cut(1.0);
    let (caller, server) = pair_with(faults.of_rank(0), |_| {});
    let (sender, lost) = mpsc::channel();
    caller
        .handle()
        .on_peer_lost(|_, _| panic!("a bad callback"));
    caller
        .handle()
        .on_peer_lost(move |worker, _| sender.send(worker.clone()).unwrap());
    // The first request makes the connection and is therefore not cut.
    until("the connection is lost", || {
        let result = ask(caller.handle(), 1, "echo", "x");
        matches!(result, Err(RpcError::ConnectionLost { .. }))
    });
    assert_eq!(lost.recv_timeout(PATIENCE).unwrap(), *server.handle().me());
    // Shutdown waits for all callbacks.
    shut_down_all([&caller, &server]);
    assert_eq!(caller.handle().metrics().threads, 0);
}

#[test]
fn an_answer_to_a_previous_incarnation_does_not_complete_a_new_call() {
    let [first, second] = [Gate::new(), Gate::new()];
    let gates = [
        OpenAtEnd(Arc::clone(&first)),
        OpenAtEnd(Arc::clone(&second)),
    ];
    let store = shared_store();
    let server = start_one(&store, options(1), |registry| {
        first.register(registry, "old");
        second.register(registry, "new");
    });
    let start = || start_one(&store, options(0), |_| {});
    let caller = start();
    let lost = caller.handle().call(1, "old").send_bytes("former");
    first.await_inside(1);
    drop(caller);
    assert!(lost.wait().is_err());

    // Calls of both incarnations have the same ids.
    let caller = start();
    let answer = caller.handle().call(1, "new").send_bytes("present");
    second.await_inside(1);
    first.open();
    until("the old call is answered", || {
        server.handle().metrics().requests_handled == 1
    });
    drop(gates);
    assert_eq!(answer.wait().unwrap(), "present");
}
