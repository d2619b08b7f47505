//! PyTorch's clients with our server.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use c10d_store::{Opcode, ServerOptions, Store, TcpStore, TcpStoreServer};
use integration_tests::contract::{self, TCP, Traits};
use integration_tests::eventually::eventually;
use integration_tests::peer::Peer;
use integration_tests::raw_client::{CANCELLED, READY, RawClient, Request, command};
use integration_tests::relay::Relay;
use integration_tests::torch::{
    Feature, Release, TcpArguments, Torch, TorchError, TorchStore, print_skipped, to_hex,
};
use integration_tests::watchdog::Watchdog;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(120);

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server on loopback")
}

/// The features that both our server and PyTorch's client have.
fn traits() -> Traits {
    TCP.with(Release::tested())
}

/// PyTorch's message for a wait that timed out.
fn timed_out_after(milliseconds: u64) -> String {
    if Release::tested().has(Feature::WaitTimeoutText) {
        format!("wait timeout after {milliseconds}ms")
    } else {
        "Socket Timeout".to_owned()
    }
}

/// A server and a PyTorch client connected to it.
fn pair() -> (TcpStoreServer, TorchStore) {
    let server = serve();
    let client = Torch::shared().tcp_client(server.local_addr());
    (server, client)
}

fn expect_error(error: &TorchError, class: &str, first_line: &str) {
    assert_eq!(error.class, class, "{error}");
    assert_eq!(error.first_line(), first_line, "{error}");
    assert!(error.is_a("RuntimeError"), "{error:?}");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_detected_release_is_the_loaded_one() {
    let loaded = Torch::shared().version().to_owned();
    let named = Release::tested().version();
    assert_eq!(loaded.split('+').next(), named.split('+').next());
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn every_operation() {
    let _watchdog = Watchdog::start("every_operation", LIMIT);
    let (server, client) = pair();
    contract::every_operation(&client, &traits());
    let other = Torch::shared().tcp_client(server.local_addr());
    contract::add_to_text(&client, &other, &traits());
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn every_operation_through_the_older_client() {
    let _watchdog = Watchdog::start("every_operation_through_the_older_client", LIMIT);
    let server = serve();
    let without_queues = TcpArguments {
        use_libuv: Some(false),
        ..TcpArguments::default()
    };
    let client = Torch::shared()
        .open_tcp(server.local_addr(), &without_queues)
        .expect("a client");
    let traits = Traits {
        queues: false,
        ..traits()
    };
    contract::every_operation(&client, &traits);
    if !Release::tested().allows(Feature::Queues) {
        return;
    }
    // The client itself refuses queue operations.
    let error = client
        .call("queue_len", json!({"key": "q"}))
        .expect_err("no queues");
    assert_eq!(error.class, "NotImplementedError", "{error}");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn every_operation_below_a_prefix() {
    let _watchdog = Watchdog::start("every_operation_below_a_prefix", LIMIT);
    let (_server, client) = pair();
    let nested = client.prefixed("outer").prefixed("inner");
    let traits = Traits {
        barrier_has_default_timeout: false,
        ..traits()
    };
    contract::every_operation(&nested, &traits);
    assert_eq!(
        client.get("outer/inner/cas").expect("get"),
        nested.get("cas").expect("get")
    );
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn two_clients_see_and_wake_each_other() {
    let _watchdog = Watchdog::start("two_clients_see_and_wake_each_other", LIMIT);
    let (server, first) = pair();
    let second = Torch::shared().tcp_client(server.local_addr());
    contract::two_clients(&first, &second, &traits());
    contract::two_clients(&first.prefixed("p"), &second.prefixed("p"), &traits());
}

/// PyTorch's users match on these messages.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn errors_have_the_messages_of_pytorchs_server() {
    let _watchdog = Watchdog::start("errors_have_the_messages_of_pytorchs_server", LIMIT);
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    let (server, client) = pair();
    let call = |op: &str, arguments| client.call(op, arguments).expect_err(op);

    let error = call("wait", json!({"keys": ["a", "b"], "timeout_ms": 120}));
    expect_error(
        &error,
        "DistStoreError",
        "wait timeout after 120ms, keys: /a, /b",
    );
    let error = call("wait", json!({"keys": ["a"], "timeout_ms": 0}));
    expect_error(&error, "DistStoreError", "wait timeout after 0ms, keys: /a");
    let error = call(
        "barrier",
        json!({"key": "b", "world_size": 2, "timeout_ms": 110}),
    );
    expect_error(
        &error,
        "DistStoreError",
        "barrier timeout after 110ms, key: b",
    );
    let error = call("queue_pop", json!({"key": "q", "block": false}));
    expect_error(&error, "QueueEmptyError", "queue is empty");
    assert!(error.is_a("DistStoreError"), "{error:?}");
    client
        .set_timeout(Duration::from_millis(130))
        .expect("set_timeout");
    for (op, arguments) in [
        ("get", json!({"key": "a"})),
        ("multi_get", json!({"keys": ["a"]})),
        ("queue_pop", json!({"key": "a", "block": true})),
    ] {
        expect_error(
            &call(op, arguments),
            "DistStoreError",
            "wait timeout after 130ms, keys: /a",
        );
    }
    let error = client
        .prefixed("p")
        .call("get", json!({"key": "a"}))
        .expect_err("get");
    expect_error(
        &error,
        "DistStoreError",
        "wait timeout after 130ms, keys: /p/a",
    );

    // `add` to text closes the connection.
    client.set("text", b"abc").expect("set");
    let error = call("add", json!({"key": "text", "delta": 1}));
    assert!(error.is_a("DistNetworkError"), "{error}");
    assert!(
        error
            .first_line()
            .starts_with("Failed to recv, got 0 bytes")
            || error.first_line().contains("Connection reset by peer"),
        "{error}"
    );
    let address = server.local_addr();
    server.shutdown();
    let arguments = TcpArguments {
        timeout: Some(Duration::from_millis(300)),
        ..TcpArguments::default()
    };
    let error = Torch::shared()
        .open_tcp(address, &arguments)
        .expect_err("no server listens");
    assert!(error.is_a("DistNetworkError"), "{error}");
    assert!(
        error
            .first_line()
            .starts_with("The client socket has timed out after"),
        "{error}"
    );
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_client_works_after_a_wait_that_timed_out() {
    let _watchdog = Watchdog::start("the_client_works_after_a_wait_that_timed_out", LIMIT);
    let (_server, client) = pair();
    for round in 1..=20 {
        let error = client
            .wait(&["never"], Some(Duration::from_millis(5)))
            .expect_err("the key is never set");
        assert!(error.text.contains(&timed_out_after(5)), "{error}");
        assert_eq!(client.add("rounds", 1).expect("add"), round);
    }
}

/// The server has sent the wake when the client sends the cancel (docs/spec/wire.md, 5.6).
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_wake_that_crosses_the_cancel_is_consumed() {
    let _watchdog = Watchdog::start("a_wake_that_crosses_the_cancel_is_consumed", LIMIT);
    let server = serve();
    let relay = Relay::start(server.local_addr()).expect("a relay");
    let client = Torch::shared().tcp_client(relay.address());
    let mut writer = RawClient::join(server.local_addr()).expect("a connection");
    let within = Duration::from_secs(30);
    for round in 1..=20 {
        let key = format!("crossing-{round}");
        relay.hold();
        let waiting = client.begin("wait", json!({"keys": [key], "timeout_ms": 100}));
        let set = Request::new(command::SET)
            .blob(format!("/{key}").as_bytes())
            .blob(b"set");
        relay.wait_requested(within);
        writer.send(&set).expect("set");
        writer.fence().expect("the set is executed");
        // The relay holds the wake, and now also the reply to the cancel.
        relay.pass_cancel();
        relay.wait_held(2, within);
        let held = relay.release().expect("the client is connected");
        assert_eq!(held, [READY, CANCELLED]);
        let error = waiting.wait().result.expect_err("the wait timed out");
        assert!(error.message.contains(&timed_out_after(100)), "{error}");
        assert_eq!(client.get(&key).expect("get"), b"set");
        assert_eq!(client.add("rounds", 1).expect("add"), round);
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_server_that_shuts_down_fails_every_wait_at_once() {
    let _watchdog = Watchdog::start("a_server_that_shuts_down_fails_every_wait_at_once", LIMIT);
    if !Release::tested().allows(Feature::Barrier) {
        return;
    }
    let server = serve();
    let torch = Torch::shared();
    let clients: Vec<_> = (0..4)
        .map(|_| torch.tcp_client(server.local_addr()))
        .collect();
    let waits = [
        clients[0].begin("get", json!({"key": "never"})),
        clients[1].begin("wait", json!({"keys": ["never"]})),
        clients[2].begin("queue_pop", json!({"key": "never", "block": true})),
        clients[3].begin("barrier", json!({"key": "b", "world_size": 2})),
    ];
    // The barrier was requested last. When its key exists, the other requests are at least in the server's
    // receive buffers.
    let observer = torch.tcp_client(server.local_addr());
    eventually("one client has arrived", || {
        observer.check(&["b"]).expect("check")
    });
    assert!(waits.iter().all(|wait| wait.is_pending()));
    let started = Instant::now();
    server.shutdown();
    for wait in waits {
        let error = wait.wait().result.expect_err("the server has shut down");
        assert_eq!(error.class, "DistNetworkError", "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

/// docs/spec/wire.md, MEMORY 1 and 2.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_write_beyond_the_memory_limit_ends_the_connection_and_nothing_else() {
    let _watchdog = Watchdog::start(
        "a_write_beyond_the_memory_limit_ends_the_connection_and_nothing_else",
        LIMIT,
    );
    let (server, client) = pair();
    server.set_memory_max(3 << 20);
    let large = vec![7; 2 << 20];
    client.set("large", &large).expect("there is memory");
    // A set has no reply: a later call fails.
    let calls = (0..100).find_map(|_| {
        let arguments = json!({"key": "more", "value": to_hex(&large)});
        let set = client.call("set", arguments);
        set.and_then(|_| client.call("check", json!({"keys": ["large"]})))
            .err()
    });
    let error = calls.expect("the connection is closed");
    assert_eq!(error.class, "DistNetworkError", "{error}");

    // The process goes on with a new store.
    let client = Torch::shared().tcp_client(server.local_addr());
    assert_eq!(client.get("large").expect("reads go on"), large);
    assert!(!client.check(&["more"]).expect("nothing was written"));
    assert!(client.delete_key("large").expect("deletes go on"));
    client.set("more", &large).expect("there is memory again");
    assert!(client.check(&["more"]).expect("it was written"));
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_largest_values_and_requests() {
    let _watchdog = Watchdog::start("the_largest_values_and_requests", LIMIT);
    let (_server, client) = pair();
    let largest: Vec<u8> = (0..=250).cycle().take(8 << 20).collect();
    let pairs: Vec<(&str, &[u8])> = ["a", "b", "c"].map(|key| (key, &largest[..])).to_vec();
    client.multi_set(&pairs).expect("multi_set");
    let values = client.multi_get(&["c", "a"]).expect("multi_get");
    assert!(values.iter().all(|value| *value == largest));
    let swapped = client.compare_set("b", &largest, b"small").expect("cas");
    assert_eq!(swapped, b"small");
    if Release::tested().allows(Feature::Queues) {
        client.queue_push("q", &largest).expect("queue_push");
        assert!(client.queue_pop("q").expect("queue_pop") == largest);
    }
    // APPEND may exceed the limit on values.
    client.append("a", b"!").expect("append");
    let value = client.get("a").expect("get");
    assert_eq!((value.len(), value.last()), ((8 << 20) + 1, Some(&b'!')));

    let names: Vec<String> = (0..20_000).map(|i| format!("key-{i}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (*key, key.as_bytes())).collect();
    client.multi_set(&pairs).expect("multi_set");
    assert!(client.check(&keys).expect("check"));
    let values = client.multi_get(&keys).expect("multi_get");
    assert!(values.iter().zip(&keys).all(|(v, k)| v == k.as_bytes()));
    let longest_key = "k".repeat(8191);
    assert_eq!(client.add(&longest_key, 1).expect("add"), 1);
    // One byte more closes the connection, and the next call fails (docs/spec/wire.md, 6.1).
    let _ = client.set(&"k".repeat(8192), b"v");
    let error = client.check(&["a"]).expect_err("the connection is closed");
    assert!(error.text.contains("DistNetworkError"), "{error}");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn many_python_threads_and_clones() {
    let _watchdog = Watchdog::start("many_python_threads_and_clones", LIMIT);
    if !Release::tested().allows(Feature::Clone) {
        return;
    }
    let (server, client) = pair();
    let torch = Torch::shared();
    // One object on several threads, clones, and separate clients.
    let mut stores = vec![client.clone()];
    for _ in 0..3 {
        stores.push(client.on_another_thread());
        stores.push(client.cloned());
        stores.push(torch.tcp_client(server.local_addr()));
    }
    let adding: Vec<_> = stores
        .iter()
        .map(|store| store.begin("add_many", json!({"key": "sum", "delta": 1, "times": 200})))
        .collect();
    let mut sums: Vec<i64> = Vec::new();
    for pending in adding {
        let sum = pending.wait().result.expect("add");
        sums.push(sum.as_i64().expect("a number"));
    }
    assert_eq!(sums.iter().max(), Some(&2000));
    assert_eq!(client.get("sum").expect("get"), b"2000");

    // A wait in a clone does not block the original.
    let clone = client.cloned();
    let waiting = clone.begin("get", json!({"key": "later"}));
    assert_eq!(client.add("counter", 1).expect("add"), 1);
    client.set("later", b"now").expect("set");
    let got = waiting.wait().result.expect("get");
    assert_eq!(got, json!(to_hex(b"now")));
}

/// docs/spec/wire.md, 7.2: every worker counts itself, and clients do not wait for other workers.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn workers_are_counted() {
    let _watchdog = Watchdog::start("workers_are_counted", LIMIT);
    let server = serve();
    let arguments = TcpArguments {
        world_size: Some(3),
        is_master: Some(false),
        ..TcpArguments::default()
    };
    let uncounted = TcpArguments {
        wait_for_workers: Some(false),
        ..arguments.clone()
    };
    let torch = Torch::shared();
    let open = |arguments| {
        torch
            .open_tcp(server.local_addr(), arguments)
            .expect("a client")
    };
    let workers = [open(&arguments), open(&arguments), open(&uncounted)];
    assert_eq!(count_of_workers(server.local_addr()), b"2");
    let third = open(&arguments);
    assert_eq!(count_of_workers(server.local_addr()), b"3");
    assert_eq!(third.num_keys().expect("num_keys"), 1);
    if Release::tested().allows(Feature::ListKeys) {
        assert_eq!(workers[0].list_keys().expect("list_keys"), [""; 0]);
    }
    assert!(!workers[2].check(&["init/"]).expect("check"));
}

fn count_of_workers(server: SocketAddr) -> Vec<u8> {
    let mut client = RawClient::join(server).expect("a connection");
    client
        .send(&Request::new(command::GET).blob(b"init/"))
        .expect("get");
    client.read_blob().expect("a value")
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_client_killed_during_a_wait_does_not_affect_others() {
    let _watchdog = Watchdog::start(
        "a_client_killed_during_a_wait_does_not_affect_others",
        LIMIT,
    );
    if !Release::tested().allows(Feature::Barrier) {
        return;
    }
    let (server, client) = pair();
    let killed = Torch::start();
    let popper = killed.tcp_client(server.local_addr());
    let arrived = killed.tcp_client(server.local_addr());
    let pending = [
        popper.begin("queue_pop", json!({"key": "q", "block": true})),
        arrived.begin("barrier", json!({"key": "b", "world_size": 2})),
    ];
    eventually("the killed client has arrived", || {
        client.check(&["b"]).expect("check")
    });
    assert!(pending.iter().all(|wait| wait.is_pending()));
    killed.kill();
    drop(pending);
    // The arrival still counts (docs/spec/wire.md, 5.8). The pending pop takes no element.
    client
        .barrier("b", 2, Some(Duration::from_secs(30)))
        .expect("barrier");
    client.queue_push("q", b"element").expect("queue_push");
    assert_eq!(client.queue_pop("q").expect("queue_pop"), b"element");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_client_connects_over_ipv6() {
    let _watchdog = Watchdog::start("a_client_connects_over_ipv6", LIMIT);
    if TcpListener::bind("[::1]:0").is_err() {
        print_skipped("IPv6, which this machine does not have (LEFT OUT)");
        return;
    }
    let server = TcpStoreServer::bind("[::1]:0", ServerOptions::default()).expect("a server");
    let client = Torch::shared().tcp_client(server.local_addr());
    client.set("k", b"v").expect("set");
    assert_eq!(client.get("k").expect("get"), b"v");
}

fn ender(server: &TcpStoreServer) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client")
}

/// docs/spec/wire-extensions.md, END_WAITS 1: a rank that waits raises at once, and its store stays usable.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_wait_that_is_ended_raises_at_once() {
    let _watchdog = Watchdog::start("a_wait_that_is_ended_raises_at_once", LIMIT);
    let (server, client) = pair();
    let ender = ender(&server);
    for round in 1..=20 {
        for (call, arguments) in [
            ("wait", json!({"keys": ["reconfigure/1", "other"]})),
            ("get", json!({"key": "reconfigure/1"})),
        ] {
            let waiting = client.begin(call, arguments);
            eventually("it waits", || server.waiting_count() == 1);
            assert!(waiting.is_pending());
            assert_eq!(ender.end_waits("none").expect("a number"), 0);
            assert_eq!(ender.end_waits("reconfigure/").expect("a number"), 1);
            let error = waiting.wait().result.expect_err("the wait has ended");
            // PyTorch 2.15 raises the subclass DistStoreError.
            assert!(error.is_a("RuntimeError"), "{error:?}");
            let text = &error.message;
            assert!(text.contains("Stop_waiting response is expected"), "{text}");
        }
        assert_eq!(client.add("rounds", 1).expect("add"), round);
    }
}

/// docs/spec/wire-extensions.md, END_WAITS 2: the end of the wait crosses the cancel of a client whose timeout has passed.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn an_end_that_crosses_the_cancel_leaves_the_client_in_step() {
    let _watchdog = Watchdog::start("an_end_that_crosses_the_cancel", LIMIT);
    let server = serve();
    let relay = Relay::start(server.local_addr()).expect("a relay");
    let client = Torch::shared().tcp_client(relay.address());
    let ender = ender(&server);
    let within = Duration::from_secs(30);
    for round in 1..=20 {
        relay.hold();
        let waiting = client.begin("wait", json!({"keys": ["k"], "timeout_ms": 100}));
        relay.wait_requested(within);
        eventually("it waits", || server.waiting_count() == 1);
        assert_eq!(ender.end_waits("k").expect("a number"), 1);
        // The relay holds the end, and the cancel has no reply.
        relay.pass_cancel();
        eventually("the cancel has arrived", || {
            let snapshot = server.observer().snapshot(within).expect("a snapshot");
            let mut last = snapshot
                .connections
                .iter()
                .filter_map(|it| it.last.as_ref());
            last.any(|last| last.command == Opcode::CancelWait)
        });
        relay.wait_held(1, within);
        let held = relay.release().expect("the client is connected");
        assert_eq!(held, [CANCELLED]);
        let error = waiting.wait().result.expect_err("the wait timed out");
        assert!(error.message.contains(&timed_out_after(100)), "{error}");
        assert_eq!(client.add("rounds", 1).expect("add"), round);
    }
}
