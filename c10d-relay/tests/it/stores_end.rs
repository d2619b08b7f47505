//! A store that takes no session, or no connection any more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{RelayError, RelayOptions};
use c10d_store::unstable::{CAPABILITY_NONCE, capability};
use c10d_store::{SessionError, Store, StoreError, StoreExt, TcpStore, TcpStoreServer};
use rustix::net::{self, AddressFamily, SocketType};

use crate::basics::{rank_of, relay_to, server, soon, wait_until, with_groups};
use crate::tunnels::get;

#[test]
fn a_relay_says_that_the_store_has_no_room_for_its_session() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let store = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("the relay connects");
        // VALIDATE, PING and SESSION.
        let mut asked = [0; 5 + 5 + 1 + 52];
        socket.read_exact(&mut asked).expect("the relay asks");
        let mut answer = vec![0, 0, 0, 0, 2];
        for (index, byte) in answer[..4].iter_mut().enumerate() {
            *byte = ((CAPABILITY_NONCE | capability::ALL) >> (8 * index)) as u8;
        }
        answer.resize(4 + 25, 7);
        socket.write_all(&answer).expect("the relay reads");
        listener
    });
    let relay = relay_to(port, RelayOptions::default());
    match relay.wait_until_connected(soon(), &c10d_socket::Cancel::NEVER) {
        Err(RelayError::Session { source }) => {
            assert!(matches!(*source, SessionError::Full { .. }), "{source}");
            assert!(source.to_string().contains("no room"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    store.join().expect("no panic");
}

/// A session without a journal cannot continue with another process.
#[test]
fn the_end_of_a_relay_does_not_wait_for_a_store_that_has_exited() {
    for exits_first in [true, false] {
        let server = server();
        let relay = relay_to(server.local_addr().port(), RelayOptions::default());
        let rank = rank_of(&relay);
        rank.set("k", b"v").expect("set");
        let waiting = thread::spawn(move || rank.get("never"));
        wait_until("it waits", || server.waiting_count() == 1);
        let started = Instant::now();
        let finishing = if exits_first {
            server.shutdown();
            thread::spawn(move || relay.finish(soon()))
        } else {
            let finishing = thread::spawn(move || relay.finish(soon()));
            server.shutdown();
            finishing
        };
        finishing.join().expect("no panic");
        waiting.join().expect("no panic").expect_err("no relay");
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

/// Before the relay has a session, the store may still start, also for the requests of a rank that has left.
#[test]
fn the_end_of_a_relay_waits_for_a_store_that_has_not_started() {
    // Refuses connections until it listens.
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = net::getsockname(&socket).expect("an address");
    let port = SocketAddr::try_from(address).expect("of IP").port();
    let relay = relay_to(port, RelayOptions::default());
    let mut rank = TcpStream::connect(relay.local_addrs()[0]).expect("a rank");
    wait_until("it is accepted", || relay.connection_count() == 1);
    // VALIDATE, and SET of the key `k` to `v`.
    let set = b"\x00\xce\xf7\x85\x3c\x01\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v";
    rank.write_all(set).expect("sent");
    drop(rank);
    wait_until("it has left", || relay.connection_count() == 0);
    let finishing = thread::spawn(move || relay.finish(soon()));
    // Attempts are refused in this time.
    thread::sleep(Duration::from_millis(300));
    net::listen(&socket, 16).expect("a listener");
    let server = TcpStoreServer::serve(vec![socket.into()], with_groups()).expect("a server");
    finishing.join().expect("no panic");
    let client = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    assert!(client.check(&["k"]).expect("an answer"));
}

#[test]
fn a_relay_gives_up_a_store_whose_machine_refuses_connections() {
    let server = server();
    let options = RelayOptions::default().with_refused_timeout(Duration::from_millis(300));
    let relay = relay_to(server.local_addr().port(), options);
    let rank = rank_of(&relay);
    let waiting = thread::spawn(move || rank.get("never"));
    wait_until("it waits", || server.waiting_count() == 1);
    server.shutdown();
    let error = waiting.join().expect("no panic").expect_err("no store");
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    match relay.wait_until_connected(soon(), &c10d_socket::Cancel::NEVER) {
        Err(RelayError::Session { source }) => {
            assert!(matches!(*source, SessionError::Ended { .. }), "{source}");
            assert!(source.to_string().contains("has ended"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    let answer = get(&relay, "/why.json");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("has ended"),
        "{answer}"
    );
}
