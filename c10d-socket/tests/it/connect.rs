//! Connecting over loopback: servers that start late, refuse, stay silent or close.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::peers::{LONG, bound, no_hang, observed, server, skipped, within};
use c10d_socket::{
    Cancel, ConnectError, ConnectOptions, Deadline, DialStage, Dialer, HostPort, connect,
    wait_for_input,
};
use socket2::{Domain, SockRef, Socket, Type};

fn dial(address: SocketAddr, time: Duration) -> Result<TcpStream, ConnectError> {
    let target = HostPort::new(address.ip().to_string(), address.port());
    no_hang(move || connect(&target, &ConnectOptions::default(), within(time)))
}

#[test]
fn a_connection_is_blocking_and_has_its_options() {
    let (address, server) = server(|_| false);
    let stream = dial(address, LONG).unwrap();
    let socket = SockRef::from(&stream);
    assert!(!socket.nonblocking().unwrap());
    assert!(socket.tcp_nodelay().unwrap());
    assert!(socket.keepalive().unwrap());
    server.join().unwrap();
}

#[test]
fn a_server_that_starts_late_is_found() {
    let (socket, address) = bound();
    let target = HostPort::new("127.0.0.1", address.port());
    let client = observed(move || connect(&target, &ConnectOptions::default(), within(LONG)));
    // Refused, the client sleeps before the next attempt.
    client.wait_until_blocked();
    let started = Instant::now();
    socket.listen(8).unwrap();
    client.join().unwrap();
    // The first delays are far below a second; the bound is wide for a loaded machine.
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_closed_port_fails_by_the_deadline() {
    let (_socket, address) = bound();
    let limit = Duration::from_secs(2);
    let started = Instant::now();
    let error = dial(address, limit).unwrap_err();
    let taken = started.elapsed();
    assert!(taken < LONG / 2, "{taken:?}");
    assert!(error.is_timeout());
    assert!(error.elapsed() >= limit * 9 / 10, "{error}");
    assert!(error.rounds() > 2, "{error}");
    let text = error.to_string();
    for part in [
        &format!("cannot connect to {address}: Connection refused"),
        &format!("; gave up after {} attempts in ", error.rounds()),
        ". Is the server running there?",
    ] {
        assert!(text.contains(part), "{text:?} has no {part:?}");
    }
}

#[test]
fn a_past_deadline_makes_one_attempt() {
    let (socket, address) = bound();
    let error = dial(address, Duration::ZERO).unwrap_err();
    assert_eq!((error.is_timeout(), error.rounds()), (true, 1), "{error}");
    socket.listen(8).unwrap();
    dial(address, Duration::ZERO).unwrap();
}

#[test]
fn an_unanswered_connect_fails_by_the_deadline() {
    // Linux drops a SYN when the accept queue is full.
    let (socket, address) = bound();
    socket.listen(0).unwrap();
    let mut queue = Vec::new();
    let error = loop {
        let started = Instant::now();
        match dial(address, Duration::from_millis(300)) {
            Ok(stream) if queue.len() < 64 => queue.push(stream),
            Ok(_) => return skipped("the queue does not fill up here"),
            Err(error) => {
                assert!(started.elapsed() < LONG / 2, "{error}");
                break error;
            }
        }
    };
    assert!(error.is_timeout(), "{error}");
    assert!(
        error.failures()[0].stage() == DialStage::Connect(address),
        "{error}"
    );
}

#[test]
fn an_address_without_a_route_fails_at_once() {
    // Connecting a datagram socket looks up the route without sending anything.
    let target: SocketAddr = "[100::1]:29500".parse().unwrap();
    let probe =
        Socket::new(Domain::IPV6, Type::DGRAM, None).and_then(|it| it.connect(&target.into()));
    if probe.is_ok() {
        return skipped("this machine has a route to everywhere");
    }
    let error = dial(target, LONG).unwrap_err();
    assert!(!error.is_timeout(), "{error}");
    assert_eq!(error.rounds(), 1);
}

#[test]
fn a_name_is_looked_up() {
    let (address, server) = server(|_| false);
    let target = HostPort::new("localhost", address.port());
    no_hang(move || connect(&target, &ConnectOptions::default(), within(LONG))).unwrap();
    server.join().unwrap();
}

#[test]
fn a_name_that_does_not_exist_fails_by_the_deadline() {
    // A label of more than 63 bytes is invalid, so no name server is asked.
    let target = HostPort::new("x".repeat(64), 1);
    let limit = Duration::from_millis(200);
    let error = no_hang(move || connect(&target, &ConnectOptions::default(), within(limit)));
    let error = error.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert_eq!(error.failures()[0].stage(), DialStage::Lookup, "{error}");
    assert!(error.elapsed() < LONG / 2, "{error}");
}

/// A client whose handshake is one byte from the server.
fn dial_and_greet(address: SocketAddr, deadline: Deadline) -> Result<u8, ConnectError> {
    let target = HostPort::new(address.ip().to_string(), address.port());
    let mut dialer = Dialer::new(&target, &ConnectOptions::default(), deadline);
    loop {
        let mut stream = dialer.connect()?;
        wait_for_input(&stream, deadline.remaining(Instant::now()), &Cancel::NEVER).unwrap();
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Ok(()) => return Ok(byte[0]),
            Err(error) => dialer.handshake_failed(error)?,
        }
    }
}

#[test]
fn a_server_that_closes_at_first_is_retried() {
    let mut connections = 0;
    let (address, server) = server(move |mut stream| {
        connections += 1;
        if connections == 4 {
            stream.write_all(&[connections]).unwrap();
        }
        connections < 4
    });
    let byte = no_hang(move || dial_and_greet(address, within(LONG)));
    assert_eq!(byte.unwrap(), 4);
    server.join().unwrap();
}

#[test]
fn a_server_that_always_closes_fails_by_the_deadline() {
    // The listener outlives the test on its thread.
    let (address, _server) = server(|_| true);
    let limit = Duration::from_millis(500);
    let started = Instant::now();
    let error = no_hang(move || dial_and_greet(address, within(limit))).unwrap_err();
    assert!(started.elapsed() < LONG / 2, "{error}");
    assert!(error.is_timeout(), "{error}");
    let stages: Vec<_> = error.failures().iter().map(|it| it.stage()).collect();
    assert_eq!(stages, [DialStage::Handshake(address)]);
    assert!(
        error.to_string().contains("the handshake failed"),
        "{error}"
    );
}
