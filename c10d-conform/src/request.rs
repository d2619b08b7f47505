//! The format of requests, as far as this suite needs it: enough to find the keys in a case and to show a request to
//! a reader.
//!
//! It is written from the protocol's description, and shares nothing with the tested servers.

use std::fmt;
use std::fmt::Write as _;
use std::ops::Range;

use byteorder::{ByteOrder, LE};
use c10d_socket::printable;

/// Longer keys and values are cut where a request is shown.
const SHOWN_CHARS_MAX: usize = 60;

/// The first byte of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opcode(pub(crate) u8);

#[derive(Debug, Clone, Copy)]
enum Part {
    Key,
    Value,
    Word,
    Number,
    Keys,
    Pairs,
}

impl Opcode {
    pub(crate) const VALIDATE: Self = Self(0x00);
    pub(crate) const COMPARE_SET: Self = Self(0x02);
    pub(crate) const GETNUMKEYS: Self = Self(0x07);
    pub(crate) const DELETE_KEY: Self = Self(0x08);
    pub(crate) const CANCEL_WAIT: Self = Self(0x0c);
    pub(crate) const PING: Self = Self(0x0d);
    pub(crate) const QUEUE_PUSH: Self = Self(0x0e);
    pub(crate) const QUEUE_POP: Self = Self(0x0f);
    pub(crate) const QUEUE_LEN: Self = Self(0x10);
    pub(crate) const LIST_KEYS: Self = Self(0x11);
    pub(crate) const BARRIER: Self = Self(0x12);

    /// The protocol's name of it; `None` if PyTorch has not assigned the byte.
    pub(crate) fn name(self) -> Option<&'static str> {
        Some(self.format()?.0)
    }

    fn format(self) -> Option<(&'static str, &'static [Part])> {
        use Part::{Key, Keys, Number, Pairs, Value, Word};
        Some(match self.0 {
            0x00 => ("VALIDATE", &[Word]),
            0x01 => ("SET", &[Key, Value]),
            0x02 => ("COMPARE_SET", &[Key, Value, Value]),
            0x03 => ("GET", &[Key]),
            0x04 => ("ADD", &[Key, Number]),
            0x05 => ("CHECK", &[Keys]),
            0x06 => ("WAIT", &[Keys]),
            0x07 => ("GETNUMKEYS", &[]),
            0x08 => ("DELETE_KEY", &[Key]),
            0x09 => ("APPEND", &[Key, Value]),
            0x0a => ("MULTI_GET", &[Keys]),
            0x0b => ("MULTI_SET", &[Pairs]),
            0x0c => ("CANCEL_WAIT", &[]),
            0x0d => ("PING", &[Word]),
            0x0e => ("QUEUE_PUSH", &[Key, Value]),
            0x0f => ("QUEUE_POP", &[Key]),
            0x10 => ("QUEUE_LEN", &[Key]),
            0x11 => ("LIST_KEYS", &[]),
            0x12 => ("BARRIER", &[Key, Number]),
            _ => return None,
        })
    }
}

/// The requests in a stream, as far as it can be read.
#[derive(Debug, Default)]
pub(crate) struct Requests<'b> {
    bytes: &'b [u8],
    position: usize,
    /// The ranges of the complete keys.
    pub(crate) keys: Vec<Range<usize>>,
    pub(crate) opcodes: Vec<Opcode>,
    text: String,
}

/// The stream ends in the middle of a request, or it is malformed from here on.
struct Rest;

impl<'b> Requests<'b> {
    pub(crate) fn of(bytes: &'b [u8]) -> Self {
        let mut requests = Self {
            bytes,
            ..Self::default()
        };
        while requests.position < bytes.len() {
            let start = requests.position;
            let shown = requests.text.len();
            if requests.request().is_err() {
                requests.text.truncate(shown);
                requests.separate();
                let rest = Hex(&bytes[start..]);
                let _ = write!(requests.text, "{rest}");
                break;
            }
        }
        requests
    }

    fn request(&mut self) -> Result<(), Rest> {
        let opcode = Opcode(self.take(1)?[0]);
        let (name, parts) = opcode.format().ok_or(Rest)?;
        self.opcodes.push(opcode);
        self.separate();
        self.text += name;
        for part in parts {
            self.part(*part)?;
        }
        Ok(())
    }

    fn part(&mut self, part: Part) -> Result<(), Rest> {
        match part {
            Part::Key => return self.key(),
            Part::Value => return self.blob().map(drop),
            Part::Word => {
                let word = LE::read_u32(self.take(4)?);
                let _ = write!(self.text, " {word:#x}");
            }
            Part::Number => {
                let number = LE::read_i64(self.take(8)?);
                let _ = write!(self.text, " {number}");
            }
            Part::Keys | Part::Pairs => {
                let count = LE::read_u64(self.take(8)?);
                for _ in 0..count {
                    self.key()?;
                    if matches!(part, Part::Pairs) {
                        self.blob()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn key(&mut self) -> Result<(), Rest> {
        let key = self.blob()?;
        self.keys.push(key);
        Ok(())
    }

    fn blob(&mut self) -> Result<Range<usize>, Rest> {
        let length = usize::try_from(LE::read_u64(self.take(8)?)).map_err(|_| Rest)?;
        let start = self.position;
        let bytes = self.take(length)?;
        if self.text.len() < 4 * SHOWN_CHARS_MAX {
            let shown = printable(without_prefix(bytes), SHOWN_CHARS_MAX);
            let _ = match bytes {
                [] => write!(self.text, " \"\""),
                _ => write!(self.text, " {shown}"),
            };
        }
        Ok(start..self.position)
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], Rest> {
        let end = self.position.checked_add(length).ok_or(Rest)?;
        let taken = self.bytes.get(self.position..end).ok_or(Rest)?;
        self.position = end;
        Ok(taken)
    }

    fn separate(&mut self) {
        if !self.text.is_empty() {
            self.text += ", ";
        }
    }
}

/// The requests in a readable notation; unreadable bytes are shown in hex.
impl fmt::Display for Requests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&printable(&self.text, 6 * SHOWN_CHARS_MAX).to_string())
    }
}

/// A key as the case has it: `rewrite` puts the prefix of the run between the first two slashes of it.
fn without_prefix(key: &[u8]) -> &[u8] {
    let slashes = key.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    match slashes.map(|(at, _)| at).nth(2) {
        Some(at) if key.starts_with(b"/conform-") => &key[at..],
        _ => key,
    }
}

/// Bytes in hex, the first 32.
#[derive(Debug)]
pub(crate) struct Hex<'b>(pub(crate) &'b [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().take(32).enumerate() {
            let blank = if index == 0 { "" } else { " " };
            write!(f, "{blank}{byte:02x}")?;
        }
        match self.0.len() {
            0 => f.write_str("nothing"),
            1..=32 => Ok(()),
            length => write!(f, " .. ({length} bytes)"),
        }
    }
}

/// A request in the making.
#[derive(Debug, Default)]
pub(crate) struct RequestBytes(pub(crate) Vec<u8>);

impl RequestBytes {
    pub(crate) fn new(opcode: Opcode) -> Self {
        Self(vec![opcode.0])
    }

    pub(crate) fn word(mut self, word: u32) -> Self {
        let mut bytes = [0; 4];
        LE::write_u32(&mut bytes, word);
        self.0.extend(bytes);
        self
    }

    pub(crate) fn blob(mut self, blob: &[u8]) -> Self {
        self.0.extend(length_word(blob.len()));
        self.0.extend(blob);
        self
    }
}

pub(crate) fn length_word(length: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    LE::write_u64(&mut bytes, length as u64);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_shown_as_words_and_the_rest_in_hex() {
        let set = RequestBytes(vec![1]).blob(b"/k").blob(b"").0;
        let ping = RequestBytes::new(Opcode::PING).word(7).0;
        let half = RequestBytes(vec![1]).blob(b"/k").0;
        let stream = [set, ping, half, vec![5]].concat();
        let requests = Requests::of(&stream);
        assert_eq!(
            requests.to_string(),
            "SET /k \"\", PING 0x7, 01 02 00 00 00 00 00 00 00 2f 6b 05"
        );
        assert_eq!(requests.keys.len(), 2);
        assert_eq!(&stream[requests.keys[1].clone()], b"/k");
    }

    #[test]
    fn hostile_lengths_and_counts_end_the_stream() {
        for bytes in [
            &[1, 255, 255, 255, 255, 255, 255, 255, 255][..],
            &[5, 255, 255, 255, 255, 255, 255, 255, 255],
            &[0x13],
            &[4],
        ] {
            let requests = Requests::of(bytes);
            assert!(requests.keys.is_empty(), "{requests}");
            assert_eq!(requests.to_string(), Hex(bytes).to_string());
        }
    }
}
