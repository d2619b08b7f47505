//! Tests of the server over real sockets: limits, and peers that break the protocol.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::log_lines;
use crate::raw::{self, LONG, Raw, wait_until};
use crate::slow_strangers;
#[cfg(feature = "extensions")]
use c10d_store::Known;
use c10d_store::Opcode;
use c10d_store::unstable::RequestBuf;
use c10d_store::{ServerOptions, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer, WireLimits};

fn serve(options: ServerOptions) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port")
}

fn with_limits(limits: WireLimits) -> TcpStoreServer {
    serve(ServerOptions::default().with_limits(limits))
}

fn blob(bytes: &[u8]) -> Vec<u8> {
    let mut blob = (bytes.len() as u64).to_wire_bytes();
    blob.extend_from_slice(bytes);
    blob
}

/// Encodes a length word. A lint forbids the standard methods for byte order outside of `wire`.
trait LengthWord {
    fn to_wire_bytes(self) -> Vec<u8>;
}

impl LengthWord for u64 {
    fn to_wire_bytes(self) -> Vec<u8> {
        (0..8).map(|byte| (self >> (8 * byte)) as u8).collect()
    }
}

/// Asserts that the server still serves new connections, and that the key "k" has this value.
fn assert_served(server: &TcpStoreServer, value: &[u8]) {
    let mut observer = Raw::with_handshake(server.local_addr());
    observer.request(|request| {
        request.opcode(Opcode::Get).raw_key(b"k");
    });
    observer.expect(&blob(value));
}

// --- limits ----------------------------------------------------------------------------------

/// docs/spec/wire.md, CLOSE 1, and docs/spec/wire-extensions.md, WAIT_CHANGE 6.
#[test]
fn exceeding_a_wire_limit_closes_only_that_connection() {
    let mut limits = WireLimits::default();
    limits.key_bytes_max = 10;
    limits.value_bytes_max = 20;
    limits.keys_per_request_max = 3;
    limits.request_bytes_max = 60;
    let server = with_limits(limits);
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    store.set("unused", b"").expect("a client");
    let mut setter = Raw::with_handshake(server.local_addr());
    setter.set(b"k", b"safe");
    setter.fence();

    let refused: [&dyn Fn(&mut Raw); 7] = [
        &|peer| {
            peer.request(|r| {
                r.opcode(Opcode::Set).count(11);
            });
        },
        &|peer| {
            peer.request(|r| {
                r.opcode(Opcode::Set).raw_key(b"k").count(21);
            });
        },
        &|peer| {
            peer.request(|r| {
                r.opcode(Opcode::CompareSet).raw_key(b"k").count(21);
            });
        },
        &|peer| {
            peer.request(|r| {
                r.opcode(Opcode::WaitChange).raw_key(b"k");
                r.u64(0).u64(u64::MAX).count(21);
            });
        },
        &|peer| {
            peer.request(|r| {
                r.opcode(Opcode::Check).count(4);
            });
        },
        &|peer| {
            peer.request(|r| {
                r.opcode(Opcode::MultiSet).count(usize::MAX);
            });
        },
        // Each part is within its limit, but the whole request is too long.
        &|peer| {
            peer.request(|r| {
                r.opcode(Opcode::MultiSet).count(3);
                r.raw_key(b"k").value(&[1; 20]).raw_key(b"k").count(20);
            });
        },
    ];
    for (index, send) in refused.iter().enumerate() {
        let mut peer = Raw::with_handshake(server.local_addr());
        // The reply to the request before it is still delivered.
        peer.send(&[0x0d, 9, 9, 9, 9]);
        send(&mut peer);
        assert_eq!(peer.read_to_close(), [9, 9, 9, 9], "case {index}");
        assert_served(&server, b"safe");
    }

    // A request exactly at the limits is served.
    let mut peer = Raw::with_handshake(server.local_addr());
    peer.request(|r| {
        r.opcode(Opcode::Set).raw_key(&[b'x'; 10]).value(&[1; 20]);
    });
    peer.fence();
}

#[test]
fn raised_limits_allow_large_values() {
    let mut limits = WireLimits::default();
    limits.value_bytes_max = 64 << 20;
    let server = with_limits(limits);
    let options = TcpStoreOptions::default()
        .with_limits(limits)
        .with_timeout(LONG);
    let store = TcpStore::open("127.0.0.1", server.local_addr().port(), options).expect("a client");
    let pattern: Vec<u8> = (0..251).collect();
    let large = pattern.repeat((9 << 20) / pattern.len());
    store.set("large", &large).expect("within the limits");
    assert!(store.get("large").expect("the key exists") == large);
    store.append("large", b"tail").expect("appended");
    let longer = store.get("large").expect("the key exists");
    assert!(longer[..large.len()] == large && longer.ends_with(b"tail"));
    assert_eq!(
        store
            .compare_set("large", b"x", b"y")
            .expect("an answer")
            .value()
            .len(),
        large.len() + 4
    );
}

#[test]
fn a_connection_above_the_limit_is_closed_at_once() {
    let server = serve(ServerOptions::default().with_connections_max(2));
    let mut first = Raw::with_handshake(server.local_addr());
    let mut second = Raw::with_handshake(server.local_addr());
    let mut third = Raw::connect(server.local_addr());
    assert_eq!(third.read_to_close(), b"");
    first.fence();
    second.fence();
    #[cfg(feature = "extensions")]
    {
        let counters = server.observer().counters(LONG).expect("it runs");
        assert_eq!((counters.opened, counters.rejected), (2, 1));
    }

    // Once the server has noticed a disconnect, it accepts another connection.
    drop(first);
    let started = Instant::now();
    loop {
        let mut fourth = Raw::connect(server.local_addr());
        if fourth.try_handshake() {
            break;
        }
        assert!(
            started.elapsed() < LONG,
            "no new connection was accepted after a disconnect"
        );
    }
}

#[test]
fn a_peer_without_a_handshake_is_disconnected_after_the_timeout() {
    let timeout = Duration::from_millis(150);
    let server = serve(ServerOptions::default().with_handshake_timeout(timeout));
    let mut complete = Raw::with_handshake(server.local_addr());
    slow_strangers::are_closed_after(timeout, server.local_addr());
    complete.fence();
}

#[test]
fn a_slow_reader_is_throttled_and_gets_every_reply() {
    let server = serve(ServerOptions::default());
    let value = vec![5; 1 << 20];
    let mut reader = Raw::with_handshake(server.local_addr());
    reader.set(b"k", &value);
    // 400 MiB of replies: above the limit on unsent bytes if the server made them all at once.
    const GETS: usize = 400;
    for _ in 0..GETS {
        reader.request(|r| {
            r.opcode(Opcode::Get).raw_key(b"k");
        });
    }
    reader.send(&[0x0d, 1, 1, 1, 1]);
    // In the meantime, another client is served.
    assert_served(&server, &value);
    let answer = blob(&value);
    for _ in 0..GETS {
        assert!(reader.read(answer.len()) == answer);
    }
    reader.expect(&[1, 1, 1, 1]);
}

#[test]
fn one_reply_above_the_limit_on_unsent_bytes_closes_the_connection() {
    let server = serve(ServerOptions::default().with_unsent_bytes_max(10_000));
    let mut peer = Raw::with_handshake(server.local_addr());
    peer.request(|r| {
        r.opcode(Opcode::Set).raw_key(b"k").value(&[7; 4000]);
        r.opcode(Opcode::MultiGet).count(4);
        for _ in 0..4 {
            r.raw_key(b"k");
        }
    });
    assert_eq!(peer.read_to_close(), b"");
    assert_served(&server, &[7; 4000]);
}

/// A reply shares long values with the store, so they do not count towards the limit.
#[test]
fn long_values_do_not_count_as_unsent_bytes() {
    let server = serve(ServerOptions::default().with_unsent_bytes_max(10_000));
    let value = vec![7; 1 << 20];
    let mut peer = Raw::with_handshake(server.local_addr());
    peer.request(|r| {
        r.opcode(Opcode::Set).raw_key(b"k").value(&value);
        r.opcode(Opcode::MultiGet).count(100);
        for _ in 0..100 {
            r.raw_key(b"k");
        }
    });
    let answer = blob(&value);
    for _ in 0..100 {
        assert!(peer.read(answer.len()) == answer);
    }
    peer.fence();
}

// --- peers that break the protocol -----------------------------------------------------------

/// docs/spec/wire.md, VALIDATE 1.
#[test]
fn other_protocols_close_only_their_connection() {
    let server = serve(ServerOptions::default());
    let mut setter = Raw::with_handshake(server.local_addr());
    setter.set(b"k", b"safe");
    setter.fence();
    let http = b"GET / HTTP/1.1\r\nHost: store\r\n\r\n";
    let tls = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03];
    let wrong_magic = [0, 1, 2, 3, 4, 0x0d, 1, 1, 1, 1];
    let no_validate = [0x0d, 1, 1, 1, 1];
    let long_noise: Vec<u8> = (0..300_000_u32).map(|i| (i * 7 + 1) as u8).collect();
    let all: [&[u8]; 5] = [http, &tls, &wrong_magic, &no_validate, &long_noise];
    for noise in all {
        let mut peer = Raw::connect(server.local_addr());
        // The server may close the connection before it has read everything.
        let _ = std::io::Write::write_all(&mut peer.0, noise);
        assert_eq!(peer.read_to_close(), b"");
        assert_served(&server, b"safe");
    }
    setter.fence();
}

/// docs/spec/wire.md, ORDER 1 and MULTI_SET 1.
#[test]
fn a_partial_request_blocks_no_other_client_and_has_no_effect() {
    let server = serve(ServerOptions::default());
    let mut half = Raw::with_handshake(server.local_addr());
    half.request(|r| {
        r.opcode(Opcode::MultiSet)
            .count(2)
            .raw_key(b"k")
            .value(b"1");
    });
    assert_served(&server, b"");
    drop(half);
    assert_served(&server, b"");
}

/// docs/spec/wire.md, CLOSE 5.
#[test]
fn a_peer_that_half_closes_gets_every_reply() {
    let server = serve(ServerOptions::default());
    let value = vec![3; 8 << 20];
    let mut peer = Raw::with_handshake(server.local_addr());
    peer.request(|r| {
        r.opcode(Opcode::Set).raw_key(b"k").value(&value);
        r.opcode(Opcode::Get).raw_key(b"k");
    });
    peer.close_sending();
    assert!(
        peer.read_to_close() == blob(&value),
        "the reply is complete, unlike that of PyTorch's server"
    );
}

#[test]
fn requests_sent_before_a_close_are_all_executed() {
    let server = serve(ServerOptions::default());
    let mut peer = Raw::with_handshake(server.local_addr());
    let all: Vec<u8> = (0..100).collect();
    for number in 0..100 {
        peer.request(|r| {
            r.opcode(Opcode::Append)
                .raw_key(b"k")
                .value(&all[number..=number]);
        });
    }
    drop(peer);
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    let mut observer = Raw::with_handshake(server.local_addr());
    let started = Instant::now();
    // Requests of different connections have no fixed order, so early reads may be incomplete.
    loop {
        observer.request(|r| {
            r.opcode(Opcode::Get).raw_key(b"k");
        });
        let length = observer.read(8)[0];
        if observer.read(usize::from(length)) == all {
            break;
        }
        assert!(started.elapsed() < LONG, "some appends were lost");
    }
    store.ping().expect("served");
}

/// docs/spec/wire.md, ORDER 2.
#[test]
fn many_pipelined_requests_are_answered_in_order() {
    let server = serve(ServerOptions::default());
    let mut peer = Raw::with_handshake(server.local_addr());
    let count = 20_000_i64;
    let mut burst = RequestBuf::new();
    for _ in 0..count {
        burst.opcode(Opcode::Add).raw_key(b"k").i64(1);
    }
    let bytes = burst.to_bytes();
    let mut writer = peer.0.try_clone().expect("a second handle");
    let sending = thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes));
    for number in 1..=count {
        let want: Vec<u8> = (number as u64).to_wire_bytes();
        peer.expect(&want);
    }
    sending.join().expect("no panic").expect("all sent");
}

/// A push wakes the first waiter. If that one has disconnected, the next one is woken, and so on. A
/// recursive implementation overflows the stack here.
#[test]
fn a_push_skips_thousands_of_disconnected_waiters() {
    let server = serve(ServerOptions::default());
    let wait = |peer: &mut Raw| {
        peer.wait(b"q");
    };
    let mut leaving: Vec<Raw> = (0..raw::connections_possible().min(3_000))
        .map(|_| Raw::with_handshake(server.local_addr()))
        .collect();
    for peer in &mut leaving {
        wait(peer);
    }
    for peer in &mut leaving {
        peer.fence();
        let socket = socket2::SockRef::from(&peer.0);
        socket.set_linger(Some(Duration::ZERO)).expect("an option");
    }
    let mut remaining = Raw::with_handshake(server.local_addr());
    wait(&mut remaining);
    remaining.fence();

    // The request before the push keeps the server busy while the waiters disconnect.
    let mut busy = Raw::with_handshake(server.local_addr());
    let mut burst = RequestBuf::new();
    burst.opcode(Opcode::Check).count(131_072);
    for _ in 0..131_071 {
        burst.raw_key(b"q2");
    }
    burst
        .raw_key(b"q2")
        .opcode(Opcode::QueuePush)
        .raw_key(b"q")
        .value(b"e");
    let bytes = burst.to_bytes();
    let (most, last) = bytes.split_at(bytes.len() - 10);
    let mut setter = Raw::with_handshake(server.local_addr());
    setter.set(b"q2", b"");
    setter.fence();
    busy.send(most);
    busy.send(last);
    drop(leaving);
    busy.expect(&[0]);
    remaining.expect(&[0]);
    remaining.request(|r| {
        r.opcode(Opcode::QueuePop).raw_key(b"q");
    });
    remaining.expect(&1_u64.to_wire_bytes());
    remaining.expect(&blob(b"e"));
}

// --- WAIT_CHANGE -----------------------------------------------------------------------------

#[cfg(feature = "extensions")]
fn set(peer: &mut Raw, value: &[u8]) {
    peer.set(b"/k", value);
}

#[cfg(feature = "extensions")]
fn wait_change(peer: &mut Raw, known: Known<'_>) {
    peer.request(|r| {
        r.opcode(Opcode::WaitChange).raw_key(b"/k").known(known);
    });
}

#[cfg(feature = "extensions")]
fn changed(value: &[u8]) -> Vec<u8> {
    [&[0], &blob(value)[..]].concat()
}

/// The example of docs/spec/wire-extensions.md, section 9.8. docs/spec/wire-extensions.md, QUEUE_TAKE 1, 3, 5 and 6.
#[cfg(feature = "extensions")]
#[test]
fn queue_take_returns_what_has_arrived() {
    let server = serve(ServerOptions::default());
    let (mut taker, mut pusher) = (
        Raw::with_handshake(server.local_addr()),
        Raw::with_handshake(server.local_addr()),
    );
    let take = |taker: &mut Raw, max: u8| {
        taker.send(&[0x85, 2, 0, 0, 0, 0, 0, 0, 0, b'/', b'q']);
        taker.send(&[max, 0, 0, 0, 0, 0, 0, 0]);
    };
    let push = |pusher: &mut Raw, element: u8| {
        pusher.send(&[0x0e, 2, 0, 0, 0, 0, 0, 0, 0, b'/', b'q']);
        pusher.send(&[1, 0, 0, 0, 0, 0, 0, 0, element]);
        pusher.fence();
    };
    take(&mut taker, 8);
    taker.fence();
    push(&mut pusher, b'a');
    taker.expect(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'a']);
    push(&mut pusher, b'b');
    push(&mut pusher, b'c');
    take(&mut taker, 8);
    taker.expect(&[0, 2, 0, 0, 0, 0, 0, 0, 0]);
    taker.expect(&[1, 0, 0, 0, 0, 0, 0, 0, b'b', 1, 0, 0, 0, 0, 0, 0, 0, b'c']);
    take(&mut taker, 8);
    taker.send(&[0x0c]);
    taker.expect(&[1]);
    // The race: the push is first, and the cancel still has its reply.
    take(&mut taker, 8);
    taker.fence();
    push(&mut pusher, b'd');
    taker.send(&[0x0c]);
    taker.expect(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'd', 1]);
    // A take whose connection has ended has taken nothing.
    let mut leaving = Raw::with_handshake(server.local_addr());
    take(&mut leaving, 8);
    leaving.fence();
    drop(leaving);
    wait_until("the take has ended", || server.waiting_count() == 0);
    push(&mut pusher, b'e');
    take(&mut taker, 1);
    taker.expect(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'e']);
    take(&mut taker, 0);
    assert_eq!(taker.read_to_close(), b"");
}

/// The example of docs/spec/wire-extensions.md, section 9.3.
#[cfg(feature = "extensions")]
#[test]
fn wait_change_reports_only_a_change_of_the_known_part() {
    let server = serve(ServerOptions::default());
    let (mut waiter, mut writer) = (
        Raw::with_handshake(server.local_addr()),
        Raw::with_handshake(server.local_addr()),
    );
    writer.send(&[
        1, 2, 0, 0, 0, 0, 0, 0, 0, b'/', b'k', 2, 0, 0, 0, 0, 0, 0, 0, b'a', b'1',
    ]);
    writer.fence();
    waiter.send(&[0x81, 2, 0, 0, 0, 0, 0, 0, 0, b'/', b'k']);
    waiter.send(&[
        0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ]);
    waiter.send(&[1, 0, 0, 0, 0, 0, 0, 0, b'a']);
    waiter.fence();
    set(&mut writer, b"a2");
    writer.fence();
    waiter.fence();
    set(&mut writer, b"b2");
    waiter.expect(&changed(b"b2"));
    waiter.fence();
}

/// All replies share the stored value. With a copy each, the connections would exceed the limit on
/// unsent bytes and be closed.
#[cfg(feature = "extensions")]
#[test]
fn one_write_wakes_a_thousand_waiters_that_share_its_value() {
    let server = serve(ServerOptions::default().with_unsent_bytes_max(10_000));
    let mut writer = Raw::with_handshake(server.local_addr());
    let value = |round: u8, beat: u8| [&[round; 200][..], &[beat; 64 << 10]].concat();
    let first = value(7, 0);
    set(&mut writer, &first);
    writer.fence();

    let mut waiters: Vec<Raw> = (0..raw::connections_possible().min(1_000))
        .map(|_| Raw::with_handshake(server.local_addr()))
        .collect();
    for waiter in &mut waiters {
        wait_change(waiter, Known::part(&first, 0..200));
        waiter.fence();
    }
    for beat in 1..=50 {
        set(&mut writer, &value(7, beat));
    }
    writer.fence();
    for waiter in &mut waiters {
        waiter.fence();
    }
    let next = value(8, 0);
    set(&mut writer, &next);
    let answer = changed(&next);
    for waiter in &mut waiters {
        assert!(waiter.read(answer.len()) == answer);
        waiter.fence();
    }
}

// --- shutdown --------------------------------------------------------------------------------

#[test]
fn shutdown_disconnects_blocked_clients_and_frees_the_port() {
    let server = serve(ServerOptions::default());
    let address = server.local_addr();
    let mut waiting: Vec<Raw> = (0..20).map(|_| Raw::with_handshake(address)).collect();
    for peer in &mut waiting {
        peer.wait(b"never");
        peer.fence();
    }
    let started = Instant::now();
    server.shutdown();
    for peer in &mut waiting {
        assert_eq!(peer.read_to_close(), b"");
    }
    assert!(started.elapsed() < LONG / 2);
    assert!(TcpStream::connect(address).is_err());
    TcpStoreServer::bind(address, ServerOptions::default()).expect("the port is free again");
}

#[test]
fn one_store_can_be_served_on_several_addresses() {
    let options = c10d_socket::ListenOptions::default().with_host("localhost");
    let listeners = c10d_socket::listen(&options).expect("a free port");
    let addresses: Vec<_> = listeners
        .iter()
        .map(|listener| listener.local_addr().expect("bound"))
        .collect();
    let server = TcpStoreServer::serve(listeners, ServerOptions::default()).expect("served");
    assert_eq!(server.local_addrs(), addresses);
    for (index, address) in addresses.iter().enumerate() {
        let mut peer = Raw::with_handshake(*address);
        peer.request(|r| {
            r.opcode(Opcode::Add).raw_key(b"k").i64(1);
        });
        peer.expect(&(index as u64 + 1).to_wire_bytes());
    }
}

/// Strangers cause a few lines, and a line with the number of further strangers, whatever they send.
/// docs/spec/wire.md, CLOSE 4.
#[test]
fn a_flood_of_refusals_is_logged_in_a_few_lines() {
    const CONNECTIONS: usize = 500;
    log_lines::record();
    let server = serve(ServerOptions::default());
    let refused: Vec<String> = (0..CONNECTIONS)
        .map(|_| {
            let mut raw = Raw::connect(server.local_addr());
            raw.send(&[0xff]);
            raw.read_to_close();
            format!("refused {}: ", raw.0.local_addr().unwrap())
        })
        .collect();
    log_lines::wait_for("more refusals in the last 10 s were not logged");
    let is_refusal = |line: &&String| refused.iter().any(|text| line.contains(text));
    let logged = log_lines::lines().iter().filter(is_refusal).count();
    // The flood may take longer than one interval.
    assert!((1..=CONNECTIONS / 10).contains(&logged), "{logged} lines");
    wait_until("they are gone", || server.connection_count() == 0);
}
