use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use c10d_store::{Counters, HttpHandler, Snapshot, SnapshotError};

use super::*;
use crate::http::{StatusOptions, StatusServer, StatusSource};
use crate::{RankReport, Report};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Short enough for a test, and long enough that events have the same order on a busy machine.
const SHORT: Limits = Limits {
    connections_max: 4,
    keep_alive: true,
    newcomer: Duration::ZERO,
    header: Duration::from_millis(200),
    lifetime: Duration::from_millis(600),
    grace: Duration::from_millis(100),
};

/// A report that is too large for the buffers of a socket.
struct Large;

impl StatusSource for Large {
    fn snapshot(&self, _: Duration) -> Result<Snapshot, SnapshotError> {
        Ok(Snapshot::default())
    }

    fn counters(&self, _: Duration) -> Result<Counters, SnapshotError> {
        Ok(Counters::default())
    }

    fn explain(&self, _: &Snapshot, _: Option<usize>) -> Report {
        Report {
            headline: "x".repeat(20 << 20),
            ranks: vec![RankReport::default()],
            ..Report::default()
        }
    }
}

/// A client's connection that the server has taken over after these bytes.
fn connect(server: &StatusServer, received: &str) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("bound");
    let client = TcpStream::connect(address).expect("a connection");
    client.set_read_timeout(Some(LIMIT)).expect("a socket");
    let (stream, peer) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).expect("a socket");
    server.serve(HttpConnection {
        stream,
        peer,
        received: received.into(),
    });
    client
}

fn start(limits: Limits) -> Arc<StatusServer> {
    StatusServer::start_with(Large, StatusOptions::default(), limits).expect("a thread")
}

/// Reads until the server closes the connection.
fn read_to_end(mut client: &TcpStream) -> usize {
    let mut bytes = Vec::new();
    // A reset is fine as well.
    let _ = client.read_to_end(&mut bytes);
    bytes.len()
}

const REQUEST: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn a_request_that_does_not_end_and_an_idle_connection_are_closed() {
    let limits = Limits {
        lifetime: LIMIT,
        ..SHORT
    };
    let server = start(limits);
    let start = Instant::now();
    assert_eq!(read_to_end(&connect(&server, "GET /healthz HT")), 0);
    assert!(read_to_end(&connect(&server, REQUEST)) > 0);
    assert!(start.elapsed() >= 2 * limits.header);
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn a_connection_ends_with_its_lifetime_however_busy_it_is() {
    let limits = Limits {
        header: LIMIT,
        ..SHORT
    };
    let server = start(limits);
    let start = Instant::now();
    let mut client = connect(&server, REQUEST);
    let mut bytes = [0; 4096];
    while client.read(&mut bytes).is_ok_and(|count| count > 0) {
        assert!(start.elapsed() < LIMIT);
        if client.write_all(REQUEST.as_bytes()).is_err() {
            break;
        }
    }
    assert!(start.elapsed() >= limits.lifetime);
}

#[test]
fn a_client_that_does_not_read_its_answer_is_closed() {
    let server = start(SHORT);
    let client = connect(&server, "GET /why.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
    // Other clients are served in the meantime, and its place becomes free: the limit is 4.
    let start = Instant::now();
    while start.elapsed() < SHORT.lifetime + 2 * SHORT.grace {
        assert!(read_to_end(&connect(&server, REQUEST)) > 0);
    }
    assert!(
        read_to_end(&client) < 20 << 20,
        "only the part in the buffers"
    );
}

/// Reads until the answer has this status.
fn expect_status(client: &mut TcpStream, status: &str) {
    let mut head = [0; 12];
    client.read_exact(&mut head).expect("an answer");
    assert_eq!(head, *format!("HTTP/1.1 {status}").as_bytes());
}

#[test]
fn connections_without_an_accepted_request_keep_no_other_out() {
    let limits = Limits {
        header: LIMIT,
        lifetime: LIMIT,
        ..SHORT
    };
    let options = StatusOptions::default().with_token("secret".to_owned());
    let server = StatusServer::start_with(Large, options, limits).expect("a thread");
    let request =
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n";
    // Half a request, none, and a whole one without the password.
    let hostile = ["GET /healthz HT", "G", REQUEST];
    let flood = |count| -> Vec<TcpStream> {
        let requests = hostile.iter().cycle().take(count);
        let clients = requests.map(|request| connect(&server, request)).collect();
        server.report(LIMIT).expect("the thread has taken all");
        clients
    };
    let mut strangers = flood(limits.connections_max);
    let mut client = connect(&server, request);
    expect_status(&mut client, "200");
    assert_eq!(read_to_end(&strangers.remove(0)), 0, "the oldest");
    // Its connection stays, whatever comes.
    strangers.extend(flood(100));
    client.write_all(request.as_bytes()).expect("it is open");
    let mut answers = String::new();
    while !answers.contains("HTTP/1.1 200") {
        let mut bytes = [0; 4096];
        let count = client.read(&mut bytes).expect("the second answer");
        assert!(count > 0, "closed after {answers}");
        answers.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    let mut others: Vec<TcpStream> = (1..limits.connections_max)
        .map(|_| connect(&server, request))
        .collect();
    for other in &mut others {
        expect_status(other, "200");
    }
    // Those with the password make no room for each other.
    expect_status(&mut connect(&server, request), "503");
    expect_status(&mut connect(&server, REQUEST), "503");
}

#[test]
fn a_client_that_closes_its_sending_side_gets_its_answer() {
    let server = start(Limits::DEFAULT);
    for number in 0..100 {
        // The server gets a part of the request from the store, and the rest from the socket.
        let (start, rest) = REQUEST.split_at(number % REQUEST.len() + 1);
        let mut client = connect(&server, start);
        client.write_all(rest.as_bytes()).expect("a socket");
        client.shutdown(net::Shutdown::Write).expect("a socket");
        expect_status(&mut client, "200");
    }
}

#[test]
fn shutdown_does_not_wait_for_slow_clients() {
    let server = start(Limits {
        header: LIMIT,
        lifetime: LIMIT,
        ..SHORT
    });
    let unread = connect(&server, "GET /why.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let silent = connect(&server, "G");
    server.report(LIMIT).expect("the thread has taken both");
    let start = Instant::now();
    server.shutdown();
    assert!(start.elapsed() < LIMIT / 2);
    assert!(read_to_end(&unread) < 20 << 20);
    assert_eq!(read_to_end(&silent), 0);
    // Again, and after the end: nothing happens.
    server.shutdown();
    assert_eq!(read_to_end(&connect(&server, REQUEST)), 0);
}
