//! Any bytes as the effects of a batch: what can be read is written as the same bytes, and leads to contents whose
//! snapshot has the same contents.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &[u8])| {
    let (position, body) = input;
    c10d_store::fuzzing::batch(position, body);
});
