//! A peer that speaks bytes, for tests of what a well-behaved client never does.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::wire::RequestBuf;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Longer than anything takes on a loaded machine: only a hang lasts as long.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Waits until `holds` does; looks now and then.
#[track_caller]
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// How many connections one test may have, so that two that want many can run beside each other and
/// beside all that want few. Both ends of each are in this process.
pub(crate) fn connections_possible() -> u64 {
    open_files_limit().saturating_sub(400) / 4
}

/// How many files this process may have open, after asking the system for as many as it allows.
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

pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Connects and says nothing.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("an option of the socket");
        stream
            .set_read_timeout(Some(LONG))
            .expect("an option of the socket");
        stream
            .set_write_timeout(Some(LONG))
            .expect("an option of the socket");
        Self(stream)
    }

    /// Connects and says hello as PyTorch's client does.
    pub(crate) fn greeted(address: SocketAddr) -> Self {
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

    pub(crate) fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0
            .read_exact(&mut bytes)
            .unwrap_or_else(|error| panic!("{count} bytes wanted: {error}"));
        bytes
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, bytes: &[u8]) {
        let got = self.read(bytes.len());
        assert!(got == bytes, "want {bytes:02x?}, got {got:02x?}");
    }

    /// Whatever was sent has been handled, and nothing but the PING's answer came back.
    #[track_caller]
    pub(crate) fn fence(&mut self) {
        self.send(&[0x0d, 0x5e, 0xc4, 0xe7, 0xf0]);
        self.expect(&[0x5e, 0xc4, 0xe7, 0xf0]);
    }

    /// Says hello to a server that may close at once; whether it answered.
    pub(crate) fn try_greet(&mut self) -> bool {
        let hello = [0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4];
        let mut answer = [0; 4];
        let result = self
            .0
            .write_all(&hello)
            .and_then(|()| self.0.read_exact(&mut answer));
        result.is_ok() && answer == [1, 2, 3, 4]
    }

    /// Everything up to the server's close. A reset counts as one.
    pub(crate) fn read_to_close(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("not closed: {error}, after {bytes:02x?}"),
        }
        bytes
    }

    pub(crate) fn close_sending(&self) {
        self.0.shutdown(Shutdown::Write).expect("still connected");
    }
}
