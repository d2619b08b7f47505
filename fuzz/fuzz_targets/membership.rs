//! Any bytes as a request to a group, an answer, a list, and what a service keeps: what can be read is written as the same
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    c10d_membership::fuzzing::membership(bytes);
});
