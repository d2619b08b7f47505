//! A simulated relay, at its end of a session with the store.
//!
//! Handles the requests of ranks and the frames of the store as `c10d-relay` does, without connections to the ranks. Pure:
//! no socket or clock.

use byteorder::{ByteOrder, LittleEndian};
use c10d_socket::SendBuf;
use c10d_store::Opcode;
use c10d_store::unstable::{
    CAPABILITY_MASK, CAPABILITY_NONCE, Credit, Frame, FrameReader, GROUP_BYTES_MAX,
    GROUP_CLIENTS_MAX, RequestBuf, SessionStream, Violation, capability,
};

/// Time for which the store is to remember a session, in milliseconds.
const KEEP_MILLIS: u32 = 600_000;

/// Bits of the milliseconds: a relay can send requests again to a store that was restarted, and takes long values in pieces
/// that its ranks share.
const CARRIES_OVER: u32 = 1 << 31;
const TAKES_PIECES: u32 = 1 << 30;

/// The first byte of the answer to SESSION if the session has begun.
const ACCEPTED: u8 = 0;

/// The answers to the handshake: the capabilities, and that to SESSION.
const HELLO_REPLY_BYTES: usize = 4;
const HANDSHAKE_REPLY_BYTES: usize = HELLO_REPLY_BYTES + 1 + 16 + 8;

/// The reason why a session cannot continue.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("{0}")]
    Unexpected(&'static str),
    #[error("{received} bytes instead of {expected}")]
    TooLong { received: usize, expected: usize },
}

#[derive(Debug)]
pub(super) struct Session {
    is_open: bool,
    /// The received part of the answers of the handshake.
    answer: Vec<u8>,
    stream: SessionStream,
    reader: FrameReader,
    ranks: Vec<Rank>,
    turn: Vec<Shared>,
    /// The frames with requests that were put into the stream.
    pub(super) frames: usize,
}

#[derive(Debug, Default)]
struct Rank {
    credit: Credit,
    /// The last request of this turn that this rank takes part in, from 1.
    last_in_turn: usize,
}

/// A request, and the ranks that send it in one turn.
#[derive(Debug)]
struct Shared {
    bytes: Vec<u8>,
    clients: Vec<u32>,
}

impl Session {
    /// A new session with this number of ranks, whose connections are opened.
    pub(super) fn with_ranks(count: usize) -> Self {
        let mut session = Self {
            is_open: false,
            answer: Vec::new(),
            stream: SessionStream::default(),
            reader: FrameReader::taking_pieces(),
            ranks: Vec::new(),
            turn: Vec::new(),
            frames: 0,
        };
        for client in 0..count {
            session.ranks.push(Rank::default());
            session.stream.push_open(number(client), 0);
        }
        session
    }

    /// The first bytes of a connection: the handshake, and SESSION (docs/spec/wire-extensions.md, section 9.9).
    pub(super) fn handshake() -> Vec<u8> {
        let mut request = RequestBuf::new();
        request.hello().opcode(Opcode::Session);
        // A random name, no store yet, the first attempt, and no received bytes.
        for number in [fastrand::u64(..), fastrand::u64(..), 0, 0, 1, 0] {
            request.u64(number);
        }
        request.u32(KEEP_MILLIS | CARRIES_OVER | TAKES_PIECES);
        request.to_bytes()
    }

    /// Adds a request of a rank to this turn. As in the relay, it joins no equal request before the last request of the rank.
    pub(super) fn push(&mut self, index: usize, request: &[u8]) -> Result<(), SessionError> {
        let rank = &mut self.ranks[index];
        if request.len() > rank.credit.to_send() {
            return Err(SessionError::Unexpected("it returns no credit"));
        }
        rank.credit.sent(request.len());
        let from = rank.last_in_turn;
        let is_short = request.len() <= GROUP_BYTES_MAX;
        let is_same =
            |it: &Shared| is_short && it.bytes == request && it.clients.len() < GROUP_CLIENTS_MAX;
        let found = self.turn[from..].iter().position(is_same);
        let place = found.map_or(self.turn.len(), |place| from + place);
        if place == self.turn.len() {
            self.turn.push(Shared {
                bytes: request.to_vec(),
                clients: Vec::new(),
            });
        }
        self.turn[place].clients.push(number(index));
        rank.last_in_turn = place + 1;
        Ok(())
    }

    /// Puts the requests of the turn into the stream, where ranks that ask the same share a frame. Adds what can be sent
    /// to `out`.
    pub(super) fn end_turn(&mut self, out: &mut SendBuf) {
        for shared in self.turn.drain(..) {
            self.frames += 1;
            match shared.clients[..] {
                [client] => self.stream.push_data(client, &shared.bytes),
                _ => self.stream.push_group(&shared.clients, &shared.bytes),
            }
        }
        for rank in &mut self.ranks {
            rank.last_in_turn = 0;
        }
        if self.is_open {
            self.stream.fill(out, usize::MAX);
        }
    }

    /// Acknowledges what has arrived.
    pub(super) fn report(&mut self, out: &mut SendBuf) {
        if self.is_open {
            self.stream.report(out);
        }
    }

    /// Takes what the link has received. Passes the bytes for each rank to `take`; the rank uses them at once.
    pub(super) fn receive(
        &mut self,
        mut link: &[u8],
        mut take: impl FnMut(usize, &[u8]) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        if !self.is_open {
            self.shake_hands(&mut link)?;
        }
        while let Some(mut piece) = self.stream.next_bytes(&mut link)? {
            while let Some(frame) = self.reader.next(&mut piece)? {
                match frame {
                    Frame::Data { client, bytes } => self.data(client, bytes, &mut take)?,
                    Frame::Shared { client, bytes } => self.data(client, &bytes, &mut take)?,
                    Frame::Credit { client, bytes } => self.rank(client)?.credit.returned(bytes)?,
                    Frame::Close { .. } => {
                        return Err(SessionError::Unexpected("it closed a rank"));
                    }
                    // The ranks wait for replies, which have more information.
                    Frame::Done { .. } => {}
                    Frame::Open { .. } | Frame::Group(_) | Frame::Resume { .. } | Frame::End => {
                        return Err(SessionError::Unexpected("no frame of a server"));
                    }
                }
            }
        }
        Ok(())
    }

    fn data(
        &mut self,
        client: u32,
        bytes: &[u8],
        take: &mut impl FnMut(usize, &[u8]) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let credit = &mut self.rank(client)?.credit;
        credit.received(bytes.len())?;
        let returned = credit.used(bytes.len());
        if let Some(returned) = returned {
            self.stream.push_credit(client, returned);
        }
        take(client as usize, bytes)
    }

    fn rank(&mut self, client: u32) -> Result<&mut Rank, SessionError> {
        let rank = self.ranks.get_mut(client as usize);
        rank.ok_or(SessionError::Unexpected("it named an unknown rank"))
    }

    /// Takes a part of the answers to the handshake.
    fn shake_hands(&mut self, bytes: &mut &[u8]) -> Result<(), SessionError> {
        let missing = HANDSHAKE_REPLY_BYTES - self.answer.len();
        let (now, later) = bytes.split_at(missing.min(bytes.len()));
        self.answer.extend_from_slice(now);
        *bytes = later;
        if self.answer.len() < HANDSHAKE_REPLY_BYTES {
            return Ok(());
        }
        let answer = std::mem::take(&mut self.answer);
        let (hello, session) = answer.split_at(HELLO_REPLY_BYTES);
        let capabilities = LittleEndian::read_u32(hello);
        let is_store = capabilities & !CAPABILITY_MASK == CAPABILITY_NONCE;
        if !is_store || capabilities & capability::SESSION == 0 {
            return Err(SessionError::Unexpected("it has no sessions"));
        }
        if session[0] != ACCEPTED {
            return Err(SessionError::Unexpected("it refused a session"));
        }
        self.stream.attach(LittleEndian::read_u64(&session[17..]))?;
        self.is_open = true;
        Ok(())
    }
}

fn number(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: &[u8] = b"add";
    const SET: &[u8] = b"set";
    const WAIT: &[u8] = b"wait";

    #[test]
    fn ranks_share_a_frame_only_within_a_turn_and_keep_their_order() {
        let mut session = Session::with_ranks(3);
        let mut out = SendBuf::new();
        for rank in 0..3 {
            session.push(rank, ADD).expect("credit");
        }
        session.end_turn(&mut out);
        assert_eq!(session.frames, 1);
        for rank in 0..3 {
            let requests: &[&[u8]] = if rank == 1 { &[SET, WAIT] } else { &[WAIT] };
            for request in requests {
                session.push(rank, request).expect("credit");
            }
        }
        // The WAIT of rank 1 follows its SET, so it cannot join the earlier WAIT of rank 0. Rank 2 joins rank 0.
        assert_eq!(session.turn.len(), 3);
        assert_eq!(session.turn[0].clients, [0, 2]);
        session.end_turn(&mut out);
        for rank in 0..2 {
            session.push(rank, WAIT).expect("credit");
            session.end_turn(&mut out);
        }
        assert_eq!(session.frames, 1 + 3 + 2);
        // The store must answer the handshake first.
        assert!(out.is_empty());
    }
}
