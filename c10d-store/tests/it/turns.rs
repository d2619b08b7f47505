//! A connection that causes much work with few bytes delays others by its turn only.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use c10d_socket::SendBuf;
use c10d_store::Opcode;
use c10d_store::unstable::{GROUP_BYTES_MAX, GROUP_CLIENTS_MAX, RequestBuf, SessionStream};
use c10d_store::{ServerOptions, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer};

use crate::raw::{LONG, Raw};

/// The link of a session with as many clients as one group can have.
struct Link {
    raw: Raw,
    stream: SessionStream,
    clients: Vec<u32>,
}

impl Link {
    fn connect(address: SocketAddr) -> Self {
        let mut raw = Raw::with_handshake(address);
        let mut session = vec![Opcode::Session as u8];
        session.extend([7; 16]); // Its id.
        session.extend([0; 16]); // Never connected to a store before.
        session.extend([1, 0, 0, 0, 0, 0, 0, 0]); // The first attempt.
        session.extend([0; 8]); // Nothing received.
        session.extend([0xff; 4]); // Remembered as long as possible.
        raw.send(&session);
        assert_eq!(raw.read(25)[0], 0, "the session is accepted");
        let mut stream = SessionStream::default();
        let clients: Vec<u32> = (0..).take(GROUP_CLIENTS_MAX).collect();
        for client in &clients {
            stream.push_open(*client, 0);
        }
        Self {
            raw,
            stream,
            clients,
        }
    }

    /// Every client adds 1 to the key as often as fits a group. Returns the sum.
    fn add_in_a_group(&mut self, key: &str) -> io::Result<i64> {
        let mut request = RequestBuf::new();
        request.opcode(Opcode::Add).user_key(key).i64(1);
        let request = request.to_bytes();
        let repeated = GROUP_BYTES_MAX / request.len();
        self.stream
            .push_group(&self.clients, &request.repeat(repeated));
        let mut bytes = SendBuf::new();
        self.stream.fill(&mut bytes, usize::MAX);
        bytes.flush(&mut self.raw.0)?;
        Ok((repeated * self.clients.len()) as i64)
    }
}

fn start() -> (TcpStoreServer, TcpStore, Link) {
    let server =
        TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port");
    let port = server.local_addr().port();
    let store = TcpStore::open("127.0.0.1", port, TcpStoreOptions::default()).expect("a store");
    let link = Link::connect(server.local_addr());
    (server, store, link)
}

/// One group of 8 KiB causes 150,000 requests.
#[test]
fn a_group_does_not_delay_others_until_all_its_clients_are_served() {
    let (_server, store, mut link) = start();
    // This thread may not run while the server works on one group, but hardly ten times.
    let saw_a_part = (0..10).any(|round| {
        let key = format!("n{round}");
        let sum = link.add_in_a_group(&key).expect("the server reads");
        store.wait(&[&key]).expect("the server is at work");
        let seen = store.get(&key).expect("a number");
        String::from_utf8_lossy(&seen) != sum.to_string()
    });
    assert!(saw_a_part, "each group was carried out at once");
}

/// The groups that the server reads at a time are a minute of work for a debug build.
#[test]
fn a_server_that_has_much_to_do_stops_at_once() {
    let (server, store, mut link) = start();
    let sending = thread::spawn(move || {
        // Until the server stops.
        while link.add_in_a_group("n").is_ok() {}
    });
    store.wait(&["n"]).expect("the server is at work");
    let (stopped, is_stopped) = mpsc::channel();
    let stopping = thread::spawn(move || {
        server.shutdown();
        stopped.send(()).expect("the test waits");
    });
    is_stopped
        .recv_timeout(LONG)
        .expect("the server stops before its work is done");
    stopping.join().expect("no panic");
    sending.join().expect("no panic");
}
