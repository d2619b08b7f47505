//! Keys as text. On the wire and in files a key is bytes; in Rust it is a `str`, because nearly all keys are text.
//!
//! Bytes that are not UTF-8 are represented as Python's `surrogateescape` does it (PEP 383), with characters that a
//! `str` can hold: byte `b` is the character U+10FF00 + `b`, of a private use area. So each key of another program
//! has a unique text, which can be converted back to its bytes.

use std::borrow::Cow;

/// Byte 0 as a character. Only bytes from 0x80 on are ever represented.
const FIRST: u32 = 0x10_FF00;

/// The first byte in UTF-8 of all characters that represent bytes. It is rare in keys.
const LEAD: u8 = 0xF4;

/// Returns the text of a key of any bytes, for the methods of a [`Store`](crate::Store).
///
/// The text of UTF-8 is itself. Every other byte becomes the character U+10FF00 + byte, and so do the bytes of the
/// characters U+10FF80 to U+10FFFF, so that two keys never have the same text.
///
/// ```
/// use c10d_store::{HashStore, Store, StoreExt, key_from_bytes, key_to_bytes};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let store = HashStore::new();
/// store.set(&key_from_bytes(b"agent\xff\x00"), "metadata")?;
/// let keys = store.list_keys()?;
/// assert_eq!(*key_to_bytes(&keys[0]), *b"agent\xff\x00");
/// # Ok(())
/// # }
/// ```
pub fn key_from_bytes(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !may_represent_bytes(text) => return Cow::Borrowed(text),
        _ => {}
    }
    let mut key = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if byte_of(char).is_some() {
                represent(char.encode_utf8(&mut [0; 4]).as_bytes(), &mut key);
            } else {
                key.push(char);
            }
        }
        represent(chunk.invalid(), &mut key);
    }
    Cow::Owned(key)
}

/// Returns the bytes of a key on the wire: the reverse of [`key_from_bytes`].
pub fn key_to_bytes(key: &str) -> Cow<'_, [u8]> {
    if !may_represent_bytes(key) {
        return Cow::Borrowed(key.as_bytes());
    }
    let mut bytes = Vec::with_capacity(key.len());
    for char in key.chars() {
        match byte_of(char) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

fn may_represent_bytes(text: &str) -> bool {
    text.as_bytes().contains(&LEAD)
}

/// The byte that a character represents.
fn byte_of(char: char) -> Option<u8> {
    let byte = u8::try_from(u32::from(char).checked_sub(FIRST)?).ok()?;
    (byte >= 0x80).then_some(byte)
}

fn represent(bytes: &[u8], key: &mut String) {
    let chars = bytes.iter().map(|byte| FIRST + u32::from(*byte));
    key.extend(chars.filter_map(char::from_u32));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_its_own_key() {
        for text in ["", "store/key", "grün \u{0}", "\u{1F600}", "\u{100000}"] {
            assert_eq!(key_from_bytes(text.as_bytes()), text);
            assert_eq!(*key_to_bytes(text), *text.as_bytes());
        }
        assert!(matches!(key_from_bytes(b"key"), Cow::Borrowed(_)));
        assert!(matches!(key_to_bytes("key"), Cow::Borrowed(_)));
    }

    #[test]
    fn other_bytes_become_characters_of_a_private_use_area() {
        assert_eq!(key_from_bytes(b"a\xffb\x80"), "a\u{10FFFF}b\u{10FF80}");
        // Half of a character.
        assert_eq!(key_from_bytes(b"\xc3"), "\u{10FFC3}");
        // Characters that look like a represented byte are represented themselves.
        let lookalike = "\u{10FFFF}".as_bytes();
        assert_eq!(
            key_from_bytes(lookalike),
            "\u{10FFF4}\u{10FF8F}\u{10FFBF}\u{10FFBF}"
        );
    }

    proptest! {
        #[test]
        fn keys_lead_back_to_their_bytes(
            bytes in prop_oneof![
                any::<Vec<u8>>(),
                proptest::collection::vec(
                    prop_oneof![Just(0xf4), Just(0x8f), Just(0xbf), Just(0xbe), Just(b'/'), Just(0xc3)],
                    0..12
                ),
            ]
        ) {
            let key = key_from_bytes(&bytes);
            prop_assert_eq!(&*key_to_bytes(&key), &bytes[..]);
        }
    }
}
