//! A server that says that it has no extensions, as PyTorch's does: a proxy in front of one that has.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Passes bytes on both ways, and answers the hello's PING as PyTorch's server does, by its nonce.
/// Dropping it ends its listening; each connection ends with its client.
pub(crate) struct WithoutExtensions {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl WithoutExtensions {
    pub(crate) fn of(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accepting = thread::spawn(move || {
            let mut passing = Vec::new();
            for client in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                let client = client.expect("a connection");
                passing.push(thread::spawn(move || pass(client, server)));
            }
            for connection in passing {
                connection.join().expect("no panic");
            }
        });
        Self {
            address,
            stop,
            accepting: Some(accepting),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for WithoutExtensions {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(accepting) = self.accepting.take()
            && woken
            && accepting.join().is_err()
            && !thread::panicking()
        {
            panic!("a connection of the proxy ended by a panic");
        }
    }
}

/// The nonce of the hello's PING on the wire: docs/wire.md, CAPABILITY 2.
const NONCE: [u8; 4] = [0, 0, 0x0d, 0xc1];

/// One connection, until either side ends it.
fn pass(client: TcpStream, server: SocketAddr) {
    let server = TcpStream::connect(server).expect("the server is there");
    let options = [client.set_nodelay(true), server.set_nodelay(true)];
    assert!(options.iter().all(Result::is_ok), "options of the sockets");
    let (mut from_client, mut to_server) = (&client, &server);
    let (mut from_server, mut to_client) = (&server, &client);
    thread::scope(|scope| {
        scope.spawn(move || {
            // An error is an end as well: the test learns of it on its own side.
            let _ = io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Write);
        });
        let mut capabilities = NONCE;
        if from_server.read_exact(&mut capabilities).is_ok() {
            assert_ne!(capabilities, NONCE, "a server with extensions");
            let _ = to_client
                .write_all(&NONCE)
                .and_then(|()| io::copy(&mut from_server, &mut to_client));
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
}
