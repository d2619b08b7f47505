//! The client's end of a session's link, by raw bytes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use byteorder::{ByteOrder, LittleEndian};
use c10d_socket::SendBuf;
use c10d_store::Opcode;
use c10d_store::unstable::{Credit, Frame, FrameReader, RequestBuf, SessionStream};

use super::LONG;

/// The link of a session, with the client's end of it.
pub(crate) struct Link {
    pub(crate) socket: TcpStream,
    pub(crate) stream: SessionStream,
    pub(crate) reader: FrameReader,
    credits: BTreeMap<u32, Credit>,
    /// The bytes that each client has received.
    pub(crate) replies: BTreeMap<u32, Vec<u8>>,
    pub(crate) closed: Vec<u32>,
    /// The number of bytes that have arrived on the link.
    pub(crate) link_bytes: usize,
}

/// A bit of the milliseconds of SESSION: the client takes pieces.
pub(crate) const TAKES_PIECES: u32 = 1 << 30;

/// Sends SESSION after the handshake. Returns the connection, and the status; `None` if it was closed.
pub(crate) fn ask(address: SocketAddr, attempt: u64) -> (TcpStream, Option<u8>) {
    ask_store(address, attempt, [0; 16], 0)
}

pub(crate) fn ask_store(
    address: SocketAddr,
    attempt: u64,
    store: [u8; 16],
    flags: u32,
) -> (TcpStream, Option<u8>) {
    ask_to_keep(address, attempt, store, 600_000 | flags)
}

/// The lower bits of the flags are the milliseconds for which the server keeps the session without a link.
fn ask_to_keep(
    address: SocketAddr,
    attempt: u64,
    store: [u8; 16],
    flags: u32,
) -> (TcpStream, Option<u8>) {
    let mut socket = TcpStream::connect(address).expect("the server accepts");
    socket.set_read_timeout(Some(LONG)).expect("an option");
    socket.set_write_timeout(Some(LONG)).expect("an option");
    let mut request = RequestBuf::new();
    request.hello();
    let mut bytes = request.to_bytes();
    bytes.push(Opcode::Session as u8);
    bytes.extend(std::iter::repeat_with(|| fastrand::u8(..)).take(16));
    bytes.extend(store);
    let mut numbers = [0; 20];
    LittleEndian::write_u64(&mut numbers[..8], attempt);
    LittleEndian::write_u32(&mut numbers[16..], flags);
    bytes.extend(numbers);
    socket.write_all(&bytes).expect("the server reads");
    let mut answer = [0; 29];
    match socket.read_exact(&mut answer) {
        Ok(()) => (socket, Some(answer[4])),
        Err(_) => (socket, None),
    }
}

impl Link {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::open_with(address, 0)
    }

    pub(crate) fn open_with(address: SocketAddr, flags: u32) -> Self {
        Self::open_to_keep(address, 600_000 | flags)
    }

    /// Opens a session that the server keeps without a link for the milliseconds in the lower bits of the flags.
    pub(crate) fn open_to_keep(address: SocketAddr, flags: u32) -> Self {
        let (socket, status) = ask_to_keep(address, 1, [0; 16], flags);
        assert_eq!(status, Some(0), "accepted");
        Self {
            socket,
            stream: SessionStream::default(),
            reader: match flags & TAKES_PIECES {
                0 => FrameReader::default(),
                _ => FrameReader::taking_pieces(),
            },
            credits: BTreeMap::new(),
            replies: BTreeMap::new(),
            closed: Vec::new(),
            link_bytes: 0,
        }
    }

    pub(crate) fn open_clients(&mut self, clients: std::ops::Range<u32>) {
        for client in clients {
            self.stream.push_open(client, 4711);
            self.credits.insert(client, Credit::default());
        }
    }

    /// Sends what is in the stream.
    pub(crate) fn send(&mut self) {
        let mut out = SendBuf::new();
        self.stream.fill(&mut out, usize::MAX);
        out.flush(&mut self.socket).expect("the server reads");
    }

    /// Sends as much of it as the server takes: it may refuse the peer.
    pub(crate) fn try_send(&mut self) {
        let mut out = SendBuf::new();
        self.stream.fill(&mut out, usize::MAX);
        let _ = out.flush(&mut self.socket);
    }

    /// Ends the session, and waits until the server has closed it.
    pub(crate) fn end(mut self) {
        self.stream.push_end();
        self.try_send();
        let _ = std::io::copy(&mut self.socket, &mut std::io::sink());
    }

    /// Reads once, and returns credit.
    pub(crate) fn receive(&mut self) {
        self.receive_for(|_| true);
    }

    /// Reads once, and returns the credit of these clients.
    pub(crate) fn receive_for(&mut self, reads: impl Fn(u32) -> bool) {
        let mut bytes = vec![0; 256 << 10];
        let count = self.socket.read(&mut bytes).expect("the server sends");
        assert!(count > 0, "the server has closed the link");
        self.link_bytes += count;
        let mut bytes = &bytes[..count];
        while let Some(mut piece) = self.stream.next_bytes(&mut bytes).expect("link frames") {
            while let Some(frame) = self.reader.next(&mut piece).expect("frames") {
                match frame {
                    Frame::Data { client, bytes } => self.take(client, bytes, reads(client)),
                    Frame::Shared { client, bytes } => self.take(client, &bytes, reads(client)),
                    Frame::Close { client } => self.closed.push(client),
                    _ => {}
                }
            }
        }
        self.send();
    }

    fn take(&mut self, client: u32, bytes: &[u8], reads: bool) {
        let credit = self.credits.get_mut(&client).expect("it was opened");
        credit.received(bytes.len()).expect("it had credit");
        self.replies.entry(client).or_default().extend(bytes);
        if reads && let Some(returned) = credit.used(bytes.len()) {
            self.stream.push_credit(client, returned);
        }
    }

    pub(crate) fn receive_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}");
            self.receive();
        }
    }

    pub(crate) fn received_bytes(&self) -> usize {
        self.replies.values().map(Vec::len).sum()
    }
}

pub(crate) fn requests<'v>(build: impl FnOnce(&mut RequestBuf<'v>)) -> Vec<u8> {
    let mut request = RequestBuf::new();
    build(&mut request);
    request.to_bytes()
}
