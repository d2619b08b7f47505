//! Any bytes as the link of a session, in pieces of any size. A relay and a server read the same frames.
#![no_main]

use c10d_socket::SendBuf;
use c10d_store::unstable::{FrameReader, SessionStream};
use libfuzzer_sys::fuzz_target;

/// What the frames are, and how many bytes of the stream arrived.
fn frames(bytes: &[u8], piece_bytes: usize) -> (Vec<u8>, u64, bool) {
    let (mut stream, mut reader) = (SessionStream::default(), FrameReader::taking_pieces());
    stream.push(&[7; 100]);
    stream.fill(&mut SendBuf::new(), usize::MAX);
    let mut seen = Vec::new();
    for mut link in bytes.chunks(piece_bytes.max(1)) {
        loop {
            let mut bytes = match stream.next_bytes(&mut link) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(_) => return (seen, stream.received(), false),
            };
            loop {
                match reader.next(&mut bytes) {
                    // Of a client's bytes only their order matters: they arrive in pieces.
                    Ok(Some(c10d_store::unstable::Frame::Data { bytes, .. })) => {
                        seen.extend_from_slice(bytes);
                    }
                    Ok(Some(frame)) => seen.extend(format!("{frame:?}").into_bytes()),
                    Ok(None) => break,
                    Err(_) => return (seen, 0, false),
                }
            }
        }
    }
    (seen, stream.received(), true)
}

fuzz_target!(|input: &[u8]| {
    if let Some((piece_bytes, bytes)) = input.split_first() {
        let whole = frames(bytes, bytes.len());
        let pieces = frames(bytes, usize::from(*piece_bytes));
        assert_eq!((&whole.0, whole.2), (&pieces.0, pieces.2));
    }
});
