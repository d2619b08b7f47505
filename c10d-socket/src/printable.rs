//! Text of strangers (peers, workers, files that others write), made safe for terminals, logs and pages.
//!
//! A host name, a key or an error message of another process can hold escape sequences that rewrite a terminal, line
//! breaks that forge a line of a log, and bidirectional marks that reverse the visible text. All crates of the
//! workspace show such text through [`printable`]: a test of the workspace rejects other rules. It lives here because
//! this is the one crate that all of them depend on, and because the bytes of peers arrive through it. Programs get
//! such text in JSON, whose escapes keep it exact.

use std::fmt::{self, Write};

/// The mark at the place where the limit cuts a text off.
const CUT: char = '…';

/// Returns text that others wrote, in at most `chars_max` characters that a terminal shows one after the other.
///
/// - Characters that are not [printable](is_printable) become escapes, such as `\n` and `\u{1b}`; bytes that are not
///   UTF-8 become `\xNN`. All other text stays as it is. Backslashes are not doubled: the result is for people.
/// - A longer text is cut before an escape or a character that does not fit, and ends in `…`. [`usize::MAX`] is no limit.
/// - Printable text within the limit is unchanged, so that applying the function again changes nothing.
///
/// The work is bounded by the limit, not by the length of the text. Allocates nothing; `to_string` makes a string,
/// which formats may pad.
///
/// ```
/// use c10d_socket::printable;
///
/// assert_eq!(printable("node 7", 80).to_string(), "node 7");
/// assert_eq!(printable("\x1b[2Jgone\n", 80).to_string(), "\\u{1b}[2Jgone\\n");
/// assert_eq!(printable(b"\xff", 80).to_string(), "\\xff");
/// assert_eq!(printable("node1234", 5).to_string(), "node…");
/// ```
pub fn printable<T: AsRef<[u8]> + ?Sized>(text: &T, chars_max: usize) -> Printable<'_> {
    Printable {
        text: text.as_ref(),
        chars_max,
    }
}

/// Returns whether a character takes exactly one place on the screen and changes no other character: no control,
/// bidirectional mark, invisible, combining or unassigned character, and no separator other than the space.
#[must_use]
pub fn is_printable(char: char) -> bool {
    match char {
        ' '..='~' => true,
        // The fillers of Hangul: letters that show nothing.
        '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' => false,
        // The standard library knows Unicode's categories, and which characters extend the one before.
        _ => char.escape_debug().len() == 1,
    }
}

/// Text made safe by [`printable`]; `Display` shows it.
#[derive(Clone, Copy)]
pub struct Printable<'t> {
    text: &'t [u8],
    chars_max: usize,
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each piece has at most 4 bytes, so the last piece that is looked at is whole.
        let bytes_max = self.chars_max.saturating_add(2).saturating_mul(4);
        let text = &self.text[..self.text.len().min(bytes_max)];
        let mut pieces = pieces(text).peekable();
        let mut room = self.chars_max;
        while let Some(piece) = pieces.next() {
            let mark = usize::from(pieces.peek().is_some());
            let Some(left) = room.checked_sub(piece.width() + mark) else {
                return if room == 0 { Ok(()) } else { f.write_char(CUT) };
            };
            piece.write(f)?;
            room = left + mark;
        }
        Ok(())
    }
}

/// The text of `Display`.
impl fmt::Debug for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A piece of text that is shown whole or not at all.
#[derive(Clone, Copy)]
enum Piece {
    Char(char),
    Escaped(char),
    /// A byte that is not UTF-8.
    Byte(u8),
}

fn pieces(text: &[u8]) -> impl Iterator<Item = Piece> {
    text.utf8_chunks().flat_map(|chunk| {
        let chars = chunk.valid().chars().map(Piece::of);
        chars.chain(chunk.invalid().iter().map(|byte| Piece::Byte(*byte)))
    })
}

impl Piece {
    fn of(char: char) -> Self {
        if is_printable(char) {
            Self::Char(char)
        } else {
            Self::Escaped(char)
        }
    }

    /// Returns the width in characters.
    fn width(self) -> usize {
        match self {
            Self::Char(_) => 1,
            Self::Escaped(char) => char.escape_default().len(),
            Self::Byte(_) => 4,
        }
    }

    fn write(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Char(char) => f.write_char(char),
            Self::Escaped(char) => write!(f, "{}", char.escape_default()),
            Self::Byte(byte) => write!(f, "\\x{byte:02x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: impl AsRef<[u8]>) -> String {
        printable(&text, usize::MAX).to_string()
    }

    /// Whether a character is harmful, by its number, and not by the table that `is_printable` uses.
    fn is_harmful(char: char) -> bool {
        matches!(char,
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' // controls, of which one is the escape
            | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' // bidirectional
            | '\u{2028}' | '\u{2029}' // line and paragraph separators
            | '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}' // invisible
            | '\u{300}'..='\u{36f}' | '\u{20d0}'..='\u{20f0}' // combining
            | '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' // other spaces
            | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}' // for private use
        )
    }

    #[test]
    fn what_could_harm_a_terminal_is_escaped_and_the_rest_stays() {
        let table: [(&[u8], &str); 14] = [
            (b"", ""),
            (
                b"/default_pg/0//cpu//0/2 \\ \"x\" <b> 'y'",
                "/default_pg/0//cpu//0/2 \\ \"x\" <b> 'y'",
            ),
            (b"a\x1b[2Jb\x1b]0;t\x07", "a\\u{1b}[2Jb\\u{1b}]0;t\\u{7}"),
            (
                "\u{9b}31m\r\n\t\x7f\0".as_bytes(),
                "\\u{9b}31m\\r\\n\\t\\u{7f}\\u{0}",
            ),
            ("\u{202e}gnp".as_bytes(), "\\u{202e}gnp"),
            ("a\u{200b}b\u{feff}".as_bytes(), "a\\u{200b}b\\u{feff}"),
            ("a\u{2028}b\u{2029}".as_bytes(), "a\\u{2028}b\\u{2029}"),
            ("e\u{301}".as_bytes(), "e\\u{301}"),
            ("\u{3164}".as_bytes(), "\\u{3164}"),
            ("\u{e0041}".as_bytes(), "\\u{e0041}"),
            ("grün 日本 😀 привет".as_bytes(), "grün 日本 😀 привет"),
            (b"\xff\xc3", "\\xff\\xc3"),
            // A control in two bytes that no decoder accepts, and a cut character.
            (b"\xc0\x9b31m\xe2\x80", "\\xc0\\x9b31m\\xe2\\x80"),
            ("\u{fffd}".as_bytes(), "\u{fffd}"),
        ];
        for (text, expected) in table {
            assert_eq!(shown(text), expected);
        }
    }

    #[test]
    fn every_character_is_shown_or_escaped() {
        for char in '\0'..=char::MAX {
            let shown = shown(char.encode_utf8(&mut [0; 4]));
            if is_printable(char) {
                assert!(!is_harmful(char), "{:x}", u32::from(char));
                assert!(shown.chars().eq([char]));
            } else {
                assert!(shown.bytes().all(|byte| matches!(byte, b' '..=b'~')));
                assert!(shown.starts_with('\\'), "{shown}");
            }
        }
    }

    #[test]
    fn a_text_is_cut_before_what_does_not_fit() {
        let table: [(&[u8], usize, &str); 12] = [
            (b"abc", 3, "abc"),
            (b"abcd", 3, "ab…"),
            (b"abcd", 1, "…"),
            (b"abcd", 0, ""),
            (b"", 0, ""),
            (b"a", 0, ""),
            (b"\n", 2, "\\n"),
            (b"\n", 1, "…"),
            (b"\x1bc", 6, "…"),
            (b"a\x1b", 7, "a\\u{1b}"),
            (b"a\x1bb", 7, "a…"),
            (b"a\xff\xff", 6, "a\\xff…"),
        ];
        for (text, chars_max, expected) in table {
            let shown = printable(text, chars_max).to_string();
            assert_eq!(shown, expected, "{}", text.escape_ascii());
        }
    }

    /// A gigabyte would take seconds.
    #[test]
    fn the_work_is_bounded_by_the_limit() {
        let long = "日".repeat(1 << 20);
        for _ in 0..10_000 {
            assert_eq!(printable(&long, 3).to_string(), "日日…");
        }
    }

    /// Texts with many harmful characters, cut characters, and bytes that are not UTF-8.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let harmful = (any::<char>(), 0_u32..0x2100).prop_map(|(any, low)| {
            let char = char::from_u32(low).unwrap_or(any);
            char.to_string().into_bytes()
        });
        let piece = prop_oneof![
            harmful,
            "[ -~]{1,8}".prop_map(String::into_bytes),
            any::<char>().prop_map(|char| char.to_string().into_bytes()),
            any::<char>().prop_map(|char| {
                let mut bytes = char.to_string().into_bytes();
                bytes.pop();
                bytes
            }),
            proptest::collection::vec(any::<u8>(), 1..6),
            Just(b"\x1b]0;title\x07\x1b[31m".to_vec()),
            Just("\u{202e}\u{2066}\u{2028}\u{200b}".as_bytes().to_vec()),
        ];
        proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn no_control_escape_or_bidirectional_character_leaves_it(
            text in text(), chars_max in prop_oneof![0_usize..100, Just(usize::MAX)]
        ) {
            let shown = printable(&text, chars_max).to_string();
            prop_assert!(!shown.contains(is_harmful), "{shown:?}");
            prop_assert!(shown.chars().all(is_printable), "{shown:?}");
        }

        #[test]
        fn the_limit_holds_and_cuts_only_what_is_longer(text in text(), chars_max in 0_usize..200) {
            let whole = shown(&text);
            let cut = printable(&text, chars_max).to_string();
            prop_assert!(cut.chars().count() <= chars_max);
            prop_assert!(cut.len() <= chars_max.saturating_mul(4));
            if whole.chars().count() <= chars_max {
                prop_assert_eq!(cut, whole);
            } else if let Some(head) = cut.strip_suffix(CUT) {
                prop_assert!(whole.starts_with(head));
            } else {
                prop_assert_eq!((cut.as_str(), chars_max), ("", 0));
            }
        }

        /// A text that arrives in pieces is shown as the whole, unless a piece ends within a character. Even then nothing
        /// harmful comes out.
        #[test]
        fn any_split_is_as_safe_as_the_whole(text in text(), at in any::<prop::sample::Index>()) {
            let at = at.index(text.len() + 1);
            let (head, tail) = text.split_at(at);
            let joined = shown(head) + &shown(tail);
            prop_assert!(joined.chars().all(is_printable), "{joined:?}");
            if str::from_utf8(&text).is_ok_and(|text| text.is_char_boundary(at)) {
                prop_assert_eq!(joined, shown(&text));
            }
        }

        #[test]
        fn printable_text_and_what_is_shown_stay_unchanged(text in text(), chars_max in 0_usize..100) {
            let cut = printable(&text, chars_max).to_string();
            prop_assert_eq!(printable(&cut, chars_max).to_string(), cut.as_str());
            let safe: String = String::from_utf8_lossy(&text).chars().filter(|char| is_printable(*char)).collect();
            prop_assert_eq!(shown(&safe), safe.as_str());
        }
    }
}
