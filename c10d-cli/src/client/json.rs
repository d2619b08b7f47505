//! Values in JSON without loss.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// A key with its value: `value` for UTF-8, otherwise `base64` (RFC 4648, section 4, with padding).
pub(super) fn pair(key: &str, value: &[u8]) -> Value {
    match std::str::from_utf8(value) {
        Ok(text) => json!({ "key": key, "value": text }),
        Err(_) => json!({ "key": key, "base64": BASE64_STANDARD.encode(value) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf8_is_text_and_other_bytes_are_base64() {
        let table: [(&[u8], &str); 4] = [
            (b"", r#"{"key":"k","value":""}"#),
            ("é\n".as_bytes(), r#"{"key":"k","value":"é\n"}"#),
            (&[0xff], r#"{"base64":"/w==","key":"k"}"#),
            (&[0xff, 0xfe, 0xfb], r#"{"base64":"//77","key":"k"}"#),
        ];
        for (value, text) in table {
            assert_eq!(pair("k", value).to_string(), text);
        }
    }
}
