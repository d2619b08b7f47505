//! A proxy that hides the extensions of our server, so that clients see a server like PyTorch's.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Forwards bytes in both directions, except the reply to the handshake's PING: the client gets the plain nonce,
/// which PyTorch's server would send. The drop waits until the clients have disconnected.
pub(crate) struct WithoutExtensions {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl WithoutExtensions {
    pub(crate) fn in_front_of(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accepting = thread::spawn(move || {
            let mut connections = Vec::new();
            for client in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                let client = client.expect("a connection");
                connections.push(thread::spawn(move || forward(client, server)));
            }
            for connection in connections {
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
        // Wakes the accepting thread.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(accepting) = self.accepting.take()
            && woken
            && accepting.join().is_err()
            && !thread::panicking()
        {
            panic!("a connection thread of the proxy panicked");
        }
    }
}

/// The nonce of the handshake's PING, as sent on the wire: docs/spec/wire-extensions.md, CAPABILITY 2.
const NONCE: [u8; 4] = [0, 0, 0x0d, 0xc1];

/// Forwards one connection until either side closes it.
fn forward(client: TcpStream, server: SocketAddr) {
    let server = TcpStream::connect(server).expect("the server listens");
    let options = [client.set_nodelay(true), server.set_nodelay(true)];
    assert!(options.iter().all(Result::is_ok), "socket options");
    let (mut from_client, mut to_server) = (&client, &server);
    let (mut from_server, mut to_client) = (&server, &client);
    thread::scope(|scope| {
        scope.spawn(move || {
            // An error also closes the connection; the test sees the close on its own side.
            let _ = io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Write);
        });
        let mut capabilities = NONCE;
        if from_server.read_exact(&mut capabilities).is_ok() {
            assert_eq!(capabilities[2..], NONCE[2..], "the reply to PING");
            let _ = to_client
                .write_all(&NONCE)
                .and_then(|()| io::copy(&mut from_server, &mut to_client));
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
}
