use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::*;

/// Long enough for a busy machine. Tests that expect an answer do not wait for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Short: tests that expect no answer wait for it.
const SHORT: Duration = Duration::from_millis(100);

/// A server that answers one connection with `script`, and returns the request that it has read.
struct Scripted {
    target: Target,
    thread: JoinHandle<String>,
}

impl Scripted {
    fn start(script: impl FnOnce(&mut TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let target = Target::Tcp(listener.local_addr().unwrap());
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = read_head(&mut stream);
            script(&mut stream);
            head
        });
        Self { target, thread }
    }

    fn sending(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |stream| {
            // Fails when the client has closed the connection early.
            let _ = stream.write_all(&answer);
        })
    }

    fn get(&self) -> HttpRequest {
        HttpRequest::get(self.target.clone(), "/why.json?ranks=all")
    }
}

fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn text(answer: Result<HttpResponse, HttpError>) -> (u16, String) {
    let answer = answer.unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

#[test]
fn a_get_names_the_host_and_returns_the_whole_answer() {
    let server = Scripted::sending("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let answer = fetch(&server.get(), PATIENCE);
    assert_eq!(text(answer), (200, "hello".to_owned()));
    let expected = format!(
        "GET /why.json?ranks=all HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        server.target
    );
    assert_eq!(server.thread.join().unwrap(), expected);
}

#[test]
fn a_post_over_a_unix_socket_has_a_body_of_one_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("debug");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _): (UnixStream, _) = listener.accept().unwrap();
        let head = read_head(&mut stream);
        stream
            .write_all(
                b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
            )
            .unwrap();
        head
    });
    let request = HttpRequest::post(Target::Unix(path), "/handler/ping");
    let answer = fetch(&request, PATIENCE);
    assert_eq!(text(answer), (404, "no".to_owned()));
    let head = server.join().unwrap();
    assert!(
        head.starts_with("POST /handler/ping HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(head.contains("content-length: 1\r\n"), "{head}");
}

#[test]
fn an_answer_may_end_with_the_connection() {
    let server = Scripted::sending("HTTP/1.0 200 OK\r\n\r\nuntil the end");
    let answer = fetch(&server.get(), PATIENCE);
    assert_eq!(text(answer), (200, "until the end".to_owned()));
}

#[test]
fn nothing_listens() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let target = Target::Tcp(listener.local_addr().unwrap());
    drop(listener);
    for target in [target, Target::Unix("/nonexistent/socket".into())] {
        let error = fetch(&HttpRequest::get(target, "/"), PATIENCE).unwrap_err();
        assert!(matches!(error, HttpError::Connect { .. }), "{error}");
    }
}

#[test]
fn a_server_that_does_not_answer_costs_the_timeout_only() {
    // Accepted by the system, never by a process: as a stopped rank does.
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let target = Target::Tcp(listener.local_addr().unwrap());
    let error = fetch(&HttpRequest::get(target.clone(), "/"), SHORT).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{target} does not answer within 100ms")
    );
}

#[test]
fn a_unix_server_whose_queue_is_full_does_not_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("debug");
    let _listener = UnixListener::bind(&path).unwrap();
    let address = socket2::SockAddr::unix(&path).unwrap();
    let mut queued = Vec::new();
    loop {
        let client =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        client.set_nonblocking(true).unwrap();
        if client.connect(&address).is_err() {
            break;
        }
        queued.push(client);
    }
    let error = fetch(&HttpRequest::get(Target::Unix(path), "/"), SHORT).unwrap_err();
    assert!(matches!(error, HttpError::NoAnswer { .. }), "{error}");
}

#[test]
fn an_answer_in_single_bytes_does_not_extend_the_deadline() {
    let (done, is_done) = mpsc::channel::<()>();
    let server = Scripted::start(move |stream| {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            .unwrap();
        while is_done.recv_timeout(Duration::from_millis(5)).is_err() {
            let _ = stream.write_all(b".");
        }
    });
    let started = Instant::now();
    let error = fetch(&server.get(), SHORT).unwrap_err();
    assert!(started.elapsed() < PATIENCE);
    assert!(matches!(error, HttpError::Unfinished { .. }), "{error}");
    done.send(()).unwrap();
    server.thread.join().unwrap();
}

#[test]
fn a_server_without_http_closes_the_connection() {
    let server = Scripted::sending("");
    let error = fetch(&server.get(), PATIENCE).unwrap_err();
    assert!(matches!(error, HttpError::Closed { .. }), "{error}");
}

#[test]
fn an_answer_that_breaks_off_is_not_taken_for_complete() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhel",
    ] {
        let server = Scripted::sending(answer);
        let error = fetch(&server.get(), PATIENCE).unwrap_err();
        assert!(matches!(error, HttpError::Truncated { .. }), "{error}");
    }
}

#[test]
fn other_protocols_and_endless_heads_are_refused() {
    let endless = [b"HTTP/1.1 200 OK\r\n".to_vec(), b"A: b\r\n".repeat(100_000)].concat();
    let table = [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec(),
        b"\0\0\0\x01\0\0\0\0\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_vec(),
        endless,
    ];
    for answer in table {
        let start = String::from_utf8_lossy(&answer[..8]).into_owned();
        let server = Scripted::sending(answer);
        let error = fetch(&server.get(), PATIENCE).unwrap_err();
        assert!(
            matches!(error, HttpError::NotHttp { .. }),
            "{start:?}: {error}"
        );
    }
}

#[test]
fn an_answer_above_the_limit_is_refused_announced_or_not() {
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 4611686018427387904\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
    ] {
        let server = Scripted::sending(format!("{head}123456789"));
        let error = fetch(&server.get().with_limit(8), PATIENCE).unwrap_err();
        assert!(
            matches!(error, HttpError::TooLarge { limit: 8, .. }),
            "{error}"
        );
    }
    let server = Scripted::sending("HTTP/1.1 200 OK\r\n\r\n12345678");
    let answer = fetch(&server.get().with_limit(8), PATIENCE);
    assert_eq!(text(answer), (200, "12345678".to_owned()));
}

#[test]
fn a_path_that_would_inject_a_header_is_refused() {
    let target = Target::Tcp(([127, 0, 0, 1], 1).into());
    for path in ["", "handler", "/a\r\nX: y", "/a b", "/\u{1b}"] {
        let error = fetch(&HttpRequest::get(target.clone(), path), PATIENCE).unwrap_err();
        assert!(
            matches!(error, HttpError::InvalidRequest { .. }),
            "{path:?}: {error}"
        );
    }
}

#[test]
fn answers_are_in_the_order_of_the_requests_and_a_slow_server_delays_no_other() {
    let (answered, all_answered) = mpsc::channel();
    // Answers when the other eight have answered.
    let slow = Scripted::start(move |stream| {
        for _ in 0..8 {
            all_answered.recv().unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nslow").unwrap();
    });
    let others = (0..8).map(|number| {
        let answered = answered.clone();
        Scripted::start(move |stream| {
            let answer = format!("HTTP/1.1 200 OK\r\n\r\n{number}");
            stream.write_all(answer.as_bytes()).unwrap();
            answered.send(()).unwrap();
        })
    });
    let servers: Vec<_> = std::iter::once(slow).chain(others).collect();
    let requests: Vec<_> = servers.iter().map(Scripted::get).collect();
    let answers = fetch_all(&requests, PATIENCE, 3).into_iter();
    let texts: Vec<_> = answers.map(|answer| text(answer).1).collect();
    assert_eq!(texts, ["slow", "0", "1", "2", "3", "4", "5", "6", "7"]);
    assert!(fetch_all(&[], PATIENCE, 0).is_empty());
}

#[test]
fn a_cancel_ends_the_exchange_with_a_silent_server() {
    let cancel = Cancel::new();
    let by_server = cancel.clone();
    let server = Scripted::start(move |stream| {
        by_server.cancel();
        // Until the client closes the connection.
        let _ = stream.read(&mut [0]);
    });
    let request = server.get().with_cancel(cancel);
    let error = fetch(&request, PATIENCE).unwrap_err();
    assert!(matches!(error, HttpError::Cancelled { .. }), "{error}");
    server.thread.join().unwrap();
    // And those that begin later.
    assert!(matches!(
        fetch(&request, PATIENCE),
        Err(HttpError::Cancelled { .. })
    ));
}
