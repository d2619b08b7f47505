//! A client that speaks the store's wire protocol byte by byte, so that a test can misbehave.
//!
//! Written out by hand, apart from the library: a mistake made on both sides would hide itself.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};

/// How long a reply may take before the test fails.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

const MAGIC: u32 = 0x3C85_F7CE;

/// A connection to a store's server.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
}

/// A request, put together piece by piece.
#[derive(Debug, Clone, Default)]
pub struct Request {
    bytes: Vec<u8>,
}

/// The command bytes that the tests send.
#[expect(missing_docs, reason = "each is the command of the same name")]
pub mod command {
    pub const VALIDATE: u8 = 0;
    pub const SET: u8 = 1;
    pub const GET: u8 = 3;
    pub const ADD: u8 = 4;
    pub const WAIT: u8 = 6;
    pub const CANCEL_WAIT: u8 = 12;
    pub const PING: u8 = 13;
    pub const BARRIER: u8 = 18;
}

/// A wait or barrier is over because the keys are there.
pub const READY: u8 = 0;
/// A wait or barrier is over because it was cancelled.
pub const CANCELLED: u8 = 1;

impl Request {
    /// A request that starts with this command byte.
    #[must_use]
    pub fn new(command: u8) -> Self {
        Self {
            bytes: vec![command],
        }
    }

    /// Adds a length and the bytes.
    #[must_use]
    pub fn blob(self, bytes: &[u8]) -> Self {
        let mut request = self.u64(bytes.len() as u64);
        request.bytes.extend_from_slice(bytes);
        request
    }

    /// Adds a `u32`.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        let mut bytes = [0; 4];
        LittleEndian::write_u32(&mut bytes, value);
        self.bytes.extend_from_slice(&bytes);
        self
    }

    /// Adds a `u64`.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        let mut bytes = [0; 8];
        LittleEndian::write_u64(&mut bytes, value);
        self.bytes.extend_from_slice(&bytes);
        self
    }

    /// Adds an `i64`.
    #[must_use]
    pub fn i64(mut self, value: i64) -> Self {
        let mut bytes = [0; 8];
        LittleEndian::write_i64(&mut bytes, value);
        self.bytes.extend_from_slice(&bytes);
        self
    }

    /// The bytes so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl RawClient {
    /// Connects, without a word.
    ///
    /// # Errors
    /// When the system says so.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_write_timeout(Some(REPLY_LIMIT))?;
        Ok(Self { stream })
    }

    /// Connects, introduces itself and waits for the answer.
    ///
    /// # Errors
    /// When the system says so, or the answer is wrong or late.
    pub fn join(address: SocketAddr) -> io::Result<Self> {
        let mut client = Self::connect(address)?;
        client.hello()?;
        Ok(client)
    }

    /// Introduces itself and waits for the answer.
    ///
    /// # Errors
    /// When the system says so, or the answer is wrong or late.
    pub fn hello(&mut self) -> io::Result<()> {
        self.send(&Request::new(command::VALIDATE).u32(MAGIC))?;
        self.fence()
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the system says so, or the peer stops reading for too long.
    pub fn send(&mut self, request: &Request) -> io::Result<()> {
        self.send_bytes(request.bytes())
    }

    /// Sends anything.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits until everything sent so far has been carried out, by a PING; the next bytes to come
    /// must be its reply.
    ///
    /// # Errors
    /// When the connection is closed, or anything else comes first.
    pub fn fence(&mut self) -> io::Result<()> {
        const NONCE: u32 = 0x5EED_CAFE;
        self.send(&Request::new(command::PING).u32(NONCE))?;
        let nonce = LittleEndian::read_u32(&self.read_bytes::<4>()?);
        if nonce == NONCE {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("not the PING's reply: {nonce:#010x}"),
        ))
    }

    /// One byte of reply.
    ///
    /// # Errors
    /// When the connection is closed or nothing comes in time.
    pub fn read_u8(&mut self) -> io::Result<u8> {
        Ok(self.read_bytes::<1>()?[0])
    }

    /// An `i64` of reply.
    ///
    /// # Errors
    /// As [`read_u8`](Self::read_u8).
    pub fn read_i64(&mut self) -> io::Result<i64> {
        Ok(LittleEndian::read_i64(&self.read_bytes::<8>()?))
    }

    /// A length and as many bytes.
    ///
    /// # Errors
    /// As [`read_u8`](Self::read_u8).
    pub fn read_blob(&mut self) -> io::Result<Vec<u8>> {
        let length = LittleEndian::read_u64(&self.read_bytes::<8>()?);
        let mut bytes = Vec::new();
        Read::by_ref(&mut self.stream)
            .take(length)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }

    /// Waits until the peer closes, and how many bytes came before that.
    ///
    /// # Errors
    /// When it does not close in time. A reset counts as closed.
    pub fn read_to_close(&mut self) -> io::Result<u64> {
        match io::copy(&mut self.stream, &mut io::sink()) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            other => other,
        }
    }

    /// Closes both directions.
    ///
    /// # Errors
    /// When the system says so.
    pub fn close(self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Both)
    }

    fn read_bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
