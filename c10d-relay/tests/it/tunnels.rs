//! HTTP through a relay: its bytes reach the store's port, whatever a client does.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{Relay, RelayOptions};
use c10d_sim::Proxy;
use c10d_store::{HttpConnection, HttpHandler, Store, StoreExt, TcpStoreServer};

use crate::basics::{rank_of, relay_to, server, soon, wait_until};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// More than the buffers of all sockets in between.
const LARGE: usize = 32 << 20;

const HEAD_BYTES_MAX: usize = 16 << 10;

/// Answers each request with its path, with many bytes, or not at all.
#[derive(Default)]
struct Pages {
    open: Arc<AtomicUsize>,
}

impl HttpHandler for Pages {
    fn serve(&self, connection: HttpConnection) {
        let open = Arc::clone(&self.open);
        open.fetch_add(1, Ordering::Relaxed);
        thread::spawn(move || {
            // The client may have left.
            let _ = answer(connection);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn answer(connection: HttpConnection) -> io::Result<()> {
    let (mut stream, mut head) = (connection.stream, connection.received);
    stream.set_nonblocking(false)?;
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX {
            return stream.write_all(b"HTTP/1.1 431 Too Large\r\n\r\n");
        }
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&bytes[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    if path == "/silent" {
        return stream.read(&mut [0]).map(drop);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    if path == "/large" {
        stream.write_all(&vec![b'x'; LARGE])
    } else {
        stream.write_all(path.as_bytes())
    }
}

fn with_pages(server: &TcpStoreServer) -> Arc<AtomicUsize> {
    let pages = Pages::default();
    let open = Arc::clone(&pages.open);
    server.set_http_handler(Arc::new(pages));
    open
}

fn connected(port: u16) -> Relay {
    let relay = relay_to(port, RelayOptions::default());
    relay
        .wait_until_connected(soon(), &c10d_socket::Cancel::NEVER)
        .expect("a session");
    relay
}

fn client_of(relay: &Relay) -> TcpStream {
    let client = TcpStream::connect(relay.local_addrs()[0]).expect("the relay listens");
    client.set_read_timeout(Some(LIMIT)).expect("an option");
    client.set_write_timeout(Some(LIMIT)).expect("an option");
    client
}

/// Sends a request in two pieces, and returns the answer.
pub(crate) fn get(relay: &Relay, path: &str) -> String {
    let mut client = client_of(relay);
    write!(client, "GET {path} HTTP").expect("the relay reads");
    write!(client, "/1.1\r\nHost: a\r\n\r\n").expect("the relay reads");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_request_reaches_the_store_and_its_answer_the_client() {
    let server = server();
    let open = with_pages(&server);
    let proxy = Proxy::to(server.local_addr());
    let relay = connected(proxy.port());
    let answer = get(&relay, "/clients.json?from=0");
    assert_eq!(answer, "HTTP/1.1 200 OK\r\n\r\n/clients.json?from=0");
    wait_until("it is none of a rank, and closed", || {
        relay.connection_count() == 0
            && server.connection_count() == 1
            && open.load(Ordering::Relaxed) == 0
    });

    proxy.cut(true);
    wait_until("the loss is noticed", || !relay.is_connected());
    let answer = get(&relay, "/");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("has had no connection to it"),
        "{answer}"
    );
    proxy.mend();
    wait_until("it has another connection", || relay.is_connected());
    assert_eq!(get(&relay, "/again"), "HTTP/1.1 200 OK\r\n\r\n/again");
}

#[test]
fn a_request_that_waits_for_its_answer_makes_no_room() {
    const TUNNELS_MAX: usize = 32;
    let server = server();
    let open = with_pages(&server);
    let relay = connected(server.local_addr().port());
    let ask = |request: &[u8]| {
        let mut client = client_of(&relay);
        client.write_all(request).expect("the relay reads");
        client
    };
    let asking = ask(b"GET /silent HTTP/1.1\r\n\r\n");
    wait_until("the store has the request", || {
        open.load(Ordering::Relaxed) == 1
    });
    let strangers: Vec<TcpStream> = (0..2 * TUNNELS_MAX).map(|_| ask(b"G")).collect();
    // Those that ask nothing make room for each other.
    assert_eq!(get(&relay, "/a"), "HTTP/1.1 200 OK\r\n\r\n/a");
    asking.set_nonblocking(true).expect("an option");
    let error = asking.peek(&mut [0]).expect_err("it waits");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(strangers);

    let others: Vec<TcpStream> = (1..TUNNELS_MAX)
        .map(|_| ask(b"GET /silent HTTP/1.1\r\n\r\n"))
        .collect();
    wait_until("the store has all requests", || {
        open.load(Ordering::Relaxed) == TUNNELS_MAX
    });
    let answer = get(&relay, "/a");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let reason = "all of its 32 connections for HTTP wait for answers\n";
    assert!(answer.ends_with(reason), "{answer}");
    drop((asking, others));
    wait_until("there is room again", || {
        get(&relay, "/a").starts_with("HTTP/1.1 200 ")
    });
}

#[test]
fn a_client_that_does_not_read_delays_no_other_and_loses_nothing() {
    let server = server();
    let open = with_pages(&server);
    let relay = connected(server.local_addr().port());
    let mut slow = client_of(&relay);
    slow.write_all(b"GET /large HTTP/1.1\r\n\r\n")
        .expect("sent");
    wait_until("it is served", || open.load(Ordering::Relaxed) == 1);
    let rank = rank_of(&relay);
    for round in 0..100 {
        assert_eq!(rank.add("n", 1).expect("add"), round + 1);
    }
    assert_eq!(get(&relay, "/a"), "HTTP/1.1 200 OK\r\n\r\n/a");
    // The other client may have its answer before the store's thread has ended.
    wait_until("only its answer waits", || {
        open.load(Ordering::Relaxed) == 1
    });
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).expect("the whole answer");
    assert_eq!(answer.len(), b"HTTP/1.1 200 OK\r\n\r\n".len() + LARGE);
}

#[test]
fn an_endless_head_ends_with_the_stores_answer() {
    let server = server();
    let open = with_pages(&server);
    let relay = connected(server.local_addr().port());
    let mut client = client_of(&relay);
    client.write_all(b"GET / HTTP/1.1\r\n").expect("sent");
    let start = Instant::now();
    while client.write_all(&b"A: b\r\n".repeat(1000)).is_ok() {
        assert!(start.elapsed() < LIMIT, "nothing ends it");
    }
    let mut answer = Vec::new();
    // A reset follows, because the client has sent more.
    let _ = client.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 431 "), "{answer:?}");
    wait_until("the store's side is closed", || {
        open.load(Ordering::Relaxed) == 0
    });
    rank_of(&relay).set("k", b"v").expect("a rank is served");
}
