//! Any bytes as a connection between two agents, in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((piece_bytes, bytes)) = input.split_first() {
        rpc_agent::fuzzing::frames(bytes, usize::from(*piece_bytes));
    }
});
