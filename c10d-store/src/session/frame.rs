//! Frames: whose bytes the stream carries (docs/spec/wire-extensions.md, SESSION 6).

use std::io::{self, Write};
use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian};
use c10d_socket::SendBuf;

use super::pieces::Pieces;
use super::resent_wait::ResentWait;
use super::stream::{SessionStream, Violation};

/// The length of a head: a kind (u8), a client (u32), and a number that depends on the kind (u32).
const HEAD_BYTES: usize = 9;

/// The most clients of a group.
pub const GROUP_CLIENTS_MAX: usize = 1024;

/// The most bytes of a request that a group sends.
pub const GROUP_BYTES_MAX: usize = 4096;

const OPEN: u8 = 1;
const DATA: u8 = 2;
const GROUP: u8 = 3;
const CLOSE: u8 = 4;
const CREDIT: u8 = 5;
const END: u8 = 6;
const RESUME: u8 = 7;
/// The kind of DONE; to the server, of RESENT.
const DONE: u8 = 8;
const PIECE: u8 = 9;
const SHARED: u8 = 10;
const POSITION: u8 = 11;

/// An item of a session's stream. Clients have numbers, which the client's side assigns in ascending order and never
/// uses again.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A new client, whose connection to the relay has this port. To the server only.
    Open {
        /// The number of the client within the session.
        client: u32,
        /// The port of its connection to the relay; 0 if it has none.
        port: u16,
    },
    /// The next bytes of a client: of its requests or of its replies. A frame of many bytes arrives in several.
    Data {
        /// The number of the client within the session.
        client: u32,
        /// The bytes: at least one, and not more than have arrived.
        bytes: &'a [u8],
    },
    /// The next bytes of a client's replies, which other clients get as well. From the server only.
    Shared {
        /// The number of the client within the session.
        client: u32,
        /// The bytes, at least one.
        bytes: Arc<Vec<u8>>,
    },
    /// The same bytes of several clients, one client after the other. To the server only.
    Group(Group),
    /// The client has closed its connection or, from the server, was refused.
    Close {
        /// The number of the client within the session.
        client: u32,
    },
    /// The sender has used this many bytes of the client.
    Credit {
        /// The number of the client within the session.
        client: u32,
        /// The number of bytes.
        bytes: u32,
    },
    /// The client was open before the server's restart: its next request has this number. To the server only.
    Resume {
        /// The number of the client within the session.
        client: u32,
        /// The number of the request, from 1.
        request: u32,
    },
    /// Requests are done. From the server: all requests of the client up to this number are carried out, and survive
    /// a restart. To the server, the frame has another meaning: the wait that follows is a [`ResentWait`].
    Done {
        /// The number of the client within the session.
        client: u32,
        /// The number of the request, from 1; or the encoded [`ResentWait`].
        request: u32,
    },
    /// The session and all its clients have ended. From the server: everything before the client's END has been
    /// carried out.
    End,
}

impl Frame<'_> {
    /// Returns the client that this frame is for; `None` if it is for several, or for the session.
    #[must_use]
    pub const fn client(&self) -> Option<u32> {
        match *self {
            Self::Open { client, .. }
            | Self::Data { client, .. }
            | Self::Shared { client, .. }
            | Self::Close { client }
            | Self::Credit { client, .. }
            | Self::Resume { client, .. }
            | Self::Done { client, .. } => Some(client),
            Self::Group(_) | Self::End => None,
        }
    }
}

/// The bytes of a [`Frame::Group`] and the clients that send them.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// The clients' numbers, then the bytes.
    payload: Vec<u8>,
    clients: usize,
}

impl Group {
    /// Returns the clients, in the order in which their bytes are handled.
    pub fn clients(&self) -> impl Iterator<Item = u32> {
        let (clients, _) = self.payload.split_at(self.clients * 4);
        clients.chunks_exact(4).map(LittleEndian::read_u32)
    }

    /// Returns the memory of the numbers and the bytes, in bytes.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.payload.capacity()
    }

    /// Returns the bytes that each of the clients sends.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.payload[self.clients * 4..]
    }
}

impl SessionStream {
    /// Appends a [`Frame::Open`].
    pub fn push_open(&mut self, client: u32, port: u16) {
        self.push(&head(OPEN, client, u32::from(port)));
    }

    /// Appends a [`Frame::Data`], for which there must be [credit](super::Credit).
    ///
    /// # Panics
    /// If there are 4 GiB or more.
    pub fn push_data(&mut self, client: u32, bytes: &[u8]) {
        assert!(u32::try_from(bytes.len()).is_ok(), "credit is less");
        self.push(&head(DATA, client, length(bytes.len())));
        self.push(bytes);
    }

    /// Appends a [`Frame::Data`] with the first `count` unsent bytes of `from`, which must have as many.
    pub fn push_data_from(&mut self, client: u32, from: &mut SendBuf, count: usize) {
        self.push(&head(DATA, client, length(count)));
        let mut writer = Counted {
            stream: self,
            left: count,
        };
        // It fails only by blocking.
        let _ = from.flush(&mut writer);
    }

    /// Appends a [`Frame::Group`] of at most [`GROUP_CLIENTS_MAX`] clients and [`GROUP_BYTES_MAX`] bytes.
    pub fn push_group(&mut self, clients: &[u32], bytes: &[u8]) {
        debug_assert!(clients.len() <= GROUP_CLIENTS_MAX && bytes.len() <= GROUP_BYTES_MAX);
        self.push(&head(GROUP, length(clients.len()), length(bytes.len())));
        for client in clients {
            let mut word = [0; 4];
            LittleEndian::write_u32(&mut word, *client);
            self.push(&word);
        }
        self.push(bytes);
    }

    /// Appends a piece of a value, which the peer keeps in a place.
    pub(super) fn push_piece(&mut self, place: u32, bytes: &[u8]) {
        self.push(&head(PIECE, place, length(bytes.len())));
        self.push(bytes);
    }

    /// Appends a [`Frame::Shared`] of the piece in a place, for which there must be [credit](super::Credit).
    pub(super) fn push_shared(&mut self, client: u32, place: u32) {
        self.push(&head(SHARED, client, place));
    }

    /// Appends a [`Frame::Close`].
    pub fn push_close(&mut self, client: u32) {
        self.push(&head(CLOSE, client, 0));
    }

    /// Appends a [`Frame::Credit`].
    pub fn push_credit(&mut self, client: u32, bytes: u32) {
        self.push(&head(CREDIT, client, bytes));
    }

    /// Appends a [`Frame::Resume`].
    pub fn push_resume(&mut self, client: u32, request: u32) {
        self.push(&head(RESUME, client, request));
    }

    /// Appends a [`Frame::Done`] to the server.
    pub fn push_resent(&mut self, client: u32, wait: ResentWait) {
        self.push(&head(DONE, client, wait.encode()));
    }

    /// Appends a [`Frame::Done`] from the server.
    pub fn push_done(&mut self, client: u32, request: u32) {
        self.push(&head(DONE, client, request));
    }

    /// Appends the position up to which the journal has kept what later replies show.
    pub(crate) fn push_position(&mut self, position: u64) {
        let [high, low] = [(position >> 32) as u32, position as u32];
        self.push(&head(POSITION, high, low));
    }

    /// Appends a [`Frame::End`].
    pub fn push_end(&mut self) {
        self.push(&head(END, 0, 0));
    }
}

/// Takes a number of bytes, then blocks.
struct Counted<'s> {
    stream: &'s mut SessionStream,
    left: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.left);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.push(&bytes[..count]);
        self.left -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn head(kind: u8, client: u32, number: u32) -> [u8; HEAD_BYTES] {
    let mut bytes = [kind, 0, 0, 0, 0, 0, 0, 0, 0];
    LittleEndian::write_u32(&mut bytes[1..5], client);
    LittleEndian::write_u32(&mut bytes[5..], number);
    bytes
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Finds the frames in a stream that arrives in pieces.
#[derive(Debug, Default)]
pub struct FrameReader {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Bytes left of a DATA frame.
    data_left: usize,
    group: Option<Box<PartialGroup>>,
    /// `None` if the peer may not send pieces.
    pieces: Option<Box<Pieces>>,
    /// `None` if the peer must not send a position.
    position: Option<u64>,
}

#[derive(Debug)]
struct PartialGroup {
    group: Group,
    payload_bytes: usize,
}

impl FrameReader {
    /// Returns the memory of a group that has arrived in part, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let partial = self.group.as_ref();
        partial.map_or(0, |partial| partial.group.memory_bytes())
    }

    /// Creates a reader for a server that was informed that pieces are taken (docs/spec/wire-extensions.md, SESSION
    /// 16).
    #[must_use]
    pub fn taking_pieces() -> Self {
        Self {
            pieces: Some(Box::new(Pieces::new())),
            ..Self::default()
        }
    }

    /// Adds positions, for a server that was asked for them (docs/spec/wire-extensions.md, SESSION 19).
    #[must_use]
    pub fn taking_positions(mut self) -> Self {
        self.position = Some(0);
        self
    }

    /// Begins to read another stream in the same way.
    pub(super) fn restart(&mut self) {
        let pieces = self.pieces.is_some().then(|| Box::new(Pieces::new()));
        *self = Self {
            pieces,
            position: self.position,
            ..Self::default()
        };
    }

    /// Returns the position up to which the server's journal has kept the frames read so far; 0 if it has not
    /// reported any.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position.unwrap_or(0)
    }

    /// Takes the next frame from the front of `bytes`; `None` once they are used up.
    ///
    /// # Errors
    /// [`Violation`] if the bytes are not a frame.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Violation> {
        if let Some(group) = self.continue_group(bytes) {
            return Ok(group.map(Frame::Group));
        }
        while self.data_left == 0 {
            if let Some(pieces) = &mut self.pieces
                && !pieces.take_in(bytes)
            {
                return Ok(None);
            }
            if self.head_bytes == HEAD_BYTES {
                self.head_bytes = 0;
            }
            let now = take(bytes, HEAD_BYTES - self.head_bytes);
            self.head[self.head_bytes..self.head_bytes + now.len()].copy_from_slice(now);
            self.head_bytes += now.len();
            if self.head_bytes < HEAD_BYTES {
                return Ok(None);
            }
            let (client, number) = (self.client(), LittleEndian::read_u32(&self.head[5..]));
            match (self.head[0], &mut self.pieces) {
                (DATA, _) if number == 0 => {
                    return Err(Violation::new("it sent no bytes of a client"));
                }
                (DATA, _) => self.data_left = number as usize,
                (GROUP, _) => {
                    self.start_group(number as usize)?;
                    return Ok(self.continue_group(bytes).flatten().map(Frame::Group));
                }
                (PIECE, Some(pieces)) => pieces.start(client, number)?,
                (SHARED, Some(pieces)) => {
                    let bytes = pieces.get(number)?;
                    return Ok(Some(Frame::Shared { client, bytes }));
                }
                (POSITION, _) if let Some(position) = &mut self.position => {
                    *position = (*position).max(u64::from(client) << 32 | u64::from(number));
                }
                (kind, _) => return short_frame(kind, client, number).map(Some),
            }
        }
        let data = take(bytes, self.data_left);
        self.data_left -= data.len();
        if data.is_empty() {
            return Ok(None);
        }
        Ok(Some(Frame::Data {
            client: self.client(),
            bytes: data,
        }))
    }

    fn client(&self) -> u32 {
        LittleEndian::read_u32(&self.head[1..5])
    }

    fn start_group(&mut self, bytes: usize) -> Result<(), Violation> {
        let clients = self.client() as usize;
        if clients > GROUP_CLIENTS_MAX || !(1..=GROUP_BYTES_MAX).contains(&bytes) {
            return Err(Violation::new("it sent too large a group"));
        }
        self.group = Some(Box::new(PartialGroup {
            group: Group {
                payload: Vec::new(),
                clients,
            },
            payload_bytes: 4 * clients + bytes,
        }));
        Ok(())
    }

    /// `None` if there is no group; `Some(None)` if it is not complete.
    fn continue_group(&mut self, bytes: &mut &[u8]) -> Option<Option<Group>> {
        let partial = self.group.as_mut()?;
        let payload = &mut partial.group.payload;
        payload.extend_from_slice(take(bytes, partial.payload_bytes - payload.len()));
        if payload.len() < partial.payload_bytes {
            return Some(None);
        }
        Some(self.group.take().map(|partial| partial.group))
    }
}

fn short_frame<'a>(kind: u8, client: u32, number: u32) -> Result<Frame<'a>, Violation> {
    Ok(match kind {
        OPEN => Frame::Open {
            client,
            port: u16::try_from(number).map_err(|_| Violation::new("it sent no port"))?,
        },
        CLOSE => Frame::Close { client },
        CREDIT => Frame::Credit {
            client,
            bytes: number,
        },
        END => Frame::End,
        RESUME => Frame::Resume {
            client,
            request: number,
        },
        DONE => Frame::Done {
            client,
            request: number,
        },
        _ => return Err(Violation::new("it sent an unknown frame")),
    })
}

/// Takes at most `count` bytes from the front.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (now, later) = bytes.split_at(count.min(bytes.len()));
    *bytes = later;
    now
}
