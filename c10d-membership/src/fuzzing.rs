//! The functions that `fuzz/` calls. Present in fuzzing builds only.

use std::sync::Arc;
use std::time::Duration;

use crate::codec::{Encode, decode_all};
use crate::group::Kept;
use crate::list_change::{decode_list, encode_list};
use crate::record::Record;
use crate::request::{GroupReply, GroupRequest};

/// Reads `bytes` as every kind of message between groups and their members, and as the state that a group keeps.
///
/// # Panics
/// If a value that was read is written as other bytes.
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

/// Reads a list and a change of that list, and checks that the changed list can be written as a change and read again.
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
