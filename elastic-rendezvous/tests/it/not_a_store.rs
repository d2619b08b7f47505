//! Tests endpoints at which another kind of server listens.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use elastic_rendezvous::{RendezvousParameters, create_handler, parse_config};

/// Handles an accepted connection; returns it to keep it open.
type HandleConnection = fn(TcpStream) -> Option<TcpStream>;

const PEERS: [(&str, HandleConnection); 3] = [
    ("did not answer", Some),
    ("closed the connection", |_| None),
    ("does not speak the TCPStore protocol", |mut stream| {
        // The client may have closed by now.
        let _ = stream.write_all(b"HTTP/1.0 400 Bad Request");
        Some(stream)
    }),
];

#[test]
fn a_peer_that_is_not_a_store_is_an_error_within_the_join_timeout() {
    for (text, handle) in PEERS {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let peer = thread::spawn(move || {
            let mut open_connections = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                open_connections.extend(handle(stream.expect("a connection")));
            }
        });
        let parameters = RendezvousParameters::new("c10d", address.to_string(), "job", 1, 1)
            .expect("parameters")
            .with_config(parse_config("join_timeout=2").expect("a setting"));
        let started = Instant::now();
        let created = create_handler(&parameters);
        let elapsed = started.elapsed();
        let error = match created {
            Ok(_) => panic!("{text}: not a store"),
            Err(error) => error.to_string(),
        };
        // Far below the timeout of a store call, 60 s.
        assert!(elapsed < Duration::from_secs(30), "{elapsed:?}: {error}");
        assert!(error.contains(text), "{error}");
        assert!(error.contains(&address.to_string()), "{error}");
        stop.store(true, Ordering::Release);
        TcpStream::connect(address).expect("the peer listens");
        peer.join().expect("no panic");
    }
}
