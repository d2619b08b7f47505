//! Any bytes as a message, an answer or a reference: what is decoded is encoded to bytes that decode to it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rref::fuzzing::{Answer, ForkData, Message};

fuzz_target!(|bytes: &[u8]| {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok((incarnation, message)) = Message::decode(&bytes) {
        let encoded = Bytes::from(message.encode(incarnation));
        assert_eq!(Message::decode(&encoded), Ok((incarnation, message)));
    }
    if let Ok((incarnation, answer)) = Answer::decode(&bytes) {
        let encoded = answer.encode(incarnation);
        assert_eq!(Answer::decode(&encoded), Ok((incarnation, answer)));
    }
    if let Ok(fork) = ForkData::decode(&mut &bytes[..]) {
        let mut encoded = Vec::new();
        fork.encode(&mut encoded);
        assert_eq!(ForkData::decode(&mut &encoded[..]), Ok(fork));
    }
});
