//! Typed calls from one worker to itself and to another, over loopback.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use c10d_store::{HashStore, Store};

use crate::error::{Outcome, RpcError};
use crate::{Agent, AgentHandle, AgentOptions, HandlerError, Registry, RetryOptions};

const TIMEOUT: Duration = Duration::from_secs(30);

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry
        .register_typed("add", |_, (a, b): (i64, i64)| {
            a.checked_add(b)
                .ok_or_else(|| HandlerError::new("the sum is too great"))
        })
        .unwrap();
    registry
        .register_typed("caller", |context, ()| {
            Ok(context.caller().name.to_string())
        })
        .unwrap();
    registry
}

/// Runs `test` on worker `a`, with `b` at the other end.
fn with_two_workers(test: impl FnOnce(&AgentHandle)) {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let start = |name, rank, store| {
        let options = AgentOptions::new(name, rank)
            .with_world_size(2)
            .with_host("127.0.0.1")
            .with_timeout(TIMEOUT)
            .with_start_timeout(TIMEOUT);
        Agent::start(options, registry(), store).unwrap()
    };
    thread::scope(|scope| {
        let its_store = Arc::clone(&store);
        scope.spawn(move || start("b", 1, its_store).shutdown(TIMEOUT).unwrap());
        let agent = start("a", 0, store);
        test(agent.handle());
        agent.shutdown(TIMEOUT).unwrap();
    });
}

#[test]
fn a_typed_call_returns_a_value_from_this_worker_and_from_another() {
    with_two_workers(|agent| {
        for worker in ["a", "b"] {
            assert_eq!(
                agent
                    .call(worker, "add")
                    .run::<(i64, i64), i64>((1, 2))
                    .unwrap(),
                3
            );
            let caller: String = agent.call(worker, "caller").run(()).unwrap();
            assert_eq!(caller, "a");
            let sum = agent.call(worker, "add").send::<(i64, i64), i64>((-1, -2));
            assert_eq!(sum.wait().unwrap(), -3);
            let retries = RetryOptions::default();
            let sum = agent
                .call(worker, "add")
                .with_retries(&retries)
                .send::<_, i64>((3_i64, 4_i64));
            assert_eq!(sum.wait().unwrap(), 7);
        }
    });
}

#[test]
fn arguments_of_a_wrong_type_are_an_error_that_names_the_expected_one() {
    with_two_workers(|agent| {
        let error = agent.call("b", "add").run::<_, u32>(()).unwrap_err();
        let RpcError::Remote {
            message, panicked, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert!(!panicked);
        let expected = "wrong arguments: 0 bytes are not a value of type `(i64, i64)`: ";
        assert!(message.starts_with(expected), "{message}");
    });
}

#[test]
fn a_result_of_a_wrong_type_is_an_error_after_the_function_ran() {
    with_two_workers(|agent| {
        let errors = [
            agent
                .call("b", "add")
                .run::<_, String>((1_i64, 2_i64))
                .unwrap_err(),
            agent
                .call("b", "add")
                .send::<_, String>((1_i64, 2_i64))
                .wait()
                .unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, RpcError::Codec { .. }), "{error}");
            assert_eq!(error.outcome(), Outcome::Executed);
            let message = error.to_string();
            let expected = "call of `add` on worker b (id 1): 1 bytes are not a value of type \
                            `alloc::string::String`: ";
            assert!(message.starts_with(expected), "{message}");
        }
    });
}

#[test]
fn an_unknown_worker_is_an_error_of_the_call_and_of_the_future() {
    with_two_workers(|agent| {
        let error = agent.call("c", "add").run::<_, ()>(()).unwrap_err();
        assert!(matches!(error, RpcError::NoSuchWorker { .. }), "{error}");
        let future = agent.call("c", "add").send::<_, ()>(());
        let error = future.wait().unwrap_err();
        assert!(matches!(error, RpcError::NoSuchWorker { .. }), "{error}");
    });
}
