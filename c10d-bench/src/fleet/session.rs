//! A simulated relay and its ranks, at the relay's end of a session.
//!
//! Does what `c10d-relay` does with what ranks ask and with what the store sends, without the connections between the
//! two. Pure: no socket or clock.

use c10d_store::Opcode;
use c10d_store::unstable::{
    Credit, Frame, FrameReader, GROUP_BYTES_MAX, GROUP_CLIENTS_MAX, ReplyScan, SessionStream,
    Violation,
};

/// Requests of a rank, and the length of all their replies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'r> {
    /// Each is one request.
    pub(super) requests: &'r [&'r [u8]],
    pub(super) reply_bytes: usize,
}

/// A request whose reply says how long it is.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) opcode: Opcode,
    pub(super) request: Vec<u8>,
}

/// What a rank asks.
pub(super) trait Asking {
    /// In this turn of the node.
    fn put(self, node: &mut Node, rank: usize) -> Result<(), NodeError>;
}

impl Asking for Ask<'_> {
    fn put(self, node: &mut Node, rank: usize) -> Result<(), NodeError> {
        debug_assert!(!node.ranks[rank].is_waiting(), "one reply at a time");
        node.ranks[rank].reply_bytes = self.reply_bytes;
        node.send(rank, self.requests)
    }
}

impl Asking for Scanned {
    fn put(self, node: &mut Node, rank: usize) -> Result<(), NodeError> {
        node.expect_scanned(rank, self.opcode);
        node.send(rank, &[&self.request])
    }
}

/// Of a scanned reply, a rank keeps so much; the first one of a node keeps all.
const KEPT_BYTES: usize = 256;

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The store has closed a rank's connection, or sent more than it was asked for.
    #[error("{0}")]
    Unexpected(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) stream: SessionStream,
    reader: FrameReader,
    ranks: Vec<Rank>,
    turn: Vec<Shared>,
    /// The frames with requests that were put into the stream.
    pub(super) frames: usize,
}

#[derive(Debug, Default)]
struct Rank {
    credit: Credit,
    /// The received part of the reply.
    reply: Vec<u8>,
    /// The length of the expected reply; 0 if none is expected.
    reply_bytes: usize,
    /// The expected reply says how long it is.
    scan: Option<ReplyScan>,
    /// The last request of this turn that this rank takes part in, from 1.
    last_in_turn: usize,
    /// How many requests it has sent.
    requests: u32,
}

/// A request, and the ranks that send it in one turn.
#[derive(Debug)]
struct Shared {
    bytes: Vec<u8>,
    clients: Vec<u32>,
}

impl Rank {
    const fn is_waiting(&self) -> bool {
        self.reply_bytes > 0 || self.scan.is_some()
    }
}

impl Node {
    /// A new session with this number of ranks, whose connections are opened.
    pub(super) fn with_ranks(count: usize) -> Self {
        let mut node = Self {
            reader: FrameReader::taking_pieces(),
            ..Self::default()
        };
        for client in 0..count {
            node.ranks.push(Rank::default());
            node.stream.push_open(number(client), 0);
        }
        node
    }

    /// The store was restarted: the ranks, whose replies have all arrived, go on in new streams (docs/wire-extensions.md,
    /// SESSION 13).
    pub(super) fn carry_over(&mut self) {
        self.stream = SessionStream::default();
        self.reader = FrameReader::taking_pieces();
        for (client, rank) in self.ranks.iter_mut().enumerate() {
            debug_assert_eq!(rank.reply_bytes, 0, "all replies have arrived");
            rank.credit = Credit::default();
            self.stream.push_open(number(client), 0);
            self.stream.push_resume(number(client), rank.requests + 1);
        }
    }

    /// A rank expects a reply to a request of an earlier turn.
    pub(super) fn expect_scanned(&mut self, rank: usize, opcode: Opcode) {
        debug_assert!(!self.ranks[rank].is_waiting(), "one reply at a time");
        self.ranks[rank].scan = ReplyScan::new(opcode, 1);
    }

    /// The connection of a rank ends, in this turn.
    pub(super) fn close(&mut self, rank: usize) {
        self.stream.push_close(number(rank));
    }

    /// A rank sends requests, in this turn, that have no replies.
    pub(super) fn send(&mut self, rank: usize, requests: &[&[u8]]) -> Result<(), NodeError> {
        requests
            .iter()
            .try_for_each(|request| self.add(rank, request))
    }

    /// Expects another reply to each rank, to a request asked before.
    pub(super) fn expect_all(&mut self, reply_bytes: usize) {
        for rank in &mut self.ranks {
            debug_assert_eq!(rank.reply_bytes, 0, "one reply at a time");
            rank.reply_bytes = reply_bytes;
        }
    }

    /// Puts the requests of the turn into the stream. Ranks that ask the same share a frame.
    pub(super) fn end_turn(&mut self) {
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
    }

    /// Takes what the link has received. Passes each complete reply and its rank to `on_reply`, which may
    /// [send](Self::send) more.
    pub(super) fn receive<E: From<NodeError>>(
        &mut self,
        mut link: &[u8],
        mut on_reply: impl FnMut(&mut Self, usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(mut piece) = self.stream.next_bytes(&mut link).map_err(NodeError::from)? {
            while let Some(frame) = self.reader.next(&mut piece).map_err(NodeError::from)? {
                let (client, reply) = match frame {
                    Frame::Data { client, bytes } => (client, self.take_in(client, bytes)?),
                    Frame::Shared { client, bytes } => (client, self.take_in(client, &bytes)?),
                    Frame::Credit { client, bytes } => {
                        let credit = &mut self.rank(client)?.credit;
                        credit.returned(bytes).map_err(NodeError::from)?;
                        continue;
                    }
                    Frame::Close { .. } => {
                        return Err(NodeError::Unexpected("it closed a rank").into());
                    }
                    // The ranks wait for replies, which say more.
                    Frame::Done { .. } => continue,
                    Frame::Open { .. } | Frame::Group(_) | Frame::Resume { .. } | Frame::End => {
                        return Err(NodeError::Unexpected("no frame of a server").into());
                    }
                };
                if let Some(reply) = reply {
                    on_reply(self, client as usize, &reply)?;
                    self.give_back(client as usize, reply);
                }
            }
        }
        Ok(())
    }

    /// Adds bytes to the reply of a rank, which uses them at once; returns the reply when it is complete.
    fn take_in(&mut self, client: u32, bytes: &[u8]) -> Result<Option<Vec<u8>>, NodeError> {
        let rank = self.rank(client)?;
        rank.credit.received(bytes.len())?;
        let returned = rank.credit.used(bytes.len());
        let is_complete = if let Some(scan) = &mut rank.scan {
            let kept = if client == 0 { usize::MAX } else { KEPT_BYTES };
            let room = kept - rank.reply.len();
            rank.reply
                .extend_from_slice(&bytes[..bytes.len().min(room)]);
            let mut rest = bytes;
            let is_complete = scan.advance(&mut rest);
            if !rest.is_empty() {
                return Err(NodeError::Unexpected("it sent more than it was asked for"));
            }
            is_complete.map_err(|_| NodeError::Unexpected("it sent no reply to the request"))?
        } else {
            rank.reply.extend_from_slice(bytes);
            if rank.reply.len() > rank.reply_bytes {
                return Err(NodeError::Unexpected("it sent more than it was asked for"));
            }
            rank.reply.len() == rank.reply_bytes
        };
        let reply = is_complete.then(|| {
            (rank.reply_bytes, rank.scan) = (0, None);
            std::mem::take(&mut rank.reply)
        });
        if let Some(returned) = returned {
            self.stream.push_credit(client, returned);
        }
        Ok(reply)
    }

    /// Reuses the memory of a reply.
    fn give_back(&mut self, rank: usize, mut reply: Vec<u8>) {
        reply.clear();
        self.ranks[rank].reply = reply;
    }

    fn rank(&mut self, client: u32) -> Result<&mut Rank, NodeError> {
        let rank = self.ranks.get_mut(client as usize);
        rank.ok_or(NodeError::Unexpected("it named an unknown rank"))
    }

    /// As the relay's: the request joins none that comes before the rank's last one.
    fn add(&mut self, index: usize, request: &[u8]) -> Result<(), NodeError> {
        let rank = &mut self.ranks[index];
        if request.len() > rank.credit.to_send() {
            return Err(NodeError::Unexpected("it returns no credit"));
        }
        rank.credit.sent(request.len());
        rank.requests += 1;
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

    fn ask<'r>(requests: &'r [&'r [u8]]) -> Ask<'r> {
        Ask {
            requests,
            reply_bytes: 1,
        }
    }

    #[test]
    fn ranks_share_a_frame_only_within_a_turn_and_keep_their_order() {
        let mut node = Node::with_ranks(3);
        for rank in 0..3 {
            ask(&[ADD]).put(&mut node, rank).expect("credit");
        }
        node.end_turn();
        assert_eq!(node.frames, 1);
        for rank in 0..3 {
            node.ranks[rank].reply_bytes = 0;
            let requests: &[&[u8]] = if rank == 1 { &[SET, WAIT] } else { &[WAIT] };
            ask(requests).put(&mut node, rank).expect("credit");
        }
        // Rank 1's WAIT comes after its SET, so it cannot join rank 0's, which comes before. Rank 2 joins the first.
        assert_eq!(node.turn.len(), 3);
        assert_eq!(node.turn[0].clients, [0, 2]);
        node.end_turn();
        for rank in 0..2 {
            node.ranks[rank].reply_bytes = 0;
            ask(&[WAIT]).put(&mut node, rank).expect("credit");
            node.end_turn();
        }
        assert_eq!(node.frames, 1 + 3 + 2);
    }
}
