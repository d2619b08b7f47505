//! All that peers can have a server keep counts in one sum with its data: asserted on the memory of the process.
//! docs/spec/wire.md, MEMORY 1 to 5.

#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::unstable::RequestBuf;
use c10d_store::{Opcode, Store, StoreExt, TcpStore};

use super::LONG;
use super::link::{Link, requests};
use super::server::{MIB, Server};

const LIMIT: u64 = 128 * MIB;

/// The most memory of the process: the limit, an eighth more, and its own memory with the waste of the allocator.
const PEAK_MAX: u64 = LIMIT + LIMIT / 8 + 56 * MIB;

/// The most memory once its peers have gone.
const REST_MAX: u64 = 48 * MIB;

const RETURNED_WITHIN: Duration = Duration::from_secs(60);

/// Beyond this a peer takes the server to have stopped reading.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection on which the handshake is sent.
fn connect(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("the server accepts");
    socket.set_read_timeout(Some(LONG)).expect("an option");
    socket
        .set_write_timeout(Some(WRITE_TIMEOUT))
        .expect("an option");
    let hello = requests(|it| {
        it.hello();
    });
    socket.write_all(&hello).expect("the server reads");
    socket
}

/// Sends the first `sent` bytes of a SET with a value of `value_bytes`. The server may not take all of them.
fn begin_set(socket: &mut TcpStream, value_bytes: usize, sent: usize) {
    let mut bytes = requests(|it| {
        it.opcode(Opcode::Set).user_key("k").count(value_bytes);
    });
    bytes.resize(sent, 7);
    let _ = socket.write_all(&bytes);
}

/// Sends as much as the server takes: it may refuse the peer.
fn send<'v>(socket: &mut TcpStream, build: impl FnOnce(&mut RequestBuf<'v>)) {
    let mut request = RequestBuf::new();
    build(&mut request);
    let _ = socket.write_all(&request.to_bytes());
}

/// Makes the bystander return, even if the attack panics.
struct EndOfScope<'a>(&'a AtomicBool);

impl Drop for EndOfScope<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs an attack beside a client that sets and gets, and asserts the memory that the server takes. Prints how long that client waits.
/// `end` ends what the attack returns before the server has to give its memory back.
fn withstands<T>(attack: impl FnOnce(&Server) -> T, end: impl FnOnce(T)) {
    let server = Server::start_with(256 * MIB, LIMIT);
    let is_over = AtomicBool::new(false);
    let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
    let (kept, delay) = thread::scope(|scope| {
        let bystander = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let started = Instant::now();
                store.set("bystander", "value").expect("a set");
                assert_eq!(store.get("bystander").expect("a get"), b"value");
                longest = longest.max(started.elapsed());
                thread::sleep(Duration::from_millis(1));
            }
            longest
        });
        let end = EndOfScope(&is_over);
        let kept = attack(&server);
        drop(end);
        (kept, bystander.join().expect("no panic"))
    });
    let peak = server.peak_bytes();
    assert!(peak < PEAK_MAX, "{} MiB", peak / MIB);
    let _ = writeln!(std::io::stderr(), "{} MiB, {delay:?}", peak / MIB);
    end(kept);
    let deadline = Instant::now() + RETURNED_WITHIN;
    while server.resident_bytes() > REST_MAX {
        let rest = server.resident_bytes() / MIB;
        assert!(Instant::now() < deadline, "{rest} MiB are not given back");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(store.get("bystander").expect("a get"), b"value");
}

#[test]
fn known_bytes_of_waits() {
    withstands(
        |server| {
            let peers = (0..100_u8).map(|peer| {
                let mut socket = connect(server.address);
                let known = vec![peer; 8 << 20];
                send(&mut socket, |it| {
                    it.opcode(Opcode::WaitChange).user_key("k");
                    it.u64(0).u64(u64::MAX).value(&known);
                });
                socket
            });
            peers.collect::<Vec<_>>()
        },
        drop,
    );
}

#[test]
fn requests_that_are_sent_in_part() {
    withstands(
        |server| {
            let peers = (0..100).map(|_| {
                let mut socket = connect(server.address);
                // Most of these requests wait for earlier requests.
                socket
                    .set_write_timeout(Some(Duration::from_millis(10)))
                    .expect("an option");
                begin_set(&mut socket, 8 << 20, 8 << 20);
                socket
            });
            peers.collect::<Vec<_>>()
        },
        drop,
    );
}

/// The request whose turn it is may be as long as all memory. It is the largest when there is too much.
#[test]
fn a_request_as_long_as_the_memory_beside_short_parts() {
    for values in [14, 100] {
        let attack = |server: &Server| {
            let value = vec![7; 8 << 20];
            let mut long = connect(server.address);
            send(&mut long, |it| {
                it.opcode(Opcode::MultiSet).count(values);
                for _ in 0..10 {
                    it.user_key("k").value(&value);
                }
            });
            // Each is too short to wait for its turn.
            let parts = (0..200).map(|_| {
                let mut socket = connect(server.address);
                begin_set(&mut socket, 250 << 10, 240 << 10);
                socket
            });
            let parts = parts.collect::<Vec<_>>();
            send(&mut long, |it| {
                for _ in 10..values {
                    it.user_key("k").value(&value);
                }
            });
            (long, parts)
        };
        withstands(attack, drop);
    }
}

/// A request whose values are copied into the store while the request is still there.
#[test]
fn values_of_one_request_that_fill_the_memory() {
    withstands(
        |server| {
            let value = vec![7; 8 << 20];
            let keys: Vec<String> = (0..15).map(|key| format!("{key}")).collect();
            let mut writer = connect(server.address);
            send(&mut writer, |it| {
                it.opcode(Opcode::MultiSet).count(15);
                for key in &keys {
                    it.user_key(key).value(&value);
                }
            });
            let refused = writer.read_exact(&mut [0; 8]);
            refused.expect_err("120 MiB of 144 MiB are there twice");
        },
        drop,
    );
}

/// Together they take more than peers may, so they arrive one after another. The server refuses no set, because all
/// sets are of one key.
#[test]
fn long_requests_at_a_time() {
    withstands(
        |server| {
            thread::scope(|scope| {
                for writer in 0..32 {
                    scope.spawn(move || {
                        let port = server.address.port();
                        let store = TcpStore::connect("127.0.0.1", port).expect("a client");
                        store.set("k", vec![writer; 8 << 20]).expect("a set");
                        assert!(store.num_keys().expect("an answer") > 0);
                    });
                }
            });
        },
        drop,
    );
}

/// The same beside a peer that never sends the rest of its request: other requests continue after a while.
#[test]
fn long_requests_beside_one_that_stops() {
    withstands(
        |server| {
            let stopped = (0..10).map(|_| {
                let mut socket = connect(server.address);
                begin_set(&mut socket, 8 << 20, 8 << 20);
                socket
            });
            let stopped = stopped.collect::<Vec<_>>();
            let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
            let started = Instant::now();
            store.set("k", vec![7; 8 << 20]).expect("a set");
            assert!(store.num_keys().expect("an answer") > 0);
            let took = started.elapsed();
            assert!(took < Duration::from_secs(30), "{took:?}");
            stopped
        },
        drop,
    );
}

#[test]
fn requests_that_many_clients_of_sessions_send_in_part() {
    withstands(
        |server| {
            let links = (0..8).map(|_| {
                let mut link = Link::open(server.address);
                link.open_clients(0..1000);
                let mut bytes = requests(|it| {
                    it.opcode(Opcode::Set).user_key("k").count(8 << 20);
                });
                bytes.resize(64 << 10, 7);
                for client in 0..1000 {
                    link.stream.push_data(client, &bytes);
                }
                link.try_send();
                link
            });
            links.collect::<Vec<_>>()
        },
        |links| links.into_iter().for_each(Link::end),
    );
}

#[test]
fn replies_over_all_sessions() {
    withstands(
        |server| leave_unread(server, 600_000),
        |links| links.into_iter().for_each(Link::end),
    );
}

/// Their replies stay for the time that they have asked for. Then the memory returns to the system.
#[test]
fn replies_of_sessions_that_have_lost_their_links() {
    withstands(
        |server| {
            for _ in 0..4 {
                drop(leave_unread(server, 2_000));
            }
        },
        drop,
    );
}

/// Opens sessions whose clients ask for much and read nothing, and which the server keeps for this long without a link.
fn leave_unread(server: &Server, keep_ms: u32) -> Vec<Link> {
    let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
    store.set("k", [7; 16_000]).expect("a set");
    let clients: Vec<u32> = (0..100).collect();
    let gets = requests(|it| {
        for _ in 0..60 {
            it.opcode(Opcode::Get).user_key("k");
        }
    });
    let links = (0..30).map(|_| {
        let mut link = Link::open_to_keep(server.address, keep_ms);
        link.open_clients(0..100);
        link.stream.push_group(&clients, &gets);
        link.try_send();
        link
    });
    let links: Vec<_> = links.collect();
    // All of it has been carried out, or refused.
    for _ in 0..200 {
        store.get("k").expect("a get");
    }
    links
}

#[test]
fn listings() {
    withstands(
        |server| {
            let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
            for number in 0..2000 {
                store.set(&format!("{number:0>999}"), b"").expect("a set");
            }
            let peers = (0..1500).map(|_| {
                let mut socket = connect(server.address);
                send(&mut socket, |it| {
                    it.opcode(Opcode::ListKeys);
                });
                socket
            });
            let same = peers.collect::<Vec<_>>();
            // Each lists other keys.
            let peers = (0..200).map(|number| {
                let mut socket = connect(server.address);
                store.set(&format!("new {number}"), b"").expect("a set");
                send(&mut socket, |it| {
                    it.opcode(Opcode::ListKeys);
                });
                socket
                    .read_exact(&mut [0; 12])
                    .expect("the nonce and the count");
                socket
            });
            (same, peers.collect::<Vec<_>>())
        },
        drop,
    );
}

#[test]
fn values_that_were_replaced_while_they_are_sent() {
    withstands(
        |server| {
            let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
            let peers = (0..60).map(|number| {
                // In parts, because a writer with one request as long as the memory of a peer is among the largest peers.
                store.set("k", vec![number; 1 << 20]).expect("a set");
                for _ in 1..8 {
                    store.append("k", vec![number; 1 << 20]).expect("an append");
                }
                let mut socket = connect(server.address);
                send(&mut socket, |it| {
                    it.opcode(Opcode::Get).user_key("k");
                });
                // It is carried out before the next value is set.
                socket
                    .read_exact(&mut [0; 12])
                    .expect("the nonce and the length");
                socket
            });
            let peers = peers.collect::<Vec<_>>();
            store.delete_key("k").expect("a delete");
            peers
        },
        drop,
    );
}

/// One write completes the waits of all peers.
#[test]
fn replies_that_one_write_causes() {
    withstands(
        |server| {
            let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
            let peers = (0..60).map(|_| {
                let mut socket = connect(server.address);
                send(&mut socket, |it| {
                    it.opcode(Opcode::WaitGet).user_keys(&["k"; 1000]);
                });
                socket
            });
            let peers = peers.collect::<Vec<_>>();
            for _ in 0..200 {
                store.num_keys().expect("an answer");
            }
            store.set("k", [7; 15_000]).expect("a set");
            store.num_keys().expect("an answer");
            peers
        },
        drop,
    );
}

/// Readers of a value that is still stored hold none of the excess memory.
#[test]
fn readers_of_a_stored_value_are_not_closed_for_a_replaced_one() {
    let server = Server::start_with(256 * MIB, LIMIT);
    let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
    let get = |key: &str, read: usize| {
        let mut socket = connect(server.address);
        // Otherwise the system takes the whole value.
        let small = socket2::SockRef::from(&socket).set_recv_buffer_size(64 << 10);
        small.expect("an option");
        send(&mut socket, |it| {
            it.opcode(Opcode::Get).user_key(key);
        });
        let mut first = vec![0; read];
        socket.read_exact(&mut first).expect("a reply begins");
        socket
    };
    leave_32_mib(&store);
    let mut readers: Vec<_> = (0..8).map(|_| get("stored 0", 13)).collect();
    // These read more, and each holds 8 MiB that are not stored any more.
    let holders = (0..5).map(|_| {
        store.set("replaced", vec![8; 1 << 20]).expect("a set");
        for _ in 1..8 {
            store
                .append("replaced", vec![8; 1 << 20])
                .expect("an append");
        }
        assert!(store.num_keys().expect("it is carried out") > 14);
        let holder = get("replaced", 3 << 20);
        store.set("replaced", "short").expect("a set");
        holder
    });
    let holders: Vec<_> = holders.collect();
    store.get("replaced").expect("a get");
    for reader in &mut readers {
        let mut rest = vec![0; (8 << 20) - 1];
        reader.read_exact(&mut rest).expect("it is not closed");
    }
    let is_cut = |mut holder: TcpStream| {
        let mut rest = vec![0; 12 + (5 << 20)];
        holder.read_exact(&mut rest).is_err()
    };
    let cut = holders.into_iter().map(is_cut).filter(|is_cut| *is_cut);
    assert!(cut.count() > 0, "peers had too much");
}

/// Stores values so that peers may take 32 MiB.
fn leave_32_mib(store: &impl Store) {
    for number in 0..14 {
        let key = format!("stored {number}");
        store.set(&key, vec![7; 8 << 20]).expect("a set");
    }
    assert_eq!(store.num_keys().expect("they are carried out"), 14);
}

/// While memory is scarce, the server keeps a short stream for each session whose peer reads slowly, so it closes no peer. Later, all
/// peers read everything.
#[test]
fn streams_of_sessions_are_short_while_memory_is_scarce() {
    let server = Server::start_with(256 * MIB, LIMIT);
    let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
    leave_32_mib(&store);
    store.set("k", [7; 16_000]).expect("a set");
    // These take more than half of that.
    let value = vec![8; 5 << 20];
    let long = requests(|it| {
        it.opcode(Opcode::MultiSet).count(2);
        for key in ["stored 0", "stored 1"] {
            it.user_key(key).value(&value);
        }
    });
    let part = 9 << 20;
    let writers = (0..2).map(|_| {
        let mut socket = connect(server.address);
        socket.write_all(&long[..part]).expect("the server reads");
        socket
    });
    let mut writers: Vec<_> = writers.collect();
    store.get("k").expect("a get");
    let clients: Vec<u32> = (0..20).collect();
    let gets = requests(|it| {
        for _ in 0..60 {
            it.opcode(Opcode::Get).user_key("k");
        }
    });
    let links = (0..8).map(|_| {
        let mut link = Link::open(server.address);
        link.open_clients(0..20);
        link.stream.push_group(&clients, &gets);
        link.send();
        link
    });
    let links: Vec<_> = links.collect();
    for _ in 0..200 {
        store.get("k").expect("a get");
    }
    let read = |mut link: Link| {
        let all = 20 * 60 * (8 + 16_000);
        link.receive_until("all replies", |link| link.received_bytes() == all);
        link
    };
    let links: Vec<_> = links.into_iter().map(read).collect();
    // It is the turn of the last one.
    for writer in writers.iter_mut().rev() {
        writer.write_all(&long[part..]).expect("it is not closed");
        writer
            .write_all(&[Opcode::GetNumKeys as u8])
            .expect("it is not closed");
        writer.read_exact(&mut [0; 8]).expect("it is not closed");
    }
    links.into_iter().for_each(Link::end);
}

/// A client that reads waits beside clients that do not, until there is room again.
#[test]
fn clients_of_a_session_continue_when_there_is_room_again() {
    let server = Server::start_with(256 * MIB, LIMIT);
    let store = TcpStore::connect("127.0.0.1", server.address.port()).expect("a client");
    leave_32_mib(&store);
    let mut link = Link::open(server.address);
    link.open_clients(0..2);
    let wait = requests(|it| {
        it.opcode(Opcode::WaitGet).user_keys(&["k"; 1000]);
    });
    link.stream.push_data(0, &wait);
    link.send();
    for _ in 0..200 {
        store.num_keys().expect("an answer");
    }
    // It takes more than the budget of a session, and less than half of the memory for all peers.
    store.set("k", [7; 12_000]).expect("a set");
    store.num_keys().expect("an answer");
    let count = requests(|it| {
        it.opcode(Opcode::GetNumKeys);
    });
    link.stream.push_data(1, &count);
    link.send();
    for _ in 0..200 {
        store.num_keys().expect("an answer");
    }
    assert_eq!(link.received_bytes(), 0, "the session has no budget");
    for number in 0..14 {
        store
            .delete_key(&format!("stored {number}"))
            .expect("a delete");
    }
    while !link.replies.contains_key(&1) {
        link.receive_for(|client| client == 1);
    }
}
