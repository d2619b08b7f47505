//! A client that sends raw bytes, for requests that a correct client never sends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::unstable::RequestBuf;
use c10d_store::{Opcode, ServerOptions, TcpStoreServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A timeout that only a hang reaches, even on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Polls until `holds` returns true.
#[track_caller]
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// How many connections one test may open. Two tests that open many connections, and all other tests, share the limit
/// on open files, and each connection has both ends in this process.
pub(crate) fn connections_possible() -> u64 {
    open_files_limit().saturating_sub(400) / 4
}

/// Raises the limit on open files of this process to the maximum and returns it.
fn open_files_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    limit.unwrap_or(u64::MAX)
}

pub(crate) fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port")
}

pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Connects without sending anything.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("a socket option");
        stream
            .set_read_timeout(Some(LONG))
            .expect("a socket option");
        stream
            .set_write_timeout(Some(LONG))
            .expect("a socket option");
        Self(stream)
    }

    /// Connects and runs the handshake of PyTorch's client.
    pub(crate) fn with_handshake(address: SocketAddr) -> Self {
        let mut raw = Self::connect(address);
        raw.send(&[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4]);
        raw.expect(&[1, 2, 3, 4]);
        raw
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server reads");
    }

    pub(crate) fn request<'v>(&mut self, build: impl FnOnce(&mut RequestBuf<'v>)) {
        let mut request = RequestBuf::new();
        build(&mut request);
        self.send(&request.to_bytes());
    }

    /// Sends a SET.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) {
        self.request(|r| {
            r.opcode(Opcode::Set).raw_key(key).value(value);
        });
    }

    /// Sends a WAIT for one key.
    pub(crate) fn wait(&mut self, key: &[u8]) {
        self.request(|r| {
            r.opcode(Opcode::Wait).count(1).raw_key(key);
        });
    }

    pub(crate) fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0
            .read_exact(&mut bytes)
            .unwrap_or_else(|error| panic!("cannot read {count} bytes: {error}"));
        bytes
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, bytes: &[u8]) {
        let got = self.read(bytes.len());
        assert!(got == bytes, "want {bytes:02x?}, got {got:02x?}");
    }

    /// Waits until the server has handled all earlier requests, and asserts that no reply is unread.
    #[track_caller]
    pub(crate) fn fence(&mut self) {
        self.send(&[0x0d, 0x5e, 0xc4, 0xe7, 0xf0]);
        self.expect(&[0x5e, 0xc4, 0xe7, 0xf0]);
    }

    /// Tries the handshake with a server that may close the connection. Returns whether it replied.
    pub(crate) fn try_handshake(&mut self) -> bool {
        let handshake = [0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4];
        let mut answer = [0; 4];
        let result = self
            .0
            .write_all(&handshake)
            .and_then(|()| self.0.read_exact(&mut answer));
        result.is_ok() && answer == [1, 2, 3, 4]
    }

    /// Reads until the server closes the connection. A reset counts as a close.
    pub(crate) fn read_to_close(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => {
                panic!("the server did not close the connection: {error}, after {bytes:02x?}")
            }
        }
        bytes
    }

    pub(crate) fn close_sending(&self) {
        self.0.shutdown(Shutdown::Write).expect("still connected");
    }
}
