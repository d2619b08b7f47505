//! A key as a line of JSON, without loss.

use std::collections::VecDeque;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use c10d_store::unstable::Entry;
use serde::{Deserialize, Serialize};

/// A key with its value and its queue.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    queue: Vec<Element>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Element {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl Line {
    pub(super) fn new(key: &[u8], entry: &Entry) -> Self {
        let (key, key_base64) = encode(key);
        let (value, base64) = entry.value.as_deref().map(encode).unwrap_or_default();
        let element = |element: &Vec<u8>| {
            let (value, base64) = encode(element);
            Element { value, base64 }
        };
        Self {
            key,
            key_base64,
            value,
            base64,
            queue: entry.queue.iter().map(element).collect(),
        }
    }

    /// The key, and its value and queue.
    ///
    /// # Errors
    /// The problem of the line, as a text.
    pub(super) fn decode(self) -> Result<(Vec<u8>, Entry), String> {
        let key = decode("key", self.key, "key_base64", self.key_base64)?;
        let key = key.ok_or("neither key nor key_base64")?;
        let value = decode("value", self.value, "base64", self.base64)?;
        let queue = self.queue.into_iter().map(|element| {
            let element = decode("value", element.value, "base64", element.base64)?;
            element.ok_or_else(|| "an element with neither value nor base64".to_owned())
        });
        let queue = queue.collect::<Result<VecDeque<_>, _>>()?;
        if value.is_none() && queue.is_empty() {
            return Err("neither a value nor a queue".to_owned());
        }
        Ok((key, Entry { value, queue }))
    }
}

fn encode(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}

fn decode(
    text_name: &str,
    text: Option<String>,
    base64_name: &str,
    base64: Option<String>,
) -> Result<Option<Vec<u8>>, String> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(format!("both {text_name} and {base64_name}")),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(base64)) => match BASE64_STANDARD.decode(base64) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(format!("{base64_name} is not base64: {error}")),
        },
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_have_fields_of_their_own() {
        let entry = |value: Option<&[u8]>, queue: &[&[u8]]| Entry {
            value: value.map(<[u8]>::to_vec),
            queue: queue.iter().map(|element| element.to_vec()).collect(),
        };
        let table = [
            (
                &b"k"[..],
                entry(Some(b""), &[]),
                r#"{"key":"k","value":""}"#,
            ),
            (
                b"\xff",
                entry(Some(b"\xff"), &[]),
                r#"{"key_base64":"/w==","base64":"/w=="}"#,
            ),
            (
                b"q",
                entry(None, &[b"a", b"\xfe"]),
                r#"{"key":"q","queue":[{"value":"a"},{"base64":"/g=="}]}"#,
            ),
        ];
        for (key, entry, text) in table {
            let line = Line::new(key, &entry);
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
            let line: Line = serde_json::from_str(text).unwrap();
            assert_eq!(line.decode().unwrap(), (key.to_vec(), entry));
        }
    }

    #[test]
    fn lines_that_are_not_clear_are_refused() {
        for (text, expected) in [
            (r#"{"value":"v"}"#, "neither key nor key_base64"),
            (r#"{"key":"k"}"#, "neither a value nor a queue"),
            (
                r#"{"key":"k","value":"v","base64":"/w=="}"#,
                "both value and base64",
            ),
            (r#"{"key":"k","base64":"/"}"#, "base64 is not base64"),
            (r#"{"key":"k","queue":[{}]}"#, "an element with neither"),
        ] {
            let error = serde_json::from_str::<Line>(text)
                .unwrap()
                .decode()
                .unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Line>(r#"{"key":"k","valeu":"v"}"#).is_err());
    }
}
