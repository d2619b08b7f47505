//! Peers that misbehave, without PyTorch: they hurt themselves and nobody else.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{ServerOptions, Store, StoreError, TcpStore, TcpStoreOptions, TcpStoreServer};
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

/// The whole contract that the interoperation tests use, both ends ours.
#[test]
fn every_operation_between_our_own_two_ends() {
    let _watchdog = Watchdog::start("every_operation_between_our_own_two_ends", LIMIT);
    let server = serve();
    let client = Ours(connect(&server));
    let other = Ours(connect(&server));
    let traits = contract::Traits {
        add_to_text: Failure::NotANumber,
        ..contract::TCP
    };
    contract::every_operation(&client, &traits);
    contract::two_users(&client, &other, &traits);
    contract::add_to_text(&client, &other, &traits);
}

#[test]
fn half_a_request_and_then_silence() {
    let _watchdog = Watchdog::start("half_a_request_and_then_silence", LIMIT);
    let server = serve();
    let client = connect(&server);
    let set = Request::new(command::SET).blob(b"/half").blob(b"value");
    let mut silent: Vec<RawClient> = Vec::new();
    for cut in 1..set.bytes().len() {
        let mut peer = join(&server);
        peer.send_bytes(&set.bytes()[..cut]).expect("sent");
        silent.push(peer);
    }
    // And some that never say anything at all.
    for _ in 0..20 {
        silent.push(RawClient::connect(server.local_addr()).expect("a connection"));
    }
    let started = Instant::now();
    for round in 1..=200 {
        assert_eq!(client.add("rounds", 1).expect("add"), round);
    }
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    assert!(!client.check(&["half"]).expect("check"));
    // Closing in the middle applies nothing either.
    drop(silent);
    assert_eq!(client.add("rounds", 1).expect("add"), 201);
    assert!(!client.check(&["half"]).expect("check"));
}

#[test]
fn requests_that_trickle_in_byte_by_byte() {
    let _watchdog = Watchdog::start("requests_that_trickle_in_byte_by_byte", LIMIT);
    let server = serve();
    let mut slow = join(&server);
    let request = Request::new(command::SET).blob(b"/slow").blob(b"value");
    for byte in request.bytes() {
        slow.send_bytes(&[*byte]).expect("sent");
    }
    slow.fence().expect("carried out");
    assert_eq!(connect(&server).get("slow").expect("get"), b"value");
}

#[test]
fn a_reader_that_stops_reading() {
    let _watchdog = Watchdog::start("a_reader_that_stops_reading", LIMIT);
    let server = serve();
    let client = connect(&server);
    let value = vec![b'x'; 4 << 20];
    client.set("large", &value).expect("set");
    assert!(client.check(&["large"]).expect("check"));
    // 256 MiB of replies are asked for and not read; the requests are a few kilobytes.
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
    // When it reads at last, everything is there.
    for _ in 0..64 {
        assert!(stuck.read_blob().expect("a reply") == value);
    }
    stuck.fence().expect("in step");
}

#[test]
fn strangers_are_turned_away_and_nobody_else_notices() {
    let _watchdog = Watchdog::start("strangers_are_turned_away", LIMIT);
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
        let mut stranger = RawClient::connect(server.local_addr()).expect("a connection");
        // The server may have closed before all of it is written.
        let _ = stranger.send_bytes(opening);
        assert_eq!(stranger.read_to_close().expect("closed"), 0, "{opening:?}");
    }
    // The same after a correct hello: an unknown command, and lengths beyond all limits.
    let commands = [
        Request::new(19),
        Request::new(0xff),
        Request::new(command::SET).u64(u64::MAX),
        Request::new(command::SET).blob(b"/k").u64(u64::MAX),
        Request::new(command::WAIT).u64(u64::MAX),
    ];
    for request in commands {
        let mut stranger = join(&server);
        stranger.send(&request).expect("sent");
        assert_eq!(stranger.read_to_close().expect("closed"), 0, "{request:?}");
    }
    assert_eq!(client.add("untouched", 1).expect("add"), 1);
    assert_eq!(client.num_keys().expect("num_keys"), 1);
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let _watchdog = Watchdog::start("connections_that_come_and_go", LIMIT);
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

/// docs/wire.md, 5.6: the wake is on its way when the cancel is sent. Here it always is.
#[test]
fn a_wake_that_crosses_the_cancel_is_taken_off_the_wire() {
    let _watchdog = Watchdog::start("a_wake_that_crosses_the_cancel", LIMIT);
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
            writer.fence().expect("carried out");
            relay.pass_cancel();
            relay.wait_held(2, LONG);
            assert_eq!(
                relay.release().expect("the client is there"),
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
        // docs/wire.md, 7.5: a success, if the answers took less than 0.1 s. On a busy machine they may not.
        if round >= 20 && succeeded > 0 {
            return;
        }
    }
    panic!("the answer is never used");
}

/// docs/wire.md, 7.6: a lost connection ends every call, one that is still dialling included.
#[test]
fn a_further_connection_is_not_dialled_for_long_when_the_server_is_gone() {
    let _watchdog = Watchdog::start("a_further_connection", Duration::from_secs(60));
    let server = serve();
    let relay = Relay::start(server.local_addr()).expect("a relay");
    let client = TcpStore::connect("127.0.0.1", relay.address().port()).expect("a client");
    thread::scope(|scope| {
        // One of the two has the only connection there is; the other one's is refused.
        let (tell, told) = mpsc::channel();
        let call = |key| {
            let (tell, client) = (tell.clone(), &client);
            scope.spawn(move || {
                tell.send(gettid()).expect("the test listens");
                client.get(key)
            })
        };
        let calls = [call("never"), call("ever")];
        relay.wait_requested(LONG);
        for thread in told.iter().take(2) {
            until_blocked(thread);
        }
        drop(relay);
        for call in calls {
            call.join().expect("no panic").expect_err("it has gone");
        }
    });
}

/// Something listens there that is no store.
#[test]
fn a_client_tells_a_stranger_from_a_server() {
    let _watchdog = Watchdog::start("a_client_tells_a_stranger_from_a_server", LIMIT);
    type Answer = fn(&mut std::net::TcpStream) -> io::Result<()>;
    let strangers: [(&str, Answer); 3] = [
        ("says nothing", |stream| {
            io::copy(stream, &mut io::sink()).map(drop)
        }),
        ("closes", |_| Ok(())),
        ("speaks something else", |stream| {
            stream.read_exact(&mut [0; 10])?;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        }),
    ];
    for (name, answer) in strangers {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("its address");
        // It ends with the test: nobody waits for its last accept.
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
