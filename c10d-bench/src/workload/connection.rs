//! One connection with blocking reads and writes: a poll in between would add to both sides of a ratio, in the server's
//! favour.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::requests;
use crate::failure::{Context as _, Failure};
use crate::fleet::{SILENCE_MAX, lost};

/// Bytes of a wrong reply that an error shows.
const SHOWN_BYTES: usize = 16;

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    reply: Vec<u8>,
}

impl Connection {
    /// To any server, without a handshake.
    pub(super) fn open(address: SocketAddr) -> Result<Self, Failure> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE_MAX))?;
            stream.set_write_timeout(Some(SILENCE_MAX))?;
            io::Result::Ok(stream)
        };
        Ok(Self {
            stream: connect().with_context(|| format!("cannot connect to {address}"))?,
            address,
            reply: Vec::new(),
        })
    }

    /// To a store.
    pub(super) fn to_store(address: SocketAddr) -> Result<Self, Failure> {
        let mut this = Self::open(address)?;
        this.exchange("PING", &requests::hello(), &requests::HELLO_REPLY)?;
        Ok(this)
    }

    /// Sends requests, of which `name` is the one with a reply, and compares it.
    pub(super) fn exchange(
        &mut self,
        name: &str,
        requests: &[u8],
        expected: &[u8],
    ) -> Result<(), Failure> {
        self.send(requests)?;
        self.receive(name, expected)
    }

    pub(super) fn send(&mut self, requests: &[u8]) -> Result<(), Failure> {
        let sent = self.stream.write_all(requests);
        sent.map_err(|error| lost(self.address, 0, error))
    }

    pub(super) fn receive(&mut self, name: &str, expected: &[u8]) -> Result<(), Failure> {
        if self.reply.len() < expected.len() {
            self.reply.resize(expected.len(), 0);
        }
        let reply = &mut self.reply[..expected.len()];
        let received = self.stream.read_exact(reply);
        received.map_err(|error| lost(self.address, 0, error))?;
        if reply == expected {
            return Ok(());
        }
        let detail = format!("{:02x?}", &reply[..reply.len().min(SHOWN_BYTES)]);
        Err(Failure::wrong_answer(self.address, name, detail))
    }

    /// Whether a reply of this length can be read without waiting.
    pub(super) fn has_received(&self, reply_bytes: usize) -> Result<bool, Failure> {
        let peek = || {
            self.stream.set_nonblocking(true)?;
            let mut reply = [0; 8];
            let peeked = self.stream.peek(&mut reply[..reply_bytes]);
            self.stream.set_nonblocking(false)?;
            match peeked {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                peeked => Ok(peeked.is_ok_and(|count| count == reply_bytes)),
            }
        };
        peek().map_err(|error| lost(self.address, 0, error))
    }
}
