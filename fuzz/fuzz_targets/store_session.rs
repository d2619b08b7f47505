//! Any bytes as a connection to the store's server, in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((piece_bytes, bytes)) = input.split_first() {
        c10d_store::fuzzing::session(bytes, usize::from(*piece_bytes).max(1));
    }
});
