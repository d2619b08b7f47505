//! Our client with PyTorch's servers, the libuv backend and the older one.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{
    Known, PrefixStore, Store, StoreError, StoreExt, StoreHandle, TcpStore, TcpStoreOptions,
};
use integration_tests::contract::{self, TCP, Traits};
use integration_tests::eventually::eventually;
use integration_tests::peer::{Failure, Ours};
use integration_tests::raw_client::{CANCELLED, READY, RawClient, Request, command};
use integration_tests::relay::Relay;
use integration_tests::torch::{Feature, Release, Torch, TorchStore};
use integration_tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_secs(90);

/// PyTorch's older backend (docs/spec/wire.md, 11).
const POLL: Traits = Traits {
    queues: false,
    compare_set_wakes: false,
    ..TCP
};

fn connect(server: &TorchStore) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.port()).expect("PyTorch's server listens")
}

fn servers() -> [(TorchStore, Traits); 2] {
    let torch = Torch::shared();
    // `clone` is a feature of our client.
    let of_release = |traits: Traits| Traits {
        clone: true,
        ..traits.with(Release::tested())
    };
    [
        (torch.tcp_server(true), of_release(TCP)),
        (torch.tcp_server(false), of_release(POLL)),
    ]
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn every_operation() {
    let _watchdog = Watchdog::start("every_operation", LIMIT);
    for (server, traits) in servers() {
        let client = Ours::new(connect(&server));
        contract::every_operation(&client, &traits);
        // The server closes the connection, and our client connects again.
        let traits = Traits {
            add_to_text: Failure::NotANumber,
            ..traits
        };
        contract::add_to_text(&client, &Ours::new(connect(&server)), &traits);
        server.close();
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn every_operation_below_a_prefix() {
    let _watchdog = Watchdog::start("every_operation_below_a_prefix", LIMIT);
    for (server, mut traits) in servers() {
        let client = PrefixStore::new("outer", Arc::new(connect(&server)));
        // `num_keys` counts keys outside the prefix, which `list_keys` omits.
        traits.lists_only_users_keys = false;
        contract::every_operation(
            &Ours::new(PrefixStore::new("inner", Arc::new(client))),
            &traits,
        );
        assert!(connect(&server).check(&["outer/inner/cas"]).expect("check"));
        server.close();
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn two_clients_see_and_wake_each_other() {
    let _watchdog = Watchdog::start("two_clients_see_and_wake_each_other", LIMIT);
    for (server, traits) in servers() {
        let (first, second) = (connect(&server), connect(&server));
        contract::two_clients(&Ours::new(first), &Ours::new(second), &traits);
        server.close();
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn queues_on_the_older_server_fail_clearly() {
    let _watchdog = Watchdog::start("queues_on_the_older_server_fail_clearly", LIMIT);
    let server = Torch::shared().tcp_server(false);
    type Call = fn(&TcpStore) -> Result<(), StoreError>;
    let calls: [(&str, Call); 2] = [
        ("queue_len", |s| s.queue_len("jobs").map(drop)),
        ("queue_pop", |s| s.try_queue_pop("jobs").map(drop)),
    ];
    for (name, call) in calls {
        // The server can only close the connection: the protocol has no reply for unknown commands.
        let error = call(&connect(&server)).expect_err(name);
        assert!(
            matches!(
                error,
                StoreError::ConnectionLost { .. } | StoreError::Unsupported { .. }
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("jobs"), "{text}");
    }
    // A push has no reply; the next operation fails.
    let client = connect(&server);
    let _ = client.queue_push("jobs", b"x");
    client.check(&["x"]).expect_err("the connection is lost");
    server.close();
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_client_works_after_a_wait_that_timed_out() {
    let _watchdog = Watchdog::start("the_client_works_after_a_wait_that_timed_out", LIMIT);
    for (server, _) in servers() {
        let client = connect(&server);
        for round in 1..=20 {
            let error = client
                .wait_timeout(&["never"], Some(Duration::from_millis(5)))
                .expect_err("the key is never set");
            assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
            assert_eq!(client.add("rounds", 1).expect("add"), round);
        }
        server.close();
    }
}

/// docs/spec/wire.md, 4.2: PyTorch's servers cannot report a change, so the client polls.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn wait_change_detects_a_change_by_polling() {
    let _watchdog = Watchdog::start("wait_change_detects_a_change_by_polling", LIMIT);
    for (server, _) in servers() {
        let (waiter, writer) = (connect(&server), connect(&server));
        assert!(!waiter.has_prompt_watch());
        let error = waiter
            .wait_change("state", Known::nothing(), Some(Duration::from_millis(5)))
            .expect_err("the key is missing");
        assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
        writer.set("state", b"round 7, beat 1").expect("set");
        let seen = waiter
            .wait_change("state", Known::nothing(), Some(LIMIT))
            .expect("the key exists");
        assert_eq!(seen, b"round 7, beat 1");

        let round = Known::part(&seen, 0..7);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.wait_change("state", round, Some(LIMIT)));
            // Changes outside the compared part do not end the wait. It runs on the same client in another thread.
            for beat in 2..=20 {
                let value = format!("round 7, beat {beat}");
                waiter.set("state", value.as_bytes()).expect("set");
                assert_eq!(waiter.get("state").expect("get"), value.as_bytes());
            }
            // On the older server a compare_set wakes no waits, but polling detects it.
            let next = b"round 8, beat 0";
            let written = writer
                .compare_set("state", b"round 7, beat 20", next)
                .expect("compare_set");
            assert_eq!(written.value(), next);
            let seen = waiting
                .join()
                .expect("no panic")
                .expect("the value changed");
            assert_eq!(seen, next);
        });
        server.close();
    }
}

/// The server has sent the wake when the client sends the cancel (docs/spec/wire.md, 5.6).
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_wake_that_crosses_the_cancel_is_consumed() {
    let _watchdog = Watchdog::start("a_wake_that_crosses_the_cancel_is_consumed", LIMIT);
    if !Release::tested().allows(Feature::Ping) {
        return;
    }
    for (server, _) in servers() {
        let relay = Relay::start(server.address()).expect("a relay");
        let client =
            TcpStore::connect("127.0.0.1", relay.address().port()).expect("through the relay");
        let mut writer = RawClient::join(server.address()).expect("a connection");
        let mut succeeded = 0;
        for round in 1..=200 {
            let key = format!("crossing-{round}");
            relay.hold();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    client.wait_timeout(&[key.as_str()], Some(Duration::from_millis(10)))
                });
                relay.wait_requested(LIMIT);
                let set = Request::new(command::SET)
                    .blob(format!("/{key}").as_bytes())
                    .blob(b"set");
                writer.send(&set).expect("set");
                writer.fence().expect("the set is executed");
                relay.pass_cancel();
                relay.wait_held(2, LIMIT);
                let held = relay.release().expect("the client is connected");
                assert_eq!(held, [READY, CANCELLED]);
                match waiting.join().expect("wait") {
                    Ok(()) => succeeded += 1,
                    Err(StoreError::Timeout { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            });
            assert_eq!(client.get(&key).expect("get"), b"set");
            assert_eq!(client.add("rounds", 1).expect("add"), round);
            // docs/spec/wire.md, 7.5: the wait succeeds if both replies arrive within 0.1 s, which may fail on a busy
            // machine.
            if round >= 20 && succeeded > 0 {
                break;
            }
        }
        assert!(succeeded > 0, "no wait succeeded with a late reply");
        server.close();
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_killed_server_fails_every_call_at_once() {
    let _watchdog = Watchdog::start("a_killed_server_fails_every_call_at_once", LIMIT);
    if !Release::tested().allows(Feature::Barrier) {
        return;
    }
    for use_libuv in [true, false] {
        let torch = Torch::start();
        let server = torch.tcp_server(use_libuv);
        let client = connect(&server);
        let barrier_client = connect(&server);
        let killed = thread::scope(|scope| {
            let getting = scope.spawn(|| client.get("never"));
            let waiting = scope.spawn(|| client.wait(&["never", "ever"]));
            let meeting = scope.spawn(|| barrier_client.barrier("b", 2));
            let observer = connect(&server);
            eventually("one client has arrived", || {
                observer.check(&["b"]).expect("check")
            });
            torch.kill();
            let killed = Instant::now();
            let get = getting.join().expect("get").map(drop);
            expect_lost(get, server.port(), &["get", "never"]);
            let wait = waiting.join().expect("wait");
            expect_lost(wait, server.port(), &["wait", "never", "ever"]);
            let met = meeting.join().expect("barrier");
            expect_lost(met, server.port(), &["barrier", "\"b\""]);
            killed
        });
        assert!(killed.elapsed() < Duration::from_secs(10));
        // Later calls fail too, without blocking.
        client.add("x", 1).expect_err("the server was killed");
        assert!(killed.elapsed() < Duration::from_secs(20));
    }
}

fn expect_lost(result: Result<(), StoreError>, port: u16, words: &[&str]) {
    let error = result.expect_err("the server was killed");
    // Connect: the call may have been opening a connection of its own.
    assert!(
        matches!(
            error,
            StoreError::ConnectionLost { .. } | StoreError::Connect { .. }
        ),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn calls_to_a_stopped_server_time_out() {
    let _watchdog = Watchdog::start("calls_to_a_stopped_server_time_out", LIMIT);
    for use_libuv in [true, false] {
        let torch = Torch::start();
        let server = torch.tcp_server(use_libuv);
        let timeout = Duration::from_millis(500);
        let options = TcpStoreOptions::default().with_timeout(timeout);
        let client = TcpStore::open("127.0.0.1", server.port(), options).expect("a client");
        client.set("k", b"v").expect("set");
        assert_eq!(client.get("k").expect("get"), b"v");
        torch.pause();
        type Call = fn(&TcpStore) -> Result<(), StoreError>;
        let calls: [(&str, Call); 8] = [
            ("get", |s| s.get("k").map(drop)),
            ("wait", |s| s.wait(&["k"])),
            ("add", |s| s.add("n", 1).map(drop)),
            ("check", |s| s.check(&["k"]).map(drop)),
            ("num_keys", |s| s.num_keys().map(drop)),
            ("list_keys", |s| s.list_keys().map(drop)),
            ("multi_get", |s| s.multi_get(&["k", "n"]).map(drop)),
            ("barrier", |s| s.barrier("b", 1)),
        ];
        for (name, call) in calls {
            let started = Instant::now();
            let error = call(&client).expect_err(name);
            let elapsed = started.elapsed();
            assert!(elapsed >= timeout / 2, "{name}: {elapsed:?}: {error}");
            expect_named(&error, name, server.port());
        }
        torch.resume();
        // The client works again after the server has resumed.
        client.set_timeout(Some(Duration::from_secs(30)));
        assert_eq!(client.get("k").expect("get"), b"v");
        client.set("after", b"pause").expect("set");
        assert_eq!(client.get("after").expect("get"), b"pause");
    }
}

/// Asserts that the error names the operation and the server's address.
fn expect_named(error: &StoreError, operation: &str, port: u16) {
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains(operation), "{text}");
}
