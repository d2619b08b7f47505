//! Gives the keys of a script a prefix of the run, so that runs and cases do not meet in the store.

use crate::request::{Requests, length_word};
use crate::script::{Act, Script, streams};

/// Longer keys are overwritten instead of growing, because their case is about the limit.
const GROWN_BYTES_MAX: usize = 4096;

/// Whether the keys of a script can have a prefix: they have the `/` of a client's key, after which it goes.
pub(crate) fn is_movable(keys: &[Vec<u8>]) -> bool {
    keys.iter().all(|key| key.starts_with(b"/"))
}

/// Changes the keys. A key that is sent in part stays as it is.
pub(crate) fn move_keys(script: &mut Script, prefix: &str) {
    let edits: Vec<(String, Edits)> = streams(script)
        .into_iter()
        .map(|(name, stream)| (name.to_owned(), Edits::of(&stream, prefix)))
        .collect();
    for (name, edits) in edits {
        let mut position = 0;
        for step in script.iter_mut().filter(|it| it.connection == name) {
            let Act::Send(send) = &mut step.act else {
                continue;
            };
            let end = position + send.bytes.len();
            let start = edits.moved(position);
            for cut in &mut send.cuts {
                *cut = edits.moved(position + *cut) - start;
            }
            send.bytes = edits.stream[start..edits.moved(end)].to_vec();
            position = end;
        }
    }
}

/// A stream with other keys, and where its bytes have gone.
struct Edits {
    stream: Vec<u8>,
    /// Ascending positions in the old stream before which bytes were inserted.
    insertions: Vec<usize>,
    inserted: usize,
}

impl Edits {
    fn of(old: &[u8], prefix: &str) -> Self {
        let prefix = prefix.as_bytes();
        let mut edits = Self {
            stream: Vec::with_capacity(old.len()),
            insertions: Vec::new(),
            inserted: prefix.len(),
        };
        let mut copied = 0;
        for key in Requests::of(old).keys {
            let after_slash = key.start + 1;
            if key.len() > GROWN_BYTES_MAX {
                edits.stream.extend(&old[copied..after_slash]);
                edits.stream.extend(prefix);
                copied = after_slash + prefix.len();
                continue;
            }
            edits.stream.extend(&old[copied..key.start - 8]);
            edits.stream.extend(length_word(key.len() + prefix.len()));
            edits.stream.extend(&old[key.start..after_slash]);
            edits.stream.extend(prefix);
            edits.insertions.push(after_slash);
            copied = after_slash;
        }
        edits.stream.extend(&old[copied..]);
        edits
    }

    /// The present position of a byte. The prefix belongs to the byte after it.
    fn moved(&self, position: usize) -> usize {
        let before = self.insertions.partition_point(|at| *at < position);
        position + before * self.inserted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestBytes;
    use crate::script::{Send, Step};

    fn get(key: &[u8]) -> Vec<u8> {
        RequestBytes(vec![3]).blob(key).0
    }

    fn moved(sends: &[Send]) -> Vec<Send> {
        let step = |send: &Send| Step {
            connection: "A".to_owned(),
            act: Act::Send(send.clone()),
        };
        let mut script: Script = sends.iter().map(step).collect();
        move_keys(&mut script, "run/");
        let sends = script.into_iter().filter_map(|step| match step.act {
            Act::Send(send) => Some(send),
            _ => None,
        });
        sends.collect()
    }

    #[test]
    fn keys_grow_and_cuts_stay_at_their_bytes() {
        let stream = [get(b"/a"), get(b"/bc")].concat();
        let whole = [get(b"/run/a"), get(b"/run/bc")].concat();
        for cut in 1..stream.len() {
            let send = Send {
                cuts: vec![cut],
                ..Send::whole(stream.clone())
            };
            let after = moved(&[send]);
            assert_eq!(after[0].bytes, whole);
            let next = whole.get(after[0].cuts[0]);
            // The byte before a key's first one after the slash may be of the prefix.
            let is_same = next == Some(&stream[cut]) || next == Some(&b'r');
            let is_length = stream[cut] == 2 || stream[cut] == 3;
            assert!(is_same || is_length, "{cut}: {next:?}");

            let halves = [&stream[..cut], &stream[cut..]].map(|half| Send::whole(half.to_vec()));
            let sent: Vec<u8> = moved(&halves).into_iter().flat_map(|it| it.bytes).collect();
            assert_eq!(sent, whole, "{cut}");
        }
    }

    #[test]
    fn long_keys_keep_their_length_and_cut_off_ones_stay() {
        let long = get(&[&b"/"[..], &[b'x'; 8191]].concat());
        let [after] = &moved(&[Send::whole(long.clone())])[..] else {
            panic!("one send")
        };
        assert_eq!(after.bytes.len(), long.len());
        assert_eq!(&after.bytes[9..15], b"/run/x");
        let half = &long[..100];
        assert_eq!(moved(&[Send::whole(half.to_vec())])[0].bytes, half);
    }
}
