//! Any bytes as a connection to the store's server, in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((piece_bytes, bytes)) = input.split_first() {
        let piece_bytes = usize::from(*piece_bytes).max(1);
        c10d_store::fuzzing::session(bytes, piece_bytes, c10d_membership::groups);
    }
});
