//! What `fuzz/` calls. Present in fuzzing builds only.

use crate::sim::SimServer;

/// Sends `bytes` to a server in one piece and in pieces of `piece_bytes`, and once more from two
/// connections by turns.
///
/// # Panics
/// When the server panics, breaks one of its invariants, or sends another number of bytes for the
/// pieces than for the whole. (A listing has no fixed order, so the bytes can differ.)
pub fn session(bytes: &[u8], piece_bytes: usize) {
    let replies_to = |piece_bytes: usize| {
        let mut server = SimServer::default();
        for piece in bytes.chunks(piece_bytes.max(1)) {
            server.send(0, piece);
        }
        (server.take(0).len(), server.is_closed(0))
    };
    assert_eq!(replies_to(bytes.len()), replies_to(piece_bytes));

    let mut server = SimServer::default();
    for piece in bytes.chunks(piece_bytes) {
        server.send(0, piece);
        server.send(1, piece);
    }
    server.close(0);
    server.close(1);
}
