//! Pieces of long values, which travel once for all clients of a session that get them (docs/spec/wire-extensions.md, SESSION 16).

use std::ops::Range;
use std::sync::{Arc, Weak};

use c10d_socket::SendBuf;

use super::stream::{SessionStream, Violation};

/// The most bytes of a piece.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// How many pieces a relay keeps: four times as many as a client may be sent before it has read any.
const PLACES: usize = 16;

/// The relay's end: the pieces by place.
#[derive(Debug)]
pub(super) struct Pieces {
    places: [Option<Arc<Vec<u8>>>; PLACES],
    /// The piece that is arriving, its place, and how long it will be.
    arriving: Option<(usize, Vec<u8>, usize)>,
}

impl Pieces {
    pub(super) fn new() -> Self {
        Self {
            places: [const { None }; PLACES],
            arriving: None,
        }
    }

    /// A piece of this number of bytes follows.
    pub(super) fn start(&mut self, place: u32, bytes: u32) -> Result<(), Violation> {
        let (place, bytes) = (place as usize, bytes as usize);
        if place >= PLACES || !(1..=PIECE_BYTES_MAX).contains(&bytes) {
            return Err(Violation::new("it sent too large a piece"));
        }
        self.arriving = Some((place, Vec::with_capacity(bytes), bytes));
        Ok(())
    }

    /// Takes bytes of the arriving piece, if there is one, from the front. Returns whether no piece is arriving
    /// afterwards.
    pub(super) fn take_in(&mut self, bytes: &mut &[u8]) -> bool {
        let Some((place, piece, length)) = &mut self.arriving else {
            return true;
        };
        let (now, later) = bytes.split_at((*length - piece.len()).min(bytes.len()));
        *bytes = later;
        piece.extend_from_slice(now);
        if piece.len() < *length {
            return false;
        }
        self.places[*place] = Some(Arc::new(std::mem::take(piece)));
        self.arriving = None;
        true
    }

    pub(super) fn get(&self, place: u32) -> Result<Arc<Vec<u8>>, Violation> {
        let piece = self.places.get(place as usize).and_then(Option::as_ref);
        piece
            .cloned()
            .ok_or_else(|| Violation::new("it sent no such piece"))
    }
}

/// The server's end: which pieces the relay has. Keeps no bytes.
#[derive(Debug, Default)]
pub(crate) struct SentPieces {
    /// The pieces by place: the value, and where the piece begins in it.
    places: Vec<(Weak<Vec<u8>>, usize)>,
    next: usize,
}

/// A piece at the front of the bytes for a client.
#[derive(Debug)]
pub(crate) struct Piece {
    value: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Piece {
    /// The next piece in `out`, and how many other bytes are before it. All clients cut a value at the same places.
    pub(crate) fn of(out: &SendBuf) -> Option<(usize, Self)> {
        let (before, value, start) = out.first_shared()?;
        let end = (start / PIECE_BYTES_MAX + 1) * PIECE_BYTES_MAX;
        let piece = Self {
            range: start..end.min(value.len()),
            value: Arc::clone(value),
        };
        Some((before, piece))
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }
}

impl SentPieces {
    /// Sends a piece to a client that has credit for it, and first to the relay if that does not have it.
    pub(crate) fn push(&mut self, client: u32, piece: &Piece, stream: &mut SessionStream) {
        let is_it = |(value, start): &(Weak<Vec<u8>>, usize)| {
            // Its memory is not given to another value while it is known here.
            *start == piece.range.start && value.as_ptr() == Arc::as_ptr(&piece.value)
        };
        let place = self.places.iter().position(is_it).unwrap_or_else(|| {
            let place = self.next;
            self.next = (place + 1) % PLACES;
            let sent = (Arc::downgrade(&piece.value), piece.range.start);
            if place < self.places.len() {
                self.places[place] = sent;
            } else {
                self.places.push(sent);
            }
            stream.push_piece(place as u32, &piece.value[piece.range.clone()]);
            place
        });
        stream.push_shared(client, place as u32);
    }
}
