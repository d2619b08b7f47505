//! A bare client of the JSON gateway of one member, with blocking reads and writes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The most bytes of an answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Gateway {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Gateway {
    /// `timeout` is that of the connect and of each call.
    pub(super) fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// After an error the connection is of no use.
    pub(super) fn post(&mut self, path: &str, body: &str) -> io::Result<Value> {
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}");
        self.stream.write_all(request.as_bytes())?;
        self.received.clear();
        let (head_bytes, body_bytes) = loop {
            if let Some(found) = head_of(&self.received)? {
                break found;
            }
            self.receive()?;
        };
        while self.received.len() < head_bytes + body_bytes {
            self.receive()?;
        }
        let body = &self.received[head_bytes..];
        if !self.received.starts_with(b"HTTP/1.1 200 ") {
            return Err(io::Error::other(String::from_utf8_lossy(body).into_owned()));
        }
        Ok(serde_json::from_slice(body)?)
    }

    /// The whole text at a path; the connection ends with it.
    pub(super) fn get(mut self, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        self.stream.read_to_string(&mut text)?;
        Ok(text)
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let count = self.stream.read(&mut bytes)?;
        if count == 0 || self.received.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received.extend_from_slice(&bytes[..count]);
        Ok(())
    }
}

/// The bytes of the head, and of the body, once the head is complete.
fn head_of(received: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let Some(end) = received.windows(4).position(|end| end == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|length| length.trim().parse().ok());
    match length {
        Some(length) => Ok(Some((end + 4, length))),
        // Such as one in chunks: none of the calls here has one.
        None => Err(io::Error::other("etcd's answer has no length")),
    }
}

/// A key or a value, as the gateway takes it.
pub(super) fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// etcd's numbers are texts.
pub(super) fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}
