//! Connecting over loopback: servers that refuse, stay silent or close.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::peers::{LONG, bound, no_hang, server, skipped, within};
use c10d_socket::{
    Cancel, ConnectError, ConnectOptions, Deadline, DialStage, Dialer, HostPort, connect,
    wait_for_input,
};
use socket2::SockRef;

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
fn a_name_is_looked_up() {
    let (address, server) = server(|_| false);
    let target = HostPort::new("localhost", address.port());
    no_hang(move || connect(&target, &ConnectOptions::default(), within(LONG))).unwrap();
    server.join().unwrap();
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
