//! The behaviour of a relay from a rank's point of view.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{Deadline, HostPort, Relay, RelayError, RelayOptions};
use c10d_sim::Proxy;
use c10d_store::Opcode;
use c10d_store::unstable::RequestBuf;
use c10d_store::{
    ServerOptions, SessionError, Store, StoreError, StoreExt, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};

use crate::memory_journal::Memory;

const LONG: Duration = Duration::from_secs(60);

pub(crate) fn server() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", with_groups()).expect("a server")
}

pub(crate) fn with_groups() -> ServerOptions {
    ServerOptions::default().with_groups(c10d_membership::groups)
}

pub(crate) fn listener() -> Vec<TcpListener> {
    vec![TcpListener::bind("127.0.0.1:0").expect("a port")]
}

pub(crate) fn relay_to(port: u16, options: RelayOptions) -> Relay {
    let relay = Relay::start(HostPort::new("127.0.0.1", port), listener(), options);
    relay.expect("a relay")
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Instant::now(), LONG)
}

pub(crate) fn rank_of(relay: &Relay) -> TcpStore {
    let port = relay.local_addrs()[0].port();
    TcpStore::open("127.0.0.1", port, TcpStoreOptions::default()).expect("a rank")
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_operation_works_through_a_relay() {
    let server = server();
    let relay = relay_to(server.local_addr().port(), RelayOptions::default());
    relay
        .wait_until_connected(soon(), &c10d_socket::Cancel::NEVER)
        .expect("a session");
    let (a, b) = (rank_of(&relay), rank_of(&relay));
    a.set("k", b"v").expect("set");
    assert_eq!(a.get("k").expect("get"), b"v");
    assert_eq!(b.add("n", 5).expect("add"), 5);
    assert_eq!(a.add("n", -2).expect("add"), 3);
    assert_eq!(
        a.compare_set("k", b"v", b"w")
            .expect("compare_set")
            .into_value(),
        b"w"
    );
    a.append("k", b"x").expect("append");
    assert_eq!(b.get("k").expect("get"), b"wx");
    b.multi_set(&[("p", b"1"), ("q", b"2")]).expect("multi_set");
    assert_eq!(b.multi_get(&["q", "p"]).expect("multi_get"), [b"2", b"1"]);
    assert!(b.check(&["p", "q"]).expect("check"));
    assert!(b.delete_key("p").expect("delete_key"));
    assert_eq!(b.num_keys().expect("num_keys"), 3);
    let mut keys = b.list_keys().expect("list_keys");
    keys.sort();
    assert_eq!(keys, ["k", "n", "q"]);
    a.queue_push("jobs", b"one").expect("queue_push");
    assert_eq!(b.queue_len("jobs").expect("queue_len"), 1);
    assert_eq!(b.queue_pop("jobs").expect("queue_pop"), b"one");
    let waiting = thread::spawn(move || b.wait(&["later"]).map(|()| b));
    wait_until("the wait is at the server", || server.waiting_count() == 1);
    a.set("later", b"").expect("set");
    let b = waiting.join().expect("no panic").expect("the wait ends");
    let error = b.wait_timeout(&["never"], Some(Duration::from_millis(20)));
    assert!(
        matches!(error, Err(StoreError::Timeout { .. })),
        "{error:?}"
    );
    let arriving = thread::spawn(move || b.barrier("all", 2).map(|()| b));
    a.barrier("all", 2).expect("barrier");
    arriving.join().expect("no panic").expect("barrier");
}

#[test]
fn a_full_store_refuses_a_write_through_a_relay_and_the_rank_goes_on() {
    let options = || ServerOptions::default().with_memory_max(3 << 20);
    let server = TcpStoreServer::bind("127.0.0.1:0", options()).expect("a server");
    writes_are_refused_by(&server);
    // The relay keeps requests for the time after a restart.
    writes_are_refused_by(&Memory::default().serve_with(options()));
}

fn writes_are_refused_by(server: &TcpStoreServer) {
    let relay = relay_to(server.local_addr().port(), RelayOptions::default());
    let rank = rank_of(&relay);
    let value = vec![7; 2 << 20];
    rank.set("large", &value).expect("there is memory");
    for refused in [
        rank.set("more", &value),
        rank.append("large", &value),
        rank.multi_set(&[("more", &value), ("and more", &value)]),
        rank.queue_push("more", &value),
        rank.compare_set("more", "", &value).map(drop),
        rank.set_ephemeral("more", &value, None).map(drop),
    ] {
        let error = refused.expect_err("there is no memory");
        assert!(matches!(error, StoreError::MemoryFull { .. }), "{error}");
        assert_eq!(rank.num_keys().expect("it goes on"), 1);
    }
    assert!(rank.delete_key("large").expect("it goes on"));
    rank.set("more", &value).expect("there is memory again");
    assert!(rank.get("more").expect("it is written") == value);
}

#[test]
fn long_values_pass_in_both_directions() {
    let server = server();
    let relay = relay_to(server.local_addr().port(), RelayOptions::default());
    let (a, b) = (rank_of(&relay), rank_of(&relay));
    let value: Vec<u8> = (0..8_000_000_u32).map(|n| (n % 251) as u8).collect();
    let getting = thread::spawn(move || b.get("big"));
    a.set("big", &value).expect("set");
    assert!(getting.join().expect("no panic").expect("get") == value);
    // A SET of a client that closes at once arrives, like without a relay.
    a.set("last", &value).expect("set");
    drop(a);
    let c = rank_of(&relay);
    assert!(c.get("last").expect("get") == value);
}

#[test]
fn a_cancelled_wait_is_answered_while_the_store_cannot_be_reached() {
    let server = server();
    let proxy = Proxy::to(server.local_addr());
    let relay = relay_to(proxy.port(), RelayOptions::default());
    let rank = rank_of(&relay);
    let other = rank_of(&relay);
    proxy.cut(true);
    wait_until("the loss is noticed", || !relay.is_connected());
    let started = Instant::now();
    let result = rank.wait_timeout(&["never"], Some(Duration::from_millis(50)));
    assert!(
        matches!(result, Err(StoreError::Timeout { .. })),
        "{result:?}"
    );
    // Our client stops waiting for the answer after 100 ms; PyTorch's never does.
    let took = started.elapsed();
    proxy.mend();
    other.set("k", b"v").expect("set");
    assert_eq!(
        rank.get("k").expect("get"),
        b"v",
        "the rank is in step, {took:?}"
    );
    assert!(!rank.check(&["never"]).expect("check"));
}

#[test]
fn ranks_are_told_when_the_store_is_another_one() {
    let first = server();
    let address = first.local_addr();
    let relay = relay_to(address.port(), RelayOptions::default());
    let rank = rank_of(&relay);
    rank.set("k", b"v").expect("set");
    first.shutdown();
    wait_until("the loss is noticed", || !relay.is_connected());
    let waiting = thread::spawn(move || rank.get("other"));
    let _second = TcpStoreServer::bind(address, ServerOptions::default()).expect("the same port");
    let error = waiting
        .join()
        .expect("no panic")
        .expect_err("another store");
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    match relay.wait_until_connected(soon(), &c10d_socket::Cancel::NEVER) {
        Err(RelayError::Session { source }) => assert!(
            matches!(
                *source,
                SessionError::Unknown {
                    is_same_store: false,
                    ..
                }
            ),
            "{source}"
        ),
        other => panic!("{other:?}"),
    }
    // The next rank begins another session.
    let rank = rank_of(&relay);
    assert!(!rank.check(&["k"]).expect("check"));
}

/// docs/spec/wire-extensions.md, SESSION 6.
#[test]
fn the_session_ends_with_its_relay_and_so_do_its_ranks_at_the_server() {
    let server = server();
    let relay = relay_to(server.local_addr().port(), RelayOptions::default());
    let rank = rank_of(&relay);
    let waiting = thread::spawn(move || rank.get("later"));
    wait_until("the wait is at the server", || server.waiting_count() == 1);
    relay.shutdown();
    let error = waiting.join().expect("no panic").expect_err("no relay");
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    wait_until("the server has forgotten them", || {
        server.waiting_count() == 0 && server.connection_count() == 0
    });
}

/// PyTorch's clients do not wait for an answer to SET.
#[test]
fn a_relay_that_finishes_brings_everything_to_the_store_first() {
    let server = server();
    let proxy = Proxy::to(server.local_addr());
    let relay = relay_to(proxy.port(), RelayOptions::default());
    let rank = rank_of(&relay);
    let value = vec![7; 6_000_000];
    proxy.cut(true);
    wait_until("the loss is noticed", || !relay.is_connected());
    rank.set("last", &value).expect("set");
    drop(rank);
    let finishing = thread::spawn(move || relay.finish(soon()));
    proxy.mend();
    finishing.join().expect("no panic");
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    let got = store.try_get("last").expect("try_get");
    assert!(got.as_deref() == Some(&value[..]));
    drop(store);
    wait_until("the server has forgotten the session", || {
        server.connection_count() == 0
    });
}

#[test]
fn a_relay_that_finishes_waits_for_its_first_connection() {
    let server = server();
    let proxy = Proxy::to(server.local_addr());
    proxy.cut(true);
    let relay = relay_to(proxy.port(), RelayOptions::default());
    let mut rank = TcpStream::connect(relay.local_addrs()[0]).expect("the relay listens");
    let mut requests = RequestBuf::new();
    requests.hello();
    requests.opcode(Opcode::Set).user_key("last").value(b"here");
    rank.write_all(&requests.to_bytes())
        .expect("the relay reads");
    wait_until("the relay has the rank", || relay.connection_count() == 1);
    drop(rank);
    let finishing = thread::spawn(move || relay.finish(soon()));
    proxy.mend();
    finishing.join().expect("no panic");
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    let got = store.try_get("last").expect("try_get");
    assert_eq!(got.as_deref(), Some(&b"here"[..]));
}

#[test]
fn a_relay_gives_up_after_its_time() {
    let server = server();
    let proxy = Proxy::to(server.local_addr());
    let options = RelayOptions::default().with_resume_timeout(Duration::from_millis(300));
    let relay = relay_to(proxy.port(), options);
    let rank = rank_of(&relay);
    proxy.cut(true);
    let error = rank.get("k").expect_err("no store");
    assert!(
        matches!(error, StoreError::ConnectionLost { .. }),
        "{error}"
    );
    wait_until("the server has forgotten the session", || {
        server.connection_count() == 0
    });
    proxy.mend();
    let rank = rank_of(&relay);
    rank.set("k", b"v").expect("set");
}

/// docs/spec/wire-extensions.md, SESSION 6.
#[test]
fn a_refused_request_closes_its_rank_only() {
    let server = server();
    let relay = relay_to(server.local_addr().port(), RelayOptions::default());
    let store = rank_of(&relay);
    store.set("text", b"abc").expect("set");
    // Like PyTorch's clients: our client finds out the reason automatically.
    let mut rank = TcpStream::connect(relay.local_addrs()[0]).expect("the relay listens");
    let mut requests = RequestBuf::new();
    requests.hello();
    requests.opcode(Opcode::Barrier).user_key("text").i64(2);
    rank.write_all(&requests.to_bytes())
        .expect("the relay reads");
    let mut answers = Vec::new();
    rank.read_to_end(&mut answers)
        .expect("the relay closes the connection");
    assert_eq!(answers.len(), 4, "that of PING");
    assert_eq!(store.get("text").expect("get"), b"abc");
}
