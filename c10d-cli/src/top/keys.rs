//! The bytes that a terminal sends, as keys. Any split of the bytes gives the same keys.

use ratatui::crossterm::event::KeyCode;

/// Ctrl-C.
pub(super) const INTERRUPT: KeyCode = KeyCode::Char('\x03');

const ESCAPE: u8 = 0x1b;

/// Longer sequences belong to no key.
const SEQUENCE_MAX: usize = 32;

/// Decodes what is typed.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The start of a sequence.
    pending: Vec<u8>,
}

/// A key, or nothing for a sequence that is none of those, and the number of its bytes; `None` while more bytes must
/// follow.
type Decoded = Option<(Option<KeyCode>, usize)>;

impl Keys {
    /// The keys that the bytes complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<KeyCode> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Some((key, length)) = decode(&self.pending) {
            keys.extend(key);
            self.pending.drain(..length);
        }
        if self.pending.len() > SEQUENCE_MAX {
            self.pending.clear();
        }
        keys
    }

    /// To be called when nothing has arrived for a while: a lone escape is the key of that name, and other
    /// incomplete sequences are dropped.
    pub(super) fn idle(&mut self) -> Option<KeyCode> {
        let pending = std::mem::take(&mut self.pending);
        (pending == [ESCAPE]).then_some(KeyCode::Esc)
    }
}

fn decode(bytes: &[u8]) -> Decoded {
    match *bytes {
        [] | [ESCAPE] => None,
        [ESCAPE, b'[' | b'O', ref rest @ ..] => control_sequence(rest),
        // The key of that name, typed before another one.
        [ESCAPE, ..] => Some((Some(KeyCode::Esc), 1)),
        [0x03, ..] => Some((Some(INTERRUPT), 1)),
        [b'\r' | b'\n', ..] => Some((Some(KeyCode::Enter), 1)),
        [b'\t', ..] => Some((Some(KeyCode::Tab), 1)),
        [0x08 | 0x7f, ..] => Some((Some(KeyCode::Backspace), 1)),
        [byte @ b' '..=b'~', ..] => Some((Some(KeyCode::Char(char::from(byte))), 1)),
        [0..0x80, ..] => Some((None, 1)),
        _ => character(bytes),
    }
}

/// ECMA-48, section 5.4: parameters, then one byte that ends the sequence. `bytes` follow the introducer.
fn control_sequence(bytes: &[u8]) -> Decoded {
    const INTRODUCER: usize = 2;
    let is_last = |byte: &u8| !(0x20..0x40).contains(byte);
    let end = bytes.iter().position(is_last)?;
    let key = match (&bytes[..end], bytes[end]) {
        (b"1" | b"7", b'~') => Some(KeyCode::Home),
        (b"4" | b"8", b'~') => Some(KeyCode::End),
        (b"5", b'~') => Some(KeyCode::PageUp),
        (b"6", b'~') => Some(KeyCode::PageDown),
        (b"", b'A') => Some(KeyCode::Up),
        (b"", b'B') => Some(KeyCode::Down),
        (b"", b'C') => Some(KeyCode::Right),
        (b"", b'D') => Some(KeyCode::Left),
        (b"", b'H') => Some(KeyCode::Home),
        (b"", b'F') => Some(KeyCode::End),
        _ => None,
    };
    Some((key, INTRODUCER + end + 1))
}

/// A character of several bytes.
fn character(bytes: &[u8]) -> Decoded {
    let chunk = bytes.utf8_chunks().next()?;
    if let Some(char) = chunk.valid().chars().next() {
        let key = Some(KeyCode::Char(char)).filter(|_| !char.is_control());
        return Some((key, char.len_utf8()));
    }
    match std::str::from_utf8(chunk.invalid()) {
        // The start of a character, at the end of what has arrived.
        Err(error) if error.error_len().is_none() && chunk.invalid().len() == bytes.len() => None,
        _ => Some((None, chunk.invalid().len().max(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPED: &[u8] = b"q\r\n\t\x7f\x08\x03\x1b[A\x1b[B\x1bOC\x1b[D\x1b[5~\x1b[6~\x1b[H\x1b[4~\
        \x1b[1;5C\x1b[200~\x01\x00\xc3\xbc\xff\xc3q\x1b\x1b[Fz\x1bx";

    fn expected() -> Vec<KeyCode> {
        use KeyCode::{
            Backspace, Char, Down, End, Enter, Esc, Home, Left, PageDown, PageUp, Right, Tab, Up,
        };
        vec![
            Char('q'),
            Enter,
            Enter,
            Tab,
            Backspace,
            Backspace,
            INTERRUPT,
            Up,
            Down,
            Right,
            Left,
            PageUp,
            PageDown,
            Home,
            End,
            Char('ü'),
            Char('q'),
            Esc,
            End,
            Char('z'),
            Esc,
            Char('x'),
        ]
    }

    #[test]
    fn every_split_of_the_bytes_gives_the_same_keys() {
        assert_eq!(Keys::default().take(TYPED), expected());
        for split in 0..TYPED.len() {
            let mut keys = Keys::default();
            let mut decoded = keys.take(&TYPED[..split]);
            decoded.extend(keys.take(&TYPED[split..]));
            assert_eq!(decoded, expected(), "split at {split}");
        }
        let mut keys = Keys::default();
        let decoded = TYPED.iter().flat_map(|byte| keys.take(&[*byte]));
        assert_eq!(decoded.collect::<Vec<_>>(), expected());
    }

    #[test]
    fn a_lone_escape_is_a_key_when_nothing_follows() {
        let mut keys = Keys::default();
        assert_eq!(keys.take(b"\x1b"), []);
        assert_eq!(keys.idle(), Some(KeyCode::Esc));
        assert_eq!(keys.idle(), None);
        assert_eq!(keys.take(b"\x1b[1"), []);
        assert_eq!(keys.idle(), None);
        assert_eq!(keys.take(b"~"), [KeyCode::Char('~')]);
    }

    #[test]
    fn any_bytes_are_decoded_in_bounded_memory() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut keys = Keys::default();
        for _ in 0..2_000 {
            let byte = |random: &mut fastrand::Rng| match random.u8(..4) {
                0 => random.u8(..),
                _ => b"\x1b[1;~\xc3\xf0O"[random.usize(..8)],
            };
            let bytes: Vec<u8> = (0..random.usize(..40)).map(|_| byte(&mut random)).collect();
            keys.take(&bytes);
            assert!(keys.pending.len() <= SEQUENCE_MAX, "seed {seed}");
        }
    }
}
