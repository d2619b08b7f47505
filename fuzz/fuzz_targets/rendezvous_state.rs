//! Any bytes as the pickle of a rendezvous state: a decoded state is encoded to one that decodes to it.
#![no_main]

use elastic_rendezvous::codec::{self, CodecLimits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|pickle: &[u8]| {
    let limits = CodecLimits::default();
    match codec::decode(pickle, &limits) {
        Ok(state) => {
            assert_eq!(codec::decode(&codec::encode(&state), &limits), Ok(state));
        }
        Err(error) => {
            assert!(error.offset <= pickle.len(), "{error}");
            assert!(error.to_string().len() < 700, "{error}");
        }
    }
    let stored = codec::to_base64(pickle);
    assert_eq!(codec::from_base64(&stored, &limits).as_deref(), Ok(pickle));
    if let Some(ranges) = codec::watch_ranges(&stored) {
        assert!(ranges.members.end <= stored.len());
    }
});
