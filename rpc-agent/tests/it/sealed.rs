//! A raw connection with TLS, for tests that directly write the bytes of a worker with a secret.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

use c10d_socket::{Credentials, Protocol, TlsLayer};

/// The client's end of a connection to an agent.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) stream: TcpStream,
    pub(crate) layer: TlsLayer,
    opened: Vec<u8>,
}

impl Sealed {
    /// A connection that has not begun its handshake.
    pub(crate) fn new(stream: TcpStream, credentials: &Credentials) -> Self {
        let client = credentials.client(Protocol::Rpc, "127.0.0.1").unwrap();
        Self {
            stream,
            layer: client.start().unwrap(),
            opened: Vec::new(),
        }
    }

    /// Completes the handshake.
    pub(crate) fn shake_hands(&mut self) -> io::Result<()> {
        while self.layer.is_handshaking() {
            self.layer.send(&mut self.stream)?;
            if self.receive()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.layer.send(&mut self.stream)?;
        Ok(())
    }

    /// Receives once, and opens it.
    pub(crate) fn receive(&mut self) -> io::Result<usize> {
        let mut wire = [0; 4096];
        let count = self.stream.read(&mut wire)?;
        self.layer.receive(&wire[..count], &mut self.opened)?;
        Ok(count)
    }
}

impl Read for Sealed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.opened.is_empty() {
            if self.receive()? == 0 {
                return Ok(0);
            }
        }
        let count = buffer.len().min(self.opened.len());
        buffer[..count].copy_from_slice(&self.opened[..count]);
        self.opened.drain(..count);
        Ok(count)
    }
}

impl Write for Sealed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.layer.seal(&[IoSlice::new(bytes)]);
        self.layer.send(&mut self.stream)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
