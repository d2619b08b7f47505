//! Sessions whose peer does not behave, by raw bytes (docs/spec/wire-extensions.md, section 9.9), and the budget of the
//! server's memory, which is asserted on a child process.

mod budget;
mod link;
mod server;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};
use c10d_store::{Opcode, ServerOptions, Store, StoreExt, TcpStore, TcpStoreServer};

use link::{Link, TAKES_PIECES, ask, ask_store, requests};
use server::{MIB, Server};

/// A timeout that only a hang reaches, even on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// Stores keys of 1000 bytes, so that LIST_KEYS replies with about 1 MB: the length of the reply.
fn store_long_keys(address: SocketAddr) -> usize {
    let store = TcpStore::connect("127.0.0.1", address.port()).expect("a client");
    for number in 0..1000 {
        store.set(&format!("{number:0>999}"), b"").expect("set");
    }
    // `set` has no reply, and other connections do not wait for this one.
    assert_eq!(store.num_keys().expect("num_keys"), 1000);
    8 + 1000 * (8 + 1000)
}

/// Waits until the server has handled everything before: it serves connections in turns.
fn settle(address: SocketAddr) {
    let store = TcpStore::connect("127.0.0.1", address.port()).expect("a client");
    for _ in 0..200 {
        store.num_keys().expect("num_keys");
    }
}

/// docs/spec/wire-extensions.md, SESSION 16.
#[test]
fn a_long_value_travels_once_for_all_clients() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    let values = [1, 2].map(|first| {
        let bytes = (0..700_000).map(|at| (at * first % 251) as u8);
        bytes.collect::<Vec<_>>()
    });
    let mut link = Link::open_with(server.local_addr(), TAKES_PIECES);
    let clients: Vec<u32> = (0..64).collect();
    link.open_clients(0..64);
    let get = requests(|it| {
        it.opcode(Opcode::Get).user_key("k");
    });
    let expected = values.each_ref().map(|value| {
        let mut reply = vec![0; 8];
        LittleEndian::write_u64(&mut reply, value.len() as u64);
        reply.extend(value);
        reply
    });
    let expected = expected.concat();
    for (round, value) in values.iter().enumerate() {
        store.set("k", value).expect("set");
        assert_eq!(store.get("k").expect("get"), *value);
        link.stream.push_group(&clients, &get);
        link.send();
        let length = (round + 1) * expected.len() / 2;
        link.receive_until("all values", |link| {
            link.received_bytes() == clients.len() * length
        });
    }
    assert!(link.replies.values().all(|replies| *replies == expected));
    let moved = link.link_bytes;
    assert!(moved < 3 * expected.len() / 2, "{moved} bytes");

    // A client that is closed, and a value that is deleted, leave nothing that others would get.
    link.stream.push_close(3);
    store.set("k", &values[0]).expect("set");
    assert!(store.delete_key("k").expect("delete_key"));
    store.set("k", &values[1]).expect("set");
    assert_eq!(store.get("k").expect("get"), values[1]);
    link.replies.clear();
    link.stream.push_group(&clients, &get);
    link.send();
    link.receive_until("all values", |link| {
        link.received_bytes() == 63 * expected.len() / 2
    });
    let last = &expected[expected.len() / 2..];
    assert!(link.replies.values().all(|replies| replies == last));
}

/// A frame of 400 bytes makes the server list 1 MB for each of 100 clients, twice.
/// docs/spec/wire-extensions.md, SESSION 10.
#[cfg(target_os = "linux")]
#[test]
fn clients_whose_replies_are_not_read_share_a_budget() {
    let server = Server::start(256 * MIB);
    let listing = store_long_keys(server.address);
    let mut link = Link::open(server.address);
    link.open_clients(0..100);
    let clients: Vec<u32> = (0..100).collect();
    link.stream
        .push_group(&clients, &[Opcode::ListKeys as u8; 2]);
    link.send();
    settle(server.address);
    let peak = server.peak_bytes();
    assert!(peak < 120 * MIB, "{} MiB", peak / MIB);

    // The peer reads: everything arrives.
    let expected = 100 * 2 * listing;
    link.receive_until("all replies", |link| link.received_bytes() == expected);
    assert!(
        link.replies
            .values()
            .all(|replies| replies.len() == 2 * listing)
    );
    assert!(link.closed.is_empty(), "{:?}", link.closed);
    let peak = server.peak_bytes();
    assert!(peak < 120 * MIB, "{} MiB", peak / MIB);
}

/// Waits are ended by others, so a pause does not help: a client whose reply is too much for the session is closed.
/// docs/spec/wire-extensions.md, SESSION 10.
#[cfg(target_os = "linux")]
#[test]
fn a_session_has_the_limit_of_one_connection() {
    let server = Server::start(100 * MIB);
    let mut link = Link::open(server.address);
    link.open_clients(0..200);
    let clients: Vec<u32> = (0..200).collect();
    // Each would be sent 3.2 MB when the key is set.
    let wait = requests(|it| {
        it.opcode(Opcode::WaitGet).user_keys(&["k"; 200]);
    });
    link.stream.push_group(&clients, &wait);
    link.send();
    settle(server.address);
    let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
    store.set("k", [7; 16_000]).expect("set");
    settle(server.address);
    let peak = server.peak_bytes();
    assert!(peak < 200 * MIB, "{} MiB", peak / MIB);
    link.receive_until("some are closed", |link| {
        let length = 1 + 200 * (8 + 16_000);
        let done = link.replies.values().filter(|it| it.len() == length);
        link.closed.len() + done.count() >= 200
    });
    assert!(link.closed.len() >= 150, "{:?}", link.closed.len());
}

/// Unfinished requests and waits of groups count as well: 4 KB that are sent once are 4 KB of each client.
/// docs/spec/wire-extensions.md, SESSION 10.
#[cfg(target_os = "linux")]
#[test]
fn what_groups_expand_to_counts() {
    let server = Server::start(64 * MIB);
    let mut link = Link::open(server.address);
    link.open_clients(0..1024);
    let clients: Vec<u32> = (0..1024).collect();
    let mut start = requests(|it| {
        it.opcode(Opcode::Set).user_key("long").count(8 << 20);
    });
    start.resize(4096, 7);
    link.stream.push_group(&clients, &start);
    for _ in 0..60 {
        link.stream.push_group(&clients, &[7; 4096]);
    }
    link.send();
    settle(server.address);
    let peak = server.peak_bytes();
    assert!(peak < 140 * MIB, "{} MiB", peak / MIB);
    link.receive_until("most are closed", |link| link.closed.len() > 500);

    let before = link.closed.len();
    link.open_clients(2000..6000);
    let clients: Vec<u32> = (2000..6000).collect();
    // Repeated keys would count once.
    let keys: Vec<String> = (0..330).map(|key| format!("{key:03x}")).collect();
    let keys: Vec<&str> = keys.iter().map(|key| &key[..]).collect();
    let wait = requests(|it| {
        it.opcode(Opcode::Wait).user_keys(&keys);
    });
    for clients in clients.chunks(1000) {
        link.stream.push_group(clients, &wait);
    }
    link.send();
    link.receive_until("most are closed", |link| link.closed.len() > before + 2000);
    let peak = server.peak_bytes();
    assert!(peak < 200 * MIB, "{} MiB", peak / MIB);
}

/// docs/spec/wire-extensions.md, SESSION 8 and 10.
#[test]
fn a_client_that_reads_goes_on_beside_clients_that_do_not() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let listing = store_long_keys(server.local_addr());
    let mut link = Link::open(server.local_addr());
    link.open_clients(0..20);
    let clients: Vec<u32> = (0..20).collect();
    link.stream
        .push_group(&clients, &[Opcode::ListKeys as u8; 9]);
    link.send();
    settle(server.local_addr());
    link.open_clients(20..21);
    let add = requests(|it| {
        it.opcode(Opcode::Add).user_key("n").i64(1);
    });
    for round in 1..=20 {
        link.stream.push_data(20, &add);
        link.send();
        while link.replies.get(&20).map_or(0, Vec::len) < 8 * round {
            link.receive_for(|client| client == 20);
        }
    }
    assert!(link.replies[&0].len() < listing, "its credit is used up");
}

/// docs/spec/wire-extensions.md, SESSION 3.
#[test]
fn an_attempt_without_a_number_is_refused() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    assert_eq!(ask(server.local_addr(), 0).1, None);
    assert_eq!(ask(server.local_addr(), 1).1, Some(0));
}

/// docs/spec/wire-extensions.md, SESSION 1.
#[test]
fn after_a_refusal_the_connection_is_an_ordinary_one() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let (mut socket, status) = ask_store(server.local_addr(), 1, [7; 16], 0);
    assert_eq!(status, Some(1));
    socket.write_all(&[0x0d, 1, 2, 3, 4]).expect("a PING");
    let mut answer = [0; 4];
    socket.read_exact(&mut answer).expect("its answer");
    assert_eq!(answer, [1, 2, 3, 4]);
}

/// docs/spec/wire-extensions.md, SESSION 7.
#[test]
fn a_client_of_a_session_sees_no_sessions() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let mut link = Link::open(server.local_addr());
    link.open_clients(0..2);
    // No VALIDATE before it, and all bits except the one of SESSION.
    link.stream.push_data(0, &[0x0d, 0, 0, 0x0d, 0xc1]);
    let mut session = vec![Opcode::Session as u8];
    session.resize(53, 0);
    link.stream.push_data(1, &session);
    link.send();
    link.receive_until("an answer and a close", |link| {
        link.replies.contains_key(&0) && !link.closed.is_empty()
    });
    assert_eq!(link.replies[&0], [0xbf, 0x13, 0x0d, 0xc1]);
    assert_eq!(link.closed, [1]);
    // A frame of a closed client is ignored.
    link.stream.push_data(1, &[0x0d, 1, 1, 1, 1]);
    link.stream.push_data(0, &[0x0d, 2, 2, 2, 2]);
    link.send();
    link.receive_until("the second answer", |link| link.replies[&0].len() == 8);
    assert!(!link.replies.contains_key(&1));
}

/// docs/spec/wire-extensions.md, REFUSAL 6.
#[test]
fn a_client_of_an_earlier_relay_is_told_of_no_refusal() {
    let options = ServerOptions::default().with_memory_max(64 << 20);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
    for (flags, bits) in [(0, 0x13), (1 << 27, 0x53)] {
        let mut link = Link::open_with(server.local_addr(), flags);
        link.open_clients(0..1);
        link.stream.push_data(0, &[0x0d, 0, 0, 0x0d, 0xc1]);
        link.send();
        link.receive_until("an answer", |link| link.replies.contains_key(&0));
        assert_eq!(link.replies[&0], [0xbf, bits, 0x0d, 0xc1]);
    }
}

/// Counts the lines that name a limit.
struct Lines(Mutex<usize>);

static LINES: Lines = Lines(Mutex::new(0));

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().contains("is reached") {
            *self.0.lock().expect("no panic") += 1;
        }
    }

    fn flush(&self) {}
}

/// docs/spec/wire-extensions.md, SESSION 6.
#[test]
fn clients_beyond_the_limits_are_closed_and_rarely_logged() {
    log::set_logger(&LINES).expect("no other logger");
    log::set_max_level(log::LevelFilter::Warn);
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let mut link = Link::open(server.local_addr());
    for client in 0..65_536 + 1000 {
        link.stream.push_open(client, 4711);
    }
    link.send();
    link.receive_until("1000 are closed", |link| link.closed.len() >= 1000);
    let refused: Vec<u32> = (65_536..65_536 + 1000).collect();
    assert_eq!(link.closed, refused);
    assert_eq!(server.connection_count(), 65_537, "with the link");
    // A closed client makes room for another.
    link.stream.push_close(7);
    link.open_clients(70_000..70_001);
    let ping = requests(|it| {
        it.mark();
    });
    link.stream.push_data(70_000, &ping);
    link.send();
    link.receive_until("an answer", |link| link.replies.contains_key(&70_000));

    let options = ServerOptions::default().with_connections_max(10);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
    let mut link = Link::open(server.local_addr());
    link.open_clients(0..1000);
    link.send();
    link.receive_until("991 are closed", |link| link.closed.len() >= 991);
    let lines = *LINES.0.lock().expect("no panic");
    assert!((1..20).contains(&lines), "{lines} lines");
}
