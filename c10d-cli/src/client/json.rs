//! Values in JSON without loss, whatever their bytes.

use serde_json::{Value, json};

/// An array with an object for each key: its value as text under `value` if it is UTF-8, and in
/// base 64 under `base64` otherwise.
pub(super) fn pairs(keys: &[String], values: &[Vec<u8>]) -> Value {
    keys.iter()
        .zip(values)
        .map(|(key, value)| match std::str::from_utf8(value) {
            Ok(text) => json!({ "key": key, "value": text }),
            Err(_) => json!({ "key": key, "base64": base64(value) }),
        })
        .collect()
}

/// RFC 4648, section 4: the common alphabet, with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| group.get(index).map_or(0, |&byte| u32::from(byte));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() {
                char::from(ALPHABET[value as usize])
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_the_rfc() {
        // RFC 4648, section 10.
        let table = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in table {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
        assert_eq!(base64(&[0, 0x10, 0x83]), "ABCD");
    }

    #[test]
    fn text_stays_text() {
        let keys = ["a".to_owned(), "b".to_owned()];
        let values = ["é\n".as_bytes().to_vec(), vec![0xff]];
        assert_eq!(
            pairs(&keys, &values).to_string(),
            r#"[{"key":"a","value":"é\n"},{"base64":"/w==","key":"b"}]"#
        );
    }
}
