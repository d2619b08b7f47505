//! The TLS of a connection: one thread reads while another thread writes.
//!
//! TLS has one state for both directions. Its lock is held to open or to seal bytes in memory, never during a system
//! call. Only the thread that has the decoder opens, and only the thread that has the batch seals, so the order of
//! bytes needs no lock.

use std::io::{self, IoSlice, Write};
use std::mem;

use c10d_socket::{TlsLayer, is_tls, recv_into_spare};
use mio::net::TcpStream;

use crate::peer::{Incoming, Recipient};
use crate::sync::Lock;

/// The bytes received at once by a connection that has been idle, and by a busy connection.
const WIRE_BYTES_MIN: usize = 4 << 10;
const WIRE_BYTES_MAX: usize = 64 << 10;

/// A buffer with more capacity is freed after a use that needed at most this.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// The answer of a worker with a secret to a worker without one, and the other way round, which then need not try again: an
/// alert of TLS, in clear (unexpected_message; RFC 8446, section 6). As the head of a frame it would announce more than any
/// answer to a Hello may have.
pub(super) const SECRETS_DIFFER: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 10];

/// The TLS of one connection.
#[derive(Debug)]
pub(crate) struct Tls(Lock<State>);

#[derive(Debug)]
struct State {
    layer: TlsLayer,
    /// Taken out by the thread that writes.
    sealed: Sealed,
    /// The accepted connection has not received anything.
    is_new: bool,
}

/// Sealed bytes on their way to the system: at most 64 KiB, and what TLS adds to them.
#[derive(Debug, Default)]
struct Sealed {
    bytes: Vec<u8>,
    sent_bytes: usize,
    /// Bytes of the batch that are in it.
    plain_bytes: usize,
}

/// Memory that a thread uses for one read of a connection with TLS after another: some 128 KiB at most.
#[derive(Debug, Default)]
pub(super) struct SealedReads {
    wire: Vec<u8>,
    opened: Vec<u8>,
    /// Set by a receive that filled its buffer: the next one gets a larger one.
    wire_bytes: usize,
}

impl Tls {
    /// An accepted connection, before the handshake.
    pub(super) fn accepted(layer: TlsLayer) -> Self {
        Self::new(layer, true)
    }

    /// A connection of this worker, before the handshake.
    pub(super) fn dialed(layer: TlsLayer) -> Self {
        Self::new(layer, false)
    }

    fn new(layer: TlsLayer, is_new: bool) -> Self {
        Self(Lock::new(State {
            layer,
            sealed: Sealed::default(),
            is_new,
        }))
    }

    /// Whether the peer has not proved itself yet.
    pub(super) fn is_handshaking(&self) -> bool {
        self.0.lock().layer.is_handshaking()
    }

    /// Whether the peer has not proved itself, but has cost public-key operations.
    pub(super) fn is_costly_handshake(&self) -> bool {
        let state = self.0.lock();
        state.layer.is_handshaking() && state.layer.has_computed()
    }

    /// [`Socket::receive`](super::socket::Socket::receive). Everything that the received bytes contain for the decoder
    /// goes into it: nothing opened stays behind.
    pub(super) fn receive(
        &self,
        stream: &TcpStream,
        decoder: &mut Incoming,
        reads: &mut SealedReads,
        recipient: &mut impl Recipient,
    ) -> Received {
        let bytes_max = reads.prepare();
        let SealedReads { wire, opened, .. } = reads;
        let (count, mut failure) = received(recv_into_spare(stream, wire, bytes_max));
        if count > 0 {
            failure = self.open(wire, opened).err();
            // The bytes opened before a failure arrived from the peer.
            if let Err(error) = decoder.receive(opened, recipient) {
                failure = Some(invalid(error));
            }
        }
        let plain_bytes = opened.len();
        reads.done(count, bytes_max);
        Received {
            count,
            bytes_max,
            plain_bytes,
            failure,
        }
    }

    /// Sends what the handshake has produced. Returns whether all of it has left.
    pub(super) fn flush(&self, stream: &TcpStream) -> io::Result<bool> {
        let mut writer = self.writer(stream);
        match writer.write_vectored(&[]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Seals what is written and sends it. Only for the thread that has the batch.
    pub(super) fn writer<'t>(&'t self, stream: &'t TcpStream) -> Sealing<'t> {
        Sealing {
            tls: self,
            stream,
            kept_bytes: 0,
        }
    }

    fn open(&self, wire: &[u8], opened: &mut Vec<u8>) -> io::Result<()> {
        let mut state = self.0.lock();
        if mem::take(&mut state.is_new) && wire.first().is_some_and(|first| !is_tls(*first)) {
            state.sealed.bytes.extend_from_slice(&SECRETS_DIFFER);
            return Err(invalid("it does not use the secret of this worker"));
        }
        Ok(state.layer.receive(wire, opened)?)
    }

    /// Takes the sealed bytes out. If all of them were sent, seals these.
    fn seal(&self, pieces: &[IoSlice<'_>]) -> io::Result<Sealed> {
        let mut state = self.0.lock();
        let mut sealed = mem::take(&mut state.sealed);
        if sealed.is_sent() {
            sealed.clear();
            sealed.plain_bytes = state.layer.seal(pieces);
            state.layer.send(&mut sealed.bytes)?;
        }
        Ok(sealed)
    }
}

/// Seals written bytes and sends them. After [`io::ErrorKind::WouldBlock`] the same bytes must be written again,
/// since some of them may be sealed: they count as written when the system has accepted all bytes that were sealed
/// with them.
#[derive(Debug)]
pub(super) struct Sealing<'t> {
    tls: &'t Tls,
    stream: &'t TcpStream,
    kept_bytes: usize,
}

impl Sealing<'_> {
    /// Bytes that are sealed, but do not count as written. The peer may have got some of them.
    pub(super) const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

impl Write for Sealing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut sealed = self.tls.seal(pieces)?;
        let sent = sealed.send(self.stream);
        let written = match sent {
            Ok(()) => Ok(mem::take(&mut sealed.plain_bytes)),
            Err(error) => Err(error),
        };
        self.kept_bytes = sealed.plain_bytes;
        self.tls.0.lock().sealed = sealed;
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sealed {
    fn is_sent(&self) -> bool {
        self.sent_bytes == self.bytes.len()
    }

    fn clear(&mut self) {
        if self.bytes.len() <= IDLE_BYTES_MAX && self.bytes.capacity() > IDLE_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.sent_bytes = 0;
    }

    /// Sends all of it, or fails; [`io::ErrorKind::WouldBlock`] if the socket takes no more bytes.
    fn send(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        while !self.is_sent() {
            match stream.write(&self.bytes[self.sent_bytes..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl SealedReads {
    /// Makes room, and returns how much.
    fn prepare(&mut self) -> usize {
        self.wire.clear();
        self.opened.clear();
        self.wire_bytes = self.wire_bytes.clamp(WIRE_BYTES_MIN, WIRE_BYTES_MAX);
        self.wire.reserve_exact(self.wire_bytes);
        self.wire_bytes
    }

    /// Whether the last read has received exactly this.
    pub(super) fn received(&self, wire: &[u8]) -> bool {
        self.wire == wire
    }

    fn done(&mut self, count: usize, bytes_max: usize) {
        if count == bytes_max {
            self.wire_bytes = bytes_max * 4;
        } else if count <= WIRE_BYTES_MIN {
            self.wire_bytes = WIRE_BYTES_MIN;
        }
    }
}

/// The result of one receive.
#[derive(Debug)]
pub(super) struct Received {
    /// Bytes on the wire. 0 if there are none for now, or the connection has failed.
    pub(super) count: usize,
    /// The most bytes on the wire that could have been received.
    pub(super) bytes_max: usize,
    /// Bytes for the decoder.
    pub(super) plain_bytes: usize,
    /// The connection has failed, or the bytes break the protocol after the messages before.
    pub(super) failure: Option<io::Error>,
}

/// The count of a receive, 0 without input, and why the connection has failed.
pub(super) fn received(result: io::Result<usize>) -> (usize, Option<io::Error>) {
    match result {
        Ok(0) => {
            let text = "closed by the peer";
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, text);
            (0, Some(error))
        }
        Ok(count) => (count, None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, None),
        Err(error) => (0, Some(error)),
    }
}

pub(super) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(all(test, feature = "tls", not(shuttle)))]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use c10d_socket::{Credentials, Protocol, Secret};
    use socket2::SockRef;

    use super::*;

    /// A connection that has completed its handshake, and the other end's layer and stream.
    fn connected() -> (Tls, TcpStream, TlsLayer, std::net::TcpStream) {
        let credentials = Credentials::from(Secret::random().unwrap());
        let client = credentials.client(Protocol::Rpc, "localhost").unwrap();
        let server = credentials.server(Protocol::Rpc).unwrap();
        let (mut client, mut server) = (client.start().unwrap(), server.start().unwrap());
        while client.is_handshaking() || server.is_handshaking() {
            for _ in 0..2 {
                let mut wire = Vec::new();
                client.send(&mut wire).unwrap();
                server.receive(&wire, &mut Vec::new()).unwrap();
                mem::swap(&mut client, &mut server);
            }
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        SockRef::from(&stream).set_send_buffer_size(4096).unwrap();
        stream.set_nonblocking(true).unwrap();
        let (other, _) = listener.accept().unwrap();
        other.set_nonblocking(true).unwrap();
        let limit = Some(std::time::Duration::from_secs(60));
        other.set_read_timeout(limit).unwrap();
        let stream = TcpStream::from_std(stream);
        (Tls::dialed(client), stream, server, other)
    }

    #[test]
    fn bytes_that_the_peer_may_have_count_as_kept_and_arrive_once() {
        let (tls, stream, mut peer, mut other) = connected();
        let data: Vec<u8> = (0..3_000_000_u32).map(|index| (index / 7) as u8).collect();
        let (mut written, mut opened, mut wire) = (0, Vec::new(), vec![0; 30_000]);
        let (mut blocked, mut partly) = (0, 0);
        while written < data.len() {
            let mut writer = tls.writer(&stream);
            let (head, tail) = data[written..].split_at((data.len() - written) / 3);
            let kept = match writer.write_vectored(&[IoSlice::new(head), IoSlice::new(tail)]) {
                Ok(count) => {
                    written += count;
                    assert_eq!(writer.kept_bytes(), 0);
                    continue;
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    writer.kept_bytes()
                }
            };
            blocked += 1;
            while let Ok(count) = other.read(&mut wire) {
                peer.receive(&wire[..count], &mut opened).unwrap();
            }
            assert!(opened.len() <= written + kept);
            partly += usize::from(opened.len() > written);
            assert!(opened == data[..opened.len()], "other bytes");
        }
        assert_eq!(written, data.len());
        other.set_nonblocking(false).unwrap();
        while opened.len() < data.len() {
            let count = other.read(&mut wire).unwrap();
            assert!(count > 0, "the peer got {} bytes", opened.len());
            peer.receive(&wire[..count], &mut opened).unwrap();
        }
        assert!(opened == data, "other bytes");
        assert!(blocked > 0 && partly > 0, "{blocked} {partly}");
        assert!(tls.0.lock().sealed.bytes.capacity() < 80 << 10);
    }
}
