//! Splits the output of a worker into lines, with bounded memory.

use std::borrow::Cow;

/// The longest line that is passed on whole; a longer one is passed on in pieces, each like a line.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;

/// Splits a stream of bytes into lines of text.
///
/// A line ends with `
/// `, `\r` or `\r
/// `, like in Python's text files, so that each state of a progress bar, which ends with `\r`, is a line.
/// Replaces bytes that are not UTF-8.
#[derive(Default)]
pub(crate) struct LineSplitter {
    /// The start of an unfinished line; shorter than a piece.
    pending: Vec<u8>,
    /// Whether the last line ended with `\r`, so that a following `\n` belongs to it.
    after_return: bool,
}

impl std::fmt::Debug for LineSplitter {
    /// Shows lengths instead of bytes, which can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineSplitter")
            .field("pending_bytes", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl LineSplitter {
    /// Calls `each` for every line that `bytes` complete, without its line end.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(&str)) {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let room = PIECE_BYTES_MAX - self.pending.len();
            match end {
                Some(end) if end <= room => {
                    self.after_return = bytes[end] == b'\r';
                    each(&self.completed(&bytes[..end]));
                    self.pending.clear();
                    bytes = &bytes[end + 1..];
                }
                _ => {
                    let taken = room.min(bytes.len());
                    self.pending.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if self.pending.len() == PIECE_BYTES_MAX {
                        self.pass_on_piece(&mut each);
                    }
                }
            }
        }
    }

    /// The last line, if it has no line end.
    pub(super) fn finish(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }

    fn completed<'a>(&'a mut self, rest: &'a [u8]) -> Cow<'a, str> {
        if self.pending.is_empty() {
            return String::from_utf8_lossy(rest);
        }
        self.pending.extend_from_slice(rest);
        String::from_utf8_lossy(&self.pending)
    }

    /// Passes a full piece on, without an incomplete character at its end.
    fn pass_on_piece(&mut self, each: &mut impl FnMut(&str)) {
        let kept = unfinished_character_bytes(&self.pending);
        let cut = self.pending.len() - kept;
        each(&String::from_utf8_lossy(&self.pending[..cut]));
        self.pending.drain(..cut);
    }
}

/// Returns how many bytes at the end are the start of an incomplete character: 0 to 3.
fn unfinished_character_bytes(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        // The first byte of a character determines its length; the other bytes are 10xxxxxx.
        let length = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => 1,
        };
        return if length > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]]) -> (Vec<String>, Option<String>) {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        for piece in pieces {
            splitter.push(piece, |line| lines.push(line.to_owned()));
            assert!(splitter.pending.len() < PIECE_BYTES_MAX);
        }
        (lines, splitter.finish())
    }

    #[test]
    fn any_split_of_the_bytes_gives_the_same_lines() {
        let text = "one\n\ntwo\r\nthree\rfour \u{20ac} f\u{fc}nf\r\r\nrest \u{1f600}".as_bytes();
        let expected = ["one", "", "two", "three", "four \u{20ac} f\u{fc}nf", ""];
        let whole = split(&[text]);
        assert_eq!(whole.0, expected);
        assert_eq!(whole.1.as_deref(), Some("rest \u{1f600}"));
        for cut in 0..=text.len() {
            assert_eq!(
                split(&[&text[..cut], &text[cut..]]),
                whole,
                "split at {cut}"
            );
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(split(&bytes), whole);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        let (lines, rest) = split(&[b"a\xff\xfeb\n", b"\xe2\x82"]);
        assert_eq!(lines, ["a\u{fffd}\u{fffd}b"]);
        assert_eq!(rest.as_deref(), Some("\u{fffd}"));
    }

    #[test]
    fn a_line_without_end_is_split_between_characters() {
        let text = "\u{20ac}".repeat(PIECE_BYTES_MAX);
        let chunks: Vec<&[u8]> = text.as_bytes().chunks(1000).collect();
        let (mut pieces, rest) = split(&chunks);
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
        assert!(pieces.len() >= 3);
        pieces.extend(rest);
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn a_line_of_exactly_a_piece_is_whole() {
        for length in [PIECE_BYTES_MAX - 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1] {
            let mut text = "x".repeat(length);
            text.push('\n');
            let (lines, rest) = split(&[text.as_bytes()]);
            assert_eq!(lines.concat().len(), length);
            assert_eq!(lines.len(), 1 + length / (PIECE_BYTES_MAX + 1));
            assert_eq!(rest, None);
        }
    }
}
