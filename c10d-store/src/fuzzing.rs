//! What `fuzz/` calls. Present in fuzzing builds only.

use std::sync::Arc;
use std::time::Duration;

use byteorder::{LE, WriteBytesExt};
use c10d_membership::codec::{Encode, decode_all};
use c10d_membership::list_change::{decode_list, encode_list};
use c10d_membership::{Kept, Record};

use crate::journal::batch::{BatchWriter, checksum, effects};
use crate::journal::contents::Contents;
use crate::journal::format::FORMAT_VERSION;
use crate::sim::SimServer;
use crate::wire::{GroupReply, GroupRequest};

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

/// Reads `bytes` as all that is said between groups and their members, and what is kept of them.
///
/// # Panics
/// When what can be read is written as other bytes.
pub fn membership(bytes: &[u8]) {
    if let Ok(request) = GroupRequest::decode(bytes) {
        assert_eq!(request.encode(), bytes);
    }
    if let Ok(reply) = GroupReply::decode(bytes, |_| None) {
        assert_eq!(reply.encode(Duration::ZERO), bytes);
    }
    again::<Record>(bytes);
    if let Ok(list) = decode_list(bytes, None) {
        let mut written = Vec::new();
        encode_list(&list, None, &mut written);
        assert_eq!(decode_list(&written, None), Ok(list));
    }
    changes(bytes);
    again::<Kept>(bytes);
}

/// A list, and what follows it as a change of it, and the other way round.
fn changes(mut bytes: &[u8]) {
    let Ok(base) = Record::decode(&mut bytes) else {
        return;
    };
    let base = Arc::new(base);
    let Ok(list) = decode_list(bytes, Some(&base)) else {
        return;
    };
    let mut written = Vec::new();
    encode_list(&list, Some(&base), &mut written);
    assert_eq!(decode_list(&written, Some(&base)).as_ref(), Ok(&list));
}

fn again<T: Encode>(bytes: &[u8]) {
    if let Ok(value) = decode_all::<T>(bytes) {
        let mut written = Vec::new();
        value.encode(&mut written);
        assert_eq!(written, bytes);
    }
}

/// Reads `bytes` as a batch, and as the effects of one whose checksum fits.
///
/// # Panics
/// When effects that can be read are written as other bytes, or a snapshot of what they lead to has other contents.
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
