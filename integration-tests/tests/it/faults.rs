//! Misbehaving clients and servers, without PyTorch: no other client is affected.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{
    ServerOptions, Store, StoreError, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use integration_tests::contract;
use integration_tests::eventually::until_blocked;
use integration_tests::peer::{Failure, Ours};
use integration_tests::raw_client::{CANCELLED, READY, RawClient, Request, command};
use integration_tests::relay::Relay;
use integration_tests::watchdog::Watchdog;
use rustix::thread::gettid;

const LIMIT: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(30);

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server")
}

fn connect(server: &TcpStoreServer) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client")
}

fn join(server: &TcpStoreServer) -> RawClient {
    RawClient::join(server.local_addr()).expect("a connection")
}

/// The contract that the tests with PyTorch use.
#[test]
fn every_operation_between_our_client_and_our_server() {
    let _watchdog = Watchdog::start("every_operation_between_our_client_and_our_server", LIMIT);
    let server = serve();
    let client = Ours::new(connect(&server));
    let other = Ours::new(connect(&server));
    let traits = contract::Traits {
        add_to_text: Failure::NotANumber,
        ..contract::TCP
    };
    contract::every_operation(&client, &traits);
    contract::two_clients(&client, &other, &traits);
    contract::add_to_text(&client, &other, &traits);
}

#[test]
fn an_incomplete_request_does_not_block_other_clients() {
    let _watchdog = Watchdog::start("an_incomplete_request_does_not_block_other_clients", LIMIT);
    let server = serve();
    let client = connect(&server);
    let set = Request::new(command::SET).blob(b"/half").blob(b"value");
    let mut silent: Vec<RawClient> = Vec::new();
    for cut in 1..set.bytes().len() {
        let mut peer = join(&server);
        peer.send_bytes(&set.bytes()[..cut]).expect("sent");
        silent.push(peer);
    }
    // Connections without any bytes.
    for _ in 0..20 {
        silent.push(RawClient::connect(server.local_addr()).expect("a connection"));
    }
    let started = Instant::now();
    for round in 1..=200 {
        assert_eq!(client.add("rounds", 1).expect("add"), round);
    }
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    assert!(!client.check(&["half"]).expect("check"));
    // An incomplete request is not executed when its connection is closed.
    drop(silent);
    assert_eq!(client.add("rounds", 1).expect("add"), 201);
    assert!(!client.check(&["half"]).expect("check"));
}

#[test]
fn a_request_that_arrives_byte_by_byte_is_executed() {
    let _watchdog = Watchdog::start("a_request_that_arrives_byte_by_byte_is_executed", LIMIT);
    let server = serve();
    let mut slow = join(&server);
    let request = Request::new(command::SET).blob(b"/slow").blob(b"value");
    for byte in request.bytes() {
        slow.send_bytes(&[*byte]).expect("sent");
    }
    slow.fence().expect("executed");
    assert_eq!(connect(&server).get("slow").expect("get"), b"value");
}

#[test]
fn a_client_that_does_not_read_does_not_block_others() {
    let _watchdog = Watchdog::start("a_client_that_does_not_read_does_not_block_others", LIMIT);
    let server = serve();
    let client = connect(&server);
    let value = vec![b'x'; 4 << 20];
    client.set("large", &value).expect("set");
    assert!(client.check(&["large"]).expect("check"));
    // The client requests 256 MiB of replies and does not read them.
    let mut stuck = join(&server);
    let get = Request::new(command::GET).blob(b"/large");
    for _ in 0..64 {
        stuck.send(&get).expect("sent");
    }
    let started = Instant::now();
    for round in 1..=200 {
        assert_eq!(client.add("rounds", 1).expect("add"), round);
    }
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    // All replies arrive once the client reads.
    for _ in 0..64 {
        assert!(stuck.read_blob().expect("a reply") == value);
    }
    stuck.fence().expect("in sync");
}

#[test]
fn invalid_requests_close_only_their_own_connection() {
    let _watchdog = Watchdog::start("invalid_requests_close_only_their_own_connection", LIMIT);
    let server = serve();
    let client = connect(&server);
    let noise: Vec<u8> = (0..=u8::MAX).rev().cycle().take(10_000).collect();
    let openings: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: store\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x00\x00",
        b"\x01",
        &noise,
    ];
    for opening in openings {
        let mut peer = RawClient::connect(server.local_addr()).expect("a connection");
        // The server may close the connection before all bytes are written.
        let _ = peer.send_bytes(opening);
        assert_eq!(peer.read_to_close().expect("closed"), 0, "{opening:?}");
    }
    // Invalid requests after a valid handshake: unknown commands, and lengths beyond the limits.
    let commands = [
        Request::new(19),
        Request::new(0xff),
        Request::new(command::SET).u64(u64::MAX),
        Request::new(command::SET).blob(b"/k").u64(u64::MAX),
        Request::new(command::WAIT).u64(u64::MAX),
    ];
    for request in commands {
        let mut peer = join(&server);
        peer.send(&request).expect("sent");
        assert_eq!(peer.read_to_close().expect("closed"), 0, "{request:?}");
    }
    assert_eq!(client.add("counter", 1).expect("add"), 1);
    assert_eq!(client.num_keys().expect("num_keys"), 1);
}

#[test]
fn clients_that_disconnect_during_a_wait_do_not_affect_others() {
    let _watchdog = Watchdog::start(
        "clients_that_disconnect_during_a_wait_do_not_affect_others",
        LIMIT,
    );
    let server = serve();
    let client = connect(&server);
    let wait = Request::new(command::WAIT).u64(1).blob(b"/later");
    for round in 0..300 {
        let mut peer = join(&server);
        peer.send(&wait).expect("sent");
        if round % 2 == 0 {
            peer.close().expect("closed");
        }
    }
    client.set("later", b"").expect("set");
    assert!(client.check(&["later"]).expect("check"));
}

/// The server has sent the wake when the client sends the cancel (docs/spec/wire.md, 5.6).
#[test]
fn a_wake_that_crosses_the_cancel_is_consumed() {
    let _watchdog = Watchdog::start("a_wake_that_crosses_the_cancel_is_consumed", LIMIT);
    let server = serve();
    let relay = Relay::start(server.local_addr()).expect("a relay");
    let client = TcpStore::connect("127.0.0.1", relay.address().port()).expect("a client");
    let mut writer = join(&server);
    let mut succeeded = 0;
    for round in 1..=200 {
        let key = format!("crossing-{round}");
        relay.hold();
        let timeout = Duration::from_millis(10);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| client.wait_timeout(&[key.as_str()], Some(timeout)));
            relay.wait_requested(LONG);
            let name = format!("/{key}");
            let set = Request::new(command::SET).blob(name.as_bytes()).blob(b"v");
            writer.send(&set).expect("sent");
            writer.fence().expect("executed");
            relay.pass_cancel();
            relay.wait_held(2, LONG);
            assert_eq!(
                relay.release().expect("the client is connected"),
                [READY, CANCELLED]
            );
            match waiting.join().expect("no panic") {
                Ok(()) => succeeded += 1,
                Err(StoreError::Timeout { .. }) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        });
        assert_eq!(client.get(&key).expect("get"), b"v");
        assert_eq!(client.add("rounds", 1).expect("add"), round);
        // docs/spec/wire.md, 7.5: the wait succeeds if both replies arrive within 0.1 s, which may fail on a busy
        // machine.
        if round >= 20 && succeeded > 0 {
            return;
        }
    }
    panic!("no wait succeeded with a late reply");
}

/// docs/spec/wire.md, 7.6: a lost connection fails every call, also calls that are still connecting.
#[test]
fn a_lost_server_also_fails_a_call_that_is_still_connecting() {
    let _watchdog = Watchdog::start(
        "a_lost_server_also_fails_a_call_that_is_still_connecting",
        Duration::from_secs(60),
    );
    let server = serve();
    let relay = Relay::start(server.local_addr()).expect("a relay");
    let client = TcpStore::connect("127.0.0.1", relay.address().port()).expect("a client");
    thread::scope(|scope| {
        // One call has the only connection that the relay accepts; the other one's connection is refused.
        let (thread_ids, started) = mpsc::channel();
        let call = |key| {
            let (thread_ids, client) = (thread_ids.clone(), &client);
            scope.spawn(move || {
                thread_ids.send(gettid()).expect("the test receives");
                client.get(key)
            })
        };
        let calls = [call("never"), call("ever")];
        relay.wait_requested(LONG);
        for thread in started.iter().take(2) {
            until_blocked(thread);
        }
        drop(relay);
        for call in calls {
            call.join()
                .expect("no panic")
                .expect_err("the server is lost");
        }
    });
}

/// The client connects to servers that are not stores.
#[test]
fn a_client_rejects_a_server_that_is_not_a_store() {
    let _watchdog = Watchdog::start("a_client_rejects_a_server_that_is_not_a_store", LIMIT);
    type Answer = fn(&mut std::net::TcpStream) -> io::Result<()>;
    let servers: [(&str, Answer); 3] = [
        ("sends nothing", |stream| {
            io::copy(stream, &mut io::sink()).map(drop)
        }),
        ("closes the connection", |_| Ok(())),
        ("speaks another protocol", |stream| {
            stream.read_exact(&mut [0; 10])?;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        }),
    ];
    for (name, answer) in servers {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("its address");
        // Not joined: it blocks in `accept` until the test process ends.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                thread::spawn(move || drop(answer(&mut stream)));
            }
        });
        let options = TcpStoreOptions::default().with_timeout(Duration::from_millis(600));
        let started = Instant::now();
        let error = TcpStore::open("127.0.0.1", address.port(), options).expect_err(name);
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{name}: {:?}: {error}",
            started.elapsed()
        );
        let text = error.to_string();
        assert!(text.contains(&address.port().to_string()), "{name}: {text}");
    }
}
