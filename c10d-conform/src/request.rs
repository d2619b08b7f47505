//! The format of requests, as this suite knows it: enough to find the keys in a case and to show a request to a reader.
//!
//! It is written from the protocol's description, and shares nothing with a server or a client that it judges.

use std::fmt;
use std::fmt::Write as _;
use std::ops::Range;

use byteorder::{ByteOrder, LE};
use c10d_socket::printable;

/// Longer keys and values are cut where a request is shown.
const SHOWN_CHARS_MAX: usize = 60;

/// The first byte of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    pub(crate) const SET: Self = Self(0x01);
    pub(crate) const COMPARE_SET: Self = Self(0x02);
    pub(crate) const GET: Self = Self(0x03);
    pub(crate) const ADD: Self = Self(0x04);
    pub(crate) const CHECK: Self = Self(0x05);
    pub(crate) const WAIT: Self = Self(0x06);
    pub(crate) const GETNUMKEYS: Self = Self(0x07);
    pub(crate) const DELETE_KEY: Self = Self(0x08);
    pub(crate) const APPEND: Self = Self(0x09);
    pub(crate) const MULTI_GET: Self = Self(0x0a);
    pub(crate) const MULTI_SET: Self = Self(0x0b);
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
    /// Where the complete keys are.
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

/// The requests as a reader writes them; what cannot be read, in hex.
impl fmt::Display for Requests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&printable(&self.text, 6 * SHOWN_CHARS_MAX).to_string())
    }
}

/// A complete request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) opcode: Opcode,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) values: Vec<Vec<u8>>,
    /// A delta, a world size, a magic number or a nonce.
    pub(crate) number: i64,
}

const KEY_BYTES_MAX: usize = 8192;
const VALUE_BYTES_MAX: usize = 8 << 20;
const KEYS_MAX: usize = 131_072;

/// The first request of a stream and its length; `None` while it is incomplete. The error is a sentence about it.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Request, usize)>, String> {
    let Some(first) = bytes.first() else {
        return Ok(None);
    };
    let opcode = Opcode(*first);
    let Some((name, parts)) = opcode.format() else {
        return Err(format!("sent the byte {first:#04x}, which is no command"));
    };
    let mut rest = Input {
        name,
        bytes,
        position: 1,
    };
    let mut request = Request {
        opcode,
        ..Request::default()
    };
    for part in parts {
        let read = match part {
            Part::Key => rest
                .blob("key", KEY_BYTES_MAX)?
                .map(|key| request.keys.push(key)),
            Part::Value => rest
                .blob("value", VALUE_BYTES_MAX)?
                .map(|value| request.values.push(value)),
            Part::Word => rest
                .take(4)
                .map(|word| request.number = LE::read_u32(word).into()),
            Part::Number => rest
                .take(8)
                .map(|number| request.number = LE::read_i64(number)),
            Part::Keys | Part::Pairs => rest.list(matches!(part, Part::Pairs), &mut request)?,
        };
        if read.is_none() {
            return Ok(None);
        }
    }
    Ok(Some((request, rest.position)))
}

struct Input<'b> {
    name: &'static str,
    bytes: &'b [u8],
    position: usize,
}

impl<'b> Input<'b> {
    fn list(&mut self, is_pairs: bool, request: &mut Request) -> Result<Option<()>, String> {
        let Some(count) = self.length("count of keys", KEYS_MAX)? else {
            return Ok(None);
        };
        for _ in 0..count {
            let Some(key) = self.blob("key", KEY_BYTES_MAX)? else {
                return Ok(None);
            };
            request.keys.push(key);
            if is_pairs {
                let Some(value) = self.blob("value", VALUE_BYTES_MAX)? else {
                    return Ok(None);
                };
                request.values.push(value);
            }
        }
        Ok(Some(()))
    }

    fn blob(&mut self, what: &str, length_max: usize) -> Result<Option<Vec<u8>>, String> {
        let length = self.length(&format!("length of a {what}"), length_max)?;
        Ok(length
            .and_then(|length| self.take(length))
            .map(<[u8]>::to_vec))
    }

    fn length(&mut self, what: &str, max: usize) -> Result<Option<usize>, String> {
        let Some(bytes) = self.take(8) else {
            return Ok(None);
        };
        let length = LE::read_u64(bytes);
        match usize::try_from(length) {
            Ok(length) if length <= max => Ok(Some(length)),
            _ => {
                let hint = match length.swap_bytes() <= max as u64 {
                    true => ": integers are little endian",
                    false => ", if it is one: lengths and counts have 8 bytes",
                };
                let name = self.name;
                Err(format!(
                    "sent a {name} with {length} as the {what}, at most {max}{hint}"
                ))
            }
        }
    }

    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let taken = self.bytes.get(self.position..)?.get(..length)?;
        self.position += length;
        Some(taken)
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

pub(crate) fn number_word(number: i64) -> [u8; 8] {
    let mut bytes = [0; 8];
    LE::write_i64(&mut bytes, number);
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
