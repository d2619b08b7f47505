//! The functions that `fuzz/` calls. Present in fuzzing builds only.

use crate::peer::{Expects, FunctionId, Incoming, IncomingLimits, Message, Recipient};
use crate::wire::{Frame, Welcome, WireError};

/// Bounds the memory of one run: 16 messages of 1 MiB.
const LIMITS: IncomingLimits = IncomingLimits {
    message_bytes_max: 1 << 20,
    assembling_bytes_max: 16 << 20,
    assembling_messages_max: 16,
};

/// Receives `bytes` on an accepted connection, and after a Welcome on a dialed connection: in one piece, and in
/// pieces of `piece_bytes`.
///
/// # Panics
/// When the receiver panics or breaks one of its invariants, or when the pieces give other messages or another error
/// than the whole.
pub fn frames(bytes: &[u8], piece_bytes: usize) {
    let mut after_welcome = Vec::new();
    let welcome = Frame::Welcome(Welcome {
        incarnation: 1,
        links: 1,
        message_bytes_max: LIMITS.message_bytes_max,
    });
    welcome.encode(&mut after_welcome);
    after_welcome.extend_from_slice(bytes);
    for (expects, bytes) in [
        (Expects::Hello, bytes),
        (Expects::WelcomeOrRefuse, &after_welcome),
    ] {
        let whole = received(expects, bytes, usize::MAX);
        let pieces = received(expects, bytes, piece_bytes.max(1));
        assert!(whole == pieces);
    }
}

/// The messages in `bytes`, and the error that ends them, if there is one.
fn received(
    expects: Expects,
    mut bytes: &[u8],
    piece_bytes: usize,
) -> (Vec<Message>, Result<(), WireError>) {
    let mut incoming = Incoming::new(expects, LIMITS);
    let mut inbox = Inbox(Vec::new());
    while !bytes.is_empty() {
        let (buffer, bytes_max) = incoming.spare();
        let (piece, later) = bytes.split_at(bytes.len().min(bytes_max).min(piece_bytes));
        buffer.extend_from_slice(piece);
        bytes = later;
        if let Err(error) = incoming.received(&mut inbox) {
            return (inbox.0, Err(error));
        }
        incoming.check_invariants();
    }
    (inbox.0, Ok(()))
}

/// Wants the answers to calls with an even id.
struct Inbox(Vec<Message>);

impl Recipient for Inbox {
    fn find_function(&mut self, name: &str) -> Option<FunctionId> {
        let digits = name.bytes().map(u32::from);
        let id = digits.fold(0_u32, |id, digit| id.wrapping_mul(257).wrapping_add(digit));
        (!id.is_multiple_of(2)).then_some(FunctionId(id))
    }

    fn wants_response(&mut self, id: u64) -> bool {
        id.is_multiple_of(2)
    }

    fn take(&mut self, message: Message) {
        self.0.push(message);
    }
}
