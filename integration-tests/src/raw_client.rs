//! A client that sends any bytes, so that tests can violate the store's wire protocol.
//!
//! It shares no code with the library: a bug in shared code would go unnoticed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};

/// The timeout for each read and write.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

const MAGIC: u32 = 0x3C85_F7CE;

/// A connection to a store's server.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
}

/// A request under construction.
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
    pub const CANCEL_WAIT: u8 = 12;
    pub const PING: u8 = 13;
    pub const BARRIER: u8 = 18;
}

/// The reply to a wait or barrier whose keys exist.
pub const READY: u8 = 0;
/// The reply to a cancelled wait or barrier.
pub const CANCELLED: u8 = 1;

impl Request {
    /// Creates a request with a command byte.
    #[must_use]
    pub fn new(command: u8) -> Self {
        Self {
            bytes: vec![command],
        }
    }

    /// Appends a length and the bytes.
    #[must_use]
    pub fn blob(self, bytes: &[u8]) -> Self {
        let mut request = self.u64(bytes.len() as u64);
        request.bytes.extend_from_slice(bytes);
        request
    }

    /// Appends a `u32`.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        let mut bytes = [0; 4];
        LittleEndian::write_u32(&mut bytes, value);
        self.bytes.extend_from_slice(&bytes);
        self
    }

    /// Appends a `u64`.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        let mut bytes = [0; 8];
        LittleEndian::write_u64(&mut bytes, value);
        self.bytes.extend_from_slice(&bytes);
        self
    }

    /// Appends an `i64`.
    #[must_use]
    pub fn i64(mut self, value: i64) -> Self {
        let mut bytes = [0; 8];
        LittleEndian::write_i64(&mut bytes, value);
        self.bytes.extend_from_slice(&bytes);
        self
    }
}

impl RawClient {
    /// Connects, sends the handshake and waits until the server has accepted it.
    ///
    /// # Errors
    /// When the connection is closed, or the reply is wrong or late.
    pub fn join(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_write_timeout(Some(REPLY_LIMIT))?;
        let mut client = Self { stream };
        client.send(&Request::new(command::VALIDATE).u32(MAGIC))?;
        client.fence()?;
        Ok(client)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the connection is closed, or the server does not read in time.
    pub fn send(&mut self, request: &Request) -> io::Result<()> {
        self.stream.write_all(&request.bytes)
    }

    /// Waits until the server has executed all requests sent so far: sends a PING, and expects its reply next.
    ///
    /// # Errors
    /// When the connection is closed, or the next bytes are not the reply to the PING.
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

    /// Reads one byte of a reply.
    ///
    /// # Errors
    /// When the connection is closed, or no byte arrives in time.
    pub fn read_u8(&mut self) -> io::Result<u8> {
        Ok(self.read_bytes::<1>()?[0])
    }

    /// Reads an `i64` of a reply.
    ///
    /// # Errors
    /// As [`read_u8`](Self::read_u8).
    pub fn read_i64(&mut self) -> io::Result<i64> {
        Ok(LittleEndian::read_i64(&self.read_bytes::<8>()?))
    }

    /// Reads a length and the bytes.
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

    fn read_bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
