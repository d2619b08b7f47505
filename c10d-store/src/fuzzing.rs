//! The functions that `fuzz/` calls. Present in fuzzing builds only.

use byteorder::{LE, WriteBytesExt};

use crate::groups::NewGroups;
use crate::journal::batch::{BatchWriter, checksum, effects};
use crate::journal::contents::Contents;
use crate::journal::format::FORMAT_VERSION;
use crate::sim::SimServer;

/// Sends `bytes` to a server with these groups in one piece and in pieces of `piece_bytes`, and once more from two
/// connections by turns.
///
/// # Panics
/// When the server panics, breaks one of its invariants, or sends another number of bytes for the
/// pieces than for the whole. (A listing has no fixed order, so the bytes can differ.)
pub fn session(bytes: &[u8], piece_bytes: usize, groups: NewGroups) {
    let replies_to = |piece_bytes: usize| {
        let mut server = SimServer::new(groups(1));
        for piece in bytes.chunks(piece_bytes.max(1)) {
            server.send(0, piece);
        }
        (server.take(0).len(), server.is_closed(0))
    };
    assert_eq!(replies_to(bytes.len()), replies_to(piece_bytes));

    let mut server = SimServer::new(groups(1));
    for piece in bytes.chunks(piece_bytes) {
        server.send(0, piece);
        server.send(1, piece);
    }
    server.close(0);
    server.close(1);
}

/// Reads `bytes` as a batch, and as the effects of a batch with a valid checksum.
///
/// # Panics
/// When effects that can be read are written as other bytes, or a snapshot of the resulting state has other contents.
pub fn batch(position: u64, bytes: &[u8]) {
    let read = effects(position, bytes);
    assert!(read.is_err() || bytes[0] == FORMAT_VERSION);

    let mut batch = [&[FORMAT_VERSION], bytes].concat();
    let sum = checksum(position, &batch);
    batch.write_u64::<LE>(sum).expect("a vector grows");
    let mut writer = BatchWriter::default();
    let mut contents = Contents::default();
    for effect in effects(position, &batch).expect("the checksum fits") {
        let Ok(effect) = effect else { return };
        writer.push(effect);
        // `false` if the queue has fewer elements, and then nothing has changed.
        let _ = contents.apply(effect);
    }
    assert_eq!(writer.finish(position, Vec::new()), batch);

    let mut again = Contents::default();
    for chunk in contents.to_snapshot(position) {
        for effect in effects(position, &chunk).expect("just written") {
            assert!(again.apply(effect.expect("just written")));
        }
    }
    assert_eq!(again, contents);
}
