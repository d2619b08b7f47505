use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, mpsc};
use std::thread;

use super::*;
use crate::http::{HttpRequest, Target, fetch, fetch_all};

const PATIENCE: Duration = Duration::from_secs(30);

fn start(handler: impl Fn(&str) -> HttpResponse + Send + Sync + 'static) -> RequestServer {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    RequestServer::start(listener, "requests", None, Arc::new(handler)).unwrap()
}

fn echo(path: &str) -> HttpResponse {
    HttpResponse::new(200, path)
}

/// Sends bytes and reads the status of the answer.
fn status_of(server: &RequestServer, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A refused request may end in a reset.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn many_requests_are_answered() {
    let server = start(echo);
    let requests: Vec<_> = (0..100)
        .map(|number| {
            HttpRequest::get(
                Target::Tcp(server.address()),
                format!("/stacks?rank={number}"),
            )
        })
        .collect();
    for (number, answer) in fetch_all(&requests, PATIENCE, 64).into_iter().enumerate() {
        let answer = answer.unwrap();
        assert_eq!(answer.body, format!("/stacks?rank={number}").as_bytes());
    }
}

/// A relay in between hides the address.
#[test]
fn an_accepted_request_is_told_the_address_of_the_server() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let token = Some("word".to_owned());
    let server = RequestServer::start(listener, "requests", token, Arc::new(echo)).unwrap();
    let request = HttpRequest::get(Target::Tcp(server.address()), "/");
    let refused = fetch(&request, PATIENCE).unwrap();
    assert_eq!((refused.status, refused.answered_at), (401, None));
    let answer = fetch(&request.with_token(Some("word")), PATIENCE).unwrap();
    let address = Some(server.address());
    assert_eq!((answer.status, answer.answered_at), (200, address));
}

#[test]
fn strangers_names_other_methods_and_other_protocols_are_refused() {
    let server = start(echo);
    let table = [
        ("GET / HTTP/1.1\r\nHost: 10.0.0.3:80\r\n\r\n", "200"),
        ("GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n", "200"),
        ("GET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        (
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
            "405",
        ),
        ("\0\0\0\0\r\n\r\n", "400"),
    ];
    for (request, status) in table {
        assert_eq!(status_of(&server, request), status, "{request:?}");
    }
}

#[test]
fn half_open_requests_make_room_the_oldest_first() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let limits = Limits {
        header: 4 * PATIENCE,
        ..LIMITS
    };
    let address = listener.local_addr().unwrap();
    let (source, guard) = (Source::Listener(listener), Guard::new(&[], None));
    let handler: RequestHandler = Arc::new(echo);
    let _server = Server::start("requests", source, guard, limits, handler).unwrap();
    let half_open = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let half_open: Vec<_> = (0..LIMITS.connections_max).map(half_open).collect();
    let request = HttpRequest::get(Target::Tcp(address), "/");
    for _ in 0..4 {
        assert!(fetch(&request, PATIENCE).unwrap().is_success());
    }
    let is_open = |mut stream: &TcpStream| matches!(stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    let (oldest, newest) = half_open.split_at(4);
    assert!(!is_open(&oldest[0]), "it has not made room");
    assert!(newest.iter().all(is_open), "newer ones have made room");
}

/// Requests that are answered keep their places.
#[test]
fn a_connection_with_an_accepted_request_does_not_make_room() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (entered, is_entered) = mpsc::channel();
    let server = start(move |path| {
        if path == "/slow" {
            entered.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        echo(path)
    });
    let get = |path: &str| HttpRequest::get(Target::Tcp(server.address()), path);
    thread::scope(|scope| {
        let slow = scope.spawn(|| fetch(&get("/slow"), PATIENCE));
        is_entered.recv().unwrap();
        let _silent: Vec<_> = (0..3 * LIMITS.connections_max)
            .map(|_| TcpStream::connect(server.address()).unwrap())
            .collect();
        assert!(fetch(&get("/"), PATIENCE).unwrap().is_success());
        release.send(()).unwrap();
        assert!(slow.join().unwrap().unwrap().is_success());
    });
}

#[test]
fn a_panic_in_the_handler_is_an_answer() {
    let server = start(|_| panic!("expected by the test"));
    let answer = fetch(
        &HttpRequest::get(Target::Tcp(server.address()), "/"),
        PATIENCE,
    );
    assert_eq!(answer.unwrap().status, 500);
}

#[test]
fn the_shutdown_does_not_wait_for_a_handler() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (entered, is_entered) = mpsc::channel();
    let server = start(move |path| {
        entered.send(()).unwrap();
        // Ends with the test.
        let _ = released.lock().unwrap().recv();
        echo(path)
    });
    let request = HttpRequest::get(Target::Tcp(server.address()), "/");
    let client = thread::spawn(move || fetch(&request, PATIENCE));
    is_entered.recv().unwrap();
    drop(server);
    assert!(client.join().unwrap().is_err());
    drop(release);
}
