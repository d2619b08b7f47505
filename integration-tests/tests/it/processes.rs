//! Killed and stopped processes, without PyTorch: other clients recover, or fail with an error in time.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{
    ServerOptions, Store, StoreError, StoreExt, StoreHandle, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};
use integration_tests::eventually::eventually;
use integration_tests::process::ChildProcess;
use integration_tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(30);

/// The limit for "at once" on a busy machine; the timeout of the operations is 300 s.
const AT_ONCE: Duration = Duration::from_secs(10);

fn store_process(arguments: &[&str]) -> ChildProcess {
    let what = format!("store-process {}", arguments.join(" "));
    let mut command = Command::new(env!("CARGO_BIN_EXE_store-process"));
    ChildProcess::start(what, command.args(arguments))
}

fn server_process() -> (ChildProcess, SocketAddr) {
    let mut server = store_process(&["serve"]);
    let address = server
        .read_line()
        .parse()
        .expect("the server prints its address");
    (server, address)
}

fn connect(address: SocketAddr) -> TcpStore {
    TcpStore::connect("127.0.0.1", address.port()).expect("a client")
}

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server")
}

#[test]
fn a_killed_server_fails_every_call_at_once() {
    let _watchdog = Watchdog::start("a_killed_server_fails_every_call_at_once", LIMIT);
    let (mut server, address) = server_process();
    let client = connect(address);
    thread::scope(|scope| {
        let calls = [
            scope.spawn(|| client.get("never").map(drop)),
            scope.spawn(|| client.wait(&["never"])),
            scope.spawn(|| client.multi_get(&["never"]).map(drop)),
            scope.spawn(|| client.queue_pop("never").map(drop)),
            scope.spawn(|| client.barrier("b", 2)),
        ];
        let observer = connect(address);
        eventually("one client has arrived", || {
            observer.check(&["b"]).expect("check")
        });
        server.kill();
        let killed = Instant::now();
        for call in calls {
            let error = call
                .join()
                .expect("no panic")
                .expect_err("the server was killed");
            // Connect: the call may have been opening a connection of its own.
            assert!(
                matches!(
                    error,
                    StoreError::ConnectionLost { .. } | StoreError::Connect { .. }
                ),
                "{error:?}"
            );
            assert!(error.to_string().contains(&address.to_string()), "{error}");
        }
        assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    });
    server.wait(LONG);
}

#[test]
fn a_server_killed_under_load_fails_all_calls_at_once() {
    let _watchdog = Watchdog::start("a_server_killed_under_load_fails_all_calls_at_once", LIMIT);
    let (mut server, address) = server_process();
    let value = vec![7; 256 << 10];
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|number| {
                let (client, value) = (connect(address), &value);
                scope.spawn(move || {
                    let key = format!("k{number}");
                    loop {
                        let result = client
                            .set(&key, value)
                            .and_then(|()| client.get(&key))
                            .and_then(|got| {
                                assert!(got == *value, "the value is complete");
                                client.add("rounds", 1)
                            });
                        if let Err(error) = result {
                            return (error, Instant::now());
                        }
                    }
                })
            })
            .collect();
        let observer = connect(address);
        while observer.add("rounds", 0).expect("add") < 100 {
            thread::sleep(Duration::from_millis(1));
        }
        server.kill();
        let killed = Instant::now();
        for worker in workers {
            let (error, when) = worker.join().expect("no panic");
            assert!(
                matches!(error, StoreError::ConnectionLost { .. }),
                "{error:?}"
            );
            assert!(when < killed + AT_ONCE);
        }
    });
    server.wait(LONG);
}

#[test]
fn calls_to_a_stopped_server_time_out() {
    let _watchdog = Watchdog::start("calls_to_a_stopped_server_time_out", LIMIT);
    let (server, address) = server_process();
    let timeout = Duration::from_millis(500);
    let options = TcpStoreOptions::default().with_timeout(timeout);
    let client = TcpStore::open("127.0.0.1", address.port(), options).expect("a client");
    client.set("k", b"v").expect("set");
    assert_eq!(client.get("k").expect("get"), b"v");
    server.pause();
    type Call = fn(&TcpStore) -> Result<(), StoreError>;
    let calls: [(&str, Call); 5] = [
        ("get", |s| s.get("k").map(drop)),
        ("add", |s| s.add("n", 1).map(drop)),
        ("check", |s| s.check(&["k"]).map(drop)),
        ("barrier", |s| s.barrier("b", 1)),
        ("set", |s| s.set("large", vec![0; 8 << 20])),
    ];
    for (name, call) in calls {
        let started = Instant::now();
        let error = call(&client).expect_err(name);
        assert!(started.elapsed() < timeout + AT_ONCE, "{name}: {error}");
        expect_named(&error, name, address.port());
    }
    server.resume();
    client.set_timeout(Some(LONG));
    assert_eq!(client.get("k").expect("the server has resumed"), b"v");
}

#[test]
fn a_client_killed_during_a_wait_does_not_affect_others() {
    let _watchdog = Watchdog::start(
        "a_client_killed_during_a_wait_does_not_affect_others",
        LIMIT,
    );
    let server = serve();
    let port = server.local_addr().port().to_string();
    let client = connect(server.local_addr());
    let mut killed: Vec<ChildProcess> = [
        &["get", &port, "k"][..],
        &["queue-pop", &port, "q"],
        &["barrier", &port, "b", "2"],
    ]
    .into_iter()
    .map(store_process)
    .collect();
    eventually("one client has arrived", || {
        client.check(&["b"]).expect("check")
    });
    for process in &mut killed {
        process.kill();
        process.wait(LONG);
    }
    // The element goes to the client that still runs.
    client.queue_push("q", b"element").expect("queue_push");
    assert_eq!(client.queue_pop("q").expect("queue_pop"), b"element");
    client.set("k", b"v").expect("set");
    assert_eq!(client.get("k").expect("get"), b"v");
    client
        .barrier_timeout("b", 2, Some(LONG))
        .expect("the arrival of the killed client counts");
}

#[test]
fn writes_wake_waiting_processes() {
    let _watchdog = Watchdog::start("writes_wake_waiting_processes", LIMIT);
    let server = serve();
    let port = server.local_addr().port().to_string();
    let client = connect(server.local_addr());
    let mut waiting = [
        store_process(&["get", &port, "k"]),
        store_process(&["queue-pop", &port, "q"]),
        store_process(&["barrier", &port, "b", "2"]),
    ];
    client.set("k", b"value").expect("set");
    client.queue_push("q", b"element").expect("queue_push");
    client.barrier_timeout("b", 2, Some(LONG)).expect("barrier");
    let lines = waiting.each_mut().map(ChildProcess::read_line);
    assert_eq!(lines, ["value", "element", "met"]);
    for process in &mut waiting {
        assert!(process.wait(LONG).success());
    }
}

#[test]
fn concurrent_additions_by_processes_are_all_counted() {
    let _watchdog = Watchdog::start("concurrent_additions_by_processes_are_all_counted", LIMIT);
    let (_server, address) = server_process();
    let port = address.port().to_string();
    let mut adders: Vec<ChildProcess> = (0..4)
        .map(|_| store_process(&["add", &port, "sum", "500"]))
        .collect();
    for adder in &mut adders {
        assert!(adder.wait(LONG).success(), "{}", adder.stderr());
    }
    assert_eq!(connect(address).get("sum").expect("get"), b"2000");
}

#[test]
fn a_server_that_shuts_down_fails_pending_calls() {
    let _watchdog = Watchdog::start("a_server_that_shuts_down_fails_pending_calls", LIMIT);
    let (mut server, address) = server_process();
    let client = connect(address);
    thread::scope(|scope| {
        let getting = scope.spawn(|| client.get("never"));
        let meeting = connect(address);
        let meeting = scope.spawn(move || meeting.barrier("b", 2));
        let observer = connect(address);
        eventually("one client has arrived", || {
            observer.check(&["b"]).expect("check")
        });
        drop(server.take_stdin());
        getting
            .join()
            .expect("no panic")
            .expect_err("the server has shut down");
        meeting
            .join()
            .expect("no panic")
            .expect_err("the server has shut down");
    });
    assert!(server.wait(LONG).success());
}

/// Asserts that the error names the operation and the server's address.
fn expect_named(error: &StoreError, operation: &str, port: u16) {
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains(operation), "{text}");
}
