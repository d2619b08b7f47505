//! The records of a store file, and the map that results from replaying them. Pure.
//!
//! Specified in docs/spec/file-store.md, Records.

use std::collections::HashMap;

use byteorder::{ByteOrder, LittleEndian};

use crate::key::key_to_bytes;

/// The prefixes of stored names: users' keys, and deletions.
pub(super) const USER: &[u8] = b"/";
pub(super) const DELETED_USER: &[u8] = b"-/";
const DELETED: &[u8] = b"-";

/// The stored names of the internal counters: open store objects, and closed ones.
pub(super) const REFCOUNT: &[u8] = b"refcount/";
pub(super) const CLEANUP: &[u8] = b"cleanup/";

/// The longest stored name and value: a record has 32-bit lengths.
pub(super) const FIELD_BYTES_MAX: usize = u32::MAX as usize;

/// How much of a torn record [`can_start_record`] needs to see.
pub(super) const RECORD_HEAD_BYTES: usize = LEN_BYTES + REFCOUNT.len();

const LEN_BYTES: usize = 4;

/// A name or value is too long for a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong {
    pub(super) what: &'static str,
    pub(super) actual: usize,
    pub(super) limit: usize,
}

/// Appends to `out` the record that sets the stored name `prefix` + `name` to `value`. On an error
/// `out` stays unchanged.
pub(super) fn encode(
    prefix: &[u8],
    name: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), TooLong> {
    let name_len = encode_len("key bytes", name, FIELD_BYTES_MAX - prefix.len())?;
    let value_len = encode_len("value bytes", value, FIELD_BYTES_MAX)?;
    out.reserve(2 * LEN_BYTES + prefix.len() + name.len() + value.len());
    push_len(out, name_len + prefix.len() as u32);
    out.extend_from_slice(prefix);
    out.extend_from_slice(name);
    push_len(out, value_len);
    out.extend_from_slice(value);
    Ok(())
}

fn encode_len(what: &'static str, field: &[u8], limit: usize) -> Result<u32, TooLong> {
    let actual = field.len();
    if actual > limit {
        return Err(TooLong {
            what,
            actual,
            limit,
        });
    }
    Ok(actual as u32)
}

fn push_len(out: &mut Vec<u8>, len: u32) {
    let mut bytes = [0; LEN_BYTES];
    LittleEndian::write_u32(&mut bytes, len);
    out.extend_from_slice(&bytes);
}

/// The result of decoding the start of an input.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
enum Decoded<'a> {
    Whole {
        name: &'a [u8],
        value: &'a [u8],
        bytes: usize,
    },
    /// An incomplete record of at least `bytes_min` bytes.
    Partial { bytes_min: u64 },
}

fn decode(input: &[u8]) -> Decoded<'_> {
    let (name_len, name_end) = match field_end(input, 0) {
        Ok(len_and_end) => len_and_end,
        // The value's length always follows the name.
        Err(bytes_min) => {
            return Decoded::Partial {
                bytes_min: bytes_min + LEN_BYTES as u64,
            };
        }
    };
    let (value_len, value_end) = match field_end(input, name_end) {
        Ok(len_and_end) => len_and_end,
        Err(bytes_min) => return Decoded::Partial { bytes_min },
    };
    Decoded::Whole {
        name: &input[name_end - name_len..name_end],
        value: &input[value_end - value_len..value_end],
        bytes: value_end,
    }
}

/// The length and end of the field whose length prefix is at `start`; or, if `input` is too short, the
/// least length that `input` must have. Lengths are `u64` until checked against the input, since two
/// of them may exceed a `usize`.
fn field_end(input: &[u8], start: usize) -> Result<(usize, usize), u64> {
    let content = start + LEN_BYTES;
    let Some(len) = input.get(start..content) else {
        return Err(content as u64);
    };
    let len = LittleEndian::read_u32(len);
    let end = content as u64 + u64::from(len);
    if end > input.len() as u64 {
        return Err(end);
    }
    Ok((len as usize, end as usize))
}

/// Whether `tail`, an incomplete record, can be the start of a record of this format. If not, the file
/// is something else and must not be truncated.
///
/// Needs the first [`RECORD_HEAD_BYTES`] bytes of the tail.
pub(super) fn can_start_record(tail: &[u8]) -> bool {
    let Some(len) = tail.get(..LEN_BYTES) else {
        return true;
    };
    let len = LittleEndian::read_u32(len) as usize;
    let name = &tail[LEN_BYTES..];
    let is_open_ended = |prefix: &[u8]| len >= prefix.len() && agree(name, prefix);
    let is_exactly = |stored: &[u8]| len == stored.len() && agree(name, stored);
    is_open_ended(USER)
        || is_open_ended(DELETED_USER)
        || is_exactly(REFCOUNT)
        || is_exactly(CLEANUP)
}

/// Whether one of `a` and `b` is a prefix of the other.
fn agree(a: &[u8], b: &[u8]) -> bool {
    let len = a.len().min(b.len());
    a[..len] == b[..len]
}

/// The contents of a file after replaying its records.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Entries {
    /// The values by users' keys, without the `/`.
    user: HashMap<Vec<u8>, Vec<u8>>,
    /// The values by other stored names: the internal counters.
    other: HashMap<Vec<u8>, Vec<u8>>,
}

impl std::fmt::Debug for Entries {
    /// Counts only: the bytes can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries")
            .field("user_keys", &self.user.len())
            .field("other_keys", &self.other.len())
            .finish()
    }
}

/// The result of a replay.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replayed {
    /// Bytes of whole records, all applied.
    pub(super) bytes: usize,
    /// The least length of the record that follows.
    pub(super) next_bytes_min: u64,
}

impl Entries {
    /// Applies the whole records at the start of `input`.
    pub(super) fn replay(&mut self, input: &[u8]) -> Replayed {
        let mut replayed = 0;
        loop {
            match decode(&input[replayed..]) {
                Decoded::Whole { name, value, bytes } => {
                    self.apply(name, value);
                    replayed += bytes;
                }
                Decoded::Partial { bytes_min } => {
                    return Replayed {
                        bytes: replayed,
                        next_bytes_min: bytes_min,
                    };
                }
            }
        }
    }

    fn apply(&mut self, name: &[u8], value: &[u8]) {
        // A user's key that starts with `-` is stored as `/-...`, so it does not look like a deletion.
        if let Some(deleted) = name.strip_prefix(DELETED) {
            match deleted.strip_prefix(USER) {
                Some(key) => self.user.remove(key),
                None => self.other.remove(deleted),
            };
        } else {
            match name.strip_prefix(USER) {
                Some(key) => self.user.insert(key.to_vec(), value.to_vec()),
                None => self.other.insert(name.to_vec(), value.to_vec()),
            };
        }
    }

    /// The value of a user's key.
    pub(super) fn user(&self, key: &str) -> Option<&[u8]> {
        self.user.get(&*key_to_bytes(key)).map(Vec::as_slice)
    }

    /// The value of an internal counter.
    pub(super) fn bookkeeping(&self, name: &[u8]) -> Option<&[u8]> {
        self.other.get(name).map(Vec::as_slice)
    }

    pub(super) fn user_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.user.keys().map(Vec::as_slice)
    }

    /// The number of stored names, including internal ones.
    pub(super) fn len(&self) -> usize {
        self.user.len() + self.other.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn record(prefix: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(prefix, name, value, &mut out).expect("short enough");
        out
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|d| (d[0] * 16 + d[1]) as u8).collect()
    }

    fn entries_of(bytes: &[u8]) -> Entries {
        let mut entries = Entries::default();
        assert_eq!(entries.replay(bytes).bytes, bytes.len());
        entries
    }

    /// docs/spec/file-store.md, Records: the bytes that PyTorch 2.15.0 wrote.
    #[test]
    fn records_are_those_of_pytorch() {
        let table: &[(Vec<u8>, &str)] = &[
            (
                record(b"", REFCOUNT, b"1"),
                "09000000 726566636f756e742f 01000000 31",
            ),
            (record(USER, b"k", b"v"), "02000000 2f6b 01000000 76"),
            (record(DELETED_USER, b"k", b""), "03000000 2d2f6b 00000000"),
            (record(USER, b"c", b"5"), "02000000 2f63 01000000 35"),
            (record(USER, b"c", b"-2"), "02000000 2f63 02000000 2d32"),
            (record(USER, b"", b""), "01000000 2f 00000000"),
        ];
        for (encoded, expected) in table {
            assert_eq!(encoded, &hex(expected), "{expected}");
        }
    }

    #[test]
    fn later_records_win_and_deletions_remove() {
        let log = [
            record(b"", REFCOUNT, b"1"),
            record(USER, b"k", b"old"),
            record(USER, b"k", b"new"),
            record(USER, b"gone", b"1"),
            record(DELETED_USER, b"gone", b""),
            record(DELETED_USER, b"never", b""),
            record(USER, b"-k", b"dash"),
            record(USER, b"", b""),
            record(b"", CLEANUP, b"2"),
        ];
        let entries = entries_of(&log.concat());
        assert_eq!(entries.user("k"), Some(&b"new"[..]));
        assert_eq!(entries.user("gone"), None);
        assert_eq!(entries.user("-k"), Some(&b"dash"[..]));
        assert_eq!(entries.user(""), Some(&b""[..]));
        assert_eq!(entries.bookkeeping(REFCOUNT), Some(&b"1"[..]));
        assert_eq!(entries.bookkeeping(CLEANUP), Some(&b"2"[..]));
        assert_eq!(entries.len(), 5);
        assert_eq!(entries.user_keys().count(), 3);
    }

    #[test]
    fn a_record_cut_anywhere_is_partial() {
        let whole = record(USER, b"key", b"value");
        for cut in 0..whole.len() {
            let mut entries = Entries::default();
            let replayed = entries.replay(&whole[..cut]);
            assert_eq!(replayed.bytes, 0);
            assert_eq!(entries, Entries::default());
            // The minimum exceeds the input, but not the true length.
            assert!(replayed.next_bytes_min > cut as u64, "cut at {cut}");
            assert!(replayed.next_bytes_min <= whole.len() as u64);
            assert!(can_start_record(&whole[..cut]), "cut at {cut}");
        }
    }

    #[test]
    fn announced_lengths_reserve_no_memory() {
        let cases: &[(&[u8], u64)] = &[
            (b"", 8),
            (b"\xff\xff\xff\xff", u64::from(u32::MAX) + 8),
            (b"\xff\xff\xff\xff/abc", u64::from(u32::MAX) + 8),
            (b"\x01\0\0\0/\xff\xff\xff\xff", u64::from(u32::MAX) + 9),
            (b"\0\0\0\0\xff\xff\xff\x7f", i32::MAX as u64 + 8),
        ];
        for (input, bytes_min) in cases {
            let expected = Decoded::Partial {
                bytes_min: *bytes_min,
            };
            assert_eq!(decode(input), expected, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn other_files_are_not_torn_records() {
        let torn: &[&[u8]] = &[
            b"",
            b"\x05\0\0",
            b"\x05\0\0\0",
            b"\x05\0\0\0/abc",
            b"\x05\0\0\0-/ab",
            b"\x05\0\0\0-",
            b"\x09\0\0\0refc",
            b"\x09\0\0\0refcount/\x01\0",
            b"\x08\0\0\0cleanup/",
        ];
        for tail in torn {
            assert!(can_start_record(tail), "{}", tail.escape_ascii());
        }
        let other: &[&[u8]] = &[
            b"Hello, world",
            b"#!/bin/sh\n",
            b"\0\0\0\0",
            b"\x05\0\0\0-x",
            b"\x01\0\0\0-/",
            b"\x0a\0\0\0refcount/x",
            b"\x7fELF\x02\x01",
        ];
        for tail in other {
            assert!(!can_start_record(tail), "{}", tail.escape_ascii());
        }
    }

    #[test]
    fn lengths_beyond_32_bits_are_refused() {
        let mut out = b"before".to_vec();
        // An all-zero vector of this size costs address space, not memory.
        let long = vec![0; FIELD_BYTES_MAX];
        let too_long = encode(DELETED_USER, &long, b"", &mut out);
        let expected = TooLong {
            what: "key bytes",
            actual: FIELD_BYTES_MAX,
            limit: FIELD_BYTES_MAX - 2,
        };
        assert_eq!(too_long, Err(expected));
        assert_eq!(out, b"before");
    }

    /// One step of a log, for the model.
    #[derive(Debug, Clone)]
    enum Step {
        Set(Vec<u8>, Vec<u8>),
        Delete(Vec<u8>),
        Count(bool, u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = || prop::collection::vec(prop::sample::select(b"-/ab".to_vec()), 0..3);
        let step = prop_oneof![
            (key(), any::<Vec<u8>>()).prop_map(|(key, value)| Step::Set(key, value)),
            key().prop_map(Step::Delete),
            any::<(bool, u8)>().prop_map(|(open, count)| Step::Count(open, count)),
        ];
        prop::collection::vec(step, 0..20)
    }

    proptest! {
        /// Any split of the log replays to the same map.
        #[test]
        fn any_split_replays_to_the_same(steps in steps(), cuts: Vec<prop::sample::Index>) {
            let mut log = Vec::new();
            let mut user = HashMap::new();
            let mut other = HashMap::new();
            for step in steps {
                let encoded = match step {
                    Step::Set(key, value) => {
                        let encoded = encode(USER, &key, &value, &mut log);
                        user.insert(key, value);
                        encoded
                    }
                    Step::Delete(key) => {
                        user.remove(&key);
                        encode(DELETED_USER, &key, b"", &mut log)
                    }
                    Step::Count(open, count) => {
                        let name = if open { REFCOUNT } else { CLEANUP };
                        other.insert(name.to_vec(), vec![count]);
                        encode(b"", name, &[count], &mut log)
                    }
                };
                prop_assert_eq!(encoded, Ok(()));
            }
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(log.len() + 1)).collect();
            ends.push(log.len());
            ends.sort_unstable();
            let mut entries = Entries::default();
            let mut start = 0;
            for end in ends {
                let replayed = entries.replay(&log[start..end]);
                start += replayed.bytes;
                prop_assert!(replayed.next_bytes_min > (end - start) as u64);
            }
            prop_assert_eq!(start, log.len());
            prop_assert_eq!(entries, Entries { user, other });
        }

        /// Arbitrary bytes replay without a panic.
        #[test]
        fn replay_accepts_any_bytes(bytes: Vec<u8>) {
            let mut entries = Entries::default();
            let replayed = entries.replay(&bytes);
            let rest = &bytes[replayed.bytes..];
            prop_assert!(replayed.next_bytes_min > rest.len() as u64);
            can_start_record(rest);
        }
    }
}
