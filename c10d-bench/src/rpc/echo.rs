//! The floor of RPC benchmarks: a bare TCP echo, with blocking sockets and one thread on each side.
//!
//! Each payload has a length before it and is sent back when it is complete, as a function runs only with
//! complete arguments. There is no table of calls, no dispatch and no wake-up of another thread: only the
//! cost of the sockets remains.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;

use super::peer::{EchoClient, PeerKind};
use crate::affinity::Cores;
use crate::child::{ServerChild, announce, end_with_measurement};
use crate::failure::{Context as _, Failure};
use crate::numbers::PayloadBytes;
use crate::pair::PATIENCE;
use crate::pair::check_length;
use crate::report::repeat;

/// The length before each payload.
const HEADER_BYTES: usize = 4;

/// The client of an echo, and its server.
#[derive(Debug)]
pub(super) struct EchoPair {
    stream: TcpStream,
    received: Vec<u8>,
    /// Dropping it stops the server.
    _host: ServerChild,
}

impl EchoPair {
    /// Starts the server in a separate process.
    pub(super) fn two_processes(cores: Option<Cores>) -> Result<Self, Failure> {
        let host = ServerChild::start(&PeerKind::Echo.command_line(), cores)?;
        Ok(Self {
            stream: connect(host.address())?,
            received: Vec::new(),
            _host: host,
        })
    }

    /// Sends a frame; returns the payload of the answer.
    fn exchange(&mut self, frame: &[u8]) -> Result<&[u8], Failure> {
        self.stream.write_all(frame)?;
        let bytes = receive(&mut self.stream, &mut self.received)?;
        Ok(&self.received[HEADER_BYTES..bytes])
    }
}

impl EchoClient for EchoPair {
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, Failure> {
        let frame = frame(payload)?;
        Ok(Bytes::copy_from_slice(self.exchange(&frame)?))
    }

    fn one_at_a_time(&mut self, payload: &Bytes, time: Duration) -> Result<Vec<Duration>, Failure> {
        let frame = frame(payload)?;
        repeat(time, || check_length(payload, self.exchange(&frame)?.len()))
    }
}

/// The server process: serves one connection until it ends.
pub(super) fn serve() -> Result<(), Failure> {
    end_with_measurement();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    announce(listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;
    answer(stream).context("the bare echo")
}

/// Sends back each complete frame until the client disconnects.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut received = Vec::new();
    loop {
        match receive(&mut stream, &mut received) {
            Ok(bytes) => stream.write_all(&received[..bytes])?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn frame(payload: &Bytes) -> io::Result<Vec<u8>> {
    let bytes = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut frame = vec![0; HEADER_BYTES];
    LittleEndian::write_u32(&mut frame, bytes);
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// Reads one frame into the front of the buffer, which only grows, and returns its length. Its sender sends no other one
/// before the answer, so that a read never goes beyond its end.
fn receive(stream: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<usize> {
    /// Enough for a short frame with one read.
    const SHORT_BYTES: usize = 4096;
    let mut received = 0;
    let mut frame_bytes = None;
    while frame_bytes.is_none_or(|bytes| received < bytes) {
        let wanted = frame_bytes.unwrap_or(SHORT_BYTES);
        if buffer.len() < wanted {
            buffer.resize(wanted, 0);
        }
        let count = stream.read(&mut buffer[received..])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received += count;
        if let Some(header) = buffer[..received].first_chunk::<HEADER_BYTES>() {
            let payload_bytes =
                usize::try_from(LittleEndian::read_u32(header)).unwrap_or(usize::MAX);
            if payload_bytes > PAYLOAD_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "a payload of {payload_bytes} bytes exceeds the limit of {PAYLOAD_BYTES_MAX}"
                )));
            }
            frame_bytes = Some(HEADER_BYTES + payload_bytes);
        }
    }
    Ok(received)
}

/// An agent's default limits allow a few of these in flight.
const PAYLOAD_BYTES_MAX: usize = PayloadBytes::MAX.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_gives_the_same_frame() {
        let sent = frame(&vec![7; 300].into()).unwrap();
        for split in 1..sent.len() {
            let mut received = Vec::new();
            let mut pieces = sent[..split].chain(&sent[split..]);
            let bytes = receive(&mut pieces, &mut received).unwrap();
            assert_eq!(received[..bytes], sent, "split at {split}");
        }
    }

    #[test]
    fn a_payload_beyond_the_limit_is_an_error_and_allocates_nothing() {
        let mut received = Vec::new();
        let said = receive(&mut &[0xff; HEADER_BYTES][..], &mut received).unwrap_err();
        assert_eq!(
            said.to_string(),
            "a payload of 4294967295 bytes exceeds the limit of 67108864"
        );
        assert_eq!(received.len(), 4096);
    }

    #[test]
    fn the_end_of_the_stream_is_an_error_even_between_frames() {
        let ended = receive(&mut &[][..], &mut Vec::new()).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }
}
